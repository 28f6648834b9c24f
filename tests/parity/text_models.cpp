#include "tests/parity/text_models.h"

#include "kernels/ops/transfer.h"
#include "tests/support/parity.h"

namespace trireme::test {

const std::vector<std::string> kTextModels = {"llama", "grouped", "qk_norm", "linear", "llama3", "gpt2", "window", "gemma3"};

Config text_config(const std::string& name, int tensor, const std::string& precision) {
  ParityLayout layout;
  layout.tensor = tensor;
  const ParityModel model = name == "llama"    ? ParityModel::kLlama
                            : name == "gpt2"   ? ParityModel::kGpt2
                            : name == "gemma3" ? ParityModel::kGemma3
                                               : ParityModel::kLlamaGrouped;
  Config config = parity_config(model, layout, precision);
  if (name == "gemma3") config.model.window_rope_theta = 100;
  if (name == "window" || name == "gemma3") {
    config.model.window = 5;
    config.model.window_layers = {0, 2, 3};
  }
  if (name == "qk_norm") config.model.head_size = 6;
  config.model.qk_norm = name == "qk_norm" || name == "gemma3";
  if (name == "linear" || name == "llama3") {
    config.model.head_size = 8;  // four frequencies, in all ranges of llama3's scaling
    config.model.rope_theta = 20;
    config.model.rope_scaling = {.type = OneOf<RopeScaling>(name), .factor = 4, .original_max_positions = 20};
  }
  config.training.global_batch_size = 1;
  return config;
}

void draw_weights(Trainer& trainer) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const bool gain = owned.spec->name.ends_with("norm.weight");
    const uint64_t key = random_key(11, owned.spec->name);
    const Tensor host = host_tensor(owned.weight.shape(), owned.weight.dtype());
    const Box& box = owned.box;
    dispatch_float(host.dtype(), [&]<class T>(T) {
      for (int64_t i = 0; i < box.numel(); ++i) {
        const int64_t row = box.start[0] + i / box.extent[1], column = box.start[1] + i % box.extent[1];
        const double value = 0.3 * random_normal(key, static_cast<uint64_t>(row * owned.spec->shape[1] + column));
        host.data<T>()[i] = static_cast<T>(gain ? 1 + value : value);
      }
    });
    from_host(trainer.context(), host, owned.weight);
  }
  trainer.weights_changed();
}

std::vector<int32_t> text_tokens(int64_t text, int64_t count) {
  const uint64_t key = random_key(static_cast<uint64_t>(text), "text");
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<int32_t>(random_bits(key, static_cast<uint64_t>(t)) % 61));
  return tokens;
}

}  // namespace trireme::test
