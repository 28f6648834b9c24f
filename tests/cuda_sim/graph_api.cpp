// cudart: stream capture into graphs, and graph launches. A launch queues every node on a separate stream, so that nodes without an order between
// them run in any order.
#include <algorithm>

#include "tests/cuda_sim/api.h"

namespace cuda_sim {

cudaError_t refuse_while_capturing() {
  for (const auto& [handle, stream] : machine().streams)
    if (stream->capture != nullptr && stream->capture->origin == stream.get() && stream->capture->mode != cudaStreamCaptureModeRelaxed &&
        (stream->capture->mode == cudaStreamCaptureModeGlobal || stream->capture->thread == std::this_thread::get_id())) {
      stream->capture->broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  return cudaSuccess;
}

namespace {

/// True if the next operation of the origin stream would depend on every node.
bool is_joined(const Capture& capture) {
  std::vector<bool> reached(capture.graph.nodes.size());
  std::vector<size_t> open = capture.origin->frontier;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), capture.graph.nodes[node].after.begin(), capture.graph.nodes[node].after.end());
  }
  return std::all_of(reached.begin(), reached.end(), [](bool is) { return is; });
}

std::shared_ptr<Graph> copy_of(const Graph& graph) {
  auto copy = std::make_shared<Graph>();
  for (const Node& node : graph.nodes) copy->nodes.push_back({node.operation->clone(), node.after, node.device});
  return copy;
}

void launch_graph(Machine& m, const Graph& graph, Stream& stream) {
  queue(stream, nullptr);
  const RecordPtr begin = stream.last;
  std::vector<RecordPtr> ends;
  for (const Node& node : graph.nodes) {
    std::vector<RecordPtr> waits = {begin};
    for (const size_t before : node.after) waits.push_back(ends[before]);
    const auto own = m.make_stream(node.device, false);
    ends.push_back(m.push(*own, node.operation->clone(), std::move(waits)));
  }
  m.push(stream, nullptr, std::move(ends));
}

}  // namespace
}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Machine& m, Lock&) {
    const auto found = m.streams.find(key(stream));
    if (found == m.streams.end()) return stream == nullptr ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidResourceHandle;
    Stream& target = *found->second;
    if (target.capture != nullptr) return cudaErrorIllegalState;
    target.capture = std::make_shared<Capture>();
    target.capture->origin = &target;
    target.capture->thread = std::this_thread::get_id();
    target.capture->mode = mode;
    target.capture->streams = {found->second};
    target.frontier.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call([&](Machine& m, Lock&) {
    const auto found = m.streams.find(key(stream));
    if (found == m.streams.end() || graph == nullptr) return cudaErrorInvalidResourceHandle;
    const auto capture = found->second->capture;
    if (capture == nullptr || capture->origin != found->second.get()) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
    *graph = nullptr;
    const bool joined = is_joined(*capture);
    for (const auto& member : capture->streams) {
      member->capture = nullptr;
      member->frontier.clear();
    }
    capture->streams.clear();
    if (capture->broken) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    const uintptr_t handle = m.new_handle();
    m.graphs[handle] = std::make_shared<Graph>(std::move(capture->graph));
    *graph = reinterpret_cast<cudaGraph_t>(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call([&](Machine& m, Lock&) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    *status = target->capture == nullptr ? cudaStreamCaptureStatusNone
              : target->capture->broken  ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call([&](Machine& m, Lock&) {
    const auto found = m.graphs.find(key(graph));
    if (found == m.graphs.end()) return cudaErrorInvalidValue;
    const uintptr_t handle = m.new_handle();
    m.executables[handle] = copy_of(*found->second);
    *executable = reinterpret_cast<cudaGraphExec_t>(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto found = m.executables.find(key(executable));
    const auto target = m.find_stream(stream);
    if (found == m.executables.end() || target == nullptr) return cudaErrorInvalidValue;
    if (target->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    launch_graph(m, *found->second, *target);
    m.maybe_run(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
  return call([&](Machine& m, Lock&) { return m.executables.contains(key(executable)) ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Machine& m, Lock&) { return m.graphs.erase(key(graph)) == 1 ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call([&](Machine& m, Lock&) { return m.executables.erase(key(executable)) == 1 ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return call([&](Machine& m, Lock&) {
    const auto found = m.graphs.find(key(graph));
    if (found == m.graphs.end() || nodes != nullptr) return cudaErrorInvalidValue;  // only the count is simulated
    *count = found->second->nodes.size();
    return cudaSuccess;
  });
}

}  // extern "C"
