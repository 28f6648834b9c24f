#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/run/job_reports.h"
#include "trainer/run/peer_copies.h"
#include "trainer/run/peer_state.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"

namespace trireme {

/// Copies of the state in the memory of peers (resilience.peer_copies).
class PeerPhase final : public RunPhase {
 public:
  PeerPhase(RunContext& run, JobReports& jobs) : run_(run), jobs_(jobs) {}

  /// A run that can continue is not worth ending for want of copies: there may be fewer hosts than at its start. Collective.
  void connect();
  /// Whether an earlier job of this run has made copies, or may have. Collective.
  bool may_have_copies();
  /// The copies that the run continues from, if they are newer than its newest checkpoint. Not those of the last step of this job: then it trains that step
  /// again, and saves it. Call it under the lock of the run directory. Collective.
  std::unique_ptr<PeerState> find(const std::vector<std::string>& checkpoints);
  void load(const Resumed& resumed) override { resumed_ = resumed.peers; }
  void open() override;
  /// Whether this job continues from copies that no checkpoint has yet.
  bool has_unsaved_state() const { return resumed_ && run_.done == resumed_->step; }
  bool is_due(int64_t step) const;
  /// As with a checkpoint, no inconsistent state replaces a good one. Collective.
  void copy(int64_t step);
  /// The last state is in a checkpoint, so that all copies of the run are removed, also by a job that has made none. Collective.
  void end();

 private:
  void report(const std::optional<PeerReport>& report);

  RunContext& run_;
  JobReports& jobs_;
  std::unique_ptr<PeerCopies> peers_;      ///< with resilience.peer_copies
  std::optional<PeerGeneration> resumed_;  ///< those that this job has continued from
  std::string problem_;                    ///< why this job makes none; empty: it does, or is not to
};

}  // namespace trireme
