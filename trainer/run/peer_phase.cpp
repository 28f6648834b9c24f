#include "trainer/run/peer_phase.h"

#include <chrono>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/machine/collectively.h"

namespace trireme {

bool PeerPhase::may_have_copies() {
  if (run_.config.resilience.peer_copies == 0 || run_.options.resume != "auto") return false;
  return all_reduce_scalar(run_.world, run_.reports() && read_peer_record(run_.directory()) ? 1 : 0, ReduceOp::kMax) > 0;
}

std::unique_ptr<PeerState> PeerPhase::find(const std::vector<std::string>& checkpoints) {
  int64_t saved = 0;
  for (size_t i = 0; run_.reports() && i < checkpoints.size(); ++i) {
    const std::optional<CheckpointDescription> about = description_of(checkpoints[i]);
    if (!about) continue;  // not valid
    saved = about->step;
    break;
  }
  return PeerState::find(run_.world, run_.config, all_reduce_count(run_.world, saved), run_.last_step());
}

void PeerPhase::connect() {
  if (run_.config.resilience.peer_copies == 0) return;
  run_.progress.act("connecting to peers");
  const bool has_begun =
      all_reduce_scalar(run_.world, run_.reports() && std::filesystem::exists(run_.directory() / "metrics.jsonl") ? 1 : 0, ReduceOp::kMax) > 0;
  try {
    peers_ = std::make_unique<PeerCopies>(*run_.trainer, run_.config, run_.session);
  } catch (const AgreedError& error) {
    if (!has_begun) throw;
    problem_ = error.what();
  }
}

void PeerPhase::open() {
  if (!problem_.empty()) run_.reporter.message(concat("warning: this job makes no peer copies: ", problem_));
  if (!peers_) return;
  peers_->keep(resumed_);
  run_.reporter.message(peers_->text());
}

bool PeerPhase::is_due(int64_t step) const {
  return peers_ && step < run_.last_step() && run_.rounds().is_due(step, run_.config.resilience.peer_every);
}

void PeerPhase::copy(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  collectively(run_.world, [&] {
    if (run_.reports()) run_.lock->check();
  });
  if (run_.config.resilience.replica_check_every > 0) run_.check_replicas(step);
  run_.progress.act(concat("copying step ", step, " to peers"));
  run_.progress.set_timeout(2 * state_timeout(run_.config));
  run_.ctx.arena->set_phase(MemoryPhase::kSave);
  report(peers_->save(run_.checkpoints->describe(step, run_.state(step))));
  jobs_.record("peer_copy", {{"step", step}, {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}});
}

void PeerPhase::report(const std::optional<PeerReport>& report) {
  if (!report) return;
  nlohmann::ordered_json fields = {
      {"sent_bytes", report->sent_bytes}, {"stall_seconds", report->stall_seconds}, {"copy_seconds", report->copy_seconds}};
  if (report->error) fields["error"] = *report->error;
  run_.reporter.event("peer_copy", report->step, fields,
                      report->error ? concat("warning: the peer copies of step ", report->step, " failed: ", *report->error) : "");
}

void PeerPhase::end() {
  if (run_.config.resilience.peer_copies == 0) return;
  if (peers_) report(peers_->finish());
  const PeerDirectory copies(run_.config.resilience.peer_directory, run_.directory());
  const std::vector<std::string> hosts = all_gather_strings(run_.world, copies.host());  // also a barrier: no rank sends any more
  if (is_first_of_host(hosts, run_.world.rank())) copies.remove();
  std::error_code ignored;
  if (run_.reports()) std::filesystem::remove(run_.directory() / kPeerRecordName, ignored);
}

}  // namespace trireme
