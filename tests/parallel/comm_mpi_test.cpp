// The contract of Communicator, on MPI processes: `comm_mpi_test N` starts N ranks, from 1 to 8. Exit code 0 where every rank saw every value it should.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

#include "parallel/comm/mpi.h"
#include "parallel/comm/self.h"
#include "parallel/comm/staged.h"
#include "tests/support/comm_cases.h"
#include "tests/support/poison_communicator.h"
#include "trainer/loop/launcher.h"

using namespace trireme;

namespace {

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

void check_everything(const MpiEnvironment& mpi) {
  // A limit of 500 elements a call takes the paths of operations too large for an int.
  for (const MpiOptions& options : {MpiOptions{}, MpiOptions{.synchronous_sends = true}, MpiOptions{.synchronous_sends = true, .max_count = 500}}) {
    const auto world = mpi.world(options);
    TRIREME_CHECK(world->rank() == mpi.rank() && world->size() == mpi.size() && mpi.local_rank() < mpi.size(), "world");
    check_communicator(*world);
    PoisonCommunicator poison(mpi.world(options));
    check_communicator(poison);
    const int n = world->size();
    for (const MeshShape& shape : {MeshShape{n, 1, 1, 1}, MeshShape{1, n, 1, 1}, MeshShape{1, 1, n, 1}, MeshShape{1, 1, 1, n}})
      check_mesh(*world, shape, 1);
    if (n % 2 == 0) check_mesh(*world, {2, 1, 1, n / 2}, 1);
    TRIREME_CHECK(dynamic_cast<SelfCommunicator*>(world->group({world->rank()}, "alone").get()) != nullptr, "a group of one rank");
  }
#ifdef TRIREME_CUDA
  cuda::Gpu gpu(0, {});  // simulated, one a process
  Arena arena(gpu, true);
  Context ctx{Device::kCuda, &arena, 1, &gpu};
  const auto staged = make_staged_world(mpi.world({.synchronous_sends = true}), gpu);
  check_communicator_on(ctx, *staged);
  gpu.synchronize();
#endif
  const auto world = mpi.world();
  if (world->size() == 1) return;
  check_message_length(*world, 2, 3);
  check_message_length(*world, 3, 2);
}

}  // namespace

int main(int argc, char** argv) {
  if (!under_launcher()) return launch(argc > 1 ? std::atoi(argv[1]) : 2, {});
  const MpiEnvironment mpi;
  try {
    check_everything(mpi);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d of %d: %s\n", mpi.rank(), mpi.size(), error.what());
    mpi.abort(1);
  }
  if (mpi.rank() == 0) std::printf("communicator contract holds over MPI with %d ranks\n", mpi.size());
  return 0;
}
