#pragma once
// An execution plan of the simulated cuDNN: tensors, and operations on them in order.
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cuda_sim {

using Extents = std::array<int64_t, 4>;

struct CudnnTensor {
  int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Extents dims{1, 1, 1, 1}, strides{1, 1, 1, 1};
  int64_t alignment = 1;
  bool is_virtual = false;   ///< exists only within the graph
  bool is_by_value = false;  ///< one number in host memory

  int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t element_bytes() const { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4; }
  /// Elements from the first to the last, inclusive.
  int64_t extent() const {
    int64_t last = 0;
    for (size_t d = 0; d < 4; ++d) last += (dims[d] - 1) * strides[d];
    return last + 1;
  }
  int64_t bytes() const { return extent() * element_bytes(); }
};

struct CudnnOperation {
  enum class Kind { kMatmul, kPointwise, kReduction, kReshape };
  Kind kind{};
  cudnnPointwiseMode_t pointwise{};
  cudnnReduceTensorOp_t reduction{};
  int64_t axis = 0;             ///< of CUDNN_POINTWISE_GEN_INDEX
  std::vector<int64_t> inputs;  ///< uids
  int64_t output = 0;
};

struct CudnnProgram {
  std::map<int64_t, CudnnTensor> tensors;
  std::vector<CudnnOperation> operations;
  std::vector<int64_t> inputs, outputs;  ///< uids of tensors in device memory
  int64_t workspace = 0;                 ///< bytes
  bool atomic = false;                   ///< a product writes fp32 to memory, see cudnn.h
  bool backward = false;

  /// Why cuDNN would refuse the graph; empty: it is sound. Sets what follows from tensors and operations.
  std::string complete();
  /// Computes it. `memory`: of tensors that are not virtual. `wrong`, `lse_unit`: see CudnnOptions. `noise`: seed of what atomic additions do.
  void run(const std::map<int64_t, void*>& memory, float wrong, float lse_unit, uint64_t noise) const;
};

}  // namespace cuda_sim
