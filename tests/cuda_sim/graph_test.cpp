// Graph capture and replay.
#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

using namespace cuda_sim;
namespace kernels = kernels_under_test;

TEST_CASE("A captured graph does nothing until launched and is repeatable") {
  int unordered = 0;
  for (uint64_t seed = 0; seed < 30; ++seed)
    for (const bool join_reader : {true, false}) {
      reset(seed);
      TestStream stream, side;
      TestEvent forked, joined;
      const DeviceArray<float> x(std::vector<float>(4, 0.0f)), y(4), z(std::vector<float>(4, 0.0f));
      CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      CUDA_OK(kernels::add_one(x.get(), 4, stream));
      CUDA_OK(cudaEventRecord(forked, stream));
      CUDA_OK(cudaStreamWaitEvent(side, forked, 0));
      CHECK(is_capturing(side));
      CUDA_OK(kernels::add_one(z.get(), 4, side));
      CUDA_OK(kernels::add_one(x.get(), 4, stream));
      if (join_reader) {
        TestEvent added;
        CUDA_OK(cudaEventRecord(added, stream));
        CUDA_OK(cudaStreamWaitEvent(side, added, 0));
      }
      CUDA_OK(kernels::copy(x.get(), y.get(), 4, side));
      CUDA_OK(cudaEventRecord(joined, side));
      CUDA_OK(cudaStreamWaitEvent(stream, joined, 0));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      CUDA_OK(cudaStreamEndCapture(stream, &graph));
      CHECK(!is_capturing(side));
      size_t nodes = 0;
      CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
      CHECK(nodes == 4);
      CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
      CUDA_OK(cudaGraphDestroy(graph));
      CUDA_OK(cudaStreamSynchronize(stream));
      CHECK(x.host()[0] == 0);
      bool right = true;
      for (int launch = 1; launch <= 3; ++launch) {
        CUDA_OK(cudaGraphLaunch(executable, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        CHECK(x.host()[0] == 2.0f * static_cast<float>(launch));
        CHECK(z.host()[3] == static_cast<float>(launch));
        right = right && y.host() == x.host();
      }
      if (join_reader) CHECK(right);
      if (!join_reader) unordered += !right;
      CUDA_OK(cudaGraphExecDestroy(executable));
      CHECK(cudaGraphLaunch(executable, stream) == cudaErrorInvalidValue);
    }
  CHECK(unordered >= 5);
}

TEST_CASE("Graph launches run in stream order") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> x(std::vector<float>(4, 0.0f));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 3; ++i) CUDA_OK(kernels::add_one(x.get(), 4, stream));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(kernels::set(x.get(), 4, 10, stream));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(x.host()[0] == 16);
  }
}

TEST_CASE("Calls that cannot be captured invalidate the capture") {
  reset();
  TestStream stream, side;
  TestEvent event, before;
  cudaGraph_t graph = nullptr;
  void* memory = nullptr;
  DeviceArray<float> x(4);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnmatched);

  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaMalloc(&memory, 64) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);

  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);

  CUDA_OK(cudaEventRecord(before, side));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaStreamWaitEvent(stream, before, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);

  // A stream that was forked and not joined.
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(cudaEventRecord(event, stream));
  CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
  CUDA_OK(cudaStreamWaitEvent(side, event, 0));
  CUDA_OK(kernels::set(x.get(), 4, 1, side));
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(graph == nullptr);
  (void)cudaGetLastError();
}
