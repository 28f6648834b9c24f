// The contract of Communicator on MPI processes. `comm_mpi_test N [HOSTS]` starts N ranks, from 1 to 8, on the hosts of a file. Exit code 0 if every
// rank saw every expected value.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>

#include "parallel/comm/mpi.h"
#include "parallel/comm/poison.h"
#include "parallel/comm/sealed.h"
#include "parallel/comm/self.h"
#include "parallel/comm/staged.h"
#include "parallel/comm/stepwise.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/time_slice.h"
#include "trainer/job/launcher.h"

using namespace trireme;

namespace {

constexpr int64_t kNever = MpiOptions::kNeverShared;
const MpiOptions kShared{.synchronous_sends = true, .shared_from = 1};
/// One page for each rank, so that most operations take several pieces.
const MpiOptions kSharedInPieces{.shared_from = 1, .shared_bytes = 1};

void expect_error(const char* part, const std::function<void()>& body) {
  try {
    body();
  } catch (const InternalError& error) {
    TRIREME_CHECK(std::string(error.what()).find(part) != std::string::npos, "expected '", part, "' in: ", error.what());
    return;
  }
  TRIREME_CHECK(false, "expected an error: ", part);
}

/// Rank 0 sends `sent` numbers where rank 1 expects `expected`: an error of rank 1 that names the group.
void check_message_length(Communicator& world, int64_t sent, int64_t expected) {
  using enum PointToPoint::Kind;
  if (world.rank() > 1) return;
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const bool sender = world.rank() == 0;
  const Tensor buffer = Tensor::zeros(ctx, {sender ? sent : expected}, DType::kF32, MemoryCategory::kCommunication);
  const auto exchange = [&] { world.exchange(ctx, std::vector<PointToPoint>{{sender ? kSend : kRecv, buffer, 1 - world.rank()}}).wait(ctx); };
  if (sender)
    exchange();
  else
    expect_error("group 'world', rank 1", exchange);
}

/// Awkward numbers: every order of summation gives different bits.
Tensor awkward(Context& ctx, int64_t count, DType dtype, int rank) {
  const Tensor tensor = Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication);
  for (int64_t i = 0; i < count; ++i) {
    const float value = 1.0F / static_cast<float>(1 + (rank + 1) * 7919 * (i + 1) % 1009) - 0.3F * static_cast<float>(i % 3);
    switch (dtype) {
      case DType::kF64: tensor.data<double>()[i] = static_cast<double>(value) / 3; break;
      case DType::kF32: tensor.data<float>()[i] = value; break;
      case DType::kBF16: tensor.data<bfloat16>()[i] = bfloat16(value); break;
      case DType::kF16: tensor.data<float16>()[i] = float16(value); break;
      case DType::kI64: tensor.data<int64_t>()[i] = static_cast<int64_t>(value * 1e9F) << 24; break;
      case DType::kI32: tensor.data<int32_t>()[i] = static_cast<int32_t>(value * 1e4F); break;
      case DType::kU8: tensor.data<uint8_t>()[i] = static_cast<uint8_t>(i * (rank + 3)); break;
    }
  }
  return tensor;
}

/// The results on a rank of collectives with sizes around the shared-memory threshold and around the ends of its pieces.
std::string bits_of_collectives(Communicator& comm) {
  Arena arena(Device::kReference, true);
  Context ctx{Device::kReference, &arena, 1};
  std::string bits;
  const auto keep = [&](const Tensor& tensor) { bits.append(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes())); };
  const int n = comm.size();
  const auto check = [&](DType dtype, int64_t count, ReduceOp op) {
    const Tensor all = awkward(ctx, count, dtype, comm.rank());
    comm.all_reduce(ctx, all, op).wait(ctx);
    keep(all);
    const Tensor in = awkward(ctx, n * count, dtype, comm.rank()), out = Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication);
    comm.reduce_scatter(ctx, in, out, op).wait(ctx);
    keep(out);
    const Tensor own = in.flat(comm.rank() * count, count);
    comm.reduce_scatter(ctx, in, own, op).wait(ctx);
    keep(own);
    comm.all_gather(ctx, own, in).wait(ctx);
    keep(in);
    comm.broadcast(ctx, in, n - 1).wait(ctx);
    keep(in);
    const Tensor whole = awkward(ctx, n * count, dtype, comm.rank()),
                 transposed = Tensor::empty(ctx, {n * count}, dtype, MemoryCategory::kCommunication);
    comm.all_to_all(ctx, whole, transposed).wait(ctx);
    keep(transposed);
  };
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8})
    for (const int64_t bytes : {4096, 8192, 65536})
      for (const int64_t more : {-1, 0, 1}) check(dtype, bytes / size_of(dtype) + more, ReduceOp::kSum);
  check(DType::kBF16, 70001, ReduceOp::kMax);
  check(DType::kF16, 70001, ReduceOp::kMin);
  return bits;
}

/// Shared memory gives the same bits as threads; MPI need not.
void check_bits(const MpiEnvironment& mpi) {
  std::vector<std::string> of_threads(static_cast<size_t>(mpi.size()));
  run_ranks(mpi.size(), [&](Communicator& comm) { of_threads[static_cast<size_t>(comm.rank())] = bits_of_collectives(comm); });
  const std::string& wanted = of_threads[static_cast<size_t>(mpi.rank())];
  for (const MpiOptions& options : {kShared, kSharedInPieces})
    for (int repeat = 0; repeat < 2; ++repeat)
      TRIREME_CHECK(bits_of_collectives(*mpi.world(options)) == wanted, "shared memory and threads differ in bits");
}

constexpr int kFewTurns = 2;  // where the order of the waits has been tried with another communicator

/// Operations of several groups in flight, through shared memory and through MPI, issued in one order and waited for in another on every rank.
void check_crossing(Communicator& world, int turns = 6) {
  using enum PointToPoint::Kind;
  const int n = world.size(), rank = world.rank(), peer = rank ^ 1;
  const int64_t count = 50003;
  std::vector<int> alike;
  for (int other = rank % 2; other < n; other += 2) alike.push_back(other);
  const auto parity = world.group(alike, "parity"), again = world.group(alike, "again");
  const int members = parity->size();
  Arena arena(Device::kReference, true);
  Context ctx{Device::kReference, &arena, 1};
  const auto filled = [&](int64_t size, int value) {
    const Tensor tensor = Tensor::empty(ctx, {size}, DType::kF32, MemoryCategory::kCommunication);
    std::fill_n(tensor.data<float>(), size, static_cast<float>(value));
    return tensor;
  };
  const auto expect_all = [&](const char* what, const Tensor& tensor, int value) {
    for (int64_t i = 0; i < tensor.numel(); ++i)
      TRIREME_CHECK(tensor.data<float>()[i] == static_cast<float>(value), what, " on rank ", rank, ", element ", i, ": ", tensor.data<float>()[i]);
  };
  int sum = 0, sum_alike = 0;
  for (int other = 0; other < n; ++other) sum += other;
  for (const int other : alike) sum_alike += other;
  for (int turn = 0; turn < turns; ++turn) {
    const Tensor total = filled(count, rank), scattered = filled(count, -1), parts = filled(members * count, rank), rooted = filled(count, rank);
    const Tensor sent = filled(count, rank), received = filled(count, -1), whole = filled(n * count, -1), own = filled(count, rank),
                 tiny = filled(1, rank);
    std::vector<Work> works;
    works.push_back(world.all_reduce(ctx, total, ReduceOp::kSum));
    if (peer < n) works.push_back(world.exchange(ctx, std::vector<PointToPoint>{{kSend, sent, peer}, {kRecv, received, peer}}));
    works.push_back(parity->reduce_scatter(ctx, parts, scattered, ReduceOp::kSum));
    works.push_back(world.all_reduce(ctx, tiny, ReduceOp::kSum));
    works.push_back(world.all_gather(ctx, own, whole));
    works.push_back(again->broadcast(ctx, rooted, members - 1));
    std::vector<int64_t> send, receive;  // rank s sends s + r + 1 thirds of `count` to rank r
    for (int other = 0; other < n; ++other) {
      send.push_back((rank + other + 1) * count / 3);
      receive.push_back(send.back());
    }
    const int64_t uneven = std::accumulate(send.begin(), send.end(), int64_t{0});
    const Tensor sent_parts = filled(uneven, rank), received_parts = filled(uneven, -1), transposed = filled(n * count, -1),
                 from = filled(n * count, rank);
    works.push_back(world.all_to_all_v(ctx, sent_parts, send, received_parts, receive));
    works.push_back(world.all_to_all(ctx, from, transposed));
    if ((rank + turn) % 5 == 4) world.barrier();
    std::rotate(works.begin(), works.begin() + (rank + turn) % std::ssize(works), works.end());
    if ((rank + turn) % 2 == 1) std::reverse(works.begin(), works.end());
    if ((rank + turn) % 5 != 4) world.barrier();
    for (Work& work : works) work.wait(ctx);
    expect_all("all_reduce", total, sum);
    expect_all("a small all_reduce", tiny, sum);
    expect_all("reduce_scatter", scattered, sum_alike);
    expect_all("broadcast", rooted, alike.back());
    if (peer < n) expect_all("exchange", received, peer);
    int64_t begin = 0;
    for (size_t other = 0; other < receive.size(); begin += receive[other++])
      expect_all("all_to_all_v", received_parts.flat(begin, receive[other]), static_cast<int>(other));
    for (int other = 0; other < n; ++other) expect_all("all_to_all", transposed.flat(other * count, count), other);
    for (int other = 0; other < n; ++other) expect_all("all_gather", whole.flat(other * count, count), other);
  }
}

/// Rank 0 sends three numbers to the last rank, which expects `expected`: an error of that rank, or of all of them.
void check_counts(Communicator& world, int64_t expected, bool told_to_all) {
  const int n = world.size(), rank = world.rank(), last = n - 1;
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  std::vector<int64_t> send(static_cast<size_t>(n), 2), receive(static_cast<size_t>(n), 2);
  if (rank == 0) send.back() = 3;
  if (rank == last) receive.front() = expected;
  const auto zeros = [&](const std::vector<int64_t>& counts) {
    return Tensor::zeros(ctx, {std::accumulate(counts.begin(), counts.end(), int64_t{0})}, DType::kF32, MemoryCategory::kCommunication);
  };
  const auto call = [&] { world.all_to_all_v(ctx, zeros(send), send, zeros(receive), receive).wait(ctx); };
  if (told_to_all || rank == last)
    expect_error(concat("all_to_all_v: rank 0 sends 3 elements to rank ", last, ", which expects ", expected, " (group 'world'").c_str(), call);
  else
    call();
}

void check_disagreement(Communicator& world) {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const Tensor x = Tensor::zeros(ctx, {3000}, DType::kF32, MemoryCategory::kCommunication);
  expect_error("ranks disagree (group 'world', rank ",
               [&] { world.all_reduce(ctx, x, world.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax).wait(ctx); });
  expect_error("abandoned", [&] { world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx); });
}

/// Simulates a system without shared memory: no file, not even an anonymous one, may have more than 4096 bytes.
void check_without_memory(const MpiEnvironment& mpi) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto world = mpi.world(kShared);
  ::setrlimit(RLIMIT_FSIZE, &before);
  check_crossing(*world);
}

void check_pieces(Communicator& world);

/// Collectives by lists of steps: each algorithm, and the choice of the fastest.
void check_own_collectives(const MpiEnvironment& mpi, const MpiOptions& small_calls) {
  std::vector<std::optional<CollectiveAlgorithm>> choices(kCollectiveAlgorithms.begin(), kCollectiveAlgorithms.end());
  choices.emplace_back();
  for (const auto& algorithm : choices) {
    const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
    const StepwiseOptions by{.algorithm = algorithm, .within = costs, .between = costs};
    if (!algorithm) {  // the transport takes messages apart in the same way whatever list they are of
      const auto in_calls = stepwise(mpi.world(small_calls), by);
      check_communicator(*in_calls);
      check_crossing(*in_calls, kFewTurns);
    }
    const auto world = stepwise(mpi.world(), by);
    check_communicator(*world);
    check_crossing(*world, kFewTurns);
    PoisonCommunicator poison(stepwise(mpi.world({.synchronous_sends = true}), by));
    check_crossing(poison, kFewTurns);
  }
}

/// Sealed messages between pretended hosts, two ranks of which are never neighbours, and between real ones.
void check_sealed(const MpiEnvironment& mpi) {
  const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
  for (const MpiOptions& options : {MpiOptions{}, MpiOptions{.synchronous_sends = true, .max_count = 500, .shared_from = kNever}}) {
    SealOptions hosts;
    for (int rank = 0; rank < mpi.size(); ++rank) {
      hosts.hosts.push_back(rank % 2);
      hosts.names.push_back(rank % 2 == 0 ? "even" : "odd");
    }
    auto world = mpi.world(options);
    auto keys = agree_on_keys(*world, crypto::Key(), hosts);
    const auto comm =
        stepwise(sealed(std::move(world), std::move(keys)), {.within = costs, .between = costs, .hosts = hosts.hosts, .only_between_hosts = true});
    check_communicator(*comm);
    check_crossing(*comm);
    check_pieces(*comm);
  }
}

/// Messages of more than a piece, around the ring of all ranks, some of which are on other hosts when the test runs on several.
void check_pieces(Communicator& world) {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  constexpr int64_t kPiece = MpiOptions::kPieceBytes / 4;
  for (const int64_t count : {kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5}) {
    const Tensor out = Tensor::empty(ctx, {count}, DType::kI32, MemoryCategory::kData),
                 in = Tensor::zeros(ctx, {count}, DType::kI32, MemoryCategory::kData);
    for (int64_t i = 0; i < count; ++i) out.data<int32_t>()[i] = static_cast<int32_t>(i * n + world.rank());
    world.exchange(ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kRecv, in, previous}, {PointToPoint::Kind::kSend, out, next}}).wait(ctx);
    for (int64_t i = 0; i < count; ++i) TRIREME_CHECK(in.data<int32_t>()[i] == i * n + previous, "element ", i, " of ", count, " in pieces");
  }
}

void check_everything(const MpiEnvironment& mpi) {
  // A limit of 500 elements a call takes the paths of operations too large for an int.
  const MpiOptions small_calls{.synchronous_sends = true, .max_count = 500, .shared_from = kNever};
  for (const MpiOptions& options : {MpiOptions{}, small_calls, kShared, kSharedInPieces}) {
    const auto world = mpi.world(options);
    TRIREME_CHECK(world->rank() == mpi.rank() && world->size() == mpi.size() && mpi.local_rank() < mpi.size(), "world");
    check_communicator(*world);
    PoisonCommunicator poison(mpi.world(options));
    check_communicator(poison);
    check_crossing(*world);
    check_crossing(poison, kFewTurns);
    const int n = world->size();
    for (const MeshShape& shape : {MeshShape{n, 1, 1, 1}, MeshShape{1, n, 1, 1}, MeshShape{1, 1, n, 1}, MeshShape{1, 1, 1, n}})
      check_mesh(*world, shape, 1);
    if (n % 2 == 0) check_mesh(*world, {2, 1, 1, n / 2}, 1);
    TRIREME_CHECK(dynamic_cast<SelfCommunicator*>(world->group({world->rank()}, "alone").get()) != nullptr, "a group of one rank");
  }
  check_own_collectives(mpi, small_calls);
  const bool one_host = mpi.local_size() == mpi.size();
  if (one_host) check_bits(mpi);
  if (one_host) check_without_memory(mpi);
#ifdef TRIREME_CUDA
  cuda::Gpu gpu(0, {});  // simulated, one per process
  Arena arena(gpu, true);
  Context ctx{Device::kCuda, &arena, 1, &gpu};
  const auto staged = make_staged_world(mpi.world({.synchronous_sends = true}), gpu);
  check_communicator_on(ctx, *staged);
  gpu.synchronize();
#endif
  const auto world = mpi.world();
  if (world->size() == 1) return;
  check_pieces(*world);
  check_sealed(mpi);
  check_message_length(*world, 2, 3);
  check_message_length(*world, 3, 2);
  for (const int64_t expected : {0, 1, 4}) {
    check_counts(*mpi.world({.shared_from = kNever}), expected, false);
    check_counts(*mpi.world({.synchronous_sends = true, .max_count = 2, .shared_from = kNever}), expected, false);
    check_counts(*mpi.world(kShared), expected, one_host);
  }
  if (one_host) check_disagreement(*mpi.world(kShared));
}

}  // namespace

int main(int argc, char** argv) {
  LaunchOptions options;
  if (argc > 2) options.hosts_file = argv[2];
  const LaunchEnvironment environment = read_launch_environment();
  if (!environment.is_rank()) return launch(environment, argc > 1 ? std::atoi(argv[1]) : 2, {}, options);
  const MpiEnvironment mpi;
  try {
    announce_start(environment, mpi.rank(), mpi.size());
    TRIREME_CHECK(test::time_slice_nanoseconds() == 0 || test::time_slice_nanoseconds() == 100'000, "time slices of ", test::time_slice_nanoseconds(),
                  " ns");
    check_everything(mpi);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d of %d: %s\n", mpi.rank(), mpi.size(), error.what());
    mpi.abort(1);
  }
  if (mpi.rank() == 0) std::printf("communicator contract holds over MPI with %d ranks, %d on this host\n", mpi.size(), mpi.local_size());
  return 0;
}
