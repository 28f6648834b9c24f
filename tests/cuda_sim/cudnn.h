#pragma once
// The simulated cuDNN: the functions of its backend that the frontend library calls, exported from the test program. It accepts graphs of the
// operations that attention consists of, checks their descriptors, and computes them literally, operation by operation, with scores of every pair of
// tokens. Nothing in it knows what attention is: a wrong stride, scale, mask or order of tensors gives a wrong result. It is stricter than the library
// where the library leaves a mistake unnoticed: every tensor and the workspace must be device memory of the GPU, aligned as declared, outputs must not
// overlap inputs, and the workspace is overwritten. A graph that adds to a tensor in fp32 memory stands for the algorithm with atomic additions,
// whose results differ from call to call.
#include <cstdint>

namespace cuda_sim {

struct CudnnOptions {
  bool missing = false;        ///< the library is not found
  bool supported = true;       ///< false: the heuristic has no engine
  int64_t more_workspace = 0;  ///< bytes beyond those that the graph needs
  bool fails = false;          ///< every execution fails: out of memory
  /// Added to the first element of the last row of outputs, as a share of the largest element.
  float wrong_forward = 0, wrong_backward = 0;
  bool lse_in_log2 = false;  ///< the forward's log-sum-exp is that of base 2
  int only_device = -1;      ///< `fails` and the wrong results are those of this device; -1: of all
};
/// Until the next call; it applies to graphs that are built later.
void set_cudnn(const CudnnOptions& options);
CudnnOptions cudnn_options();

struct CudnnStatistics {
  int64_t forwards = 0, backwards = 0;  ///< executions queued
  int64_t plans = 0;                    ///< execution plans made
  int64_t live_objects = 0;             ///< handles and descriptors
  int64_t largest_workspace = 0;        ///< bytes that a plan asked for
};
/// Statistics of the process.
CudnnStatistics cudnn_statistics();

}  // namespace cuda_sim
