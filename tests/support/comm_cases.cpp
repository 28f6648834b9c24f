#include "tests/support/comm_cases.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/ops/transfer.h"

namespace trireme {
namespace {

/// Memory of one rank, poisoned until written, with the host's view of it.
class Memory {
 public:
  explicit Memory(Context& context) : ctx(context) {}
  Tensor empty(int64_t count, DType dtype) { return Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication); }
  void fill(const Tensor& tensor, const std::function<int(int64_t)>& at) {
    const Tensor host = ctx.device == Device::kCuda ? host_tensor(tensor.shape(), tensor.dtype()) : tensor;
    for (int64_t i = 0; i < tensor.numel(); ++i) set(host, i, at(i));
    if (ctx.device == Device::kCuda) from_host(ctx, host, tensor);
  }
  std::vector<double> values(const Tensor& tensor) {
    const Tensor host = to_host(ctx, tensor);
    std::vector<double> all(static_cast<size_t>(tensor.numel()));
    for (int64_t i = 0; i < tensor.numel(); ++i) all[static_cast<size_t>(i)] = get(host, i);
    return all;
  }

  Context& ctx;

 private:
  static double get(const Tensor& tensor, int64_t i) {
    switch (tensor.dtype()) {
      case DType::kF64: return tensor.data<double>()[i];
      case DType::kF32: return static_cast<double>(tensor.data<float>()[i]);
      case DType::kBF16: return static_cast<double>(static_cast<float>(tensor.data<bfloat16>()[i]));
      case DType::kF16: return static_cast<double>(static_cast<float>(tensor.data<float16>()[i]));
      case DType::kI64: return static_cast<double>(tensor.data<int64_t>()[i]);
      case DType::kI32: return tensor.data<int32_t>()[i];
      case DType::kU8: return tensor.data<uint8_t>()[i];
    }
    return 0;
  }
  static void set(const Tensor& tensor, int64_t i, int to) {
    switch (tensor.dtype()) {
      case DType::kF64: tensor.data<double>()[i] = to; break;
      case DType::kF32: tensor.data<float>()[i] = static_cast<float>(to); break;
      case DType::kBF16: tensor.data<bfloat16>()[i] = bfloat16(static_cast<float>(to)); break;
      case DType::kF16: tensor.data<float16>()[i] = float16(static_cast<float>(to)); break;
      case DType::kI64: tensor.data<int64_t>()[i] = to; break;
      case DType::kI32: tensor.data<int32_t>()[i] = to; break;
      case DType::kU8: tensor.data<uint8_t>()[i] = static_cast<uint8_t>(to); break;
    }
  }
};

/// Small whole numbers: their sums over eight ranks are exact in every dtype.
int value(int rank, int64_t i) { return static_cast<int>((rank * 7 + i * 3) % 11); }

void expect(const Communicator& comm, Memory& memory, const char* what, const Tensor& tensor, const std::function<int(int64_t)>& at) {
  const std::vector<double> values = memory.values(tensor);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double found = values[static_cast<size_t>(i)];
    TRIREME_CHECK(found == at(i), what, " over ", comm.size(), " ranks, rank ", comm.rank(), ", element ", i, " of ", tensor.numel(), " ",
                  name_of(tensor.dtype()), ": ", found, " instead of ", at(i));
  }
}

int reduced(ReduceOp op, int ranks, int64_t i) {
  int result = value(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const int next = value(rank, i);
    result = op == ReduceOp::kSum ? result + next : op == ReduceOp::kMax ? std::max(result, next) : std::min(result, next);
  }
  return result;
}

void check_reductions(Communicator& comm, Memory& memory, DType dtype, int64_t count, ReduceOp op) {
  const int n = comm.size(), rank = comm.rank();
  const auto own = [&](int64_t i) { return value(rank, i); };
  const auto total = [&](int64_t i) { return reduced(op, n, i); };
  const auto own_total = [&](int64_t i) { return total(rank * count + i); };

  const Tensor buffer = memory.empty(count, dtype);
  memory.fill(buffer, own);
  comm.all_reduce(memory.ctx, buffer, op).wait(memory.ctx);
  expect(comm, memory, "all_reduce", buffer, total);

  const Tensor in = memory.empty(n * count, dtype), out = memory.empty(count, dtype);
  memory.fill(in, own);
  comm.reduce_scatter(memory.ctx, in, out, op).wait(memory.ctx);
  expect(comm, memory, "reduce_scatter", out, own_total);
  expect(comm, memory, "input of reduce_scatter", in, own);
  const Tensor part = in.flat(rank * count, count);
  comm.reduce_scatter(memory.ctx, in, part, op).wait(memory.ctx);
  expect(comm, memory, "reduce_scatter in place", part, own_total);
}

void check_copies(Communicator& comm, Memory& memory, DType dtype, int64_t count) {
  const int n = comm.size(), rank = comm.rank();
  const auto gathered = [&](int64_t i) { return value(static_cast<int>(i / count), i % count); };
  const Tensor in = memory.empty(count, dtype), out = memory.empty(n * count, dtype), whole = memory.empty(n * count, dtype);
  memory.fill(in, [&](int64_t i) { return value(rank, i); });
  comm.all_gather(memory.ctx, in, out).wait(memory.ctx);
  expect(comm, memory, "all_gather", out, gathered);
  const Tensor part = whole.flat(rank * count, count);
  memory.fill(part, [&](int64_t i) { return value(rank, i); });
  comm.all_gather(memory.ctx, part, whole).wait(memory.ctx);
  expect(comm, memory, "all_gather in place", whole, gathered);

  for (int root = 0; root < n; ++root) {
    memory.fill(in, [&](int64_t i) { return value(rank, i); });
    comm.broadcast(memory.ctx, in, root).wait(memory.ctx);
    expect(comm, memory, "broadcast", in, [&](int64_t i) { return value(root, i); });
  }
}

/// For an all_to_all_v: the number of elements that rank `from` sends to rank `to`.
using Counts = std::function<int64_t(int from, int to)>;

/// Rank s's element i for rank r.
int part_value(int from, int to, int64_t i) { return value(from, to * 5 + i); }

/// Parts of all lengths between the ranks; the counts are gone when the operation is waited for.
Work start_parts(Communicator& comm, Memory& memory, const Counts& counts, const Tensor& in, const Tensor& out) {
  std::vector<int64_t> send, receive;
  for (int peer = 0; peer < comm.size(); ++peer) {
    send.push_back(counts(comm.rank(), peer));
    receive.push_back(counts(peer, comm.rank()));
  }
  return comm.all_to_all_v(memory.ctx, in, send, out, receive);
}

/// The elements that rank `rank` sends or, with `received`, receives.
std::vector<int> parts_of(int n, int rank, const Counts& counts, bool received) {
  std::vector<int> values;
  for (int peer = 0; peer < n; ++peer) {
    const int from = received ? peer : rank, to = received ? rank : peer;
    for (int64_t i = 0; i < counts(from, to); ++i) values.push_back(part_value(from, to, i));
  }
  return values;
}

void check_parts(Communicator& comm, Memory& memory, DType dtype, const Counts& counts) {
  const std::vector<int> sent = parts_of(comm.size(), comm.rank(), counts, false), expected = parts_of(comm.size(), comm.rank(), counts, true);
  const auto sent_at = [&](int64_t i) { return sent[static_cast<size_t>(i)]; };
  const Tensor in = memory.empty(std::ssize(sent), dtype), out = memory.empty(std::ssize(expected), dtype);
  memory.fill(in, sent_at);
  start_parts(comm, memory, counts, in, out).wait(memory.ctx);
  expect(comm, memory, "all_to_all_v", out, [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
  expect(comm, memory, "input of all_to_all_v", in, sent_at);
}

void check_all_to_all(Communicator& comm, Memory& memory, DType dtype, int64_t count) {
  const int n = comm.size(), rank = comm.rank();
  const auto own = [&](int64_t i) { return part_value(rank, static_cast<int>(i / count), i % count); };
  const Tensor in = memory.empty(n * count, dtype), out = memory.empty(n * count, dtype);
  memory.fill(in, own);
  comm.all_to_all(memory.ctx, in, out).wait(memory.ctx);
  expect(comm, memory, "all_to_all", out, [&](int64_t i) { return part_value(static_cast<int>(i / count), rank, i % count); });
  expect(comm, memory, "input of all_to_all", in, own);

  check_parts(comm, memory, dtype, [&](int, int) { return count; });
  check_parts(comm, memory, dtype, [&](int from, int to) { return (from + 2 * to) % 3 * count; });                    // zeros among them
  check_parts(comm, memory, dtype, [&](int from, int to) { return from == n - 1 || to == n - 1 ? 0 : count + to; });  // a rank with nothing at all
  check_parts(comm, memory, dtype, [&](int from, int to) { return to == 0 ? from * count + 1 : 0; });                 // all to one
}

/// Two messages to the next rank and one to the previous, of different lengths and dtypes.
void check_ring(Communicator& comm, Memory& memory, int64_t count) {
  using enum PointToPoint::Kind;
  const int n = comm.size(), rank = comm.rank(), next = (rank + 1) % n, previous = (rank + n - 1) % n;
  std::vector<Tensor> sends{memory.empty(count, DType::kF32), memory.empty(count + 1, DType::kF64), memory.empty(2 * count, DType::kU8)};
  std::vector<Tensor> recvs;
  for (const Tensor& send : sends) {
    memory.fill(send, [&](int64_t i) { return value(rank, i + send.numel()); });
    recvs.push_back(memory.empty(send.numel(), send.dtype()));
  }
  // With two ranks or one, both neighbours are the same peer and messages match in order of issue.
  comm.exchange(memory.ctx, std::vector<PointToPoint>{{kSend, sends[0], next},
                                                      {kRecv, recvs[0], previous},
                                                      {kSend, sends[1], next},
                                                      {kRecv, recvs[1], previous},
                                                      {kRecv, recvs[2], next},
                                                      {kSend, sends[2], previous}})
      .wait(memory.ctx);
  for (size_t k = 0; k < recvs.size(); ++k)
    expect(comm, memory, "exchange", recvs[k], [&](int64_t i) { return value(k == 2 ? next : previous, i + sends[k].numel()); });
}

/// All verbs, dtypes, reductions and in-place forms, at sizes that are not multiples of anything.
void check_verbs(Communicator& comm, Memory& memory) {
  for (const int64_t count : {0, 1, 3, 37, 1025, 2600}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) check_reductions(comm, memory, dtype, count, op);
      check_copies(comm, memory, dtype, count);
      check_all_to_all(comm, memory, dtype, count);
    }
    check_ring(comm, memory, count);
    comm.barrier();
  }
}

/// Whole numbers that no double holds, whose sums depend on every bit of every rank's.
void check_counts(Communicator& comm, Memory& memory) {
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  const int64_t n = comm.size(), rank = comm.rank(), ranks = n * (n - 1) / 2;
  const auto own = [&](int64_t i) { return (i % 2 == 0 ? kLarge : -kLarge) + i + rank; };
  const auto total = [&](int64_t i) { return n * (i % 2 == 0 ? kLarge : -kLarge) + n * i + ranks; };
  for (const int64_t count : {1, 4099}) {
    const Tensor host = host_tensor({n * count}, DType::kI64), in = memory.empty(n * count, DType::kI64), out = memory.empty(count, DType::kI64);
    for (int64_t i = 0; i < host.numel(); ++i) host.data<int64_t>()[i] = own(i);
    from_host(memory.ctx, host, in);
    comm.reduce_scatter(memory.ctx, in, out, ReduceOp::kSum).wait(memory.ctx);
    comm.all_reduce(memory.ctx, in, ReduceOp::kSum).wait(memory.ctx);
    const Tensor sums = to_host(memory.ctx, in), part = to_host(memory.ctx, out);
    for (int64_t i = 0; i < sums.numel(); ++i)
      TRIREME_CHECK(sums.data<int64_t>()[i] == total(i), "count ", i, ": ", sums.data<int64_t>()[i], " instead of ", total(i));
    for (int64_t i = 0; i < count; ++i)
      TRIREME_CHECK(part.data<int64_t>()[i] == total(rank * count + i), "scattered count ", i, ": ", part.data<int64_t>()[i]);
  }
  TRIREME_CHECK(all_reduce_count(comm, own(0)) == total(0), "a sum of counts");
}

/// Several operations in flight, waited for in different orders on different ranks; sends before, with and after their receives.
void check_order(Communicator& comm, Memory& memory) {
  using enum PointToPoint::Kind;
  const int n = comm.size(), rank = comm.rank();
  const int64_t count = 129;
  const auto own = [&](int64_t i) { return value(rank, i); };
  const auto total = [&](int64_t i) { return reduced(ReduceOp::kSum, n, i); };
  const Tensor sum = memory.empty(count, DType::kF32), root = memory.empty(count, DType::kI32);
  memory.fill(sum, own);
  memory.fill(root, own);
  std::vector<Work> works;
  works.push_back(comm.all_reduce(memory.ctx, sum, ReduceOp::kSum));
  works.push_back(comm.broadcast(memory.ctx, root, n - 1));
  const Counts uneven = [&](int from, int to) { return int64_t{40} * ((from + to) % 3) + from; };
  const std::vector<int> sent = parts_of(n, rank, uneven, false), expected = parts_of(n, rank, uneven, true);
  const Tensor parts = memory.empty(std::ssize(sent), DType::kF32), received = memory.empty(std::ssize(expected), DType::kF32);
  const Tensor equal = memory.empty(n * count, DType::kF32), transposed = memory.empty(n * count, DType::kF32);
  memory.fill(parts, [&](int64_t i) { return sent[static_cast<size_t>(i)]; });
  memory.fill(equal, [&](int64_t i) { return part_value(rank, static_cast<int>(i / count), i % count); });
  works.push_back(start_parts(comm, memory, uneven, parts, received));
  works.push_back(comm.all_to_all(memory.ctx, equal, transposed));
  // Even ranks send first and receive later, odd ranks the other way round; every pair (even, its successor) meets.
  const Tensor message = memory.empty(count, DType::kF64);
  const int peer = rank ^ 1;
  const bool paired = peer < n, sender = rank % 2 == 0;
  if (paired && sender) memory.fill(message, own);
  if (paired) works.push_back(comm.exchange(memory.ctx, std::vector<PointToPoint>{{sender ? kSend : kRecv, message, peer}}));
  const Tensor reply = memory.empty(count, DType::kF64);
  if (paired && !sender) memory.fill(reply, own);
  if (paired) works.push_back(comm.exchange(memory.ctx, std::vector<PointToPoint>{{sender ? kRecv : kSend, reply, peer}}));
  if (rank % 3 == 1) std::reverse(works.begin(), works.end());
  if (rank % 3 == 2) std::rotate(works.begin(), works.begin() + 1, works.end());
  for (Work& work : works) work.wait(memory.ctx);

  expect(comm, memory, "all_reduce beside others", sum, total);
  expect(comm, memory, "broadcast beside others", root, [&](int64_t i) { return value(n - 1, i); });
  expect(comm, memory, "all_to_all_v beside others", received, [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
  expect(comm, memory, "all_to_all beside others", transposed, [&](int64_t i) { return part_value(static_cast<int>(i / count), rank, i % count); });
  if (!paired) return;
  expect(comm, memory, "message", message, [&](int64_t i) { return value(rank & ~1, i); });
  expect(comm, memory, "reply", reply, [&](int64_t i) { return value(rank | 1, i); });
}

/// Groups: reversed, split in two, nested, of one rank, two of one name.
void check_groups(Communicator& comm, Memory& memory) {
  const int n = comm.size(), rank = comm.rank();
  const auto sum_of_ranks = [&](Communicator& group) {
    const Tensor buffer = memory.empty(1, DType::kI32);
    memory.fill(buffer, [&](int64_t) { return rank; });
    group.all_reduce(memory.ctx, buffer, ReduceOp::kSum).wait(memory.ctx);
    return static_cast<int>(memory.values(buffer)[0]);
  };
  std::vector<int> backwards, alike;
  for (int other = n - 1; other >= 0; --other) backwards.push_back(other);
  for (int other = rank % 2; other < n; other += 2) alike.push_back(other);
  const auto sum = [](const std::vector<int>& ranks) {
    int total = 0;
    for (const int other : ranks) total += other;
    return total;
  };

  const auto reversed = comm.group(backwards, "reversed");
  TRIREME_CHECK(reversed->rank() == n - 1 - rank && reversed->size() == n && reversed->name() == "reversed", "rank ", reversed->rank());
  TRIREME_CHECK(sum_of_ranks(*reversed) == sum(backwards), "reversed");
  const auto first = comm.group(alike, "parity"), second = comm.group(alike, "parity");
  TRIREME_CHECK(first->rank() == rank / 2 && sum_of_ranks(*first) == sum(alike) && sum_of_ranks(*second) == sum(alike), "parity");
  const auto nested = reversed->group({n - 1 - rank}, "alone");
  TRIREME_CHECK(nested->size() == 1 && nested->rank() == 0 && sum_of_ranks(*nested) == rank, "alone");
  std::vector<int> inner;
  for (int other = 0; other < first->size(); ++other) inner.push_back(other);
  TRIREME_CHECK(sum_of_ranks(*first->group(inner, "nested")) == sum(alike), "nested");
}

/// Sums of awkward numbers: the same bits on every rank and every time.
void check_same_bits(Communicator& comm, Memory& memory) {
  std::string bits;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Tensor awkward = host_tensor({1000}, DType::kF32), buffer = memory.empty(1000, DType::kF32);
    for (int64_t i = 0; i < awkward.numel(); ++i) awkward.data<float>()[i] = 1.0F / static_cast<float>(1 + (comm.rank() + 1) * 7919 * (i + 1) % 1009);
    from_host(memory.ctx, awkward, buffer);
    comm.all_reduce(memory.ctx, buffer, ReduceOp::kSum).wait(memory.ctx);
    const Tensor sums = to_host(memory.ctx, buffer);
    const std::string now(static_cast<const char*>(sums.raw()), static_cast<size_t>(sums.bytes()));
    TRIREME_CHECK(repeat == 0 || now == bits, "a repeated sum differs");
    bits = now;
  }
  for (const std::string& other : all_gather_strings(comm, bits)) TRIREME_CHECK(other == bits, "ranks hold different sums");
}

void check_host_conveniences(Communicator& comm) {
  const int n = comm.size(), rank = comm.rank();
  const auto text = [](int of) { return std::string(static_cast<size_t>(of) * 3, static_cast<char>('a' + of)); };
  const std::vector<std::string> all = all_gather_strings(comm, text(rank));
  TRIREME_CHECK(static_cast<int>(all.size()) == n, all.size(), " strings");
  for (int other = 0; other < n; ++other) TRIREME_CHECK(all[static_cast<size_t>(other)] == text(other), "string of rank ", other);
  for (const std::string& empty : all_gather_strings(comm, "")) TRIREME_CHECK(empty.empty(), "'", empty, "'");
  TRIREME_CHECK(all_reduce_scalar(comm, rank + 0.5, ReduceOp::kSum) == n * (n - 1) / 2 + 0.5 * n, "sum");
  TRIREME_CHECK(all_reduce_scalar(comm, rank + 0.5, ReduceOp::kMax) == n - 0.5, "max");
  TRIREME_CHECK(all_reduce_scalar(comm, rank + 0.5, ReduceOp::kMin) == 0.5, "min");
}

}  // namespace

void check_mesh(Communicator& world, const MeshShape& shape, int kv_heads) {
  const Mesh mesh(world, shape, kv_heads);
  const auto check = [&](MeshAxis axis, Communicator& group) {
    const std::vector<int> members = group_members(shape, axis, world.rank(), kv_heads);
    TRIREME_CHECK(group.name() == name_of(axis) && group.size() == static_cast<int>(members.size()), name_of(axis), " has ", group.size(), " ranks");
    const std::vector<std::string> found = all_gather_strings(group, std::to_string(world.rank()));
    for (size_t i = 0; i < members.size(); ++i) TRIREME_CHECK(found[i] == std::to_string(members[i]), name_of(axis), " reaches rank ", found[i]);
  };
  TRIREME_CHECK(rank_of(shape, mesh.at) == world.rank(), "coordinate");
  check(shape.islands > 1 ? MeshAxis::kStep : MeshAxis::kWorld, mesh.step);
  check(MeshAxis::kIslands, *mesh.islands);
  check(MeshAxis::kPipeline, *mesh.pipeline);
  check(MeshAxis::kData, *mesh.data);
  check(MeshAxis::kReplicate, *mesh.replicate);
  check(MeshAxis::kShard, *mesh.shard);
  check(MeshAxis::kContext, *mesh.context);
  check(MeshAxis::kTensor, *mesh.tensor);
  check(MeshAxis::kKv, *mesh.kv);
  check(MeshAxis::kEmbedding, *mesh.embedding);
}

void check_communicator_on(Context& ctx, Communicator& comm) {
  Memory memory(ctx);
  check_verbs(comm, memory);
  check_counts(comm, memory);
  check_order(comm, memory);
  check_groups(comm, memory);
  check_same_bits(comm, memory);
  check_host_conveniences(comm);
}

void check_communicator(Communicator& comm) {
  Arena arena(Device::kReference, true);
  Context ctx{Device::kReference, &arena, 1, nullptr};
  check_communicator_on(ctx, comm);
}

}  // namespace trireme
