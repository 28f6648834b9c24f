#include "tests/support/thread_ranks.h"

#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "parallel/comm/poison.h"
#include "parallel/comm/sealed.h"
#include "parallel/comm/thread.h"

namespace trireme {
namespace {

/// Keeps the exception to report: the first cause or, without one, the first consequence.
class FirstError {
 public:
  void offer(std::exception_ptr error, bool is_cause) {
    const std::lock_guard lock(mutex_);
    if (error_ && (is_cause_ || !is_cause)) return;
    error_ = std::move(error);
    is_cause_ = is_cause;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool is_cause_ = false;
};

/// Hosts are named "a", "b", ...
std::unique_ptr<Communicator> sealed_world(std::unique_ptr<Communicator> world, const RankOptions& options) {
  const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
  StepwiseOptions sums = options.collectives.value_or(StepwiseOptions{.within = costs, .between = costs, .only_between_hosts = true});
  sums.hosts = options.hosts;
  SealOptions seal{.hosts = options.hosts, .names = {}};
  for (const int host : options.hosts) seal.names.push_back(std::string(1, static_cast<char>('a' + host)));
  const crypto::Key key = crypto::derive({}, options.key ? options.key(world->rank()) : "the same");
  auto keys = agree_on_keys(*world, key, seal);
  return stepwise(sealed(std::move(world), std::move(keys)), sums);
}

}  // namespace

void run_ranks(int n, const std::function<void(Communicator& world)>& body, const RankOptions& options) {
  ThreadWorld shared(n);
  FirstError first;
  if (options.records) options.records->assign(static_cast<size_t>(n), {});

  const auto run_rank = [&](int rank) {
    try {
      std::unique_ptr<Communicator> world = shared.communicator(rank);
      if (options.wire) world = options.wire(std::move(world));
      if (!options.hosts.empty())
        world = sealed_world(std::move(world), options);
      else if (options.collectives)
        world = stepwise(std::move(world), *options.collectives);
      if (options.poison) world = std::make_unique<PoisonCommunicator>(std::move(world));
      if (options.records) world = std::make_unique<RecordingCommunicator>(std::move(world), (*options.records)[static_cast<size_t>(rank)]);
      body(*world);
    } catch (const AbortedError& error) {  // read the message first: once offered, another rank may release the exception
      const std::string reason = error.what();
      first.offer(std::current_exception(), false);
      shared.abort(reason);
    } catch (const std::exception& error) {
      const std::string reason = concat("rank ", rank, " failed: ", error.what());
      first.offer(std::current_exception(), true);
      shared.abort(reason);
    } catch (...) {
      first.offer(std::current_exception(), true);
      shared.abort(concat("rank ", rank, " failed"));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

std::unique_ptr<Communicator> whole_world(Communicator& world) {
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.group(all, world.name());
}

}  // namespace trireme
