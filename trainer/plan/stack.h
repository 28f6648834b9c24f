#pragma once
// The software whose kernels and overlap a forecast assumes: Trireme, or a published system, so that its runs can be forecast too.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class AttentionKernel : uint8_t {
  kUnfused,  ///< batched matrix products around a fused softmax: scores of sequences x heads x T x T go through memory
  kFused,    ///< one kernel, at the device's attention efficiency; source: Dao 2023, arXiv:2307.08691
};

/// Properties of a system as published by its authors. Figures marked "fitted" are fitted to published runs, some to those of several
/// systems together; none is specific to a single run.
struct Stack {
  const char* name;
  const char* source;
  AttentionKernel attention = AttentionKernel::kFused;
  double attention_rate = 1;     ///< fused attention rate relative to the GPU's
  double product_rate = 1;       ///< fitted: matrix product rate relative to the device's
  double elementwise = 1;        ///< fitted: memory traffic of operations other than products and attention, relative to Trireme's
  double tensor_overlap = 0;     ///< share of tensor-parallel communication hidden behind matrix products
  double gather_overlap = 0;     ///< share of the gathers and reductions of ZeRO-2 and 3 that overlaps compute without slowing it
  bool reduce_overlap = false;   ///< the gradient reduction at the end of a step overlaps the last micro-batch's backward
  double reduce_bytes = 4;       ///< bytes of a gradient element on the wire between data ranks
  double data_factor = 1;        ///< fitted: time of all traffic between data ranks relative to the time of its bytes
  bool split_transfers = false;  ///< each tensor rank sends only its part of a stage boundary, even without sequence parallelism
  bool own = false;  ///< Trireme: logits live only within the backward; weight gradients gather their inputs again under sequence parallelism;
                     ///< full recomputation skips a block's last product
  double selective_blocks = 0;  ///< share of a block's forward that selective recomputation repeats in addition to attention
  double layer_seconds = 0;     ///< fitted: time per layer in which the device waits for the host, for each of forward, input gradient, weight
                                ///< gradient and recomputation
  double rank_seconds = 0;      ///< fitted: time per step and data rank of a sharded optimizer that issues operations for each rank's part
  int gathers_per_block = 1;    ///< collectives in which ZeRO-3 gathers a block
  /// Zero-bubble schedules: zb_h2 is searched for with profiled times, so that their differences cost nothing.
  bool searched_schedules = false;
  bool post_validation = false;  ///< zero-bubble schedules: a rank updates its weights without waiting for the gradient norm of the others
  /// Context parallelism by PyTorch's ring attention (torch/distributed/tensor/experimental/_attention.py), whose FlashAttention-2 kernels have this
  /// rate relative to the GPU's: all heads have keys and values of their own, gathered behind the first part's attention, and separate kernels add up
  /// the parts' results in fp32. 0: attention at attention_rate, behind which keys and values arrive.
  double ring_attention_rate = 0;
  double fp8_rate = 0;  ///< rate of a block's matrix products in fp8 relative to 16 bits; 0: they are in 16 bits; set by effective_stack
  bool tf32 = false;    ///< fp32 products on tensor cores; set by effective_stack
  bool cudnn = false;   ///< cuDNN computes attention; set by effective_stack
  double scatter_overlap = gather_overlap;  ///< of the reductions, if it differs from that of the gathers; set by effective_stack
};

const std::vector<Stack>& stacks();  ///< trireme first

/// The stack called `name`, one of the choices of software.stack.
const Stack& stack_of(const std::string& name);

}  // namespace trireme
