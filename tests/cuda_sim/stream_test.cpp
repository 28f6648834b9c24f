// Streams and events: queued operations do not run immediately, and may run in any order that streams and events allow.
#include <atomic>
#include <cmath>
#include <thread>

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

using namespace cuda_sim;
namespace kernels = kernels_under_test;

TEST_CASE("Operations of a stream run in order, and only when a thread waits or polls") {
  int left_queued = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    reset(seed);
    TestStream stream;
    DeviceArray<float> x(16);
    CUDA_OK(cudaMemsetAsync(x.get(), 0, 64, stream));
    for (int i = 0; i < 10; ++i) CUDA_OK(kernels::add_one(x.get(), 16, stream));
    left_queued += statistics().operations < 5;
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(x.host() == std::vector<float>(16, 10.0f));
  }
  CHECK(left_queued >= 10);
}

TEST_CASE("A missing event wait between streams gives wrong values under some seeds, a present one never") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (const bool wait : {true, false}) {
      reset(seed);
      TestStream compute, side;
      TestEvent written;
      DeviceArray<float> x(8), y(8);
      CUDA_OK(kernels::set(x.get(), 8, 1, compute));
      CUDA_OK(kernels::add_one(x.get(), 8, compute));
      CUDA_OK(cudaEventRecord(written, compute));
      if (wait) CUDA_OK(cudaStreamWaitEvent(side, written, 0));
      CUDA_OK(kernels::copy(x.get(), y.get(), 8, side));
      CUDA_OK(cudaStreamSynchronize(compute));
      CUDA_OK(cudaStreamSynchronize(side));
      const bool right = y.host() == std::vector<float>(8, 2.0f);
      if (wait) CHECK(right);
      if (!wait) wrong += !right;
    }
  CHECK(wrong >= 8);
  CHECK(wrong < 40);
}

TEST_CASE("A wait uses the last record before it, and a never recorded event does not block") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    TestStream one, two;
    TestEvent event, never;
    DeviceArray<float> x(4), y(4);
    CUDA_OK(cudaEventQuery(never));
    CUDA_OK(cudaEventSynchronize(never));
    CUDA_OK(cudaStreamWaitEvent(two, never, 0));
    CUDA_OK(kernels::set(x.get(), 4, 1, one));
    CUDA_OK(cudaEventRecord(event, one));
    CUDA_OK(cudaStreamWaitEvent(two, event, 0));
    // Recorded again behind an operation that waits for `two`: if the wait above used the second record, it would never end.
    CUDA_OK(kernels::copy(x.get(), y.get(), 4, two));
    TestEvent copied;
    CUDA_OK(cudaEventRecord(copied, two));
    CUDA_OK(cudaStreamWaitEvent(one, copied, 0));
    CUDA_OK(kernels::set(x.get(), 4, 2, one));
    CUDA_OK(cudaEventRecord(event, one));
    CUDA_OK(cudaEventSynchronize(event));
    CHECK(x.host()[0] == 2);
    CHECK(y.host()[0] == 1);
  }
}

TEST_CASE("Polling in a loop terminates") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    TestStream one, two;
    TestEvent event;
    DeviceArray<float> x(4), y(4);
    int not_ready = 0;
    for (int i = 0; i < 5; ++i) {
      CUDA_OK(kernels::set(x.get(), 4, 1, one));
      CUDA_OK(kernels::set(y.get(), 4, 1, two));
    }
    CUDA_OK(cudaEventRecord(event, one));
    while (cudaEventQuery(event) == cudaErrorNotReady) ++not_ready;
    while (cudaStreamQuery(two) == cudaErrorNotReady) ++not_ready;
    CHECK(not_ready < 10000);
    CHECK(x.host()[0] == 1);
    CHECK(y.host()[0] == 1);
  }
}

TEST_CASE("Blocking streams wait for the default stream, non-blocking streams do not") {
  int early = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    reset(seed);
    cudaStream_t ordered = nullptr;
    CUDA_OK(cudaStreamCreate(&ordered));
    TestStream free;
    DeviceArray<float> x(4), y(4), z(4);
    CUDA_OK(kernels::set(x.get(), 4, 1, nullptr));
    CUDA_OK(kernels::copy(x.get(), y.get(), 4, ordered));
    CUDA_OK(kernels::copy(x.get(), z.get(), 4, free));
    CUDA_OK(cudaDeviceSynchronize());
    CHECK(y.host()[0] == 1);
    early += std::isnan(z.host()[0]);
    CUDA_OK(cudaStreamDestroy(ordered));
  }
  CHECK(early >= 8);
}

TEST_CASE("Handles are checked") {
  reset();
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA_OK(cudaSetDevice(1));
  CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);  // event of another device
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaSetDevice(8) == cudaErrorInvalidDevice);
  CHECK(std::string(cudaGetErrorName(cudaGetLastError())) == "cudaErrorInvalidDevice");
}

TEST_CASE("Operations queued on a destroyed stream still run") {
  reset(2);
  DeviceArray<float> x(4);
  TestEvent event;
  {
    TestStream stream;
    CUDA_OK(kernels::set(x.get(), 4, 5, stream));
    CUDA_OK(cudaEventRecord(event, stream));
  }
  CUDA_OK(cudaEventSynchronize(event));
  CHECK(x.host()[0] == 5);
}

TEST_CASE("Elapsed time between two events is not negative") {
  reset();
  TestStream stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  float milliseconds = -1;
  CUDA_OK(cudaEventRecord(begin, stream));
  CUDA_OK(cudaEventRecord(end, stream));
  CUDA_OK(cudaEventSynchronize(end));
  CUDA_OK(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds >= 0);
}

TEST_CASE("On the machine's own clock every operation takes the same time, and waits for events delay it") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Options options;
    options.operation_seconds = 0.5;
    reset(seed, options);
    const TestStream stream, other;
    const TestEvent joined;
    DeviceArray<float> x(64), y(64);
    cudaEvent_t begin = nullptr, middle = nullptr, end = nullptr;
    for (cudaEvent_t* event : {&begin, &middle, &end}) CUDA_OK(cudaEventCreate(event));
    CUDA_OK(cudaEventRecord(begin, stream));
    kernels::set(x.get(), 64, 1, stream);
    CUDA_OK(cudaEventRecord(middle, stream));
    for (int i = 0; i < 4; ++i) kernels::set(y.get(), 64, 2, other);
    CUDA_OK(cudaEventRecord(joined, other));
    CUDA_OK(cudaStreamWaitEvent(stream, joined, 0));  // two seconds, of which the kernel has used half a second
    kernels::add_one(x.get(), 64, stream);
    CUDA_OK(cudaEventRecord(end, stream));
    float first = 0, all = 0;
    CUDA_OK(cudaEventSynchronize(end));
    CUDA_OK(cudaEventElapsedTime(&first, begin, middle));
    CUDA_OK(cudaEventElapsedTime(&all, begin, end));
    CHECK(first == 500);
    CHECK(all == 2500);
  }
  reset();
}

TEST_CASE("Threads with one device each run each other's operations") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Options options;
    options.devices = 4;
    reset(seed, options);
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int device = 0; device < 4; ++device)
      threads.emplace_back([&, device] {
        if (cudaSetDevice(device) != cudaSuccess) return;
        float* x = nullptr;
        float host[64];
        cudaStream_t stream = nullptr;
        cudaMalloc(reinterpret_cast<void**>(&x), sizeof host);
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        for (int round = 0; round < 20; ++round) {
          kernels::set(x, 64, static_cast<float>(round + device), stream);
          kernels::add_one(x, 64, stream);
          cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDeviceToHost, stream);
          if (cudaStreamSynchronize(stream) == cudaSuccess && host[63] == static_cast<float>(round + device + 1)) ++right;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 80);
  }
}

namespace {

/// State of parts that run once all of them are at the heads of their streams.
struct Round {
  int expected, arrived = 0, run = 0;
};
class Part final : public Operation {
 public:
  explicit Part(std::shared_ptr<Round> round) : round_(std::move(round)) {}
  std::string name() const override { return "part of a collective of " + std::to_string(round_->expected); }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Part>(round_); }
  void arrive() override { ++round_->arrived; }
  bool ready() override { return round_->arrived == round_->expected; }
  void run() override { ++round_->run; }
  bool all_devices() const override { return true; }

 private:
  std::shared_ptr<Round> round_;
};

}  // namespace

TEST_CASE("Parts of a collective operation wait for each other across devices and threads") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    reset(seed);
    auto round = std::make_shared<Round>(Round{3});
    std::vector<std::thread> threads;
    std::atomic<int> errors = 0;
    for (int device = 0; device < 3; ++device)
      threads.emplace_back([&, device] {
        cudaSetDevice(device);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        if (enqueue(stream, std::make_unique<Part>(round)) != cudaSuccess) ++errors;
        if (cudaStreamSynchronize(stream) != cudaSuccess) ++errors;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(errors == 0);
    CHECK(round->run == 3);
  }
}

TEST_CASE("A wait that cannot end is reported instead of hanging") {
  Options options;
  options.stuck_seconds = 0.1;
  reset(1, options);
  TestStream stream;
  CUDA_OK(enqueue(stream, std::make_unique<Part>(std::make_shared<Round>(Round{2}))));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchTimeout);
  REQUIRE(errors().size() == 1);
  CHECK_THAT(errors()[0], Catch::Contains("nothing can run") && Catch::Contains("part of a collective of 2"));
  // Polling ends as well.
  reset(1, options);
  TestStream asked;
  CUDA_OK(enqueue(asked, std::make_unique<Part>(std::make_shared<Round>(Round{2}))));
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady) error = cudaStreamQuery(asked);
  CHECK(error == cudaErrorLaunchTimeout);
  reset();
}
