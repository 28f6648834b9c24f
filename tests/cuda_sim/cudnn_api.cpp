// The functions of the simulated cuDNN: handles, descriptors of the backend, the heuristic, plans, execution.
#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_sim/cudnn.h"
#include "tests/cuda_sim/cudnn_program.h"
#include "tests/cuda_sim/machine.h"

namespace cuda_sim {
namespace {

constexpr size_t kVersion = 91900;  // whatever the headers are: the frontend then builds the operations of cudnn_program.h

std::mutex g_mutex;  // of the options
CudnnOptions g_options;
std::atomic<int64_t> g_forwards, g_backwards, g_plans, g_live, g_largest_workspace, g_executions;
thread_local std::string g_last_error;

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  g_last_error = "simulated cuDNN: " + why;
  return status;
}

struct Handle {
  int device = current_device();
  cudaStream_t stream = nullptr;
};

/// A descriptor is a table of attributes, each an array of bytes or of other descriptors, which may be destroyed by their owner.
struct Descriptor {
  explicit Descriptor(cudnnBackendDescriptorType_t of_type) : type(of_type) { ++g_live; }
  ~Descriptor() { --g_live; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  struct Value {
    std::vector<char> bytes;
    std::vector<std::shared_ptr<const Descriptor>> descriptors;
  };
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values;
  std::shared_ptr<CudnnProgram> program;  ///< of an operation graph, and what follows from one
  int device = -1;                        ///< of the graph's handle

  bool has(cudnnBackendAttributeName_t name) const { return values.contains(name); }
  template <class T>
  T get(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    const auto found = values.find(name);
    if (found == values.end()) return otherwise;
    T value{};
    std::memcpy(&value, found->second.bytes.data(), std::min(sizeof value, found->second.bytes.size()));
    return value;
  }
  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> items(found->second.bytes.size() / sizeof(T));
    std::memcpy(items.data(), found->second.bytes.data(), items.size() * sizeof(T));
    return items;
  }
  const Descriptor* descriptor(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    return found == values.end() || found->second.descriptors.empty() ? nullptr : found->second.descriptors[0].get();
  }
};

/// What a cudnnBackendDescriptor_t points to.
using Reference = std::shared_ptr<Descriptor>;
Descriptor& of(cudnnBackendDescriptor_t descriptor) { return **static_cast<Reference*>(descriptor); }

int64_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
  }
}

Extents extents_of(const Descriptor& tensor, cudnnBackendAttributeName_t name) {
  Extents extents{1, 1, 1, 1};
  const std::vector<int64_t> listed = tensor.list<int64_t>(name);
  for (size_t d = 0; d < 4 && d < listed.size(); ++d) extents[d] = listed[d];
  return extents;
}

CudnnTensor tensor_of(const Descriptor& d) {
  return {.uid = d.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          .type = d.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
          .dims = extents_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
          .strides = extents_of(d, CUDNN_ATTR_TENSOR_STRIDES),
          .alignment = d.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1),
          .is_virtual = d.get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
          .is_by_value = d.get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
}

/// Adds an operation and its tensors to the program. Returns why not.
std::string add(const Descriptor& d, CudnnProgram& program) {
  CudnnOperation operation;
  const auto tensor = [&](cudnnBackendAttributeName_t name) {
    const CudnnTensor made = tensor_of(*d.descriptor(name));
    program.tensors.emplace(made.uid, made);
    return made.uid;
  };
  const auto inputs = [&](std::initializer_list<cudnnBackendAttributeName_t> names) {
    for (const auto name : names)
      if (d.has(name)) operation.inputs.push_back(tensor(name));
  };
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      operation.kind = CudnnOperation::Kind::kMatmul;
      inputs({CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC});
      operation.output = tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor* const mode = d.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      operation.kind = CudnnOperation::Kind::kPointwise;
      operation.pointwise = mode->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
      operation.axis = mode->get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
      inputs({CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC});
      operation.output = tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      operation.kind = CudnnOperation::Kind::kReduction;
      operation.reduction = d.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
      if (operation.reduction != CUDNN_REDUCE_TENSOR_ADD && operation.reduction != CUDNN_REDUCE_TENSOR_MAX)
        return "a reduction that is not simulated";
      inputs({CUDNN_ATTR_OPERATION_REDUCTION_XDESC});
      operation.output = tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      operation.kind = CudnnOperation::Kind::kReshape;
      inputs({CUDNN_ATTR_OPERATION_RESHAPE_XDESC});
      operation.output = tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      break;
    default: return "an operation that is not simulated, descriptor type " + std::to_string(d.type);
  }
  program.operations.push_back(std::move(operation));
  return "";
}

cudnnStatus_t finalize_graph(Descriptor& d) {
  d.program = std::make_shared<CudnnProgram>();
  for (const std::shared_ptr<const Descriptor>& operation : d.values[CUDNN_ATTR_OPERATIONGRAPH_OPS].descriptors) {
    const std::string why = add(*operation, *d.program);
    if (!why.empty()) return refuse(CUDNN_STATUS_NOT_SUPPORTED, why);
  }
  if (const std::string why = d.program->complete(); !why.empty()) return refuse(CUDNN_STATUS_BAD_PARAM, why);
  d.program->workspace += cudnn_options().more_workspace;
  if (const auto* const handle = static_cast<const Handle*>(d.get<void*>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, nullptr))) d.device = handle->device;
  return CUDNN_STATUS_SUCCESS;
}

/// Takes over the program from the descriptor that the attribute names.
void inherit(Descriptor& d, cudnnBackendAttributeName_t name) {
  const Descriptor* const from = d.descriptor(name);
  if (from == nullptr) return;
  d.program = from->program;
  d.device = from->device;
}

/// A call's tensors, checked against the plan. Returns why the call is refused.
std::string check_call(const CudnnProgram& program, const std::map<int64_t, void*>& memory, const void* workspace, int64_t workspace_bytes,
                       int device) {
  std::vector<std::pair<const char*, const char*>> read_only;
  const auto range = [&](int64_t uid) {
    const auto* const begin = static_cast<const char*>(memory.at(uid));
    return std::pair(begin, begin + program.tensors.at(uid).bytes());
  };
  for (const auto& [uid, tensor] : program.tensors) {
    if (tensor.is_virtual) continue;
    const std::string name = "tensor " + std::to_string(uid);
    const auto found = memory.find(uid);
    if (found == memory.end() || found->second == nullptr) return name + " has no memory";
    if (tensor.is_by_value) continue;
    if (!is_device_memory(found->second, static_cast<size_t>(tensor.bytes()), device)) return name + " is not memory of the GPU";
    if (reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(tensor.alignment) != 0) return name + " is not aligned as declared";
  }
  for (const int64_t output : program.outputs)
    for (const int64_t input : program.inputs) {
      const auto [begin, end] = range(output);
      const auto [from, to] = range(input);
      if (begin < to && from < end) return "an output overlaps an input";
    }
  if (workspace_bytes > 0 && !is_device_memory(workspace, static_cast<size_t>(workspace_bytes), device)) return "the workspace is too small";
  return "";
}

}  // namespace

void set_cudnn(const CudnnOptions& wanted) {
  const std::lock_guard lock(g_mutex);
  g_options = wanted;
}
CudnnOptions cudnn_options() {
  const std::lock_guard lock(g_mutex);
  return g_options;
}

CudnnStatistics cudnn_statistics() { return {g_forwards, g_backwards, g_plans, g_live, g_largest_workspace}; }

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

size_t cudnnGetVersion() { return kVersion; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_ALLOC_FAILED: return "CUDNN_STATUS_ALLOC_FAILED";
    default: return "another status";
  }
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size == 0) return;
  const size_t count = std::min(size - 1, g_last_error.size());
  std::memcpy(message, g_last_error.data(), count);
  message[count] = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  ++g_live;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  --g_live;
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  Handle& own = *reinterpret_cast<Handle*>(handle);
  if (device_of(stream) != own.device) return refuse(CUDNN_STATUS_BAD_PARAM, "a stream of another GPU");
  own.stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<Handle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Reference(std::make_shared<Descriptor>(type));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Reference*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t count, const void* values) {
  Descriptor& d = of(descriptor);
  if (d.finalized) return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is set after the descriptor is final");
  Descriptor::Value value;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* const list = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < count; ++i) value.descriptors.push_back(*static_cast<Reference*>(list[i]));
  } else {
    const auto* const bytes = static_cast<const char*>(values);
    value.bytes.assign(bytes, bytes + count * cuda_sim::size_of(type));
  }
  d.values[name] = std::move(value);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& d = of(descriptor);
  d.finalized = true;
  switch (d.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: inherit(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH); return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: inherit(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH); return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: inherit(d, CUDNN_ATTR_ENGINECFG_ENGINE); return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      inherit(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      if (d.program == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM, "a plan without a graph");
      ++g_plans;
      for (int64_t largest = g_largest_workspace;
           largest < d.program->workspace && !g_largest_workspace.compare_exchange_weak(largest, d.program->workspace);) {
      }
      return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_SUCCESS;
  }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t requested, int64_t* count, void* values) {
  const Descriptor& d = of(descriptor);
  const auto one = [&](int64_t value) {
    if (count != nullptr) *count = 1;
    if (requested > 0 && values != nullptr) std::memcpy(values, &value, static_cast<size_t>(cuda_sim::size_of(type)));
    return CUDNN_STATUS_SUCCESS;
  };
  const auto none = [&] {
    if (count != nullptr) *count = 0;
    return CUDNN_STATUS_SUCCESS;
  };
  const auto child = [&](cudnnBackendDescriptor_t to) {
    Descriptor& made = of(to);
    made.program = d.program;
    made.device = d.device;
    made.finalized = true;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      if (!cudnn_options().supported) return none();
      if (requested > 0 && values != nullptr) child(static_cast<cudnnBackendDescriptor_t*>(values)[0]);
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (requested > 0 && values != nullptr) child(static_cast<cudnnBackendDescriptor_t*>(values)[0]);
      if (count != nullptr) *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return one(d.program->workspace);
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: return one(0);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return one(6);
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE: return none();
    default: return refuse(CUDNN_STATUS_NOT_SUPPORTED, "attribute " + std::to_string(name) + " is not simulated");
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  const Handle& own = *reinterpret_cast<Handle*>(handle);
  const Descriptor &execution = of(plan), &variant = of(pack);
  const std::shared_ptr<CudnnProgram> program = execution.program;
  if (own.device != current_device() || own.device != execution.device || device_of(own.stream) != own.device)
    return refuse(CUDNN_STATUS_BAD_PARAM, "handle, plan, stream and thread belong to different GPUs");
  const std::vector<int64_t> uids = variant.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<void*> pointers = variant.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> memory;
  for (size_t i = 0; i < uids.size() && i < pointers.size(); ++i) memory.emplace(uids[i], pointers[i]);
  auto* const workspace = variant.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (const std::string why = check_call(*program, memory, workspace, program->workspace, own.device); !why.empty())
    return refuse(CUDNN_STATUS_BAD_PARAM, why);
  const CudnnOptions now = cudnn_options();
  const bool faulty = now.only_device < 0 || now.only_device == own.device;
  if (now.fails && faulty) return refuse(CUDNN_STATUS_ALLOC_FAILED, "out of memory");
  const float lse_unit = faulty && now.lse_in_log2 ? 1.44269504f : 1;
  const float wrong = !faulty ? 0 : program->backward ? now.wrong_backward : now.wrong_forward;
  ++(program->backward ? g_backwards : g_forwards);
  // Numbers that are passed by value are read now, like the arguments of a kernel.
  auto constants = std::make_shared<std::vector<float>>(program->tensors.size());
  for (const auto& [uid, tensor] : program->tensors) {
    if (!tensor.is_by_value) continue;
    float& number = (*constants)[static_cast<size_t>(std::distance(program->tensors.begin(), program->tensors.find(uid)))];
    std::memcpy(&number, memory.at(uid), static_cast<size_t>(tensor.element_bytes()));
    memory[uid] = &number;
  }
  const int64_t bytes = program->workspace;
  const auto body = [program, memory, constants, workspace, bytes, wrong, lse_unit] {
    std::memset(workspace, 0xFF, static_cast<size_t>(bytes));
    program->run(memory, wrong, lse_unit, static_cast<uint64_t>(++g_executions));
  };
  return enqueue(own.stream, program->backward ? "cuDNN attention backward" : "cuDNN attention forward", body) == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
