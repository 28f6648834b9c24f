#include "trainer/verify/layout_run.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "parallel/comm/poison.h"
#include "parallel/comm/thread.h"
#include "parallel/comm/watched.h"
#include "trainer/files/printable.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/machine/collectives.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::seconds(2);  // for ranks to return from an aborted world

/// Shared with the rank threads, so that it outlives the call if a thread never returns.
struct Shared {
  Shared(const Config& of, int ranks, std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> evaluate, const RecordOptions& how)
      : config(of), world(ranks), progress(static_cast<size_t>(ranks)), data(std::move(train)), validation(std::move(evaluate)), options(how) {}

  const Config config;
  ThreadWorld world;
  std::vector<Progress> progress;
  std::shared_ptr<const Dataset> data, validation;
  const RecordOptions options;

  std::mutex mutex;  ///< guards the members below
  std::condition_variable ended;
  size_t left = 0;
  RunRecord record;
  std::string cause, consequence;
  int cause_rank = -1;
};

void run_rank(Shared& shared, int rank) {
  const auto fail = [&](const std::string& what, bool is_cause) {
    {
      const std::lock_guard lock(shared.mutex);
      std::string& message = is_cause ? shared.cause : shared.consequence;
      if (message.empty()) {
        message = what;
        if (is_cause) shared.cause_rank = rank;
      }
    }
    shared.world.abort(concat("rank ", rank, " failed: ", what));
  };
  try {
    PoisonCommunicator poisoned(with_collectives(shared.world.communicator(rank), shared.config));
    Progress& progress = shared.progress[static_cast<size_t>(rank)];
    const std::unique_ptr<Communicator> world = watched(poisoned, progress);
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1, nullptr};
    Trainer trainer(ctx, *world, shared.config, true);
    trainer.watch(progress);
    RunRecord record = record_run(trainer, *shared.data, *shared.validation, shared.options);
    const std::lock_guard lock(shared.mutex);
    if (rank == 0) shared.record = std::move(record);
  } catch (const AbortedError& error) {
    fail(error.what(), false);
  } catch (const std::exception& error) {
    fail(printable(error), true);
  }
  const std::lock_guard lock(shared.mutex);
  ++shared.left;
  shared.ended.notify_all();
}

uint64_t notes_of(const Shared& shared) {
  uint64_t notes = 0;
  for (const Progress& progress : shared.progress) notes += progress.snapshot().count;
  return notes;
}

/// True if every rank has ended; false after `timeout` seconds without progress on any rank.
bool wait_for_ranks(Shared& shared, double timeout) {
  uint64_t notes = 0;
  Clock::time_point moved = Clock::now();
  std::unique_lock lock(shared.mutex);
  while (shared.left < shared.progress.size()) {
    shared.ended.wait_for(lock, kLook);
    lock.unlock();
    if (const uint64_t seen = notes_of(shared); seen != notes) {
      notes = seen;
      moved = Clock::now();
    }
    lock.lock();
    if (std::chrono::duration<double>(Clock::now() - moved).count() > timeout) return false;
  }
  return true;
}

std::string act_of(const Progress& progress) {
  const Progress::Snapshot now = progress.snapshot();
  return concat(now.action.empty() ? "before its first action" : now.action,
                now.wait ? concat(", waiting in ", now.wait->what, now.wait->group ? " of group " + now.groups[*now.wait->group].name : "") : "");
}

}  // namespace

LayoutRun run_layout(const Config& config, std::shared_ptr<const Dataset> data, std::shared_ptr<const Dataset> validation,
                     const LayoutRunOptions& options) {
  const int ranks = mesh_shape(config.parallel).world();
  const auto shared = std::make_shared<Shared>(config, ranks, std::move(data), std::move(validation), options.record);
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([shared, rank] { run_rank(*shared, rank); });
  } catch (const std::system_error& error) {
    shared->world.abort("a rank could not be started");
    for (std::thread& thread : threads) thread.join();
    throw IoError(concat("cannot start ", ranks, " threads for the ranks of a layout: ", error.what()));
  }
  const bool moved = wait_for_ranks(*shared, options.timeout);
  LayoutRun run;
  for (const Progress& progress : shared->progress) run.acts.push_back(act_of(progress));
  if (!moved) {
    const std::string reason = concat("no rank made progress for ", options.timeout, " s");
    shared->world.abort(reason);
    std::unique_lock lock(shared->mutex);
    run.stuck = !shared->ended.wait_for(lock, kGrace, [&] { return shared->left == shared->progress.size(); });
  }
  for (std::thread& thread : threads) run.stuck ? thread.detach() : thread.join();
  const std::lock_guard lock(shared->mutex);
  if (!moved) {
    run.end = LayoutRun::End::kHung;
    run.message = concat("no rank made progress for ", options.timeout, " s");
  } else if (!shared->cause.empty()) {
    run.end = LayoutRun::End::kFailed;
    run.message = shared->cause;
    run.ranks = {shared->cause_rank};
  } else if (!shared->consequence.empty()) {  // the communicator aborted: every rank waited, or one dropped an operation
    run.end = shared->consequence.starts_with("deadlock") ? LayoutRun::End::kHung : LayoutRun::End::kFailed;
    run.message = shared->consequence;
  } else {
    run.record = std::move(shared->record);
  }
  return run;
}

}  // namespace trireme
