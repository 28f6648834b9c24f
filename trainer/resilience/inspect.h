#pragma once
// Where every rank of a run is, and which operation misses whom: from the black boxes of a run directory, or from the reports of a live job.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/resilience/black_box_file.h"
#include "trainer/resilience/verdict.h"

namespace trireme {

constexpr const char* kNoBlackBox = "no black box";

struct InspectedRank {
  RankState state;  ///< host, pid and last are set
  /// From a black box: "alive", "stopped", "dead", "ended" (it has said how), "unknown" (not on this host); or kNoBlackBox. From a report:
  /// "alive", "silent", "dead", "ended", "failed"; or "not started".
  std::string process;
  double still = 0;                     ///< seconds since it last made progress, up to Inspection::as_of
  std::optional<BlackBoxContents> box;  ///< nullopt: from a report, or there is none
  std::string problem;                  ///< why its black box cannot be read
};

/// What the launcher found out about the job, which may be gone by the time of an inspection: mpirun kills all ranks when one has died.
struct RecordedVerdict {
  std::vector<int> ranks = {};  ///< Verdict::ranks
  std::string text = {};        ///< Verdict::text
};

struct Inspection {
  std::string run = {};  ///< the run directory; empty: a live job
  std::vector<InspectedRank> ranks = {};
  std::string session = {};  ///< BlackBoxOwner::session; empty: a live job
  std::optional<RecordedVerdict> verdict = {};
  double age = 0;  ///< seconds between the newest sign of any rank and now, if none is alive; else 0
};

/// Reads the black boxes of the last start of a run, or of the start before with `previous`. One that cannot be read is a problem of its rank.
/// `most_members`: of the groups of all black boxes; bounds what malformed files make it allocate, to a few gigabytes. Errors: MissingFileError if there
/// is no black box; that of read_black_box() if none can be read; IoError if the directory cannot be listed; DataError if there are more members.
Inspection inspect_run(const std::filesystem::path& run_directory, bool previous, size_t most_members = size_t{1} << 28);
/// The same from the states that a hub has.
Inspection inspected(const std::vector<RankState>& ranks, double now);

/// BlackBoxOwner::session of the newest black box of a run; empty if it has none that can be read.
std::string newest_session(const std::filesystem::path& run_directory);

/// Records a verdict about the newest start of a run in RUN/logs/verdict.json, for inspect_run(). `session_before`: newest_session() when the job
/// began. No effect if the job has left no black box, because the newest one is then of the start before. Errors: IoError.
void write_verdict(const std::filesystem::path& run_directory, const Verdict& verdict, const std::string& session_before);

/// A table of the ranks, and every operation in which ranks wait, with the ranks that are missing and what they do instead.
std::string inspection_text(const Inspection& inspection);
nlohmann::ordered_json inspection_json(const Inspection& inspection);

/// The records of a black box, oldest first, a line each.
std::string history_text(const BlackBoxContents& box);

}  // namespace trireme
