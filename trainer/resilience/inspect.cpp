#include "trainer/resilience/inspect.h"

#include <algorithm>
#include <exception>
#include <map>
#include <system_error>

#include "kernels/core/check.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using nlohmann::ordered_json;
using Life = RankState::Life;

constexpr double kNanoseconds = 1e9;

/// The difference of two times from files, which may be any numbers.
double seconds_between(int64_t from, int64_t to) { return (static_cast<double>(to) - static_cast<double>(from)) / kNanoseconds; }

Life life_of_process(const InspectedRank& rank) {
  if (!rank.box) return Life::kAbsent;
  if (rank.process == "ended") return rank.box->end == "done" || rank.box->end == "stopped on request" ? Life::kLeft : Life::kFailed;
  return rank.process == "dead" ? Life::kDead : Life::kAlive;
}

std::string process_of(const BlackBoxContents& box) {
  if (box.ended != 0) return "ended";
  switch (life_of(box)) {
    case ProcessLife::kAlive: return "alive";
    case ProcessLife::kStopped: return "stopped";
    case ProcessLife::kGone: return "dead";
    case ProcessLife::kUnknown: break;
  }
  return "unknown";
}

bool may_run(const InspectedRank& rank) { return rank.process == "alive" || rank.process == "stopped" || rank.process == "unknown"; }

InspectedRank without_box(const std::string& problem) {
  InspectedRank rank;
  rank.process = kNoBlackBox;
  rank.problem = problem;
  return rank;
}

/// `problem`: becomes the error if the black box cannot be read.
InspectedRank read_rank(const fs::path& path, std::exception_ptr& problem) {
  InspectedRank rank;
  try {
    rank.box = read_black_box(path);
  } catch (const Error& error) {
    problem = std::current_exception();
    return without_box(error.what());
  }
  rank.process = process_of(*rank.box);
  rank.state.host = rank.box->host;
  rank.state.pid = rank.box->pid;
  rank.state.last = rank.box->last;
  rank.state.life = life_of_process(rank);
  return rank;
}

int64_t last_sign(const BlackBoxContents& box) { return std::max(box.moved, box.ended); }

fs::path verdict_path(const fs::path& run_directory) { return run_directory / "logs" / "verdict.json"; }

/// The verdict about the start `session`; nullopt if there is none, or the file is damaged.
std::optional<RecordedVerdict> read_verdict(const fs::path& run_directory, const std::string& session) {
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string where = verdict_path(run_directory).string();
  try {
    const nlohmann::json file = parse_object(read_text(where, kMostBytes), where);
    if (string_member(file, "session", where) != session) return std::nullopt;
    RecordedVerdict verdict{{}, string_member(file, "text", where)};
    for (const auto& rank : array_member(file, "ranks", where)) verdict.ranks.push_back(static_cast<int>(integer(rank, where, 0, 1 << 20)));
    return verdict;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Inspection inspect_run(const fs::path& run_directory, bool previous, size_t most_members) {
  const auto path_of = [&](int rank) {
    const fs::path path = black_box_path(run_directory, rank);
    return previous ? previous_black_box(path) : path;
  };
  // Another start may have had more ranks: those of the newest one count.
  std::map<fs::path, InspectedRank> found;
  const BlackBoxContents* newest = nullptr;
  std::exception_ptr problem;  // of a black box that cannot be read
  size_t members = 0;          // of the groups of all black boxes
  std::error_code error;
  for (fs::directory_iterator each(run_directory / "logs", error), end; !error && each != end; each.increment(error)) {
    const fs::path& path = each->path();
    if (path.extension() != ".blackbox" || (path.stem().extension() == ".previous") != previous) continue;
    const InspectedRank& rank = found.emplace(path, read_rank(path, problem)).first->second;
    for (const Progress::Group& group : rank.state.last.groups) members += group.ranks.size() + group.sent.size() + group.received.size();
    if (members > most_members)
      throw DataError(concat(path.string(), ": damaged, as the groups of all black boxes up to it have more than ", most_members, " members"));
    if (rank.box && (newest == nullptr || rank.box->begun > newest->begun)) newest = &*rank.box;
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw IoError(concat((run_directory / "logs").string(), ": cannot list the directory: ", error.message()));
  if (newest == nullptr && problem) std::rethrow_exception(problem);
  if (newest == nullptr)
    throw MissingFileError(concat(run_directory.string(), ": no black box of ", previous ? "an earlier start" : "a rank", " (", path_of(0).string(),
                                  "); allowed the directory of a run that has started to train"));
  Inspection inspection{
      .run = run_directory.string(), .session = newest->owner.session, .verdict = read_verdict(run_directory, newest->owner.session)};
  for (int r = 0; r < newest->owner.world; ++r) {
    const auto rank = found.find(path_of(r));
    if (rank == found.end()) {
      inspection.ranks.push_back(without_box("no file " + path_of(r).string()));
    } else if (rank->second.box && rank->second.box->owner.session != newest->owner.session) {
      inspection.ranks.push_back(without_box(concat("its black box, of ", utc_text(rank->second.box->begun), ", is of another start")));
    } else if (rank->second.box && (rank->second.box->owner.rank != r || rank->second.box->owner.world != newest->owner.world)) {
      const BlackBoxOwner& owner = rank->second.box->owner;
      inspection.ranks.push_back(without_box(concat(path_of(r).string(), ": that of rank ", owner.rank, " of ", owner.world)));
    } else {
      inspection.ranks.push_back(rank->second);
    }
  }
  int64_t as_of = wall_nanoseconds();
  if (std::ranges::none_of(inspection.ranks, may_run)) {
    int64_t last = 0;
    for (const InspectedRank& rank : inspection.ranks)
      if (rank.box) last = std::max(last, last_sign(*rank.box));
    inspection.age = seconds_between(last, as_of);
    as_of = last;
  }
  for (InspectedRank& rank : inspection.ranks)
    if (rank.box) rank.still = seconds_between(rank.box->moved, as_of);
  return inspection;
}

Inspection inspected(const std::vector<RankState>& ranks, double now) {
  Inspection inspection;
  for (const RankState& state : ranks) {
    InspectedRank& rank = inspection.ranks.emplace_back();
    rank.state = state;
    switch (state.life) {
      case Life::kAbsent: rank.process = "not started"; break;
      case Life::kAlive: rank.process = now - state.heard > 2 ? "silent" : "alive"; break;
      case Life::kDead: rank.process = "dead"; break;
      case Life::kLeft: rank.process = "ended"; break;
      case Life::kFailed: rank.process = "failed"; break;
    }
    rank.still = now - state.moved;
  }
  return inspection;
}

std::string newest_session(const fs::path& run_directory) {
  try {
    return inspect_run(run_directory, false).session;
  } catch (const Error&) {
    return "";
  }
}

void write_verdict(const fs::path& run_directory, const Verdict& verdict, const std::string& session_before) {
  const std::string session = newest_session(run_directory);
  if (session.empty() || session == session_before) return;
  const ordered_json file{{"session", session}, {"ranks", verdict.ranks}, {"text", verdict.text}};
  write_durably(verdict_path(run_directory), file.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace trireme
