#include "parallel/comm/transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "parallel/comm/arguments.h"

namespace trireme {
namespace {

/// Accumulator of a reduction of T: fp32 for bf16 and fp16, so that the result is rounded once and not once per rank.
template <class T>
using Carried = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

template <ReduceOp kOp, class T>
T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) return static_cast<T>(a + b);
  if constexpr (kOp == ReduceOp::kMax) return a < b ? b : a;
  return b < a ? b : a;
}

/// Reduces block by block in a buffer on the stack: a block is read from all inputs before it is stored, so the output may be an input, and the
/// compiler knows that the loops' results do not alias what they read.
template <ReduceOp kOp, class T>
void reduce_as(std::span<const std::byte* const> in, std::byte* out, int64_t count) {
  constexpr int64_t kBlock = 1024;
  std::array<Carried<T>, kBlock> sum;
  std::array<T, kBlock> rounded;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    const auto part = [&](size_t rank) { return reinterpret_cast<const T*>(in[rank]) + done; };
    const T *first = part(0), *last = part(in.size() - 1);
    if (in.size() == 2) {
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<T>(combine<kOp, Carried<T>>(first[i], last[i]));
    } else {
      const T* second = part(1);
      for (int64_t i = 0; i < n; ++i) sum[i] = combine<kOp, Carried<T>>(first[i], second[i]);
      for (size_t rank = 2; rank + 1 < in.size(); ++rank) {
        const T* next = part(rank);
        for (int64_t i = 0; i < n; ++i) sum[i] = combine<kOp, Carried<T>>(sum[i], next[i]);
      }
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<T>(combine<kOp, Carried<T>>(sum[i], last[i]));
    }
    std::memcpy(out + done * static_cast<int64_t>(sizeof(T)), rounded.data(), static_cast<size_t>(n) * sizeof(T));
  }
}

template <class T>
void reduce_as(ReduceOp op, std::span<const std::byte* const> in, std::byte* out, int64_t count) {
  switch (op) {
    case ReduceOp::kSum: return reduce_as<ReduceOp::kSum, T>(in, out, count);
    case ReduceOp::kMax: return reduce_as<ReduceOp::kMax, T>(in, out, count);
    case ReduceOp::kMin: return reduce_as<ReduceOp::kMin, T>(in, out, count);
  }
}

void copy_bytes(const std::byte* from, std::byte* to, int64_t bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Moves the parts of an all_to_all_v, whose counts agree.
void move_parts(const Transfer& transfer) {
  std::vector<const std::byte*> from = transfer.in;  ///< the next part of each source
  for (size_t destination = 0; destination < transfer.out.size(); ++destination) {
    std::byte* to = transfer.out[destination];
    for (size_t source = 0; source < from.size(); ++source) {
      const int64_t bytes = transfer.send_counts[source][destination] * size_of(transfer.call.dtype);
      copy_bytes(from[source], to, bytes);
      from[source] += bytes;
      to += bytes;
    }
  }
}

}  // namespace

std::string Call::str() const {
  const std::string what = concat(count, " ", name_of(dtype));
  switch (verb) {
    case Verb::kAllReduce: return concat("all_reduce(", name_of(op), ") of ", what);
    case Verb::kAllGather: return concat("all_gather of ", what, " per rank");
    case Verb::kReduceScatter: return concat("reduce_scatter(", name_of(op), ") of ", what, " per rank");
    case Verb::kAllToAll: return concat("all_to_all of ", what, " per part");
    case Verb::kAllToAllV: return concat("all_to_all_v of ", name_of(dtype));
    case Verb::kBroadcast: return concat("broadcast from ", root, " of ", what);
    case Verb::kMessage: return concat("a message of ", what);
    case Verb::kBarrier: return "barrier";
  }
  return "?";
}

void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> in, std::byte* out, int64_t count) {
  if (in.size() == 1) return copy_bytes(in[0], out, count * size_of(dtype));
  switch (dtype) {
    case DType::kF64: return reduce_as<double>(op, in, out, count);
    case DType::kF32: return reduce_as<float>(op, in, out, count);
    case DType::kBF16: return reduce_as<bfloat16>(op, in, out, count);
    case DType::kF16: return reduce_as<float16>(op, in, out, count);
    case DType::kI64: return reduce_as<int64_t>(op, in, out, count);
    case DType::kI32: return reduce_as<int32_t>(op, in, out, count);
    case DType::kU8: return reduce_as<uint8_t>(op, in, out, count);
  }
}

std::string find_count_mismatch(const Transfer& transfer, std::span<const int> names) {
  for (size_t source = 0; source < transfer.send_counts.size(); ++source) {
    for (size_t destination = 0; destination < transfer.receive_counts.size(); ++destination) {
      const auto &sends = transfer.send_counts[source], &receives = transfer.receive_counts[destination];
      if (sends.empty() || receives.empty()) continue;  // not an all_to_all_v
      if (sends[destination] == receives[source]) continue;
      return count_mismatch(names[source], sends[destination], names[destination], receives[source]);
    }
  }
  return "";
}

void move_data(const Transfer& transfer) {
  const Call& call = transfer.call;
  const int64_t bytes = call.count * size_of(call.dtype);
  switch (call.verb) {
    case Verb::kAllReduce: {
      constexpr int64_t kBlock = 1024;  // stays in the cache until every rank has its copy
      std::vector<const std::byte*> parts(transfer.in.size());
      for (int64_t begin = 0; begin < call.count; begin += kBlock) {
        const int64_t offset = begin * size_of(call.dtype), count = std::min(kBlock, call.count - begin);
        for (size_t rank = 0; rank < parts.size(); ++rank) parts[rank] = transfer.in[rank] + offset;
        std::byte* const sum = transfer.out[0] + offset;
        reduce_in_order(call.dtype, call.op, parts, sum, count);
        for (std::byte* out : transfer.out) copy_bytes(sum, out + offset, count * size_of(call.dtype));
      }
      return;
    }
    case Verb::kReduceScatter:
      for (size_t rank = 0; rank < transfer.out.size(); ++rank) {
        std::vector<const std::byte*> parts = transfer.in;
        for (const std::byte*& part : parts) part += static_cast<int64_t>(rank) * bytes;
        reduce_in_order(call.dtype, call.op, parts, transfer.out[rank], call.count);
      }
      return;
    case Verb::kAllGather:
      for (std::byte* out : transfer.out)
        for (size_t from = 0; from < transfer.in.size(); ++from) copy_bytes(transfer.in[from], out + static_cast<int64_t>(from) * bytes, bytes);
      return;
    case Verb::kAllToAll:
      for (size_t to = 0; to < transfer.out.size(); ++to)
        for (size_t from = 0; from < transfer.in.size(); ++from)
          copy_bytes(transfer.in[from] + static_cast<int64_t>(to) * bytes, transfer.out[to] + static_cast<int64_t>(from) * bytes, bytes);
      return;
    case Verb::kAllToAllV: return move_parts(transfer);
    case Verb::kBroadcast:
      for (std::byte* out : transfer.out) copy_bytes(transfer.in[static_cast<size_t>(call.root)], out, bytes);
      return;
    case Verb::kMessage: return copy_bytes(transfer.in[0], transfer.out[0], bytes);
    case Verb::kBarrier: return;
  }
}

}  // namespace trireme
