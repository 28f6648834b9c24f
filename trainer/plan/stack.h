#pragma once
// Whose kernels and overlap a forecast reckons with: Trireme's own, or those of a published system, so that its runs can be forecast too.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class AttentionKernel : uint8_t {
  kUnfused,  ///< batched products with a fused softmax between: scores of sequences x heads x T x T go through memory
  kFused,    ///< one kernel, at the device's attention efficiency; source: Dao 2023, arXiv:2307.08691
};

/// What its authors say of a system, and figures fitted to its published runs (marked so); none belongs to a single run.
struct Stack {
  const char* name;
  const char* source;
  AttentionKernel attention;
  double attention_rate;  ///< rate of fused attention as a multiple of the device's
  double product_rate;    ///< fitted: rate of products as a multiple of the device's
  double elementwise;     ///< fitted: memory traffic of what is no product and no attention, as a multiple of Trireme's own operations'
  double tensor_overlap;  ///< share of the tensor ranks' communication that hides behind products
  double gather_overlap;  ///< share of ZeRO-2 and 3's gathers and reductions that runs beside compute without slowing it
  bool reduce_overlap;    ///< the reduction of gradients, once a step, hides behind the last micro-batch's backward
  double reduce_bytes;    ///< of one gradient element between data ranks
  double data_factor;     ///< fitted: time of all traffic between data ranks as a multiple of what its bytes take
  bool split_transfers;   ///< each tensor rank sends its part of a boundary, also without sequence parallelism
  bool own;  ///< Trireme: logits live only within the backward, weight gradients gather their inputs again under sequence parallelism, full
             ///< recomputation leaves out a block's last product
  double selective_blocks;  ///< share of a block's forward that recompute selective runs again besides attention
  double layer_seconds;     ///< fitted: time a layer in which the device waits for the host: of forward, input gradient, weight gradient and
                            ///< recomputation each
  double host_seconds;      ///< fitted: time a step in which no device works
  bool tf32 = false;        ///< fp32 products on tensor cores, where a run asks for it (stack_on)
  double scatter_overlap = gather_overlap;  ///< of the reductions alone, where a run overlaps its gathers less (stack_on)
};

const std::vector<Stack>& stacks();  ///< trireme first

/// `name` is one of software.stack's choices.
const Stack& stack_of(const std::string& name);

}  // namespace trireme
