#pragma once
// Copies of the state in the memory of peers (resilience.peer_copies), so that a job that has lost hosts continues from a newer state than its last
// checkpoint, without the file system. Source: Wang et al. 2023 (Gemini, SOSP).
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/rank_links.h"
#include "trainer/checkpoint/peer_directory.h"
#include "trainer/checkpoint/rank_part.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// The outcome of a copy, the same on all ranks, but for the figures, which are this rank's.
struct PeerReport {
  int64_t step = 0;
  int64_t sent_bytes = 0;
  double stall_seconds = 0;               ///< that save() took: waiting for the copy before, and copying within the host's memory
  double copy_seconds = 0;                ///< that a thread took to write and to send the part, behind the steps
  std::optional<std::string> error = {};  ///< the copy before remains valid
};

/// Every rank writes its part of the state to the memory of its host, and sends it to `resilience.peer_copies` ranks of other failure domains
/// (peer_holders). The copy before is kept until all ranks have the new one, so each host keeps two copies at a time.
/// Wire: peer_copies times the rank's part, over connections of their own (RankLinks).
/// Threads: one that writes and sends, and one that receives for each rank whose state this one holds.
class PeerCopies {
 public:
  /// `session`: equal on every rank, new at every start. With fewer failure domains than that takes, there are fewer copies. Collective.
  /// Errors, on all ranks: ConfigError naming the key if the job has one rank, or the memory does not suffice; IoError.
  PeerCopies(Trainer& trainer, const Config& config, const std::string& session);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// The copies that this job continues from are kept until its own first ones are complete.
  void keep(std::optional<PeerGeneration> before) { before_ = std::move(before); }
  /// Waits for the copy before, and begins that of the current state; a thread continues it after the return. Returns how the copy before has ended, if there
  /// was one. Collective.
  std::optional<PeerReport> save(const CheckpointDescription& description);
  /// Waits for the copy in progress; returns how it has ended, if there was one. Collective.
  std::optional<PeerReport> finish();
  /// Where the copies are and what they cost, for the user.
  std::string text() const;

 private:
  void check_memory();
  void copy(const PeerGeneration& generation, const std::string& about, const std::vector<StateTensor>& tensors) noexcept;
  const Link& link_to(int holder) const;
  void send(const PeerGeneration& generation, int64_t tensor_bytes, int holder);
  void serve(int source);
  void receive(int source, const Link& link);
  void forget_older();
  void fail(int64_t step, const std::string& reason);
  std::string failure_of(int64_t step);

  Trainer& trainer_;
  Communicator& world_;
  int wanted_, copies_;  ///< resilience.peer_copies, and those that there are
  int64_t every_;
  std::string place_, session_;
  std::optional<PeerGeneration> before_;  ///< keep()
  PeerDirectory directory_;
  std::vector<std::string> hosts_;  ///< by rank
  std::vector<std::vector<int>> domains_;
  std::vector<int> holders_, sources_;  ///< ranks that hold this rank's state, and those whose state it holds
  std::vector<int> members_;            ///< world ranks of group_
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<RankLinks> links_;
  int64_t part_bytes_ = 0, host_bytes_ = 0;  ///< of this rank's part; that the ranks of this host write
  StateSnapshot snapshot_;
  std::optional<PeerGeneration> complete_;  ///< all ranks have it
  bool is_swept_ = false;                   ///< nothing of earlier jobs is left on this host
  std::optional<PeerReport> in_flight_;
  PeerGeneration writing_;
  std::thread thread_;
  std::vector<std::thread> servers_;
  std::mutex mutex_;
  std::pair<int64_t, std::string> failure_;  ///< step and reason of the last copy that failed on this rank
};

}  // namespace trireme
