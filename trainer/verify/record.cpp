#include "trainer/verify/record.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ops/elementwise.h"

namespace trireme {
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

void prepare_weights(Trainer& trainer, const RecordOptions& options) {
  const auto seed = static_cast<uint64_t>(trainer.config().run.seed);
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    if (!options.zeroed.empty() && owned.spec->name.ends_with(options.zeroed)) fill(trainer.context(), 0, owned.weight);
    const bool zero = owned.spec->name.ends_with(".bias") || owned.spec->name.ends_with(".lora_b.weight");
    const bool norm = owned.spec->name.ends_with("norm.weight");
    if (!zero && !(norm && options.norm_scale > 0)) continue;
    const double mean = owned.spec->init.kind == Init::Kind::kOnes ? 1 : 0, scale = zero ? options.bias_scale : options.norm_scale;
    const Tensor host = host_tensor(owned.weight.shape(), owned.weight.dtype());
    const uint64_t key = random_key(seed, "init:" + owned.spec->name);
    const auto& [start, extent] = owned.box;
    for (int64_t i = 0; i < owned.box.numel(); ++i) {
      const int64_t row = start[0] + i / extent[1], column = start[1] + i % extent[1];
      set(host, i, mean + scale * random_normal(key, static_cast<uint64_t>(row * owned.spec->shape[1] + column)));
    }
    from_host(trainer.context(), host, owned.weight);
  }
  trainer.weights_replaced();
}

Tensor tensor_of(const OwnedBox& owned, Gathered what) {
  switch (what) {
    case Gathered::kWeight: return owned.weight;
    case Gathered::kGradient: return owned.gradient;
    case Gathered::kAverage: break;
  }
  const auto average = std::ranges::find(owned.state, std::string_view(kAverageName), &ShardedOptimizer::State::name);
  TRIREME_CHECK(owned.spec->trainable == (average != owned.state.end()),
                "a frozen parameter with a moving average, or another without: ", owned.spec->name);
  if (!owned.spec->trainable) return {};
  return average->shard;
}

/// The boxes of one rank, serialised one after the other: name, global shape, box, values.
std::string packed_boxes(Trainer& trainer, Gathered what, double factor) {
  std::string bytes;
  const auto put = [&](const void* data, size_t count) { bytes.append(static_cast<const char*>(data), count); };
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const Tensor tensor = tensor_of(owned, what);
    if (!tensor.defined()) continue;  // a frozen parameter has neither
    std::vector<double> values = to_doubles(trainer.context(), tensor);
    for (double& value : values) value *= factor;
    const uint64_t length = owned.spec->name.size();
    put(&length, sizeof length);
    put(owned.spec->name.data(), length);
    put(owned.spec->shape.data(), sizeof owned.spec->shape);
    put(&owned.box, sizeof owned.box);
    put(values.data(), values.size() * sizeof(double));
  }
  return bytes;
}

class Assembly {
 public:
  void add(int rank, const std::string& bytes) {
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
      std::vector<double> values(static_cast<size_t>(box.numel()));
      get(values.data(), values.size() * sizeof(double));
      add(rank, name, shape, box, values);
    }
  }

  GlobalTensors finish(RunRecord& record) {
    if (disagreement_ && !record.disagreement) record.disagreement = disagreement_;
    if (record.outside.empty()) record.outside = outside_;
    for (const auto& [name, owners] : rank_of_)
      if (record.unheld.empty() && std::ranges::find(owners, -1) != owners.end()) record.unheld = name;
    return std::move(tensors_);
  }

 private:
  void add(int rank, const std::string& name, const std::array<int64_t, 2>& shape, const Box& box, const std::vector<double>& values) {
    GlobalTensor& tensor = tensors_[name];
    std::vector<int>& rank_of = rank_of_[name];
    tensor.shape = shape;
    const auto numel = static_cast<size_t>(shape[0] * shape[1]);
    tensor.values.resize(numel, std::numeric_limits<double>::quiet_NaN());
    rank_of.resize(numel, -1);
    tensor.holders.push_back({rank, box});
    const double* value = values.data();
    for (int64_t row = 0; row < box.extent[0]; ++row) {
      auto place = static_cast<size_t>((box.start[0] + row) * shape[1] + box.start[1]);
      for (int64_t column = 0; column < box.extent[1]; ++column, ++place, ++value) {
        if (place >= numel) {  // padding of a local matrix, treated as rows of the global one
          outside_ = name;
          continue;
        }
        if (rank_of[place] >= 0 && !disagreement_ && std::memcmp(&tensor.values[place], value, sizeof *value) != 0)
          disagreement_ = Disagreement{name, place, rank_of[place], rank, tensor.values[place], *value};
        tensor.values[place] = *value;
        rank_of[place] = rank;
      }
    }
  }

  GlobalTensors tensors_;
  std::map<std::string, std::vector<int>> rank_of_;  ///< last rank that contributed each element; -1: none
  std::optional<Disagreement> disagreement_;
  std::string outside_;
};

}  // namespace

std::string Disagreement::str() const {
  std::ostringstream out;
  out.precision(17);
  out << tensor << "[" << place << "]: rank " << first_rank << " has " << first << ", rank " << second_rank << " has " << second;
  return out.str();
}

bool RunRecord::operator==(const RunRecord& other) const {
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  const auto same_tensors = [&](const GlobalTensors& a, const GlobalTensors& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [&](const auto& x, const auto& y) {
             return x.first == y.first && same(x.second.values, y.second.values);
           });
  };
  return same(loss, other.loss) && same(grad_norm, other.grad_norm) && same({validation_loss}, {other.validation_loss}) &&
         same_tensors(first_gradient, other.first_gradient) && same_tensors(weight, other.weight) && same_tensors(average, other.average);
}

GlobalTensors gather(Trainer& trainer, Gathered what, double loss_scale, RunRecord& record) {
  Assembly assembly;
  const std::vector<std::string> all = all_gather_strings(trainer.mesh().step, packed_boxes(trainer, what, 1 / loss_scale));
  for (size_t rank = 0; rank < all.size(); ++rank) assembly.add(static_cast<int>(rank), all[rank]);
  return assembly.finish(record);
}

RunRecord record_run(Trainer& trainer, const Dataset& data, const Dataset& validation, const RecordOptions& options) {
  RunRecord record;
  const Config& config = trainer.config();
  if (final_norm_spec(config.model).kind == NormKind::kRmsPlusOne) record.norm_offset = 1;
  // Where RoPE does not rotate it, a bias of the keys adds the same to all scores of a query: its gradient is rounding, whose sign Lion follows.
  if (config.training.optimizer.name == Optimizer::kLion && block_spec(config.model, 0).attention.qkv_bias &&
      rotated_elements(config.model) < config.model.head_size.value())
    for (int64_t block = 0; block < config.model.layers; ++block) record.undetermined.insert(concat(block_name(block), ".attention.key.bias"));
  if (config.resilience.rebalance == Rebalance::kMicroBatches) trainer.set_micro_batches(uneven_split(config));
  trainer.initialise();
  if (options.every_state) record.fresh_weight = gather(trainer, Gathered::kWeight, 1, record);
  prepare_weights(trainer, options);
  if (options.every_state) record.initial_weight = gather(trainer, Gathered::kWeight, 1, record);
  for (int step = 0; step < options.steps; ++step) {
    const double rate = trainer.config().training.optimizer.learning_rate / (1 + step % 2);
    const StepResult result = trainer.step(data, step, rate);
    record.loss.push_back(result.loss);
    record.grad_norm.push_back(result.grad_norm);
    if (!result.accepted) {
      record.rejected = concat("step ", step + 1, " was rejected: non-finite gradient of ", result.offender);
      return record;
    }
    const auto scale = static_cast<double>(result.loss_scale.value_or(1));
    if (step == 0) record.first_gradient = gather(trainer, Gathered::kGradient, scale, record);
    if (step == 0 && options.every_state) record.first_weight = gather(trainer, Gathered::kWeight, 1, record);
    if (step == 1 && options.every_state) record.second_gradient = gather(trainer, Gathered::kGradient, scale, record);
    if (step == 1 && options.every_state) record.second_weight = gather(trainer, Gathered::kWeight, 1, record);
    if (step == 1 && options.every_state && config.training.ema.decay) record.second_average = gather(trainer, Gathered::kAverage, 1, record);
  }
  record.validation_loss = trainer.evaluate(validation, 0).loss;
  record.weight = gather(trainer, Gathered::kWeight, 1, record);
  if (config.training.ema.decay) record.average = gather(trainer, Gathered::kAverage, 1, record);
  return record;
}

}  // namespace trireme
