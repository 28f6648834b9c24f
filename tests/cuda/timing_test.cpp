// Times on a GPU: moments on the compute stream, read after the work is done. The simulated machine's own clock makes them exact.
#include "kernels/core/device_clock.h"

#include <memory>
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/core/operation_log.h"
#include "kernels/ops/elementwise.h"
#include "parallel/comm/forwarding.h"
#include "parallel/comm/self.h"
#include "parallel/comm/timed.h"
#include "parallel/pipeline/executor.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/machine.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

constexpr double kOperation = 0.25;  ///< seconds

/// A machine on which every operation takes kOperation, and which runs nothing until the host waits.
class Machine {
 public:
  Machine() : gpu_(fresh()) {}
  ~Machine() {
    gpu_->synchronize();
    CHECK(cuda_sim::errors().empty());
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  cuda::Gpu& gpu() { return *gpu_; }

 private:
  static std::unique_ptr<cuda::Gpu> fresh() {
    cuda_sim::Options options;
    options.operation_seconds = kOperation;
    cuda_sim::reset(3, options);
    return std::make_unique<cuda::Gpu>(0, cuda::GpuOptions{});
  }
  std::unique_ptr<cuda::Gpu> gpu_;
  Arena arena_{*gpu_, true};

 public:
  Context ctx{Device::kCuda, &arena_, 1, gpu_.get()};
};

/// Each part queues as many operations as its index plus one.
class CountingStage : public Stage {
 public:
  explicit CountingStage(const Tensor& tensor) : tensor_(tensor) {}
  int parts() const override { return 3; }
  void forward(Context& ctx, int /*microbatch*/, int part) override { queue(ctx, part + 1); }
  void backward(Context& ctx, int /*microbatch*/, int part) override { queue(ctx, 2 * (part + 1)); }
  void backward_input(Context& /*ctx*/, int /*microbatch*/, int /*part*/) override {}
  void backward_weight(Context& /*ctx*/, int /*microbatch*/, int /*part*/) override {}
  Tensor recv_forward_buffer(Context& /*ctx*/, int /*microbatch*/) override { return {}; }
  Tensor take_forward_output(int /*microbatch*/) override { return {}; }
  Tensor recv_backward_buffer(Context& /*ctx*/, int /*microbatch*/) override { return {}; }
  Tensor take_backward_output(int /*microbatch*/) override { return {}; }
  void put_forward_input(int /*microbatch*/, Tensor /*x*/) override {}
  void put_backward_input(int /*microbatch*/, Tensor /*dy*/) override {}
  void unshard(Context& /*ctx*/, int /*unit*/) override {}
  void reshard(Context& /*ctx*/, int /*unit*/) override {}
  void reduce_grads(Context& /*ctx*/, int /*unit*/) override {}
  void reduce_replicas(Context& /*ctx*/, int /*unit*/) override {}
  void reduce_tied(Context& /*ctx*/, int /*unit*/) override {}
  void wait_grads(Context& /*ctx*/, int /*unit*/) override {}
  void sum_partial(Context& /*ctx*/) override {}
  void update(Context& /*ctx*/, int /*unit*/) override {}

 private:
  void queue(Context& ctx, int count) const {
    for (int i = 0; i < count; ++i) fill(ctx, i, tensor_);
  }
  Tensor tensor_;
};

/// Starts operations of `seconds` on a stream of their own, as NCCL does.
class StreamCommunicator final : public ForwardingCommunicator {
 public:
  StreamCommunicator(Communicator& inner, cuda::Gpu& gpu, int operations)
      : ForwardingCommunicator(inner), gpu_(gpu), stream_(gpu.make_stream()), operations_(operations) {}

 protected:
  Work perform(Context& /*ctx*/, const char* /*verb*/, int64_t /*bytes*/, const Call& call) override {
    static_cast<void>(call());
    const cuda::Event inputs = gpu_.record(gpu_.compute());
    gpu_.order_after(stream_, inputs);
    gpu_.recycle(inputs);
    for (int i = 0; i < operations_; ++i) REQUIRE(cuda_sim::enqueue(reinterpret_cast<cudaStream_t>(stream_), "transfer", [] {}) == cudaSuccess);
    return Work(std::make_unique<Arrival>(gpu_, gpu_.record(stream_)));
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override { return made; }

 private:
  struct Arrival : Work::Operation {
    Arrival(cuda::Gpu& of_gpu, cuda::Event at) : gpu(of_gpu), event(at) {}
    void wait(Context& ctx) override {
      gpu.order_after(ctx.gpu->compute(), event);
      gpu.recycle(event);
    }
    cuda::Gpu& gpu;
    cuda::Event event;
  };
  cuda::Gpu& gpu_;
  cuda::Stream stream_;
  int operations_;
};

}  // namespace

TEST_CASE("the timeline of a GPU has the device's times, and recording it never waits") {
  Machine machine;
  Context& ctx = machine.ctx;
  CountingStage stage(Tensor::zeros(ctx, {8}, DType::kF32, MemoryCategory::kActivations));
  SelfCommunicator pipeline("pipeline");
  Executor executor(pipeline, {{0, &stage}}, {0});
  ActionList list;
  for (const int part : {0, 1, 2}) list.push_back({ActionType::kForward, 0, 0, -1, part});
  list.push_back({ActionType::kBackward, 0, 0});  // of all parts
  DeviceClock clock(ctx, DeviceClock::Host::now());
  TimelineRecorder recorder(clock);
  const int64_t waits = cuda_sim::statistics().waits;
  executor.run(ctx, list, &recorder);
  executor.run(ctx, list);  // nothing is recorded without a recorder
  CHECK(cuda_sim::statistics().waits == waits);
  const Timeline timeline = recorder.take();
  REQUIRE(timeline.size() == list.size());
  const double operations[] = {1, 2, 3, 12};
  for (size_t i = 0; i < timeline.size(); ++i) {
    INFO(to_string(timeline[i].action));
    CHECK(timeline[i].action == list[i]);
    CHECK(timeline[i].end - timeline[i].begin == Approx(operations[i] * kOperation));
    if (i > 0) CHECK(timeline[i].begin == Approx(timeline[i - 1].end));
  }
  CHECK(recorder.take().empty());
}

TEST_CASE("an operation log on a device clock has the device's time of each operation, and never waits") {
  Machine machine;
  Context& ctx = machine.ctx;
  const Tensor tensor = Tensor::zeros(ctx, {8}, DType::kF32, MemoryCategory::kActivations);
  DeviceClock clock(ctx, DeviceClock::Host::now());
  OperationLog log(clock);
  ctx.log = &log;
  const int64_t waits = cuda_sim::statistics().waits;
  fill(ctx, 1, tensor);
  log.collective("all_gather", DType::kF32, 32);
  fill(ctx, 2, tensor);
  CHECK(cuda_sim::statistics().waits == waits);
  ctx.log = nullptr;
  const std::vector<OperationRecord> records = log.take();
  REQUIRE(records.size() == 3);
  for (const size_t i : {0, 2}) CHECK(records[i].seconds == Approx(kOperation));
  CHECK(records[1].seconds == 0);
  CHECK(records[2].begin - records[0].begin == Approx(kOperation));
  CHECK(log.take().empty());
}

TEST_CASE("a wait for communication on a GPU is the time that the compute stream stands still") {
  Machine machine;
  Context& ctx = machine.ctx;
  const Tensor tensor = Tensor::zeros(ctx, {8}, DType::kF32, MemoryCategory::kActivations);
  SelfCommunicator alone("world");
  StreamCommunicator slow(alone, machine.gpu(), 7);
  CommunicationLog log;
  const auto world = timed(slow, log);
  DeviceClock clock(ctx, DeviceClock::Host::now());
  log.start(clock);
  const int64_t waits = cuda_sim::statistics().waits;
  Work work = world->all_reduce(ctx, tensor, ReduceOp::kSum);
  for (int i = 0; i < 3; ++i) fill(ctx, i, tensor);
  work.wait(ctx);
  fill(ctx, 0, tensor);
  CHECK(cuda_sim::statistics().waits == waits);
  const std::vector<TimedOperation> operations = log.stop();
  REQUIRE(operations.size() == 1);
  CHECK(operations[0].started == Approx(operations[0].begin));
  CHECK(operations[0].wait - operations[0].started == Approx(3 * kOperation));
  CHECK(operations[0].end - operations[0].wait == Approx(4 * kOperation));
}

}  // namespace trireme::test
