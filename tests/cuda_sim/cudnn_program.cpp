#include "tests/cuda_sim/cudnn_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "tests/cuda_sim/random.h"

namespace cuda_sim {
namespace {

using trireme::bfloat16;
using trireme::float16;

float read(const void* memory, cudnnDataType_t type, int64_t i) {
  if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(static_cast<const bfloat16*>(memory)[i]);
  if (type == CUDNN_DATA_HALF) return static_cast<float>(static_cast<const float16*>(memory)[i]);
  if (type == CUDNN_DATA_INT32) return static_cast<float>(static_cast<const int32_t*>(memory)[i]);
  return static_cast<const float*>(memory)[i];
}
void write(void* memory, cudnnDataType_t type, int64_t i, float value) {
  if (type == CUDNN_DATA_BFLOAT16) {
    static_cast<bfloat16*>(memory)[i] = bfloat16(value);
  } else if (type == CUDNN_DATA_HALF) {
    static_cast<float16*>(memory)[i] = float16(value);
  } else {
    static_cast<float*>(memory)[i] = value;
  }
}
/// What a tensor of the type keeps of a value.
float rounded(cudnnDataType_t type, float value) {
  if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(bfloat16(value));
  if (type == CUDNN_DATA_HALF) return static_cast<float>(float16(value));
  return value;
}

/// Calls body(index in 4 dimensions, row-major number).
template <class Body>
void for_each(const Extents& dims, const Body& body) {
  Extents i{};
  int64_t number = 0;
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) body(i, number++);
}
int64_t dot(const Extents& i, const Extents& strides) { return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3]; }

/// Values in row-major order of the dimensions.
struct Values {
  Extents dims{};
  std::vector<float> data;
  /// An extent that divides the index's broadcasts: neighbouring query heads share a kv head, and a single element is shared by all.
  float at(const Extents& i, const Extents& of) const {
    int64_t number = 0;
    for (size_t d = 0; d < 4; ++d) number = number * dims[d] + i[d] * dims[d] / of[d];
    return data[static_cast<size_t>(number)];
  }
};

Values loaded(const CudnnTensor& tensor, const void* memory) {
  Values values{tensor.dims, std::vector<float>(static_cast<size_t>(tensor.count()))};
  for_each(tensor.dims,
           [&](const Extents& i, int64_t number) { values.data[static_cast<size_t>(number)] = read(memory, tensor.type, dot(i, tensor.strides)); });
  return values;
}

Values product(const Values& a, const Values& b, const Extents& dims) {
  Values c{dims, std::vector<float>(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]))};
  const int64_t depth = a.dims[3];
  for_each(dims, [&](const Extents& i, int64_t number) {
    const auto head = [&](const Values& of) { return (i[0] * of.dims[0] / dims[0]) * of.dims[1] + i[1] * of.dims[1] / dims[1]; };
    const float* const row = a.data.data() + (head(a) * a.dims[2] + i[2]) * depth;
    const float* const column = b.data.data() + head(b) * depth * b.dims[3] + i[3];
    float sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += row[k] * column[k * b.dims[3]];
    c.data[static_cast<size_t>(number)] = sum;
  });
  return c;
}

float combined(cudnnPointwiseMode_t mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_CMP_GT: return x > b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_CMP_LE: return x <= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_CMP_LT: return x < b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return std::nanf("");  // complete() has refused it
  }
}
bool is_known(cudnnPointwiseMode_t mode) {
  constexpr cudnnPointwiseMode_t kKnown[] = {
      CUDNN_POINTWISE_ADD,           CUDNN_POINTWISE_SUB,       CUDNN_POINTWISE_MUL,     CUDNN_POINTWISE_DIV,    CUDNN_POINTWISE_EXP,
      CUDNN_POINTWISE_LOG,           CUDNN_POINTWISE_CMP_GE,    CUDNN_POINTWISE_CMP_GT,  CUDNN_POINTWISE_CMP_LE, CUDNN_POINTWISE_CMP_LT,
      CUDNN_POINTWISE_BINARY_SELECT, CUDNN_POINTWISE_GEN_INDEX, CUDNN_POINTWISE_IDENTITY};
  return std::ranges::find(kKnown, mode) != std::end(kKnown);
}

Values reduced(const Values& x, const Extents& dims, cudnnReduceTensorOp_t operation) {
  const bool maximum = operation == CUDNN_REDUCE_TENSOR_MAX;
  Values y{dims, std::vector<float>(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]), maximum ? -INFINITY : 0)};
  for_each(x.dims, [&](const Extents& i, int64_t number) {
    int64_t to = 0;
    for (size_t d = 0; d < 4; ++d) to = to * dims[d] + i[d] * dims[d] / x.dims[d];
    float& sum = y.data[static_cast<size_t>(to)];
    const float value = x.data[static_cast<size_t>(number)];
    sum = maximum ? std::max(sum, value) : sum + value;
  });
  return y;
}

/// The same memory with other dimensions and strides.
Values reshaped(const Values& x, const CudnnTensor& from, const CudnnTensor& to) {
  std::vector<float> memory(static_cast<size_t>(from.extent()));
  for_each(x.dims,
           [&](const Extents& i, int64_t number) { memory[static_cast<size_t>(dot(i, from.strides))] = x.data[static_cast<size_t>(number)]; });
  Values y{to.dims, std::vector<float>(static_cast<size_t>(to.count()))};
  for_each(to.dims, [&](const Extents& i, int64_t number) { y.data[static_cast<size_t>(number)] = memory[static_cast<size_t>(dot(i, to.strides))]; });
  return y;
}

}  // namespace

std::string CudnnProgram::complete() {
  std::set<int64_t> written, read_first;
  int64_t products = 0, scores = 0;
  for (const CudnnOperation& operation : operations) {
    const CudnnTensor& y = tensors.at(operation.output);
    for (const int64_t uid : operation.inputs) {
      const CudnnTensor& x = tensors.at(uid);
      if (!written.contains(uid) && x.is_virtual) return "a virtual tensor is read before it is written";
      if (!written.contains(uid) && !x.is_by_value) read_first.insert(uid);
    }
    if (operation.kind == CudnnOperation::Kind::kMatmul) {
      const CudnnTensor &a = tensors.at(operation.inputs[0]), &b = tensors.at(operation.inputs[1]);
      if (a.dims[3] != b.dims[2] || y.dims[2] != a.dims[2] || y.dims[3] != b.dims[3]) return "the sizes of a product do not fit";
      ++products;
      if (y.is_virtual) scores = std::max(scores, y.dims[2] * y.dims[3]);
    }
    if (operation.kind == CudnnOperation::Kind::kPointwise && !is_known(operation.pointwise)) return "an operation that is not simulated";
    if (operation.kind == CudnnOperation::Kind::kReshape && y.extent() > tensors.at(operation.inputs[0]).extent())
      return "a reshape beyond its tensor";
    written.insert(operation.output);
  }
  backward = products > 2;
  for (const auto& [uid, tensor] : tensors) {
    if (tensor.is_virtual || tensor.is_by_value) continue;
    for (size_t d = 0; d < 4; ++d)
      if (tensor.dims[d] <= 0 || tensor.strides[d] <= 0) return "a tensor without dimensions or strides";
    (read_first.contains(uid) ? inputs : outputs).push_back(uid);
  }
  for (const CudnnOperation& operation : operations) {
    const CudnnTensor& y = tensors.at(operation.output);
    if (operation.kind == CudnnOperation::Kind::kMatmul && !y.is_virtual && y.type == CUDNN_DATA_FLOAT) atomic = true;
  }
  // What cuDNN 9.19 takes on compute capability 9.0: score gradients in 16 bits, and with shared kv heads their gradients of each query head.
  workspace = 256;
  if (backward && !atomic) {
    for (const CudnnOperation& operation : operations) {
      const CudnnTensor& y = tensors.at(operation.output);
      if (operation.kind == CudnnOperation::Kind::kReduction && y.dims[1] > 1 && tensors.at(operation.inputs[0]).dims[1] > y.dims[1])
        workspace += tensors.at(operation.inputs[0]).count() * 2;
    }
    const auto score = std::ranges::find_if(operations, [&](const CudnnOperation& one) {
      return one.kind == CudnnOperation::Kind::kMatmul && tensors.at(one.output).dims[2] * tensors.at(one.output).dims[3] == scores;
    });
    const Extents& dims = tensors.at(score->output).dims;
    workspace += dims[0] * dims[1] * ((dims[2] + 127) / 128 * 128) * ((dims[3] + 127) / 128 * 128) * 2;
  }
  return "";
}

void CudnnProgram::run(const std::map<int64_t, void*>& memory, float wrong, float lse_unit, uint64_t noise) const {
  std::map<int64_t, Values> values;
  const auto value_of = [&](int64_t uid) -> const Values& {
    const auto found = values.find(uid);
    return found != values.end() ? found->second : values.emplace(uid, loaded(tensors.at(uid), memory.at(uid))).first->second;
  };
  Random random(noise);
  for (const CudnnOperation& operation : operations) {
    const CudnnTensor& y = tensors.at(operation.output);
    Values result;
    switch (operation.kind) {
      case CudnnOperation::Kind::kMatmul: result = product(value_of(operation.inputs[0]), value_of(operation.inputs[1]), y.dims); break;
      case CudnnOperation::Kind::kReduction: result = reduced(value_of(operation.inputs[0]), y.dims, operation.reduction); break;
      case CudnnOperation::Kind::kReshape: result = reshaped(value_of(operation.inputs[0]), tensors.at(operation.inputs[0]), y); break;
      case CudnnOperation::Kind::kPointwise: {
        result = {y.dims, std::vector<float>(static_cast<size_t>(y.count()))};
        std::vector<const Values*> inputs_of;
        for (const int64_t uid : operation.inputs) inputs_of.push_back(&value_of(uid));
        for_each(y.dims, [&](const Extents& i, int64_t number) {
          const auto input = [&](size_t n) { return n < inputs_of.size() ? inputs_of[n]->at(i, y.dims) : 0; };
          const bool index = operation.pointwise == CUDNN_POINTWISE_GEN_INDEX;
          result.data[static_cast<size_t>(number)] =
              index ? static_cast<float>(i[static_cast<size_t>(operation.axis)]) : combined(operation.pointwise, input(0), input(1), input(2));
        });
      }
    }
    if (operation.kind == CudnnOperation::Kind::kMatmul && !y.is_virtual && y.type == CUDNN_DATA_FLOAT)  // the order of atomic additions varies
      for (float& value : result.data) value *= 1 + 0x1p-10f * static_cast<float>(random.below(2));
    for (float& value : result.data) value = rounded(y.type, value);
    values[operation.output] = std::move(result);
  }
  for (const int64_t uid : outputs) {
    const CudnnTensor& tensor = tensors.at(uid);
    Values& result = values.at(uid);
    if (!backward && tensor.dims[3] == 1)
      for (float& value : result.data) value *= lse_unit;
    if (wrong != 0) {
      float largest = 0;
      for (const float value : result.data) largest = std::max(largest, std::abs(value));
      result.data[result.data.size() - static_cast<size_t>(tensor.dims[3])] += wrong * largest;
    }
    for_each(tensor.dims, [&](const Extents& i, int64_t number) {
      write(memory.at(uid), tensor.type, dot(i, tensor.strides), result.data[static_cast<size_t>(number)]);
    });
  }
}

}  // namespace cuda_sim
