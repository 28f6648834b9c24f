// Training on GPUs on sequences of several documents: the launches of a step do not depend on the documents, so that a step can also be a graph.
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/training.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

/// A small model whose attention runs on tensor cores (head size 32) or not, with sequences of 140 tokens.
Config config_of(ParityModel model, int64_t head_size, int64_t layers) {
  Config config = parity_config(model, {}, "bf16");
  config.model.layers = layers;
  config.parallel.layers_per_stage = {layers};
  config.model.hidden_size = 16;
  config.model.heads = 2;
  config.model.kv_heads = 1;
  config.model.head_size = head_size;
  if (config.model.architecture == Architecture::kGpt2) config.model.kv_heads = 2;
  config.model.max_positions = 140;
  config.training.sequence_length = 140;
  config.training.global_batch_size = 2;
  config.training.micro_batch_size = 2;
  config.data.document_mask = true;
  return config;
}

/// A configuration with two documents in each sequence.
Config small_config(ParityModel model, ParityLayout layout, const std::string& precision) {
  layout.layers = 3;
  Config config = parity_config(model, layout, precision);
  config.training.global_batch_size = 4;
  config.data.document_mask = true;
  return config;
}

/// Sequences of `documents` documents of unequal lengths.
class Documents final : public Dataset {
 public:
  Documents(int64_t length, int64_t documents) : length_(length), documents_(documents) {}
  int64_t sequences() const override { return 8; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    for (int64_t t = 0; t < length_; ++t) {
      tokens[t] = static_cast<int32_t>((7 * t + sample) % 61);
      targets[t] = static_cast<int32_t>((7 * t + 7 + sample) % 61);
    }
    int64_t left = length_;
    for (int64_t d = documents_; d > 1; --d) {
      const int64_t most = 2 * left / d - 1, length = 1 + (3 * d + sample) % most;
      segments.push_back(length);
      left -= length;
    }
    segments.push_back(left);
  }

 private:
  int64_t length_, documents_;
};

#ifndef TRIREME_REAL_GPU
/// Kernels of the second step, the first of which makes libraries' state.
int64_t launches(const Config& config, int64_t documents) {
  int64_t kernels = 0;
  run_gpu_ranks(1, kNccl, [&](Communicator& world, Context& ctx) {
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const Documents data(config.training.sequence_length, documents);
    trainer.step(data, 0, 1e-3);
    ctx.gpu->synchronize();
    const int64_t before = cuda_sim::statistics().kernels;
    trainer.step(data, 1, 1e-3);
    ctx.gpu->synchronize();
    kernels = cuda_sim::statistics().kernels - before;
  });
  return kernels;
}

TEST_CASE("documents: a step has the same launches whatever documents its sequences contain") {
  for (const auto& [model, head_size] : {std::pair{ParityModel::kLlama, 32}, {ParityModel::kLlama, 24}, {ParityModel::kGpt2, 32}}) {
    INFO(name_of(model) << ", head size " << head_size);
    // Launches of a layer, and outside of all layers.
    const auto parts = [&, model = model, head_size = head_size](int64_t documents) {
      const int64_t two = launches(config_of(model, head_size, 2), documents), one = launches(config_of(model, head_size, 1), documents);
      return std::pair(two - one, 2 * one - two);
    };
    const auto [layer, rest] = parts(1);
    CHECK(layer > 0);
    const auto [of_layer, outside] = parts(50);
    CHECK(of_layer == layer);
    CHECK(outside == rest);
  }
}
#endif

// Each step has other documents, the graph is captured in the third one.
TEST_CASE("documents: steps launched as a captured graph are bit-identical to queued steps") {
  ParityLayout layout;
  layout.data = layout.tensor = 2;
  layout.zero = 3;
  layout.sequence_parallel = true;
  for (const auto& [model, layout_of] : {std::pair{ParityModel::kGpt2, ParityLayout{}}, std::pair{ParityModel::kLlama, layout}}) {
    if (!testing::has_gpus(layout_of.world(), layout_of.str())) continue;
    Config config = small_config(model, layout_of, "bf16");
    INFO(name_of(model) << " " << layout_of.str());
    constexpr int kGraphSteps = 4;
    const RunRecord queued = train_on_gpus(config, kGraphSteps);
    config.kernels.cuda_graph = true;
    testing::for_each_schedule(1, [&] { CHECK(train_on_gpus(config, kGraphSteps) == queued); });
    config.data.document_mask = false;
    CHECK(train_on_gpus(config, 1).loss.front() != queued.loss.front());
  }
}

TEST_CASE("documents: training on one GPU matches the CPU in fp32") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    INFO(name_of(model));
    const Config config = small_config(model, {}, "fp32");
    const RunRecord on_cpu = train_on_threads(config, 2, Device::kCpu);
    testing::for_each_schedule(1, [&] { CHECK(difference(on_cpu, train_on_gpus(config, 2), 1e-4) == ""); });
  }
}

// On tensor cores, with documents at the edges of tiles and within them.
TEST_CASE("documents: half-precision gradients on one GPU are as accurate as on the CPU") {
  for (const std::string precision : {"bf16", "fp16"}) {
    INFO(precision);
    const auto trained = [&](const std::string& in, bool on_gpu) {
      Config config = config_of(ParityModel::kLlama, 32, 2);
      config.training.precision = OneOf<Arithmetic>(in);
      return on_gpu ? train_on_gpus(config, 1) : train_on_threads(config, 1, in == "fp64" ? Device::kReference : Device::kCpu);
    };
    const RunRecord exact = trained("fp64", false);
    CHECK(gradient_error(exact, trained(precision, true)) < 2 * gradient_error(exact, trained(precision, false)));
  }
}

}  // namespace
}  // namespace trireme::test
