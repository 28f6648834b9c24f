// Copies of the state in the memory of peers (resilience.peer_copies).
#include <chrono>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/loop/collectively.h"
#include "trainer/run/rank_run.h"

namespace trireme {

/// The copies that the run continues from, if they are newer than its newest checkpoint. Not those of the last step: nothing would save them. Collective.
std::unique_ptr<PeerState> Run::find_peer_state(const std::vector<std::string>& checkpoints) {
  if (config_.resilience.peer_copies == 0 || options_.resume != "auto") return nullptr;
  int64_t saved = 0;
  collectively(world_, [&] {
    for (const std::string& checkpoint : checkpoints) {  // the first one that is valid
      const std::optional<CheckpointDescription> about = description_of(checkpoint);
      if (!about) continue;
      saved = about->step;
      return;
    }
  });
  return PeerState::find(world_, config_, saved, last_step());
}

void Run::begin_peer_copies() {
  if (config_.resilience.peer_copies == 0) return;
  peers_ = std::make_unique<PeerCopies>(*trainer_, config_, session_, resumed_peers_);
  reporter_.message(peers_->text());
}

bool Run::copies_to_peers(int64_t step) const { return peers_ && step < last_step() && rounds().is_due(step, config_.resilience.peer_every); }

void Run::copy_to_peers(int64_t step) {
  progress_.act(concat("copying step ", step, " to peers"));
  progress_.set_timeout(2 * state_timeout(config_));
  ctx_.arena->set_phase(MemoryPhase::kSave);
  report_peer_copy(peers_->save(checkpoints_->describe(step, padding_, rejected_.count(), stopper_.state(),
                                                       judges_before_update() ? window_.state() : std::vector<StepFigures>(),
                                                       privacy_ ? privacy_->history(step) : privacy::History())));
}

void Run::report_peer_copy(const std::optional<PeerReport>& report) {
  if (!report) return;
  nlohmann::ordered_json fields = {
      {"sent_bytes", report->sent_bytes}, {"stall_seconds", report->stall_seconds}, {"copy_seconds", report->copy_seconds}};
  if (report->error) fields["error"] = *report->error;
  reporter_.event(
      "peer_copy", report->step, fields,
      report->error ? concat("warning: the peer copies of step ", report->step, " failed: ", *report->error, "; those before remain") : "");
}

}  // namespace trireme
