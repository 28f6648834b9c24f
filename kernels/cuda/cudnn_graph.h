#pragma once
// The forward or the backward of attention as a graph of cuDNN, built by its frontend library. Only cudnn_graph.cpp includes that library.
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/dtype.h"
#include "kernels/ops/attention.h"

struct cudnnContext;  // cudnnHandle_t points to it

namespace trireme::cuda {

/// Equal parts of an attention: `sequences` sequences and `kv_heads` kv heads with their query heads, at the strides of the whole.
struct AttentionPart {
  AttentionShape whole;
  int64_t sequences = 0, kv_heads = 0;
  DType dtype = DType::kBF16;
};

/// For which GPU a graph is built: that of the handle, or without a GPU (tests) the one that `properties` describes in cuDNN's JSON.
struct CudnnTarget {
  cudnnContext* handle = nullptr;
  int compute_capability = 0;  ///< times ten
  std::string properties;
};

/// Device memory of the tensors of one part: the first element of its first head.
struct AttentionMemory {
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  void *out = nullptr, *lse = nullptr;  ///< written by the forward
  const void* dout = nullptr;           ///< this and the next: backward only
  void *dquery = nullptr, *dkey = nullptr, *dvalue = nullptr;
};

/// Not thread-safe.
class CudnnGraph {
 public:
  /// Chooses an engine by cuDNN's heuristic and compiles it. The backward is the deterministic algorithm.
  /// Returns null if cuDNN does not support the graph on this GPU, and `why`.
  static std::unique_ptr<CudnnGraph> build(const CudnnTarget& target, const AttentionPart& part, bool backward, std::string& why);
  ~CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;

  int64_t workspace_bytes() const;
  /// Queues it on the handle's stream. Returns cuDNN's error; empty: it is queued.
  std::string run(cudnnContext* handle, const AttentionMemory& memory, void* workspace);

 private:
  struct State;
  explicit CudnnGraph(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace trireme::cuda
