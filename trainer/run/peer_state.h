#pragma once
// Loading from peer copies: the newest state of which the hosts of a job still have every part.
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/peer_directory.h"
#include "trainer/config/config.h"

namespace trireme {

/// A state in the memory of the hosts. Any layout reads it, as a checkpoint: a rank opens the parts that its host has and is sent the others that it needs.
class PeerState {
 public:
  /// The newest state of the run's history that is complete in the memory of these hosts, after a step in (after, before); nullopt if there is none.
  /// Collective. Errors: IoError on all ranks.
  static std::unique_ptr<PeerState> find(Communicator& world, const Config& config, int64_t after, int64_t before);
  ~PeerState();
  PeerState(const PeerState&) = delete;
  PeerState& operator=(const PeerState&) = delete;

  const PeerGeneration& generation() const { return generation_; }
  /// "peer copies of step 40".
  std::string name() const;
  /// A reader of which files may be absent (Absent::kAllowed). Collective. Errors, on all ranks: DataError if a part is damaged, IoError.
  std::unique_ptr<CheckpointReader> open();
  /// Fetches files for the reader of this rank: those that no rank of its host has are sent from another host. Collective. Errors: as open().
  /// Wire: each file once to each host that needs it.
  void fetch(const std::set<std::string>& files);

 private:
  /// A part, and the first rank of a host that has it.
  struct Available {
    PeerPart part;
    int reader;
  };
  struct Transfer {
    std::string file;
    Available from;
    int to;
  };

  PeerState(Communicator& world, const Config& config, PeerGeneration generation, std::vector<std::string> hosts, std::vector<Available> available);
  std::filesystem::path directory_of(int rank) const;
  bool is_on_this_host(int rank) const;
  std::filesystem::path path_of(const PeerPart& part, const std::string& file) const;
  std::vector<Transfer> transfers_for(const std::vector<std::set<std::string>>& files_of_ranks) const;
  std::string carry_out(Communicator& group, const Transfer& transfer) const;
  std::string contents_of_parts() const;

  Communicator& world_;
  PeerDirectory directory_;
  PeerGeneration generation_;
  std::vector<std::string> hosts_;    ///< by rank
  std::vector<Available> available_;  ///< of the generation, ordered by source
};

}  // namespace trireme
