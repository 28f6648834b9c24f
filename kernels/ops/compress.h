#pragma once
// Lossy encodings of a range of gradient elements, for the wire. With error feedback a sender adds to the next gradient what the last message lacked,
// so that over the steps everything is sent.
//   v = gradient + error;   message = encode(v);   next error = v - decode(message)
// Sources: Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019, arXiv:1901.09847 (error feedback); Stich et al. 2018, arXiv:1809.07599 (top-k, random-k);
// Dettmers et al. 2021, arXiv:2110.02861 (blocks with a scale each).
#include "kernels/core/encoding.h"
#include "kernels/core/tensor.h"

namespace trireme {

struct EncodingOptions {
  Encoding encoding = Encoding::kInt8;
  int64_t block = 256;    ///< kInt8, kInt4, kSign: elements that share a scale; a multiple of 8
  double ratio = 0.01;    ///< kTopK, kRandomK: share of the elements that is sent, in (0, 1]
  bool unbiased = false;  ///< kRandomK: scales what is sent by the length of its stretch. For senders without error feedback
};

/// Identifies the drawn elements of kRandomK: sender and receiver give the same ones.
struct EncodingDraw {
  uint64_t key = 0;
  uint64_t draw = 0;
};

/// Number of elements that kTopK and kRandomK send: ratio * count, rounded, at least 1.
int64_t kept_elements(const EncodingOptions& options, int64_t count);
/// Bytes of the message of `count` elements of `dtype`, a multiple of 4.
int64_t encoded_bytes(const EncodingOptions& options, int64_t count, DType dtype = DType::kF32);

/// message := encoding of gradient + error; next_error := what the message lacks of it.
/// gradient [n] f32 or f64; error [n] in its dtype, or undefined: zero; next_error [n] in its dtype, or undefined: not wanted. It may be gradient or error.
/// message [encoded_bytes(n)] u8, at a multiple of 4 bytes. A value that is not finite makes at least one decoded value NaN or infinite.
void encode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& gradient, const Tensor& error,
            const Tensor& message, const Tensor& next_error);
/// out += the decoded message.   message [encoded_bytes(n)] u8; out [n] f32 or f64. The message may contain any bytes: kTopK adds NaN to the first
/// element for an index that is not one of an element, so that the whole is not finite.
void decode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& message, const Tensor& out);

}  // namespace trireme
