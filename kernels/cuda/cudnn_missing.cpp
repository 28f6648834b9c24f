// Replaces cuDNN's attention in builds without its headers.
#include "kernels/core/check.h"
#include "kernels/cuda/cudnn_attention.h"

namespace trireme::cuda {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "kernels.attention=cudnn: this build has no cuDNN attention, because its headers were not found when it was configured; allowed auto | "
      "builtin");
}

}  // namespace

std::string attention_library() { refuse(); }
bool cudnn_attention_forward(Context& ctx, const Tensor& /*qkv*/, const AttentionShape& /*shape*/, const Tensor& /*out*/, const Tensor& /*lse*/) {
  if (ctx.gpu->options().cudnn_attention) refuse();
  return false;
}
bool cudnn_attention_backward(Context& ctx, const Tensor& /*dout*/, const Tensor& /*qkv*/, const Tensor& /*out*/, const Tensor& /*lse*/,
                              const AttentionShape& /*shape*/, const Tensor& /*dqkv*/, const Tensor& /*workspace*/) {
  if (ctx.gpu->options().cudnn_attention) refuse();
  return false;
}
std::vector<AttentionChoice> attention_choices(Gpu& /*gpu*/) { return {}; }

}  // namespace trireme::cuda
