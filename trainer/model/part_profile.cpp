#include "trainer/model/part_profile.h"

#include <numeric>

#include "parallel/comm/null.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {
namespace {

/// A stage that contains only this part; a block is placed in the middle of a pipeline.
StageRange range_of(const Part& part) {
  constexpr int kStages = 3;
  switch (part.kind) {
    case PartKind::kEmbedding: return {0, kStages, 0, 0};
    case PartKind::kBlock: return {1, kStages, part.block, 1};
    case PartKind::kHead: return {kStages - 1, kStages, 0, 0};
  }
  throw InternalError("invalid part kind");
}

class Profiler {
 public:
  Profiler(const ModelConfig& model, const Part& part, const ProfileShape& shape, Recompute recompute)
      : range_(range_of(part)),
        shape_(shape),
        arena_(Device::kMeta),
        world_(shape.tensor - 1, shape.tensor, "world"),  // the last tensor rank; all have equal costs
        mesh_(world_, {.tensor = shape.tensor}, static_cast<int>(model.kv_heads.value())),
        stage_(ctx_, model, mesh_, range_, options(model, shape, recompute), nullptr) {}

  PartProfile profile();

 private:
  static DType wide(const ProfileShape& shape) { return accumulator_of(shape.compute); }
  static StageOptions options(const ModelConfig& model, const ProfileShape& shape, Recompute recompute) {
    StageOptions options;
    options.sequence_parallel = shape.sequence_parallel;
    options.precision = {shape.compute, wide(shape), wide(shape), wide(shape)};
    options.logits_chunk = shape.logits_chunk;
    options.recompute_elementwise = shape.recompute_elementwise;
    options.clips_samples = shape.clips_samples;
    options.recompute.assign(static_cast<size_t>(model.layers), recompute);
    return options;
  }
  int64_t alive() const { return arena_.current_bytes(MemoryCategory::kActivations); }
  void begin(RunMode mode);
  template <class Action>
  PartProfile::Pass record(const Action& action);
  PartProfile::Pass forward();
  void weight_gradient();
  void receive_gradient();

  StageRange range_;
  ProfileShape shape_;
  Arena arena_;
  OperationLog log_;
  Context ctx_{.device = Device::kMeta, .arena = &arena_, .log = &log_};
  NullCommunicator world_;
  Mesh mesh_;
  TransformerStage stage_;
};

void Profiler::begin(RunMode mode) {
  const auto ids = [&] { return Tensor::empty(ctx_, {shape_.sequences * shape_.length}, DType::kI32, MemoryCategory::kData); };
  stage_.begin(ctx_, {{ids(), ids()}}, shape_.length, mode, 0);
  log_.take();
}

template <class Action>
PartProfile::Pass Profiler::record(const Action& action) {
  arena_.reset_peak();
  action();
  return {log_.take(), arena_.peak_bytes(MemoryCategory::kActivations)};
}

PartProfile::Pass Profiler::forward() {
  if (!range_.first()) stage_.recv_forward_buffer(ctx_, 0);
  return record([&] { stage_.forward(ctx_, 0, 0); });
}

void Profiler::receive_gradient() {
  if (!range_.last()) stage_.recv_backward_buffer(ctx_, 0);
}

void Profiler::weight_gradient() {
  if (shape_.clips_samples) {
    SampleSquares squares(ctx_, stage_.region(), shape_.sequences, shape_.length, shape_.compute);
    stage_.add_sample_squares(ctx_, 0, squares);
    stage_.set_sample_factors(0, squares.values());
  }
  stage_.backward_weight(ctx_, 0, 0);
}

PartProfile Profiler::profile() {
  PartProfile profile;
  for (const Unit* unit : stage_.params().units()) {
    stage_.unshard(ctx_, static_cast<int>(profile.units.size()));
    profile.units.push_back(unit->numel());
    for (const Unit::Segment& segment : unit->segments(0, unit->numel()))
      if (segment.spec->is_hidden_matrix && segment.spec->trainable) profile.matrices.push_back(segment.spec->shape);
  }
  begin(RunMode::kEvaluate);
  profile.evaluation = forward();
  begin(RunMode::kTrain);
  profile.forward = forward();
  stage_.take_forward_output(0);
  profile.saved = alive();
  receive_gradient();
  if (!shape_.clips_samples) {
    profile.backward = record([&] { stage_.backward(ctx_, 0, 0); });
    if (range_.last()) {  // the head computes input and weight gradients together
      profile.input_gradient = profile.backward;
      return profile;
    }
    begin(RunMode::kTrain);
    forward();
    stage_.take_forward_output(0);
    receive_gradient();
  }
  profile.input_gradient = record([&] { stage_.backward_input(ctx_, 0, 0); });
  stage_.take_backward_output(0);
  profile.kept = alive();
  profile.weight_gradient = record([&] { weight_gradient(); });
  return profile;
}

}  // namespace

double flops_of(const std::vector<OperationRecord>& operations) {
  return std::accumulate(operations.begin(), operations.end(), 0.0, [](double sum, const OperationRecord& record) { return sum + record.flops(); });
}

int64_t PartProfile::elements() const { return std::accumulate(units.begin(), units.end(), int64_t{0}); }

int64_t PartProfile::matrix_elements() const {
  return std::accumulate(matrices.begin(), matrices.end(), int64_t{0}, [](int64_t sum, const auto& shape) { return sum + shape[0] * shape[1]; });
}

PartProfile profile_of(const ModelConfig& model, const Part& part, const ProfileShape& shape, Recompute recompute) {
  return Profiler(model, part, shape, recompute).profile();
}

Recompute recompute_of(const Part& part, const std::vector<Recompute>& policy) {
  return part.kind == PartKind::kBlock ? policy[static_cast<size_t>(part.block)] : Recompute::kNone;
}

std::vector<int64_t> unit_elements(PartProfiles& profiles, const std::vector<Part>& parts, const StageUnits& reads, const ProfileShape& shape) {
  std::vector<int64_t> elements(static_cast<size_t>(reads.units), 0);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<int64_t>& declared = profiles.of(parts[i], shape).units;
    for (size_t u = 0; u < declared.size(); ++u) {
      const UnitRef& unit = reads.units_of_part[i][u];
      if (unit.stage >= 0) continue;
      int64_t& sum = elements[static_cast<size_t>(unit.unit)];
      // Blocks that share a unit add their elements; a tied embedding counts once.
      sum = parts[i].kind == PartKind::kBlock ? sum + declared[u] : declared[u];
    }
  }
  return elements;
}

const PartProfile& PartProfiles::of(const Part& part, const ProfileShape& shape, Recompute recompute) {
  const std::tuple key{part.traits(), shape, recompute};
  if (last_ != nullptr && last_->first == key) return last_->second;
  auto at = known_.find(key);
  if (at == known_.end()) at = known_.emplace(key, profile_of(model_, part, shape, recompute)).first;
  last_ = &*at;
  return at->second;
}

}  // namespace trireme
