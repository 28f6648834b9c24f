#include "tests/support/parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>

#include "kernels/ops/transfer.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {

std::string Layout::str() const {
  std::ostringstream out;
  out << "tp" << tensor << "pp" << pipeline << "dp" << data << "z" << zero << (replicate > 1 ? " rep" + std::to_string(replicate) : "")
      << (sequence_parallel ? " sp" : "") << " " << schedule << " accumulation=" << accumulation << " reshard=" << reshard << " prefetch=" << prefetch
      << " mb" << micro_batch;
  return out.str();
}

const char* name_of(ParityModel model) {
  switch (model) {
    case ParityModel::kLlamaGrouped: return "llama-12-heads-2-kv";
    case ParityModel::kLlama: return "llama-6-heads";
    case ParityModel::kGpt2: return "gpt2";
    case ParityModel::kGpt2Dropout: return "gpt2-dropout";
  }
  return "?";
}

bool is_legal(ParityModel model, const Layout& layout) {
  const int heads = model == ParityModel::kLlamaGrouped ? 12 : 6;
  const int kv_heads = model == ParityModel::kLlamaGrouped ? 2 : 6;
  if (heads % layout.tensor != 0 || (kv_heads % layout.tensor != 0 && layout.tensor % kv_heads != 0)) return false;
  if (12 % (layout.data * layout.micro_batch) != 0 || layout.data % layout.replicate != 0) return false;
  return (layout.micro_batch * 12) % layout.tensor == 0 && layout.pipeline <= 5;
}

Config parity_config(ParityModel model, const Layout& layout, const std::string& precision) {
  Config config;
  config.run.seed = 20240229;
  ModelConfig& m = config.model;
  const bool gpt2 = model == ParityModel::kGpt2 || model == ParityModel::kGpt2Dropout;
  m.architecture = gpt2 ? "gpt2" : "llama";
  m.layers = 5;
  // Prime where it can be, so that no unit divides by a shard count: heads need not fill the hidden size.
  m.hidden_size = model == ParityModel::kLlamaGrouped ? 24 : 23;
  m.heads = model == ParityModel::kLlamaGrouped ? 12 : 6;
  m.kv_heads = model == ParityModel::kLlamaGrouped ? 2 : 6;
  m.head_size = 4;
  m.ffn_size = 36;
  m.vocab_size = 61;
  m.max_positions = 13;
  m.tied_embeddings = model != ParityModel::kLlama;
  m.qkv_bias = model == ParityModel::kLlama;
  m.qk_norm = model == ParityModel::kLlamaGrouped;
  if (model == ParityModel::kLlamaGrouped)
    m.rope_scaling = {.type = "llama3", .factor = 4, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_positions = 12};
  m.dropout = model == ParityModel::kGpt2Dropout ? 0.1 : 0;
  m.init_std = 0.2;  // so that logits, and with them gradients, are not nearly uniform
  ParallelConfig& p = config.parallel;
  p.tensor = layout.tensor;
  p.pipeline = layout.pipeline;
  p.data = layout.data;
  p.zero_stage = layout.zero;
  p.replicate = layout.replicate;
  p.sequence_parallel = layout.sequence_parallel;
  p.schedule = layout.schedule;
  p.gradient_accumulation = layout.accumulation;
  p.reshard = layout.reshard;
  p.prefetch = layout.prefetch;
  std::vector<int64_t> layers = layout.layers_per_stage;
  for (int s = 0; layers.size() < static_cast<size_t>(layout.pipeline); ++s) layers.push_back((5 + s) / layout.pipeline);
  p.layers_per_stage = layers;
  TrainingConfig& t = config.training;
  t.steps = 10;
  t.sequence_length = 12;
  t.micro_batch_size = layout.micro_batch;
  t.global_batch_size = 12;
  t.precision = precision;
  t.logits_chunk = 5;  // divides no micro-batch
  t.optimizer.learning_rate = 3e-3;
  // The gradient of a key bias is zero in exact arithmetic. AdamW divides its rounding noise by its own size, so in fp32 it would walk at the full
  // learning rate in a direction that depends on the order of sums; an epsilon above the noise keeps it where it belongs.
  if (precision != "fp64") t.optimizer.epsilon = 1e-5;
  return config;
}

void RaggedDataset::read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const {
  segments.push_back(length_);
  const auto token = [&](int64_t t) {
    return static_cast<int32_t>(random_bits(random_key(7, "tokens"), static_cast<uint64_t>(sample * 1000 + t)) % static_cast<uint64_t>(vocab_));
  };
  for (int64_t t = 0; t < length_; ++t) {
    tokens[t] = sample < 0 ? 0 : token(t);
    const bool masked = sample < 0 || sample == 3 || (3 * sample + 5 * t) % 7 == 0;
    targets[t] = masked ? -1 : token(t + 1);
  }
}

bool RunRecord::operator==(const RunRecord& other) const {
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  const auto same_tensors = [&](const auto& a, const auto& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [&](const auto& x, const auto& y) {
             return x.first == y.first && same(x.second.values, y.second.values);
           });
  };
  return same(loss, other.loss) && same(grad_norm, other.grad_norm) && validation_loss == other.validation_loss &&
         same_tensors(first_gradient, other.first_gradient) && same_tensors(weight, other.weight);
}

namespace {

std::vector<double> to_doubles(Context& ctx, const Tensor& on_device) {
  const Tensor tensor = to_host(ctx, on_device);
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  dispatch_float(tensor.dtype(), [&](auto zero) {
    const auto* from = tensor.data<decltype(zero)>();
    std::transform(from, from + tensor.numel(), values.begin(), [](auto value) { return static_cast<double>(value); });
  });
  return values;
}

void set(const Tensor& tensor, int64_t i, double value) {
  dispatch_float(tensor.dtype(), [&](auto zero) { tensor.data<decltype(zero)>()[i] = static_cast<decltype(zero)>(value); });
}

/// Biases start at zero in the product; here they must not, or a bias added twice would go unseen.
void disturb_biases(Trainer& trainer, uint64_t seed) {
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    if (owned.spec->name.find(".bias") == std::string::npos) continue;
    const Tensor host = host_tensor(owned.weight.shape(), owned.weight.dtype());
    for (int64_t i = 0; i < owned.box.numel(); ++i)
      set(host, i, 0.1 * random_normal(random_key(seed, "init:" + owned.spec->name), static_cast<uint64_t>(owned.box.start[0] + i)));
    from_host(trainer.context(), host, owned.weight);
  }
  trainer.weights_changed();
}

/// Assembles a global tensor for each parameter from the boxes of all ranks; every copy of an element must have the same bits.
std::map<std::string, GlobalTensor> gather(Communicator& world, Trainer& trainer, bool gradients) {
  std::string mine;
  const auto put = [&](const void* data, size_t bytes) { mine.append(static_cast<const char*>(data), bytes); };
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const std::vector<double> values = to_doubles(trainer.context(), gradients ? owned.gradient : owned.weight);
    const uint64_t length = owned.spec->name.size();
    put(&length, sizeof length);
    put(owned.spec->name.data(), length);
    put(owned.spec->shape.data(), sizeof owned.spec->shape);
    put(&owned.box, sizeof owned.box);
    put(values.data(), values.size() * sizeof(double));
  }
  std::map<std::string, GlobalTensor> tensors;
  std::map<std::string, std::vector<bool>> known;
  for (const std::string& bytes : all_gather_strings(world, mine)) {
    const char* at = bytes.data();
    const auto get = [&](void* out, size_t count) {
      std::memcpy(out, at, count);
      at += count;
    };
    while (at < bytes.data() + bytes.size()) {
      uint64_t length = 0;
      get(&length, sizeof length);
      const std::string name(at, length);
      at += length;
      std::array<int64_t, 2> shape{};
      get(shape.data(), sizeof shape);
      Box box;
      get(&box, sizeof box);
      GlobalTensor& tensor = tensors[name];
      tensor.values.resize(static_cast<size_t>(shape[0] * shape[1]));
      known[name].resize(tensor.values.size());
      for (int64_t i = 0; i < box.numel(); ++i) {
        double value = 0;
        get(&value, sizeof value);
        const auto place = static_cast<size_t>((box.start[0] + i / box.extent[1]) * shape[1] + box.start[1] + i % box.extent[1]);
        if (known[name][place] && std::memcmp(&tensor.values[place], &value, sizeof value) != 0)
          throw InternalError(concat(name, "[", place, "]: two ranks hold different values, ", tensor.values[place], " and ", value));
        known[name][place] = true;
        tensor.values[place] = value;
      }
    }
  }
  for (const auto& [name, seen] : known)
    if (std::find(seen.begin(), seen.end(), false) != seen.end()) throw InternalError(name + ": some elements belong to no rank");
  return tensors;
}

}  // namespace

RunRecord train(Communicator& world, const Config& config, int steps, Device device, int threads) {
  Arena arena(device, true);
  Context ctx{device, &arena, threads, nullptr};
  return train(ctx, world, config, steps);
}

RunRecord train(Context& ctx, Communicator& world, const Config& config, int steps) {
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  disturb_biases(trainer, static_cast<uint64_t>(config.run.seed));
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  RunRecord record;
  for (int step = 0; step < steps; ++step) {
    const double rate = config.training.optimizer.learning_rate / (1 + step % 2);  // another at each step, as in a run
    const StepResult result = trainer.step(data, step, rate);
    if (!result.accepted) throw InternalError(concat("step ", step, " was rejected because of ", result.offender));
    record.loss.push_back(result.loss);
    record.grad_norm.push_back(result.grad_norm);
    if (step > 0) continue;
    record.first_gradient = gather(world, trainer, true);
    for (auto& [name, gradient] : record.first_gradient)
      for (double& value : gradient.values) value /= static_cast<double>(result.loss_scale.value_or(1));
  }
  const RaggedDataset validation(17, config.training.sequence_length, *config.model.vocab_size);  // the last batch is short
  record.validation_loss = trainer.evaluate(validation, 0).loss;
  record.weight = gather(world, trainer, false);
  return record;
}

RunRecord train_on_threads(const Config& config, int steps, Device device, bool poison) {
  RunRecord record;
  std::mutex mutex;
  RankOptions options;
  options.poison = poison;
  run_ranks(
      static_cast<int>(config.parallel.tensor * config.parallel.pipeline * *config.parallel.data),
      [&](Communicator& world) {
        RunRecord mine = train(world, config, steps, device);
        if (world.rank() != 0) return;
        const std::lock_guard lock(mutex);
        record = std::move(mine);
      },
      options);
  return record;
}

std::string difference(const RunRecord& expected, const RunRecord& actual, double tolerance) {
  const auto relative = [&](const std::string& what, double a, double b) -> std::string {
    if (std::abs(a - b) <= tolerance * std::abs(a)) return "";
    std::ostringstream out;
    out.precision(17);
    out << what << ": " << a << " expected, got " << b;
    return out.str();
  };
  for (size_t i = 0; i < expected.loss.size(); ++i) {
    const std::string step = " of step " + std::to_string(i + 1);
    if (std::string d = relative("loss" + step, expected.loss[i], actual.loss[i]); !d.empty()) return d;
    if (std::string d = relative("grad_norm" + step, expected.grad_norm[i], actual.grad_norm[i]); !d.empty()) return d;
  }
  if (std::string d = relative("validation loss", expected.validation_loss, actual.validation_loss); !d.empty()) return d;
  const auto max_abs = [](const GlobalTensor& tensor) {
    double largest = 0;
    for (const double v : tensor.values) largest = std::max(largest, std::abs(v));
    return largest;
  };
  const auto tensors = [&](const std::string& what, const auto& a, const auto& b) -> std::string {
    if (a.size() != b.size()) return what + ": different parameters";
    double largest = 0;
    for (const auto& [name, tensor] : a) largest = std::max(largest, max_abs(tensor));
    for (const auto& [name, tensor] : a) {
      const auto other = b.find(name);
      if (other == b.end()) return what + " of " + name + " is missing";
      const double bound = tolerance * std::max(max_abs(tensor), 1e-3 * largest);
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        if (!(std::abs(tensor.values[i] - other->second.values[i]) <= bound)) {
          std::ostringstream out;
          out.precision(17);
          out << what << " of " << name << "[" << i << "]: " << tensor.values[i] << " expected, got " << other->second.values[i];
          return out.str();
        }
      }
    }
    return "";
  };
  if (std::string d = tensors("gradient", expected.first_gradient, actual.first_gradient); !d.empty()) return d;
  return tensors("weight", expected.weight, actual.weight);
}

double gradient_error(const RunRecord& expected, const RunRecord& actual) {
  const auto norm = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += v * v;
    return std::sqrt(sum);
  };
  double largest = 0, worst = 0;
  for (const auto& [name, tensor] : expected.first_gradient) largest = std::max(largest, norm(tensor.values));
  for (const auto& [name, tensor] : expected.first_gradient) {
    std::vector<double> error = actual.first_gradient.at(name).values;
    for (size_t i = 0; i < error.size(); ++i) error[i] -= tensor.values[i];
    worst = std::max(worst, norm(error) / std::max(norm(tensor.values), 1e-2 * largest));
  }
  return worst;
}

}  // namespace trireme::test
