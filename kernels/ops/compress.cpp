#include "kernels/ops/compress.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/compress.h"
#include "kernels/cuda/compress.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/compress.h"

namespace trireme {
namespace {

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void check(const char* operation, const EncodingOptions& options, const Tensor& message, const Tensor& values) {
  TRIREME_CHECK(values.defined() && values.shape().dims() == 1 && (values.dtype() == DType::kF32 || values.dtype() == DType::kF64), operation,
                ": the elements must be a vector of F32 or F64");
  TRIREME_CHECK(options.block > 0 && options.block % 8 == 0 && options.ratio > 0 && options.ratio <= 1, operation, ": invalid options");
  expect(operation, {{"message", message, {encoded_bytes(options, values.numel(), values.dtype())}, DType::kU8}});
}

bool in_blocks(Encoding encoding) { return encoding == Encoding::kInt8 || encoding == Encoding::kInt4 || encoding == Encoding::kSign; }

}  // namespace

int64_t kept_elements(const EncodingOptions& options, int64_t count) {
  if (count == 0) return 0;
  return std::clamp<int64_t>(std::llround(options.ratio * static_cast<double>(count)), 1, count);
}

int64_t encoded_bytes(const EncodingOptions& options, int64_t count, DType dtype) {
  const int64_t scales = 4 * ((count + options.block - 1) / options.block);
  switch (options.encoding) {
    case Encoding::kNone: return count * size_of(dtype);
    case Encoding::kInt8: return scales + rounded_up(count, 4);
    case Encoding::kInt4: return scales + rounded_up((count + 1) / 2, 4);
    case Encoding::kSign: return scales + rounded_up((count + 7) / 8, 4);
    case Encoding::kTopK: return 8 * kept_elements(options, count);
    case Encoding::kRandomK: return 4 * kept_elements(options, count);
    case Encoding::kLowRank: break;
  }
  throw InternalError("factors of a matrix are not an encoding of a range");
}

void encode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& gradient, const Tensor& error,
            const Tensor& message, const Tensor& next_error) {
  check("encode", options, message, gradient);
  Operation operation(ctx, "encode", {{"gradient", gradient, gradient.shape(), gradient.dtype()}, {"message", message, message.shape(), DType::kU8}});
  operation.optional({"error", error, gradient.shape(), gradient.dtype()});
  operation.optional({"next_error", next_error, gradient.shape(), gradient.dtype()});
  if (gradient.numel() == 0) return;
  const auto cuda = [&] { cuda::encode(ctx, options, draw, gradient, error, message, next_error); };
  const auto fast = [&] { cpu::encode_blocks(ctx, options, gradient, error, message, next_error); };
  const auto reference = [&]<class T>(T) {
    if constexpr (sizeof(T) >= sizeof(float))
      reference::encode(options, draw, gradient.data<T>(), error.defined() ? error.data<T>() : nullptr, gradient.numel(), message.data<uint8_t>(),
                        next_error.defined() ? next_error.data<T>() : nullptr);
  };
  if (in_blocks(options.encoding) && (next_error.defined() || !error.defined()))
    operation.run(gradient.dtype(), cuda, FastCpu{fast}, reference);
  else
    operation.run(gradient.dtype(), cuda, reference);
}

void decode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& message, const Tensor& out) {
  check("decode", options, message, out);
  Operation operation(ctx, "decode",
                      {{"message", message, message.shape(), DType::kU8}, {"out", out, out.shape(), out.dtype(), Passes::kReadAndWritten}});
  if (out.numel() == 0) return;
  const auto cuda = [&] { cuda::decode(ctx, options, draw, message, out); };
  const auto reference = [&]<class T>(T) {
    if constexpr (sizeof(T) >= sizeof(float)) reference::decode(options, draw, message.data<uint8_t>(), out.numel(), out.data<T>());
  };
  if (in_blocks(options.encoding))
    operation.run(out.dtype(), cuda, FastCpu{[&] { cpu::decode_blocks(ctx, options, message, out); }}, reference);
  else
    operation.run(out.dtype(), cuda, reference);
}

}  // namespace trireme
