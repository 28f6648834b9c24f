#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/error.h"
#include "kernels/cuda/gpu_state.h"

namespace trireme::cuda {
namespace {

/// Counts a graph from the beginning of its capture until its executable is destroyed.
struct Counted {
  explicit Counted(std::shared_ptr<int> of_gpu) : count(std::move(of_gpu)) { ++*count; }
  ~Counted() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    --*count;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::shared_ptr<int> count;
  cudaGraphExec_t executable = nullptr;
};

}  // namespace

Gpu::Graph Gpu::capture(const std::function<void()>& body) {
  const auto counted = std::make_shared<Counted>(state_->graphs);
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(state_->compute, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(state_->compute, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error of the aborted capture
    throw;
  }
  check(cudaStreamEndCapture(state_->compute, &graph), "cudaStreamEndCapture");
  const std::shared_ptr<CUgraph_st> captured(graph, [](cudaGraph_t captured_graph) { cudaGraphDestroy(captured_graph); });
  check(cudaGraphInstantiate(&counted->executable, graph, 0), "cudaGraphInstantiate");
  return {std::shared_ptr<void>(counted, counted->executable)};
}

bool Gpu::holds_graphs() const { return *state_->graphs > 0; }

void Gpu::launch(const Graph& graph) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.executable.get()), state_->compute), "cudaGraphLaunch");
}

}  // namespace trireme::cuda
