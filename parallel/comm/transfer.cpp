#include "parallel/comm/transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace trireme {
namespace {

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum: return static_cast<T>(a + b);
    case ReduceOp::kMax: return a < b ? b : a;
    case ReduceOp::kMin: return b < a ? b : a;
  }
  return a;
}

/// What a reduction of T is carried in: bf16 and fp16 in fp32, so that the result is rounded once and not once a rank.
template <class T>
using Carried = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

/// Reduces elements [begin, begin + count) of every input in rank order and hands each finished block to store(offset, block, bytes). A block is
/// read from all ranks before it is stored, so outputs may be the inputs.
template <class T, class Store>
void reduce_blocks(const Transfer& transfer, int64_t begin, int64_t count, const Store& store) {
  std::array<Carried<T>, 1024> block;
  std::array<T, 1024> rounded;
  const auto size = static_cast<int64_t>(block.size());
  for (int64_t done = 0; done < count; done += size) {
    const int64_t n = std::min(size, count - done);
    for (size_t rank = 0; rank < transfer.in.size(); ++rank) {
      const T* in = reinterpret_cast<const T*>(transfer.in[rank]) + begin + done;
      for (int64_t i = 0; i < n; ++i) {
        Carried<T>& sum = block[static_cast<size_t>(i)];
        const Carried<T> value = in[i];
        sum = rank == 0 ? value : combine(transfer.call.op, sum, value);
      }
    }
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) rounded[i] = static_cast<T>(block[i]);
    store(done * static_cast<int64_t>(sizeof(T)), rounded.data(), static_cast<size_t>(n) * sizeof(T));
  }
}

template <class T>
void reduce(const Transfer& transfer) {
  const int64_t count = transfer.call.count;
  if (transfer.call.verb == Verb::kAllReduce) {
    reduce_blocks<T>(transfer, 0, count, [&](int64_t offset, const T* block, size_t bytes) {
      for (std::byte* out : transfer.out) std::memcpy(out + offset, block, bytes);
    });
    return;
  }
  for (size_t rank = 0; rank < transfer.out.size(); ++rank) {
    reduce_blocks<T>(transfer, static_cast<int64_t>(rank) * count, count,
                     [&](int64_t offset, const T* block, size_t bytes) { std::memcpy(transfer.out[rank] + offset, block, bytes); });
  }
}

void copy_bytes(const std::byte* from, std::byte* to, int64_t bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

std::string Call::str() const {
  const std::string what = concat(count, " ", name_of(dtype));
  switch (verb) {
    case Verb::kAllReduce: return concat("all_reduce(", name_of(op), ") of ", what);
    case Verb::kAllGather: return concat("all_gather of ", what, " a rank");
    case Verb::kReduceScatter: return concat("reduce_scatter(", name_of(op), ") of ", what, " a rank");
    case Verb::kBroadcast: return concat("broadcast from ", root, " of ", what);
    case Verb::kMessage: return concat("a message of ", what);
    case Verb::kBarrier: return "barrier";
  }
  return "?";
}

void move_data(const Transfer& transfer) {
  const int64_t bytes = transfer.call.count * size_of(transfer.call.dtype);
  switch (transfer.call.verb) {
    case Verb::kAllReduce:
    case Verb::kReduceScatter:
      switch (transfer.call.dtype) {
        case DType::kF64: return reduce<double>(transfer);
        case DType::kF32: return reduce<float>(transfer);
        case DType::kBF16: return reduce<bfloat16>(transfer);
        case DType::kF16: return reduce<float16>(transfer);
        case DType::kI32: return reduce<int32_t>(transfer);
        case DType::kU8: return reduce<uint8_t>(transfer);
      }
      return;
    case Verb::kAllGather:
      for (std::byte* out : transfer.out)
        for (size_t from = 0; from < transfer.in.size(); ++from) copy_bytes(transfer.in[from], out + static_cast<int64_t>(from) * bytes, bytes);
      return;
    case Verb::kBroadcast:
      for (std::byte* out : transfer.out) copy_bytes(transfer.in[static_cast<size_t>(transfer.call.root)], out, bytes);
      return;
    case Verb::kMessage: return copy_bytes(transfer.in[0], transfer.out[0], bytes);
    case Verb::kBarrier: return;
  }
}

}  // namespace trireme
