#pragma once
// Copies of ranks' parts in the memory of a host (resilience.peer_copies), in a directory of resilience.peer_directory, a file system in memory:
//
//   trireme-<user>-<digest of the run directory's path>/    mode 0700; with "-" and a random part where another user has taken the name
//     holder-00003/                                         what rank 3 keeps
//       step-00000100.<session>.8/                          of the state after step 100 of a job of 8 ranks
//         rank-00003.safetensors, rank-00003.json           its own part (rank_part.h)
//         rank-00001.safetensors, rank-00001.json           that of rank 1
//         about.json                                        beside the part of rank 0: a manifest without tensors, the description of the state
//
// RUN/peer_copies.json says which of these states belong to the history of the run, because a lost host may come back with old ones.
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

inline constexpr const char* kPeerRecordName = "peer_copies.json";
inline constexpr const char* kPeerAboutName = "about.json";

/// A state of a run that ranks have copied.
struct PeerGeneration {
  int64_t step = 0;
  std::string session;  ///< of the job that wrote it
  int ranks = 0;        ///< of that job
  auto operator<=>(const PeerGeneration&) const = default;
};

/// A part of a generation that is complete on this host.
struct PeerPart {
  PeerGeneration generation;
  int source = 0;  ///< the rank whose state it is
  int holder = 0;  ///< the rank that kept it
  auto operator<=>(const PeerPart&) const = default;
};

/// The copies of a run on this host.
class PeerDirectory {
 public:
  /// `place`: resilience.peer_directory. Creates nothing.
  PeerDirectory(const std::filesystem::path& place, const std::filesystem::path& run_directory);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path of(int holder, const PeerGeneration& generation) const;
  std::filesystem::path of(const PeerPart& part) const { return of(part.holder, part.generation); }
  /// Errors: ConfigError naming resilience.peer_directory if it is no directory.
  void check() const;
  /// Creates the directory, readable by its owner alone, if it does not exist. Returns its name: the other ranks of the host use() it. Errors: IoError.
  std::string create();
  void use(const std::string& name);
  /// Creates the directory of a generation. Errors: IoError.
  void create(int holder, const PeerGeneration& generation) const;
  /// Complete parts of all holders. What cannot be read is left out.
  std::vector<PeerPart> parts() const;
  /// Removes the generations of `holder`, or of all holders if it is negative, that `keeps` does not want. What cannot be removed stays.
  void keep_only(int holder, const std::function<bool(const PeerGeneration&)>& keeps) const;
  /// Removes everything.
  void remove() const;
  /// Bytes of all files.
  int64_t bytes() const;
  /// Tells hosts apart, also containers of one host that do not share the file system of `place`.
  std::string host() const;

 private:
  void make_own() const;

  std::filesystem::path place_, path_;
  std::string name_;  ///< without a random part
};

/// Whether a rank is the first one of its host. `hosts`: PeerDirectory::host() of each rank.
bool is_first_of_host(const std::vector<std::string>& hosts, int rank);

/// RUN/peer_copies.json: from which copies the run may continue.
struct PeerRecord {
  std::string session;                        ///< of the running job, or of the last one
  std::optional<PeerGeneration> before = {};  ///< the copies that this job has continued from, until its own are complete
  bool allows(const PeerGeneration& generation) const { return generation.session == session || generation == before; }
};

/// nullopt without the file, or if it is damaged: then the run continues from checkpoints.
std::optional<PeerRecord> read_peer_record(const std::filesystem::path& run_directory);
/// Replaces it durably. Errors: IoError.
void write_peer_record(const std::filesystem::path& run_directory, const PeerRecord& record);

}  // namespace trireme
