// What overlap hides: compute padded by known sleeps, a network of known speed, and the exposed time that a step reports. Sleeps are long compared to
// the delays of a loaded machine, and all limits are on waiting time, never on speed.
#include <iostream>
#include <thread>

#include "kernels/ops/matmul.h"
#include "kernels/ops/transfer.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/slow_network.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/exposed.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// A stage whose parts take `seconds` longer, after everything they wait for.
class PaddedStage final : public Stage {
 public:
  PaddedStage(Stage& inner, double seconds) : inner_(inner), seconds_(seconds) {}
  int parts() const override { return inner_.parts(); }
  void forward(Context& ctx, int microbatch, int part) override {
    inner_.forward(ctx, microbatch, part);
    pause(seconds_);
  }
  void backward_input(Context& ctx, int microbatch, int part) override {
    inner_.backward_input(ctx, microbatch, part);
    pause(seconds_);
  }
  void backward_weight(Context& ctx, int microbatch, int part) override { inner_.backward_weight(ctx, microbatch, part); }
  void backward(Context& ctx, int microbatch, int part) override {
    inner_.backward(ctx, microbatch, part);
    pause(seconds_);
  }
  Tensor recv_forward_buffer(Context& ctx, int microbatch) override { return inner_.recv_forward_buffer(ctx, microbatch); }
  Tensor take_forward_output(int microbatch) override { return inner_.take_forward_output(microbatch); }
  Tensor recv_backward_buffer(Context& ctx, int microbatch) override { return inner_.recv_backward_buffer(ctx, microbatch); }
  Tensor take_backward_output(int microbatch) override { return inner_.take_backward_output(microbatch); }
  void put_forward_input(int microbatch, Tensor x) override { inner_.put_forward_input(microbatch, std::move(x)); }
  void put_backward_input(int microbatch, Tensor dy) override { inner_.put_backward_input(microbatch, std::move(dy)); }
  void unshard(Context& ctx, int unit) override { inner_.unshard(ctx, unit); }
  void reshard(Context& ctx, int unit) override { inner_.reshard(ctx, unit); }
  void reduce_grads(Context& ctx, int unit) override { inner_.reduce_grads(ctx, unit); }
  void reduce_replicas(Context& ctx, int unit) override { inner_.reduce_replicas(ctx, unit); }
  void reduce_tied(Context& ctx, int unit) override { inner_.reduce_tied(ctx, unit); }
  void wait_grads(Context& ctx, int unit) override { inner_.wait_grads(ctx, unit); }
  void sum_partial(Context& ctx) override { inner_.sum_partial(ctx); }
  void update(Context& ctx, int unit) override { inner_.update(ctx, unit); }

 private:
  Stage& inner_;
  double seconds_;
};

struct Link {
  std::string group;  ///< the group with the slow link
  double seconds;     ///< per operation
};

struct Measured {
  std::vector<StepTrace> traces;
  std::vector<ExposedTime> ranks;
  MeshShape mesh;
  double of(Cause cause) const {  ///< maximum over ranks
    double most = 0;
    for (const ExposedTime& rank : ranks) most = std::max(most, rank[static_cast<size_t>(cause)]);
    return most;
  }
  double mean(Cause cause) const {
    double sum = 0;
    for (const ExposedTime& rank : ranks) sum += rank[static_cast<size_t>(cause)];
    return sum / static_cast<double>(ranks.size());
  }
  int64_t count(const std::string& group, const std::string& verb) const {  ///< operations of rank 0
    return std::ranges::count_if(traces[0].operations, [&](const TimedOperation& one) { return one.group == group && one.verb == verb; });
  }
};

/// Runs forward and backward of one step of `config`, with each part `padding` seconds longer.
Measured measure(const Config& config, const Link& link, double padding) {
  Measured measured;
  measured.mesh = mesh_shape(config.parallel);
  measured.traces.resize(static_cast<size_t>(measured.mesh.world()));
  SlowNetwork network(link.group, link.seconds);
  const auto body = [&](Communicator& inner) {
    const auto slow = network.attach(inner);
    CommunicationLog log;
    const auto world = timed(*slow, log);
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, *world, config, true);
    trainer.initialise();
    std::map<int, std::unique_ptr<PaddedStage>> padded;
    std::map<int, Stage*> stages;
    std::vector<Microbatch> microbatches;
    const TrainingConfig& training = config.training;
    const int64_t rows = training.micro_batch_size * training.sequence_length;
    for (int64_t k = 0; k < microbatches_of(config); ++k)
      microbatches.push_back({Tensor::zeros(ctx, {rows}, DType::kI32, MemoryCategory::kData),
                              Tensor::zeros(ctx, {rows}, DType::kI32, MemoryCategory::kData), k * training.micro_batch_size});
    for (const auto& stage : trainer.stages()) {
      padded[stage->range().stage] = std::make_unique<PaddedStage>(*stage, padding);
      stages[stage->range().stage] = padded[stage->range().stage].get();
      stage->grads().begin_step(ctx, 0);
      stage->begin(ctx, microbatches, training.sequence_length, RunMode::kTrain, 0);
      write_scalar(ctx, 1.0, stage->loss_factor());
    }
    Mesh& mesh = trainer.mesh();
    Executor executor(*mesh.pipeline, stages, trainer.stage_rank());
    StepTrace& trace = measured.traces[static_cast<size_t>(world->rank())];
    inner.barrier();
    trace.origin = DeviceClock::Host::now();
    DeviceClock clock(ctx, trace.origin);
    TimelineRecorder recorder(clock);
    log.start(clock);
    ActionList list = trainer.program().training_list();
    std::erase_if(list, [](const Action& action) { return makes_step(action.type); });
    executor.run(ctx, list, &recorder);
    trace.seconds = trace.now();
    trace.timeline = recorder.take();
    trace.operations = log.stop();
  };
  run_ranks(measured.mesh.world(), body);
  align(measured.traces);
  measured.ranks = exposed_time(measured.traces, measured.mesh);
  for (size_t rank = 0; rank < measured.ranks.size(); ++rank) {
    double sum = 0;
    for (const double part : measured.ranks[rank]) {
      CHECK(part >= 0);
      sum += part;
    }
    CHECK(sum == Approx(measured.traces[rank].seconds).epsilon(1e-9));
  }
  return measured;
}

Config config_of(ParityLayout layout, int64_t global_batch, bool overlap) {
  layout.micro_batch = 1;
  layout.layers = 3;
  Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  config.model.layers = 3;
  config.training.global_batch_size = global_batch;
  config.parallel.overlap = overlap;
  return config;
}

}  // namespace

TEST_CASE("overlap: prefetched gathers expose only what compute does not cover") {
  constexpr double kGather = 0.03, kCompute = 0.045;
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 3;
  const auto gathers = [&](int prefetch, bool overlap) {
    layout.prefetch = prefetch;
    return measure(config_of(layout, 2, overlap), {"shard", kGather}, kCompute);
  };
  const Measured none = gathers(0, true), one = gathers(1, true), off = gathers(1, false);
  const auto count = static_cast<double>(none.count("shard", "all_gather"));
  const double all = count * kGather;
  std::cout << "overlap: " << count << " gathers of " << kGather << " s, compute " << kCompute << " s: exposed without prefetch "
            << none.of(Cause::kZeroGather) << ", with " << one.of(Cause::kZeroGather) << ", without overlap " << off.of(Cause::kZeroGather)
            << std::endl;
  CHECK(count >= 5);
  CHECK(none.of(Cause::kZeroGather) >= 0.95 * all);
  CHECK(off.of(Cause::kZeroGather) >= 0.95 * all);
  CHECK(one.of(Cause::kZeroGather) >= 0.95 * kGather);  // nothing can hide the first
  CHECK(one.of(Cause::kZeroGather) <= kGather + 0.3 * (all - kGather));
}

TEST_CASE("overlap: gathers longer than compute expose the difference") {
  constexpr double kGather = 0.06, kCompute = 0.03;
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 3;
  const Measured one = measure(config_of(layout, 2, true), {"shard", kGather}, kCompute);
  // Gradient reductions share the link with the backward's gathers, so only the forward is predictable: nothing hides its first gather.
  double forward = 0, end = 0;
  int64_t uses = 0;
  for (const TimelineEvent& event : one.traces[0].timeline)
    if (event.action.type == ActionType::kForward) end = event.end, ++uses;
  for (const TimedOperation& gather : one.traces[0].operations)
    if (gather.verb == "all_gather" && gather.end <= end) forward += gather.end - gather.wait;
  const double expected = kGather + static_cast<double>(uses - 1) * (kGather - kCompute);
  std::cout << "overlap: forward of " << uses << " parts, gathers of " << kGather << " s behind " << kCompute << " s: exposed " << forward
            << ", expected " << expected << std::endl;
  CHECK(uses == 5);
  CHECK(forward >= 0.6 * expected);  // compute takes longer than its padding
  CHECK(forward <= 1.3 * expected);
}

TEST_CASE("overlap: gradients are reduced behind the backward") {
  constexpr double kReduce = 0.03, kCompute = 0.045;
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 1;
  const auto reductions = [&](bool overlap) { return measure(config_of(layout, 2, overlap), {"shard", kReduce}, kCompute); };
  const Measured on = reductions(true), off = reductions(false);
  const auto count = static_cast<double>(on.count("shard", "reduce_scatter"));
  std::cout << "overlap: " << count << " reductions of " << kReduce << " s: exposed " << on.of(Cause::kZeroReduce) << ", without overlap "
            << off.of(Cause::kZeroReduce) << std::endl;
  CHECK(count >= 4);
  CHECK(off.of(Cause::kZeroReduce) >= 0.95 * count * kReduce);
  CHECK(on.of(Cause::kZeroReduce) >= 0.6 * kReduce);  // nothing can hide the last
  CHECK(on.of(Cause::kZeroReduce) <= kReduce + 0.3 * (count - 1) * kReduce);
}

TEST_CASE("overlap: sends run behind compute, and bubbles do not count as transfers") {
  constexpr double kSend = 0.04, kCompute = 0.04;
  ParityLayout layout;
  layout.pipeline = 2;
  layout.schedule = ScheduleKind::kGPipe;
  constexpr int kMicrobatches = 4;
  const auto pipeline = [&](bool overlap, double seconds) {
    return measure(config_of(layout, kMicrobatches, overlap), {"pipeline", seconds}, kCompute);
  };
  const Measured on = pipeline(true, kSend), off = pipeline(false, kSend), free = pipeline(true, 0);
  const auto text = [](const Measured& m) { return concat(m.mean(Cause::kPipelineBubble), " + ", m.mean(Cause::kPipelineTransfer)); };
  std::cout << "overlap: pipeline bubble + transfer " << text(on) << ", without overlap " << text(off) << ", over a fast link " << text(free)
            << std::endl;
  // Stages have two and three parts (embedding and one block; two blocks and head): while the larger runs, the other idles for a forward and a
  // backward.
  CHECK(free.mean(Cause::kPipelineBubble) >= 0.9 * 2 * 2 * kCompute);
  CHECK(free.mean(Cause::kPipelineTransfer) <= 0.5 * free.mean(Cause::kPipelineBubble));
  CHECK(off.mean(Cause::kPipelineTransfer) >= 0.9 * kMicrobatches * kSend);  // a rank waits at least for each of its sends
  CHECK(on.mean(Cause::kPipelineTransfer) <= 0.75 * off.mean(Cause::kPipelineTransfer));
  CHECK(on.mean(Cause::kPipelineBubble) >= 0.8 * free.mean(Cause::kPipelineBubble));
}

// Padding cannot be inserted between the products of a layer, so this test checks the time between the start of a sum and its wait.
TEST_CASE("overlap: a tensor-parallel sum runs behind the product of the weight gradient") {
  constexpr double kSum = 0.01;
  for (const bool sequence_parallel : {false, true}) {
    ParityLayout layout;
    layout.tensor = 2;
    layout.sequence_parallel = sequence_parallel;
    const auto step = [&](bool overlap) {
      Config config = config_of(layout, 1, overlap);
      config.model.hidden_size = 192;
      config.model.head_size = 32;
      config.model.ffn_size = 768;
      config.training.sequence_length = config.model.max_positions.emplace(192);
      config.training.logits_chunk = 192;
      return measure(config, {"tensor", kSum}, 0);
    };
    const Measured on = step(true), off = step(false);
    const auto hidden = std::ranges::count_if(on.traces[0].operations,
                                              [](const TimedOperation& sum) { return sum.group == "tensor" && sum.wait - sum.started > 4e-4; });
    const auto count = std::ranges::count(off.traces[0].operations, std::string("tensor"), &TimedOperation::group);
    std::cout << "overlap: tensor" << (sequence_parallel ? ", sequence parallel" : "") << ", " << count << " operations of " << kSum << " s, "
              << hidden << " with a product behind them: exposed " << on.of(Cause::kTensor) << ", without overlap " << off.of(Cause::kTensor)
              << std::endl;
    CHECK(hidden >= 6);  // two column-parallel layers per block
    CHECK(off.of(Cause::kTensor) >= 0.99 * kSum * static_cast<double>(count));
  }
}

}  // namespace trireme::test
