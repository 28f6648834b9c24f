// Copies of the state in the memory of peers (resilience.peer_copies).
#include <chrono>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/loop/collectively.h"
#include "trainer/run/rank_run.h"

namespace trireme {

/// Whether an earlier job of this run has made copies, or may have. Collective.
bool Run::may_have_peer_copies() {
  if (config_.resilience.peer_copies == 0 || options_.resume != "auto") return false;
  return all_reduce_scalar(world_, reports() && read_peer_record(directory()) ? 1 : 0, ReduceOp::kMax) > 0;
}

/// The copies that the run continues from, if they are newer than its newest checkpoint. Not those of the last step of this job: then it trains that step
/// again, and saves it. Call it under the lock of the run directory. Collective.
std::unique_ptr<PeerState> Run::find_peer_state(const std::vector<std::string>& checkpoints) {
  int64_t saved = 0;
  for (size_t i = 0; reports() && i < checkpoints.size(); ++i) {
    const std::optional<CheckpointDescription> about = description_of(checkpoints[i]);
    if (!about) continue;  // not valid
    saved = about->step;
    break;
  }
  return PeerState::find(world_, config_, all_reduce_count(world_, saved), last_step());
}

/// A run that can continue is not worth ending for want of copies: there may be fewer hosts than at its start.
void Run::open_peer_copies() {
  if (config_.resilience.peer_copies == 0) return;
  progress_.act("connecting to peers");
  const bool has_begun = all_reduce_scalar(world_, reports() && std::filesystem::exists(directory() / "metrics.jsonl") ? 1 : 0, ReduceOp::kMax) > 0;
  try {
    peers_ = std::make_unique<PeerCopies>(*trainer_, config_, session_);
  } catch (const AgreedError& error) {
    if (!has_begun) throw;
    peer_problem_ = error.what();
  }
}

void Run::begin_peer_copies() {
  if (!peer_problem_.empty()) reporter_.message(concat("warning: this job makes no peer copies: ", peer_problem_));
  if (!peers_) return;
  peers_->keep(resumed_peers_);
  reporter_.message(peers_->text());
}

bool Run::copies_to_peers(int64_t step) const { return peers_ && step < last_step() && rounds().is_due(step, config_.resilience.peer_every); }

/// As with a checkpoint, no inconsistent state replaces a good one.
void Run::copy_to_peers(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  collectively(world_, [&] {
    if (reports()) lock_->check();
  });
  if (config_.resilience.replica_check_every > 0) check_replicas(step);
  progress_.act(concat("copying step ", step, " to peers"));
  progress_.set_timeout(2 * state_timeout(config_));
  ctx_.arena->set_phase(MemoryPhase::kSave);
  report_peer_copy(peers_->save(checkpoints_->describe(step, padding_, rejected_.count(), stopper_.state(),
                                                       judges_before_update() ? window_.state() : std::vector<StepFigures>(),
                                                       privacy_ ? privacy_->history(step) : privacy::History())));
  record("peer_copy", {{"step", step}, {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}});
}

void Run::report_peer_copy(const std::optional<PeerReport>& report) {
  if (!report) return;
  nlohmann::ordered_json fields = {
      {"sent_bytes", report->sent_bytes}, {"stall_seconds", report->stall_seconds}, {"copy_seconds", report->copy_seconds}};
  if (report->error) fields["error"] = *report->error;
  reporter_.event("peer_copy", report->step, fields,
                  report->error ? concat("warning: the peer copies of step ", report->step, " failed: ", *report->error) : "");
}

/// The last state is in a checkpoint, so that all copies of the run are removed, also by a job that has made none. Collective.
void Run::end_peer_copies() {
  if (config_.resilience.peer_copies == 0) return;
  if (peers_) report_peer_copy(peers_->finish());
  const PeerDirectory copies(config_.resilience.peer_directory, directory());
  const std::vector<std::string> hosts = all_gather_strings(world_, copies.host());  // also a barrier: no rank sends any more
  if (is_first_of_host(hosts, world_.rank())) copies.remove();
  std::error_code ignored;
  if (reports()) std::filesystem::remove(directory() / kPeerRecordName, ignored);
}

}  // namespace trireme
