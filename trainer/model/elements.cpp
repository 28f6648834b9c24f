#include "trainer/model/elements.h"

#include "trainer/model/dims.h"

namespace trireme {

PartElements::PartElements(const ModelConfig& model, int64_t tensor_ranks) {
  const Dims d(model, static_cast<int>(tensor_ranks));
  const int64_t norm = d.D * (d.gpt2 ? 2 : 1), packed = (d.local_N + 2 * d.local_K) * d.H, up = d.local_F * (d.gpt2 ? 1 : 2);
  vocabulary = (d.V + tensor_ranks - 1) / tensor_ranks * d.D;
  positions = d.gpt2 ? d.P * d.D : 0;
  final_norm = norm;
  block = 2 * norm + packed * d.D + d.local_N * d.H * d.D + up * d.D + d.local_F * d.D;
  if (d.gpt2 || model.qkv_bias) block += packed;
  if (d.gpt2) block += 2 * d.D + d.local_F;  // of both projections into the residual stream, and of the MLP's first
  if (model.qk_norm) block += 2 * d.H;
}

}  // namespace trireme
