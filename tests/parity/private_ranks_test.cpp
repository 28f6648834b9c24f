// Robust rules over compressed gradients, and private training in which each data rank adds noise of its own because its sum is compressed or compared:
// equal to what is computed by hand from the gradients of single samples, under every kind of layout.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "kernels/core/rng.h"
#include "kernels/ops/compress.h"
#include "kernels/ops/elementwise.h"
#include "parallel/sharding/robust_reducer.h"
#include "tests/parity/by_hand.h"
#include "tests/support/catch.h"
#include "tests/support/disturbed_run.h"
#include "tests/support/private_random.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/reducer_state.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

using enum AggregationRule;
using enum CompressionMethod;
using Vectors = std::vector<std::vector<double>>;

constexpr double kClip = 0.4, kNoise = 0.3;

struct Combination {
  AggregationRule rule;
  CompressionMethod method;
  double momentum = 0;
};

Config config_of(ParityModel model, const std::string& spec, const Combination& of, bool with_privacy, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  layout.gradient_accumulation = GradientAccumulation::kFull;
  Config config = parity_config(model, layout, precision);
  AggregationConfig& a = config.security.aggregation;
  a.rule = of.rule;
  if (of.rule != kMean) a.byzantine = 1;
  a.momentum = of.momentum;
  a.radius = kByHandRadius;
  config.training.compression.method = of.method;
  config.training.compression.block = 32;
  config.training.compression.ratio = 0.1;
  if (with_privacy) config.security.privacy = {.clip = kClip, .noise = kNoise, .target_epsilon = {}, .delta = 1e-5, .key_file = "key"};
  return config;
}

std::string text_of(const Combination& of) {
  return concat(kNames<AggregationRule>[static_cast<size_t>(of.rule)], ", ", kNames<CompressionMethod>[static_cast<size_t>(of.method)]);
}

/// First position of each parameter in the elements of all parameters in the order of their names.
std::map<std::string, size_t> positions_of(const ModelConfig& model) {
  std::map<std::string, size_t> sizes, positions;
  for (const ParamSpec& spec : whole_model(model)) sizes[spec.name] = static_cast<size_t>(spec.shape[0] * spec.shape[1]);
  size_t next = 0;
  for (const auto& [name, size] : sizes) positions[name] = std::exchange(next, next + size);
  return positions;
}

/// Elements that are encoded together: those of one parameter that one data rank sums.
struct Part {
  std::string name;
  int64_t begin;  ///< in the tensor rank's matrix
  bool is_matrix;
  std::vector<size_t> elements;  ///< positions
  auto operator<=>(const Part&) const = default;
};

void add_parts(const Unit& unit, int64_t begin, int64_t count, const std::map<std::string, size_t>& positions, std::set<Part>& parts) {
  for (const Unit::Segment& segment : unit.segments(begin, begin + count)) {
    const ParamSpec& spec = *segment.spec;
    Part part{spec.name, segment.param_begin, spec.dims == 2 && spec.partial_over == Partial::kNone, {}};
    for (const BoxRange& range : boxes_of(spec, segment.param_begin, segment.param_begin + segment.count))
      for (int64_t i = 0; i < range.box.numel(); ++i) {
        const int64_t row = range.box.start[0] + i / range.box.extent[1], column = range.box.start[1] + i % range.box.extent[1];
        part.elements.push_back(positions.at(spec.name) + static_cast<size_t>(row * spec.shape[1] + column));
      }
    if (!part.elements.empty()) parts.insert(part);
  }
}

/// The parts of a layout: shards, of which with a robust rule each replica owns a piece.
std::set<Part> parts_of(const Config& config) {
  std::set<Part> parts;
  std::mutex mutex;
  const std::map<std::string, size_t> positions = positions_of(config.model);
  on_ranks(config, [&](Trainer& trainer) {
    if (trainer.mesh().data->rank() != 0) return;
    const std::lock_guard lock(mutex);
    const int64_t shards = trainer.mesh().shard->size(), replicas = is_robust(config.security) ? trainer.mesh().replicate->size() : 1;
    for (const Unit* unit : trainer.stage().params().units()) {
      const int64_t owned = unit->shard_numel(), most = (owned + replicas - 1) / replicas;
      for (int64_t shard = 0; shard < shards; ++shard)
        for (int64_t replica = 0; replica < replicas; ++replica) {
          const int64_t begin = std::min(replica * most, owned);
          add_parts(*unit, shard * owned + begin, std::min(most, owned - begin), positions, parts);
        }
    }
  });
  return parts;
}

/// What a data rank sends, step by step, with error feedback.
class Sender {
 public:
  Sender(const Config& config, const std::set<Part>& parts, size_t size) : config_(config), parts_(parts), error_(size) {}

  std::vector<double> send(const std::vector<double>& gradient, int64_t step) {
    std::vector<double> sent(gradient.size());
    for (const Part& part : parts_) {
      std::vector<double> values;
      for (const size_t k : part.elements) values.push_back(gradient[k] + error_[k]);
      const std::vector<double> received = part.is_matrix ? decoded(part, values, step) : values;
      for (size_t i = 0; i < values.size(); ++i) {
        sent[part.elements[i]] = received[i];
        error_[part.elements[i]] = values[i] - received[i];
      }
    }
    return sent;
  }

 private:
  std::vector<double> decoded(const Part& part, const std::vector<double>& values, int64_t step) const {
    const EncodingOptions options = compression_of(config_).encoding;
    if (options.encoding == Encoding::kNone) return values;
    if (options.encoding == Encoding::kTopK) return largest(values);
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    const auto count = static_cast<int64_t>(values.size());
    const Tensor of = Tensor::empty(ctx, {count}, DType::kF64, MemoryCategory::kWorkspace),
                 out = Tensor::zeros(ctx, {count}, DType::kF64, MemoryCategory::kWorkspace);
    const Tensor message = Tensor::empty(ctx, {encoded_bytes(options, count, DType::kF64)}, DType::kU8, MemoryCategory::kWorkspace);
    std::ranges::copy(values, of.data<double>());
    const EncodingDraw draw{random_key(static_cast<uint64_t>(config_.run.seed), "compression:" + part.name) + static_cast<uint64_t>(part.begin),
                            static_cast<uint64_t>(step)};
    encode(ctx, options, draw, of, Tensor(), message, Tensor());
    decode(ctx, options, draw, message, out);
    return {out.data<double>(), out.data<double>() + count};
  }

  /// The tenth of the values with the largest magnitudes, in fp32; zero for the others.
  std::vector<double> largest(const std::vector<double>& values) const {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return std::abs(values[i]); });
    order.resize(std::max<size_t>(1, static_cast<size_t>(std::lround(0.1 * static_cast<double>(values.size())))));
    std::vector<double> kept(values.size());
    for (const size_t i : order) kept[i] = static_cast<double>(static_cast<float>(values[i]));
    return kept;
  }

  Config config_;
  const std::set<Part>& parts_;
  std::vector<double> error_;
};

/// The sums of the clipped gradients of the samples that each data rank has drawn, with its noise.
Vectors noisy_sums(const Config& config, const Vectors& gradients, int64_t step) {
  const auto ranks = static_cast<size_t>(*config.parallel.data);
  const double batch = static_cast<double>(config.training.global_batch_size), count = static_cast<double>(gradients.size());
  const double weight = (is_robust(config.security) ? static_cast<double>(ranks) : 1.0) / batch;
  const std::vector<int64_t> samples = test_random().poisson_sample(step, static_cast<int64_t>(gradients.size()), batch / count);
  const std::vector<int> owners = test_random().ranks_of(step, samples, static_cast<int>(ranks));
  Vectors sums(ranks, std::vector<double>(gradients.front().size()));
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<double>& gradient = gradients[static_cast<size_t>(samples[i])];
    const double norm = norm_of(gradient), factor = weight * (norm > kClip ? kClip / norm : 1);
    std::vector<double>& sum = sums[static_cast<size_t>(owners[i])];
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += factor * gradient[k];
  }
  const std::map<std::string, size_t> positions = positions_of(config.model);
  for (size_t rank = 0; rank < ranks; ++rank)
    for (const ParamSpec& spec : whole_model(config.model)) {
      std::vector<double> noise(static_cast<size_t>(spec.shape[0] * spec.shape[1]));
      test_random().normal(concat("data rank ", rank, ": ", spec.name), step, 0, noise);
      for (size_t k = 0; k < noise.size(); ++k) sums[rank][positions.at(spec.name) + k] += kNoise * kClip * weight * noise[k];
    }
  return sums;
}

/// The gradients that the optimizer gets in steps that change no weight, from what data ranks contribute.
Vectors by_hand(const Config& config, const std::function<Vectors(int64_t step)>& contributions, int64_t steps) {
  const std::set<Part> parts = parts_of(config);
  const double momentum = *config.security.aggregation.momentum;
  std::vector<Sender> senders;
  Vectors results, momenta;
  for (int64_t step = 0; step < steps; ++step) {
    Vectors sent = contributions(step);
    while (senders.size() < sent.size()) senders.emplace_back(config, parts, sent.front().size());
    for (size_t rank = 0; rank < sent.size(); ++rank) sent[rank] = senders[rank].send(sent[rank], step);
    if (!is_robust(config.security)) {
      std::vector<double> sum(sent.front().size());
      for (const std::vector<double>& one : sent)
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += one[k];
      results.push_back(sum);
      continue;
    }
    momenta.resize(sent.size(), std::vector<double>(sent.front().size()));
    for (size_t rank = 0; rank < sent.size(); ++rank)
      for (size_t k = 0; k < sent[rank].size(); ++k) momenta[rank][k] = momentum * momenta[rank][k] + (1 - momentum) * sent[rank][k];
    results.push_back(rule_by_hand(config.security.aggregation.rule.value(), momenta));
  }
  return results;
}

/// The largest difference between the gradients of a layout's steps and `expected`, relative to the largest element.
double error_of(const Config& config, const Vectors& expected) {
  double worst = 0, largest = 0;
  std::mutex mutex;
  on_ranks(config, [&](Trainer& trainer) {
    if (is_private(config.security)) trainer.set_privacy(test_random(), kNoise);
    trainer.initialise();
    for (size_t step = 0; step < expected.size(); ++step) {
      TRIREME_CHECK(trainer.step(ragged_data(config), static_cast<int64_t>(step), 0).accepted, "the step was rejected");
      const std::vector<double> gradient = gathered_gradient(trainer);
      TRIREME_CHECK(gradient.size() == expected[step].size(), gradient.size(), " elements, expected ", expected[step].size());
      const std::lock_guard lock(mutex);
      for (size_t k = 0; k < gradient.size(); ++k) {
        const double error = std::abs(gradient[k] - expected[step][k]);
        worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error);
        largest = std::max(largest, std::abs(expected[step][k]));
      }
    }
  });
  return worst / largest;
}

struct Case {
  ParityModel model;
  const char* layout;
};
/// Every ZeRO stage, replicas, both axes beside it, several samples in a micro-batch, an embedding that is tied on one stage, norms that are partial under
/// sequence parallelism.
constexpr Case kCases[] = {{ParityModel::kLlama, "dp4z0"},          {ParityModel::kLlama, "dp4z1-mb3"},  {ParityModel::kLlama, "dp4z2"},
                           {ParityModel::kLlama, "dp4z3"},          {ParityModel::kLlama, "tp2dp4z0"},   {ParityModel::kLlama, "pp2dp4z3"},
                           {ParityModel::kLlama, "tp2pp2dp4z2-sp"}, {ParityModel::kGpt2, "tp2dp4z3-sp"}, {ParityModel::kGpt2, "dp4rep2z1"}};
constexpr Combination kCombinations[] = {{kTrimmedMean, kTopK},
                                         {kMean, kTopK},
                                         {kCenteredClipping, kInt8, 0.8},
                                         {kMedian, kNone},
                                         {kGeometricMedian, kSign},
                                         {kTrimmedMean, kRandomK},
                                         {kMean, kInt4},
                                         {kMedian, kInt4, 0.5}};

bool has_replicas(const Config& config) { return zero_policy(config.parallel).replicate > 1; }

}  // namespace

TEST_CASE("private ranks: each data rank's sum gets its noise, is compressed and compared as by hand, under every kind of layout") {
  std::map<ParityModel, Vectors> gradients;
  size_t next = 0;
  for (const auto& [model, layout] : kCases) {
    if (!gradients.contains(model)) gradients[model] = gradients_of_samples(config_of(model, "dp1", {kMean, CompressionMethod::kNone}, false));
    for (const Combination& of : {kCombinations[0], kCombinations[1 + next % 7], kCombinations[1 + (next + 1) % 7]}) {
      const Config config = config_of(model, layout, of, true);
      if (!is_robust(config.security) && has_replicas(config)) continue;  // compressed sums have a second hop there
      INFO(name_of(model) << " " << layout << ", " << text_of(of));
      CHECK(error_of(config, by_hand(
                                 config, [&](int64_t step) { return noisy_sums(config, gradients[model], step); }, 3)) < 1e-10);
    }
    next += 2;
  }
}

TEST_CASE("private ranks: one of the two copies of a tied embedding gets the noise") {
  const Combination of{kMedian, CompressionMethod::kNone};
  const Vectors gradients = gradients_of_samples(config_of(ParityModel::kGpt2, "dp1", of, false));
  for (const char* layout : {"pp2dp3z1", "tp2pp2dp3z3-sp"}) {
    const Config config = config_of(ParityModel::kGpt2, layout, of, true);
    INFO(layout);
    CHECK(error_of(config, by_hand(
                               config, [&](int64_t step) { return noisy_sums(config, gradients, step); }, 2)) < 1e-10);
  }
}

TEST_CASE("robust: rules apply to the copies of compressed gradients as by hand, under every kind of layout") {
  size_t next = 0;
  for (const auto& [model, layout] : kCases) {
    for (const Combination& of : {kCombinations[0], kCombinations[2 + next % 6]}) {
      const Config config = config_of(model, layout, of, false);
      if (!is_robust(config.security) || config.training.micro_batch_size * 4 > 12) continue;
      INFO(name_of(model) << " " << layout << ", " << text_of(of));
      CHECK(error_of(config, by_hand(
                                 config, [&](int64_t step) { return gradients_of_data_ranks(config, step); }, 3)) < 1e-10);
    }
    ++next;
  }
}

namespace {

/// Data without the targets of one sample: those without the sample, with the others in their places.
class WithoutSample final : public Dataset {
 public:
  WithoutSample(const Dataset& data, int64_t sample) : data_(data), sample_(sample) {}
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(sample == sample_ ? -1 : sample, tokens, targets, segments);
  }

 private:
  const Dataset& data_;
  int64_t sample_;
};

/// What each data rank contributes in a step, without its noise: the full gradients of its units.
Vectors contributions_of(const Config& config, const Dataset& data, int64_t step) {
  Vectors sums(static_cast<size_t>(*config.parallel.data));
  on_ranks(config, [&](Trainer& trainer) {
    trainer.set_privacy(test_random(), kNoise);
    std::vector<double>& mine = sums[static_cast<size_t>(trainer.mesh().data->rank())];
    trainer.stage().grads().before_reduce(
        [&](Context&, int, const Tensor& full) { mine.insert(mine.end(), full.data<double>(), full.data<double>() + full.numel()); });
    trainer.initialise();
    trainer.step(data, step, 0);
  });
  return sums;
}

}  // namespace

TEST_CASE("private ranks: one sample more or less changes the sum of one data rank, by the clip norm at most") {
  for (const Combination& of : {Combination{kTrimmedMean, kTopK}, {kMean, kTopK}}) {
    const Config config = config_of(ParityModel::kLlama, "dp4z1", of, true);
    const double weight = (of.rule == kMean ? 1.0 : 4.0) / static_cast<double>(config.training.global_batch_size);
    const RaggedDataset data = ragged_data(config);
    const Vectors whole = contributions_of(config, data, 3);
    const std::vector<int64_t> drawn = test_random().poisson_sample(3, data.sequences(), 12.0 / 29);
    size_t clipped = 0;
    for (int64_t sample = 0; sample < data.sequences(); ++sample) {
      INFO(text_of(of) << ", sample " << sample);
      const Vectors without = contributions_of(config, WithoutSample(data, sample), 3);
      std::vector<double> changes;
      for (size_t rank = 0; rank < whole.size(); ++rank)
        if (const double change = distance(whole[rank], without[rank]); change != 0) changes.push_back(change);
      CHECK(changes.size() == (std::ranges::find(drawn, sample) != drawn.end() && sample != 3 ? 1U : 0U));  // sample 3 has no target
      for (const double change : changes) {
        CHECK(change <= kClip * weight * (1 + 1e-12));
        clipped += change > 0.999 * kClip * weight ? 1 : 0;
      }
    }
    CHECK(clipped > 3);
  }
}

TEST_CASE("private ranks: training resumes bit for bit, with momenta and errors of as many bytes as forecast") {
  for (const bool with_privacy : {false, true}) {
    for (const char* layout : {"dp4z0", "tp2dp4z3-sp", "dp4rep2z2"}) {
      INFO(layout);
      const TemporaryDirectory directory;
      const Config config = config_of(ParityModel::kLlama, layout, {kTrimmedMean, kTopK, 0.5}, with_privacy);
      const auto steps = [&](Trainer& trainer, int first, int last) {
        if (with_privacy) trainer.set_privacy(test_random(), kNoise);
        std::vector<double> all;
        for (int step = first; step < last; ++step) {
          const StepResult result = trainer.step(ragged_data(config), step, 3e-3);
          all.insert(all.end(), {result.loss, result.grad_norm});
        }
        return all;
      };
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        steps(trainer, 0, 2);
        save(trainer, directory.path, 2);
        double bytes = 0;
        for (const StateTensor& tensor : reducer_tensors(trainer)) bytes += static_cast<double>(tensor.box.numel() * size_of(tensor.dtype));
        bytes = all_reduce_scalar(trainer.mesh().world, bytes, ReduceOp::kSum);
        // Only matrices have errors.
        TRIREME_CHECK(bytes > 0.9 * static_cast<double>(reducer_bytes(config)) && bytes <= static_cast<double>(reducer_bytes(config)), bytes,
                      " bytes of errors and momenta, forecast ", reducer_bytes(config));
        const std::vector<double> through = steps(trainer, 2, 4);
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer resumed(ctx, trainer.mesh().world, config, true);
        CheckpointReader reader(directory.path / checkpoint_name(2));
        TRIREME_CHECK(load_state(resumed, reader).empty(), "the same layout reads its own errors and momenta");
        TRIREME_CHECK(steps(resumed, 2, 4) == through, layout, ": training differs after a resume");
      });
    }
  }
}

TEST_CASE("private ranks: memory and bytes on the wire of compressed robust sums are forecast exactly") {
  for (const auto& [model, layout] :
       {Case{ParityModel::kGpt2, "dp3z0"}, {ParityModel::kLlama, "tp2pp2dp3z2-sp"}, {ParityModel::kLlama, "dp4rep2z3"}}) {
    for (const Combination& of : {Combination{kTrimmedMean, kTopK}, {kMedian, kInt8, 0.9}, {kGeometricMedian, kSign}}) {
      const Config config = config_of(model, layout, of, false);
      const MeasuredRun run = measured_run(config, ragged_data(config));
      for (int rank = 0; rank < world_of(config); ++rank) {
        INFO(layout << ", " << text_of(of) << ", rank " << rank);
        const CommunicationRecord& record = run.communication[static_cast<size_t>(rank)];
        const double sent = record.entry("data", "all_to_all_v").wire_bytes + record.entry("replicate", "all_gather").wire_bytes;
        CHECK(3 * checked_forecast(config, run, rank).reduced_bytes == Approx(sent).epsilon(1e-12));
      }
    }
  }
}

namespace {

/// The gradient of a step in which the messages of data rank 2 of four are replaced.
struct Disturbed {
  std::vector<double> gradient;
  std::vector<double> distances;
  bool accepted = false;
};
Disturbed disturbed_step(const Config& config, const std::function<void(const Tensor&)>& change) {
  Disturbed result;
  run_ranks(world_of(config), [&](Communicator& world) {
    FaultInjector injector(std::nullopt, world.rank(), [] { return 1; });
    const std::unique_ptr<Communicator> links = observed(world, injector.observer());
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, *links, config, true);
    if (trainer.mesh().data->rank() == 2)
      injector.set(Fault{.step = 1, .rank = world.rank(), .group = "data", .verb = "all_to_all_v", .change = change, .every = true});
    trainer.initialise();
    const StepResult step = trainer.step(ragged_data(config), 0, 0);
    const std::vector<double> gradient = gathered_gradient(trainer);
    if (world.rank() == 0) result = {gradient, step.distances, step.accepted};
  });
  return result;
}

}  // namespace

TEST_CASE("robust: a data rank may send any bytes in place of a compressed gradient") {
  const auto garbage = [](uint64_t key) {
    return [key](const Tensor& tensor) {
      auto* const bytes = static_cast<uint8_t*>(tensor.raw());
      for (int64_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random_bits(key, static_cast<uint64_t>(i)));
    };
  };
  for (const CompressionMethod method : {kTopK, kRandomK, kInt8, kInt4, kSign}) {
    const Config config = config_of(ParityModel::kLlama, "dp4z1", {kTrimmedMean, method}, false);
    const std::vector<double> clean = disturbed_step(config, [](const Tensor&) {}).gradient;
    const double length = norm_of(clean);
    for (const uint64_t key : {1, 2, 3}) {
      INFO(text_of({kTrimmedMean, method}) << ", key " << key);
      const Disturbed step = disturbed_step(config, garbage(key));
      CHECK(step.accepted);
      CHECK(norm_of(step.gradient) < 3 * length);
      CHECK(step.distances[2] > kSuspectDistance);
    }
    // Scales, values and vectors that are not numbers: the data rank is left out, and nothing else of the step changes.
    const Disturbed step = disturbed_step(config, not_a_number());
    INFO(text_of({kTrimmedMean, method}));
    CHECK(step.accepted);
    CHECK(std::isinf(step.distances[2]));
    Vectors others = gradients_of_data_ranks(config, 0);
    const std::set<Part> parts = parts_of(config);
    for (std::vector<double>& one : others) one = Sender(config, parts, one.size()).send(one, 0);
    others.erase(others.begin() + 2);
    std::vector<double> mean(others.front().size());  // one wrong data rank was tolerated
    for (const std::vector<double>& one : others)
      for (size_t k = 0; k < mean.size(); ++k) mean[k] += one[k] / 3;
    CHECK(distance(step.gradient, mean) < 1e-10 * norm_of(mean));
  }
}

TEST_CASE("robust: a data rank that was left out once has finite errors, and takes part again") {
  const Config config = config_of(ParityModel::kLlama, "dp4z2", {kTrimmedMean, kTopK}, false);
  on_ranks(config, [&](Trainer& trainer) {
    int64_t now = 0;
    trainer.stage().grads().before_reduce([&](Context& ctx, int, const Tensor& full) {
      if (now == 1 && trainer.mesh().data->rank() == 2) fill(ctx, std::numeric_limits<double>::quiet_NaN(), full);
    });
    trainer.initialise();
    for (now = 0; now < 4; ++now) {
      const StepResult step = trainer.step(ragged_data(config), now, 1e-3);
      TRIREME_CHECK(step.accepted, "step ", now);
      TRIREME_CHECK(std::isinf(step.distances[2]) == (now == 1), "step ", now, ": distance ", step.distances[2]);
    }
  });
}

TEST_CASE("private ranks: a data rank that has drawn no sample takes part like the others") {
  Config config = config_of(ParityModel::kLlama, "dp4z1", {kMedian, CompressionMethod::kNone}, true);
  config.training.global_batch_size = 4;
  const RaggedDataset data = ragged_data(config);
  int64_t step = 0;
  const auto without_sample = [&] {
    const std::vector<int> owners = test_random().ranks_of(step, test_random().poisson_sample(step, data.sequences(), 4.0 / 29), 4);
    return std::ranges::find(owners, 1) == owners.end();
  };
  while (!without_sample()) ++step;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.set_privacy(test_random(), kNoise);
    trainer.initialise();
    const StepResult result = trainer.step(data, step, 0);
    TRIREME_CHECK(result.accepted && std::isfinite(result.distances[1]), "distance ", result.distances[1]);
  });
}

}  // namespace trireme::test
