#include "parallel/pipeline/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel/comm/self.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;
using test::compute_list;
using test::ends_meet;
using test::toy_units;

namespace {

constexpr int kWidth = 3;

/// Part k of stage s computes y = a x + b. Input of the first stage: micro-batch + 1, and the loss is the sum of the last outputs, each weighted
/// by its micro-batch + 1; all kWidth elements are equal.
double scale(int stage, int part) { return 1.0 + 0.25 * stage + 0.5 * part; }
double shift(int stage, int part) { return 0.5 * stage - 0.125 * part; }

struct Gradient {
  double a = 0, b = 0;
  bool operator==(const Gradient&) const = default;
};

class ToyStage : public Stage {
 public:
  ToyStage(int stage, int stages, const StageUnits& units)
      : gradients(units.units_of_part.size()), stage_(stage), stages_(stages), fused_part_(units.fused_part) {}

  std::vector<Gradient> gradients;  ///< by part
  std::map<int, double> outputs;    ///< last stage: by micro-batch
  std::string moved;                ///< units moved, in order
  int fails_at = -1;                ///< micro-batch whose forward throws

  int parts() const override { return static_cast<int>(gradients.size()); }

  void forward(Context& ctx, int microbatch, int part) override {
    if (microbatch == fails_at) throw DataError("injected failure");
    Tensor& x = state(microbatch).x;
    if (stage_ == 0 && part == 0) x = filled(ctx, microbatch + 1);
    state(microbatch).saved.push_back(value(x));
    x = filled(ctx, scale(stage_, part) * value(x) + shift(stage_, part));
    if (stage_ == stages_ - 1) outputs[microbatch] = value(x);
  }
  void backward_input(Context& ctx, int microbatch, int part) override {
    Tensor& dy = state(microbatch).dy;
    if (stage_ == stages_ - 1 && part == parts() - 1) dy = filled(ctx, microbatch + 1);
    state(microbatch).incoming[part] = value(dy);
    dy = filled(ctx, scale(stage_, part) * value(dy));
    if (part == fused_part_) add_gradient(microbatch, part);
  }
  void backward_weight(Context&, int microbatch, int part) override {
    TRIREME_CHECK(part != fused_part_, "a fused part has no W");
    add_gradient(microbatch, part);
  }
  void backward(Context& ctx, int microbatch, int part) override {
    backward_input(ctx, microbatch, part);
    if (part != fused_part_) backward_weight(ctx, microbatch, part);
  }
  void add_gradient(int microbatch, int part) {
    const double dy = state(microbatch).incoming.at(part);
    Gradient& gradient = gradients[static_cast<size_t>(part)];
    gradient.a += dy * state(microbatch).saved.at(static_cast<size_t>(part));
    gradient.b += dy;
  }

  Tensor recv_forward_buffer(Context& ctx, int microbatch) override { return state(microbatch).x = filled(ctx, NAN); }
  Tensor take_forward_output(int microbatch) override { return std::exchange(state(microbatch).x, Tensor()); }
  Tensor recv_backward_buffer(Context& ctx, int microbatch) override { return state(microbatch).dy = filled(ctx, NAN); }
  Tensor take_backward_output(int microbatch) override { return std::exchange(state(microbatch).dy, Tensor()); }
  void put_forward_input(int microbatch, Tensor x) override { state(microbatch).x = std::move(x); }
  void put_backward_input(int microbatch, Tensor dy) override { state(microbatch).dy = std::move(dy); }

  void unshard(Context&, int unit) override { moved += concat("U", unit, " "); }
  void reshard(Context&, int unit) override { moved += concat("R", unit, " "); }
  void reduce_grads(Context&, int unit) override { moved += concat("G", unit, " "); }
  void reduce_replicas(Context&, int unit) override { moved += concat("P", unit, " "); }
  void reduce_tied(Context&, int unit) override { moved += concat("T", unit, " "); }
  void wait_grads(Context&, int unit) override { moved += concat("W", unit, " "); }
  void sum_partial(Context&) override { moved += "S "; }
  void update(Context&, int unit) override { moved += concat("A", unit, " "); }

 private:
  struct State {
    Tensor x, dy;
    std::vector<double> saved;       ///< inputs, by part
    std::map<int, double> incoming;  ///< output gradients, by part
  };
  State& state(int microbatch) { return states_[microbatch]; }
  static Tensor filled(Context& ctx, double value) {
    Tensor tensor = Tensor::empty(ctx, {kWidth}, DType::kF64, MemoryCategory::kActivations);
    std::fill_n(tensor.data<double>(), kWidth, value);
    return tensor;
  }
  static double value(const Tensor& tensor) {
    const double* data = tensor.data<double>();
    TRIREME_CHECK(std::all_of(data, data + kWidth, [&](double v) { return v == data[0]; }), "a message arrived only in part");
    return data[0];
  }

  int stage_, stages_, fused_part_;
  std::map<int, State> states_;
};

struct Result {
  std::vector<std::vector<Gradient>> gradients;  ///< by stage and part
  std::vector<double> outputs;                   ///< by micro-batch
  bool operator==(const Result&) const = default;
};

/// The same arithmetic in the same order without ranks, lists or messages.
Result expected(const std::vector<StageUnits>& units, int microbatches) {
  Result result;
  for (const StageUnits& stage : units) result.gradients.emplace_back(stage.units_of_part.size());
  for (int m = 0; m < microbatches; ++m) {
    std::vector<std::vector<double>> saved(units.size());
    double x = m + 1;
    for (size_t s = 0; s < units.size(); ++s) {
      for (size_t part = 0; part < units[s].units_of_part.size(); ++part) {
        saved[s].push_back(x);
        x = scale(static_cast<int>(s), static_cast<int>(part)) * x + shift(static_cast<int>(s), static_cast<int>(part));
      }
    }
    result.outputs.push_back(x);
    double dy = m + 1;
    for (size_t s = units.size(); s-- > 0;) {
      for (size_t part = units[s].units_of_part.size(); part-- > 0;) {
        result.gradients[s][part].a += dy * saved[s][part];
        result.gradients[s][part].b += dy;
        dy *= scale(static_cast<int>(s), static_cast<int>(part));
      }
    }
  }
  return result;
}

struct Ran {
  Result result;
  std::vector<std::string> moved;         ///< by stage
  std::vector<Timeline> timelines;        ///< by rank
  std::vector<int64_t> activation_bytes;  ///< by rank, after the list has ended and the stages are destroyed
};

/// Runs lowered lists, each on a thread rank. `fails_at`: the micro-batch at which stage 1 throws.
Ran execute(const ActionLists& lists, const std::vector<StageUnits>& units, int microbatches, int fails_at = -1) {
  Ran ran;
  const size_t stages = units.size();
  ran.result.gradients.resize(stages);
  ran.result.outputs.resize(static_cast<size_t>(microbatches));
  ran.moved.resize(stages);
  ran.timelines.resize(lists.size());
  ran.activation_bytes.resize(lists.size());
  const std::vector<int> where = stage_ranks(lists);
  const auto body = [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    const size_t rank = static_cast<size_t>(world.rank());
    {
      std::map<int, std::unique_ptr<ToyStage>> owned;
      std::map<int, Stage*> local;
      for (size_t s = 0; s < stages; ++s) {
        if (where[s] != world.rank()) continue;
        const int stage = static_cast<int>(s);
        owned[stage] = std::make_unique<ToyStage>(stage, static_cast<int>(stages), units[s]);
        if (stage == 1) owned[stage]->fails_at = fails_at;
        local[stage] = owned[stage].get();
      }
      Executor executor(world, local, where);
      executor.on(ActionType::kNorm, [&](Context&, const Action&) {
        for (const auto& [stage, toy] : owned) toy->moved += "N ";
      });
      DeviceClock clock(ctx, DeviceClock::Host::now());
      TimelineRecorder recorder(clock);
      executor.run(ctx, lists[rank], &recorder);
      ran.timelines[rank] = recorder.take();
      for (const auto& [stage, toy] : owned) {
        ran.result.gradients[static_cast<size_t>(stage)] = toy->gradients;
        ran.moved[static_cast<size_t>(stage)] = toy->moved;
        for (const auto& [m, y] : toy->outputs) ran.result.outputs[static_cast<size_t>(m)] = y;
      }
    }
    ran.activation_bytes[rank] = arena.current_bytes(MemoryCategory::kActivations);
  };
  run_ranks(static_cast<int>(lists.size()), body, {.poison = true});  // a buffer read before its transfer is waited for is NaN
  return ran;
}

}  // namespace

TEST_CASE("all schedules give the serial gradients bit for bit") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int v = 1; v <= 3; ++v) {
        if (!allows_virtual_stages(kind, v)) continue;
        const bool fused = (ranks + v) % 2 == 0;
        const std::vector<StageUnits> units = toy_units(ranks * v, 2, fused, ends_meet(kind, ranks), fused);
        for (const int m : {1, 2, 3, 7}) {
          CAPTURE(name_of(kind), ranks, v, m);
          const Ran ran = execute(lower(make_schedule(kind, ranks, v, m), units, {.unshard_each_use = true}), units, m);
          CHECK(ran.result == expected(units, m));
          CHECK(ran.activation_bytes == std::vector<int64_t>(static_cast<size_t>(ranks), 0));
        }
      }
    }
  }
}

TEST_CASE("forward-only lists give the serial outputs for every placement of stages") {
  for (const std::vector<int>& where : {std::vector{0, 1, 2}, std::vector{0, 1, 0, 1, 0, 1}, std::vector{0, 1, 2, 2, 1, 0}, std::vector{0, 0, 1}}) {
    const std::vector<StageUnits> units = toy_units(static_cast<int>(where.size()), 2, false);
    for (const int m : {1, 5}) CHECK(execute(lower(forward_only(where, m), units, {}), units, m).result.outputs == expected(units, m).outputs);
  }
}

TEST_CASE("a compute-only list of whole stages runs on one rank") {
  const std::vector<StageUnits> units = toy_units(1, 3, false);
  CHECK(execute(one_forward_one_backward(1, 3), units, 3).result == expected(units, 3));
}

TEST_CASE("split backwards and hand-overs within a rank give the same gradients") {
  const std::vector<StageUnits> two = toy_units(2, 2, false);
  const ActionLists split{compute_list(0, "F0 F1 I0 F2 I1 W0 I2 W1 W2"), compute_list(1, "F0 I0 F1 I1 W0 F2 I2 W1 W2")};
  CHECK(execute(lower(split, two, {}), two, 3).result == expected(two, 3));

  const std::vector<StageUnits> four = toy_units(4, 1, false);
  ActionLists vee(2);
  for (const int stage : {0, 1, 2, 3}) std::ranges::copy(compute_list(stage, "F0 F1"), std::back_inserter(vee[stage == 0 || stage == 3 ? 0 : 1]));
  for (const int stage : {3, 2, 1, 0}) std::ranges::copy(compute_list(stage, "B0 B1"), std::back_inserter(vee[stage == 0 || stage == 3 ? 0 : 1]));
  CHECK(execute(lower(vee, four, {}), four, 2).result == expected(four, 2));
}

TEST_CASE("units are gathered, reduced and updated in the order of the list") {
  const std::vector<StageUnits> units = toy_units(2, 1, true);
  const Ran ran = execute(lower(one_forward_one_backward(2, 1), units, {}), units, 1);
  CHECK(ran.moved[0] == "U0 U1 G1 W1 G0 P1 W0 P0 W0 T0 R0 R1 W0 W1 S N A0 A1 ");
  CHECK(ran.moved[1] == "U0 U1 U2 G1 W1 G2 P1 W2 G0 P2 W0 P0 W2 T2 R0 R1 R2 W0 W1 W2 S N A0 A1 A2 ");
}

TEST_CASE("the timeline has every action in order, and compute after the receive it reads") {
  const std::vector<StageUnits> units = toy_units(3, 2, false);
  const ActionLists lists = lower(one_forward_one_backward(3, 4), units, {});
  const Ran ran = execute(lists, units, 4);
  for (size_t rank = 0; rank < 3; ++rank) {
    ActionList recorded;
    std::map<std::string, double> end;
    for (const TimelineEvent& event : ran.timelines[rank]) {
      recorded.push_back(event.action);
      CHECK(event.begin >= 0);
      CHECK(event.end >= event.begin);
      end[to_string(event.action)] = event.end;
    }
    CHECK(recorded == lists[rank]);
    for (const TimelineEvent& event : ran.timelines[rank])
      if (is_transfer(event.action.type)) CHECK(event.end <= end.at("NORM"));  // nothing that was sent stays in memory during the update
    for (const TimelineEvent& event : ran.timelines[rank]) {
      if (event.action.type == ActionType::kForward && rank > 0) CHECK(event.begin >= end.at(concat(rank, "RECV_F", event.action.microbatch)));
      if (event.action.type == ActionType::kBackward && rank < 2) CHECK(event.begin >= end.at(concat(rank, "RECV_B", event.action.microbatch)));
    }
  }
}

TEST_CASE("an error in a stage propagates out of the executor with transfers in flight") {
  const std::vector<StageUnits> units = toy_units(3, 2, false);
  CHECK_THROWS_WITH(execute(lower(one_forward_one_backward(3, 6), units, {}), units, 6, 3), Catch::Contains("injected failure"));
}

TEST_CASE("a list is refused if it has an action of all stages without a handler") {
  ToyStage stage(0, 1, StageUnits{{{0}}, 1});
  SelfCommunicator alone("pipeline");
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  for (const ActionType type : {ActionType::kNorm, ActionType::kNoise, ActionType::kExchange})
    CHECK_THROWS_WITH(Executor(alone, {{0, &stage}}, {0}).run(ctx, ActionList{{type}}),
                      Catch::Contains(concat("the list contains ", name_of(type), ", which has no handler")));
}

TEST_CASE("the executor refuses stages that are not on its rank") {
  ToyStage stage(0, 2, StageUnits{{{0}}, 1});
  SelfCommunicator alone("pipeline");
  CHECK_THROWS_WITH(Executor(alone, {{1, &stage}}, {0, 1}), Catch::Contains("stage 1 is not assigned to pipeline rank 0"));
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  Executor executor(alone, {{0, &stage}}, {0, 0});
  CHECK_THROWS_WITH(executor.run(ctx, ActionList{{ActionType::kForward, 1, 0, -1, 0}}),
                    Catch::Contains("1F0.0 belongs to a stage that is not on this rank"));
}
