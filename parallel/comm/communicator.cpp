#include "parallel/comm/communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

namespace trireme {
namespace {

// An operation that was never waited for still owns its buffers, which gives wrong numbers some steps later. While an exception unwinds the stack
// nothing can wait any more, and the first error must be the one that is reported.
void abort_if_dropped(const Work& work) {
#ifndef NDEBUG
  if (work.pending() && std::uncaught_exceptions() == 0) {
    std::fputs("trireme: an operation in flight was dropped without Work::wait\n", stderr);
    std::abort();
  }
#else
  (void)work;
#endif
}

}  // namespace

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
  }
  return "?";
}

Work::Work(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}

Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    abort_if_dropped(*this);
    operation_ = std::move(other.operation_);
  }
  return *this;
}

Work::~Work() { abort_if_dropped(*this); }

bool Work::Operation::ready() { throw InternalError("the operations of this communicator cannot be asked whether they are ready"); }

void Work::wait(Context& ctx) {
  if (const std::unique_ptr<Operation> operation = std::move(operation_)) operation->wait(ctx);
}

void Communicator::wait_any(std::span<Work* const> works) {
  while (std::ranges::none_of(works, [](Work* work) { return work->ready(); })) ::sched_yield();  // there may be more ranks than cores
}

std::vector<std::string> all_gather_strings(Communicator& comm, const std::string& mine) {
  TRIREME_CHECK(mine.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "cannot gather a string of ", mine.size(), " bytes");
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const int64_t ranks = comm.size();
  const Tensor lengths = Tensor::zeros(host, {ranks}, DType::kI32, MemoryCategory::kCommunication);
  lengths.data<int32_t>()[comm.rank()] = static_cast<int32_t>(mine.size());
  comm.all_gather(host, lengths.flat(comm.rank(), 1), lengths).wait(host);

  const int64_t longest = *std::max_element(lengths.data<int32_t>(), lengths.data<int32_t>() + ranks);
  std::vector<std::string> all(static_cast<size_t>(ranks));
  if (longest == 0) return all;
  const Tensor bytes = Tensor::zeros(host, {ranks, longest}, DType::kU8, MemoryCategory::kCommunication);
  const Tensor own = bytes.rows(comm.rank(), 1);
  std::memcpy(own.raw(), mine.data(), mine.size());
  comm.all_gather(host, own, bytes).wait(host);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto* first = reinterpret_cast<const char*>(bytes.data<uint8_t>() + rank * longest);
    all[static_cast<size_t>(rank)].assign(first, static_cast<size_t>(lengths.data<int32_t>()[rank]));
  }
  return all;
}

namespace {

template <class T>
std::vector<T> all_reduce_values(Communicator& comm, const std::vector<T>& values, ReduceOp op) {
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const Tensor buffer = Tensor::zeros(host, {static_cast<int64_t>(values.size())}, dtype_of<T>(), MemoryCategory::kCommunication);
  std::copy(values.begin(), values.end(), buffer.data<T>());
  comm.all_reduce(host, buffer, op).wait(host);
  return {buffer.data<T>(), buffer.data<T>() + values.size()};
}

}  // namespace

double all_reduce_scalar(Communicator& comm, double value, ReduceOp op) { return all_reduce_values<double>(comm, {value}, op)[0]; }

std::vector<double> all_reduce_scalars(Communicator& comm, const std::vector<double>& values, ReduceOp op) {
  return all_reduce_values(comm, values, op);
}

int64_t all_reduce_count(Communicator& comm, int64_t count) { return all_reduce_values<int64_t>(comm, {count}, ReduceOp::kSum)[0]; }

std::vector<int64_t> all_reduce_counts(Communicator& comm, const std::vector<int64_t>& counts) {
  return all_reduce_values(comm, counts, ReduceOp::kSum);
}

}  // namespace trireme
