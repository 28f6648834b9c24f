#include <cuda_runtime_api.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/gpu_state.h"

namespace trireme::cuda {

Gpu::Graph Gpu::capture(const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(state_->compute, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(state_->compute, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // of the capture that was broken off
    throw;
  }
  check(cudaStreamEndCapture(state_->compute, &graph), "cudaStreamEndCapture");
  const std::shared_ptr<CUgraph_st> captured(graph, [](cudaGraph_t captured_graph) { cudaGraphDestroy(captured_graph); });
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  return {std::shared_ptr<void>(executable, [](void* instance) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(instance)); })};
}

void Gpu::launch(const Graph& graph) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.executable.get()), state_->compute), "cudaGraphLaunch");
}

}  // namespace trireme::cuda
