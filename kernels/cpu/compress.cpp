#include "kernels/cpu/compress.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {
namespace {

int bits_of(Encoding encoding) { return encoding == Encoding::kInt8 ? 8 : encoding == Encoding::kInt4 ? 4 : 1; }

int64_t blocks_of(const EncodingOptions& options, int64_t count) { return (count + options.block - 1) / options.block; }

}  // namespace

void encode_blocks(Context& ctx, const EncodingOptions& options, const Tensor& gradient, const Tensor& error, const Tensor& message,
                   const Tensor& next_error) {
  const int64_t count = gradient.numel(), blocks = blocks_of(options, count);
  auto* const scales = reinterpret_cast<float*>(message.data<uint8_t>());
  auto* const codes = reinterpret_cast<uint8_t*>(scales + blocks);
  uint8_t* const end = message.data<uint8_t>() + message.numel();
  std::memset(std::max(codes, end - 4), 0, static_cast<size_t>(std::min<int64_t>(4, end - codes)));  // what pads the message
  const EncodeBlocks arguments{.gradient = gradient.data<float>(),
                               .error = data_or_null<float>(error),
                               .count = count,
                               .block = options.block,
                               .bits = bits_of(options.encoding),
                               .scales = scales,
                               .codes = codes,
                               .next_error = data_or_null<float>(next_error)};
  run_kernel(ctx, kernels_of(ctx.isa).encode_blocks, arguments, blocks, grain_of(options.block));
}

void decode_blocks(Context& ctx, const EncodingOptions& options, const Tensor& message, const Tensor& out) {
  const int64_t count = out.numel(), blocks = blocks_of(options, count);
  const auto* const scales = reinterpret_cast<const float*>(message.data<uint8_t>());
  const DecodeBlocks arguments{.scales = scales,
                               .codes = reinterpret_cast<const uint8_t*>(scales + blocks),
                               .count = count,
                               .block = options.block,
                               .bits = bits_of(options.encoding),
                               .out = out.data<float>()};
  run_kernel(ctx, kernels_of(ctx.isa).decode_blocks, arguments, blocks, grain_of(options.block));
}

}  // namespace trireme::cpu
