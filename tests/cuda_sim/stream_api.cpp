// cudart: streams and events.
#include <algorithm>

#include "tests/cuda_sim/api.h"

namespace cuda_sim {

std::shared_ptr<Stream> Machine::find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    const auto device = static_cast<size_t>(current_device());
    return device < devices.size() ? devices[device].default_stream : nullptr;
  }
  const auto found = streams.find(key(handle));
  return found == streams.end() ? nullptr : found->second;
}

void queue(Stream& stream, std::unique_ptr<Operation> operation) {
  Machine& m = machine();
  if (stream.capture != nullptr) {
    auto& nodes = stream.capture->graph.nodes;
    nodes.push_back({std::move(operation), stream.frontier, stream.device});
    stream.frontier = {nodes.size() - 1};
    return;
  }
  std::vector<RecordPtr> waits;
  const auto& first = m.devices[static_cast<size_t>(stream.device)].default_stream;
  if (stream.ordered_by_default_stream) waits.push_back(first->last);
  if (first.get() == &stream)
    for (const auto& [handle, other] : m.streams)
      if (other->ordered_by_default_stream && other->device == stream.device) waits.push_back(other->last);
  m.push(stream, std::move(operation), std::move(waits));
}

namespace {

std::shared_ptr<Event> find_event(Machine& m, cudaEvent_t handle) {
  const auto found = m.events.find(key(handle));
  return found == m.events.end() ? nullptr : found->second;
}

cudaError_t make_stream(cudaStream_t* stream, unsigned int flags) {
  return call([&](Machine& m, Lock&) {
    if (stream == nullptr || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
    const uintptr_t handle = m.new_handle();
    m.streams[handle] = m.make_stream(current_device(), flags == cudaStreamDefault);
    *stream = reinterpret_cast<cudaStream_t>(handle);
    return cudaSuccess;
  });
}

/// Rejects a wait for a stream that is being captured, and invalidates the capture.
cudaError_t refuse_captured(const Stream& stream) {
  if (stream.capture == nullptr) return cudaSuccess;
  stream.capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

void merge(std::vector<size_t>& into, const std::vector<size_t>& nodes) {
  into.insert(into.end(), nodes.begin(), nodes.end());
  std::sort(into.begin(), into.end());
  into.erase(std::unique(into.begin(), into.end()), into.end());
}

/// The wait becomes an edge of the graph; a stream that waits for a captured event joins the capture.
cudaError_t wait_captured(const std::shared_ptr<Stream>& stream, const Event& event) {
  const auto capture = event.capture.lock();
  if (capture == nullptr) {
    stream->capture->broken = true;
    return cudaErrorStreamCaptureIsolation;  // the event was recorded outside the capture
  }
  if (stream->capture != nullptr && stream->capture != capture) return cudaErrorStreamCaptureIsolation;
  if (stream->capture == nullptr) {
    stream->capture = capture;
    stream->frontier.clear();
    capture->streams.push_back(stream);
  }
  merge(stream->frontier, event.frontier);
  return cudaSuccess;
}

}  // namespace
}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) { return make_stream(stream, flags); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) { return make_stream(stream, flags); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

/// Queued operations still run.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](Machine& m, Lock&) { return m.streams.erase(key(stream)) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_captured(*target); error != cudaSuccess) return error;
    const cudaError_t error = m.wait(lock, target->last);
    return error != cudaSuccess ? error : m.devices[static_cast<size_t>(target->device)].error;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_captured(*target); error != cudaSuccess) return error;
    const RecordPtr last = target->last;
    m.poll(lock);
    return last == nullptr || last->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    const auto source = find_event(m, event);
    if (target == nullptr || source == nullptr) return cudaErrorInvalidResourceHandle;
    if (target->capture != nullptr || !source->capture.expired()) return wait_captured(target, *source);
    if (source->record != nullptr) m.push(*target, nullptr, {source->record});
    m.maybe_run(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    queue(*target, make_simple("host function", [=] { function(data); }));
    m.maybe_run(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([&](Machine& m, Lock& lock) {
    if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
    const int device = current_device();
    std::vector<RecordPtr> last = {m.devices[static_cast<size_t>(device)].default_stream->last};
    for (const auto& [handle, stream] : m.streams)
      if (stream->device == device && stream->capture == nullptr) last.push_back(stream->last);
    for (const RecordPtr& record : last)
      if (const cudaError_t error = m.wait(lock, record); error != cudaSuccess) return error;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call([&](Machine& m, Lock&) {
    if (event == nullptr) return cudaErrorInvalidValue;
    auto made = std::make_shared<Event>();
    made->device = current_device();
    made->timing = (flags & cudaEventDisableTiming) == 0;
    const uintptr_t handle = m.new_handle();
    m.events[handle] = std::move(made);
    *event = reinterpret_cast<cudaEvent_t>(handle);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

/// Waits already queued keep their record.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&](Machine& m, Lock&) { return m.events.erase(key(event)) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    const auto target = m.find_stream(stream);
    const auto recorded = find_event(m, event);
    if (target == nullptr || recorded == nullptr || recorded->device != target->device) return cudaErrorInvalidResourceHandle;
    recorded->capture = target->capture;
    if (target->capture != nullptr) {
      recorded->frontier = target->frontier;
      return cudaSuccess;
    }
    queue(*target, nullptr);
    recorded->record = target->last;
    m.maybe_run(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&](Machine& m, Lock& lock) {
    const auto found = find_event(m, event);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (!found->capture.expired()) return cudaErrorCapturedEvent;
    const RecordPtr record = found->record;
    m.poll(lock);
    return record == nullptr || record->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&](Machine& m, Lock& lock) {
    const auto found = find_event(m, event);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (!found->capture.expired()) return cudaErrorCapturedEvent;
    return m.wait(lock, found->record);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&](Machine& m, Lock&) {
    const auto first = find_event(m, start), second = find_event(m, end);
    if (first == nullptr || second == nullptr || !first->timing || !second->timing) return cudaErrorInvalidResourceHandle;
    if (first->record == nullptr || second->record == nullptr) return cudaErrorInvalidResourceHandle;
    if (!first->record->done || !second->record->done) return cudaErrorNotReady;
    *milliseconds = m.options.operation_seconds > 0 ? static_cast<float>(1e3 * (second->record->own_time - first->record->own_time))
                                                    : std::chrono::duration<float, std::milli>(second->record->time - first->record->time).count();
    return cudaSuccess;
  });
}

}  // extern "C"
