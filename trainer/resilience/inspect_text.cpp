#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"
#include "trainer/resilience/inspect.h"
#include "trainer/resilience/waits.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

/// Text from a file or a path, without control characters and line breaks, which could imitate other lines.
std::string on_a_line(const std::string& text) {
  std::string line;
  for (const char c : printable(text)) line += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  return line;
}

/// "0.3 s", "12 s", "20 min", "30 h", "12 d". From 10 s on there are two digits at least.
std::string duration_text(double seconds) {
  if (seconds < 9.95) return concat(std::round(std::max(seconds, 0.0) * 10) / 10, " s");
  if (seconds < 600) return concat(std::lround(seconds), " s");
  if (seconds < 36'000) return concat(std::lround(seconds / 60), " min");
  return seconds < 864'000 ? concat(std::lround(seconds / 3600), " h") : concat(std::lround(seconds / 86'400), " d");
}

/// What the rank is blocked in; empty if it does not wait.
std::string operation_of(const RankState& rank) { return rank.last.wait ? blocked_in(rank).text : ""; }

/// The rows of `cells` with aligned columns. Columns in `right` are aligned to the right.
std::string aligned(const std::vector<std::vector<std::string>>& cells, const std::vector<bool>& right) {
  std::vector<size_t> widths(right.size());
  for (const auto& row : cells)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += concat(c == 0 ? "" : "  ", right[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string table_of_ranks(const Inspection& inspection) {
  std::vector<std::vector<std::string>> cells{{"rank", "host", "pid", "process", "step", "action", "waits in", "for"}};
  for (size_t r = 0; r < inspection.ranks.size(); ++r) {
    const InspectedRank& rank = inspection.ranks[r];
    const bool known = rank.state.life != RankState::Life::kAbsent;
    const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : on_a_line(text); };
    cells.push_back({std::to_string(r), or_dash(rank.state.host), known ? std::to_string(rank.state.pid) : "-", rank.process,
                     known ? std::to_string(rank.state.last.step) : "-", or_dash(rank.state.last.action), or_dash(operation_of(rank.state)),
                     known ? duration_text(rank.still) : "-"});
  }
  return aligned(cells, {true, false, true, false, true, false, false, true});
}

/// "rank 3 (host n1, process 4245), stopped, never entered it: step 12, backward of micro-batch 1, blocks.2, for 12 s".
std::string instead(const Inspection& inspection, const std::vector<RankState>& states, int rank, bool entered) {
  const InspectedRank& missing = inspection.ranks[static_cast<size_t>(rank)];
  const RankState& state = missing.state;
  if (state.life == RankState::Life::kAbsent)
    return concat("rank ", rank, missing.problem.empty() ? " has not started" : " is missing, and where it is cannot be known: ", missing.problem);
  std::string text = concat("rank ", rank, " (host ", state.host, ", process ", state.pid, ")");
  if (missing.process != "alive") text += concat(", ", missing.process, ",");
  text += entered ? " has entered it and not left it" : " never entered it";
  if (const std::string other = operation_of(state); !entered && !other.empty()) {
    text += concat(" and waits in ", other);
    if (const std::vector<int> others = ranks_not_entered(states, rank); !others.empty()) text += concat(", for ", list_ranks(others));
  }
  return concat(text, ": step ", state.last.step, ", ", state.last.action.empty() ? "before its first action" : state.last.action, ", for ",
                duration_text(missing.still));
}

std::vector<RankState> states_of(const Inspection& inspection) {
  std::vector<RankState> states;
  for (const InspectedRank& rank : inspection.ranks) states.push_back(rank.state);
  return states;
}

/// The ranks that can no longer leave an operation that all its ranks have entered; none of another operation.
std::vector<int> stuck_in(const Inspection& inspection, const Blockage& blockage) {
  std::vector<int> stuck;
  for (const int member : blockage.members) {
    if (!blockage.missing.empty() || static_cast<size_t>(member) >= inspection.ranks.size()) continue;
    const std::string& process = inspection.ranks[static_cast<size_t>(member)].process;
    if (process == "dead" || process == "stopped" || process == "silent") stuck.push_back(member);
  }
  return stuck;
}

std::string blockages_text(const Inspection& inspection) {
  constexpr size_t kMostOperations = 16, kMostRanks = 8;
  const std::vector<RankState> states = states_of(inspection);
  const std::vector<Blockage> all = blockages(states);
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMostOperations); ++i) {
    const Blockage& blockage = all[i];
    const auto& waiting = blockage.operation.waiting;
    const bool entered = blockage.missing.empty();
    text += concat(on_a_line(blockage.operation.text), ": ", list_ranks(waiting), waiting.size() == 1 ? " waits" : " wait",
                   entered ? "; all its ranks have entered it" : "", "\n");
    const std::vector<int> named = entered ? stuck_in(inspection, blockage) : blockage.missing;
    for (size_t m = 0; m < std::min(named.size(), kMostRanks); ++m) text += "  " + on_a_line(instead(inspection, states, named[m], entered)) + "\n";
    if (named.size() > kMostRanks) text += concat("  and ", counted(named.size() - kMostRanks, "more rank"), "\n");
  }
  if (all.size() > kMostOperations) text += concat("and ", counted(all.size() - kMostOperations, "more operation"), " (--json lists them)\n");
  return text;
}

/// The ranks that the verdict names as dead and for which no rank waits in an operation.
std::vector<int> unawaited_deaths(const Inspection& inspection, const std::vector<Blockage>& all) {
  std::vector<int> deaths;
  for (const int rank : inspection.verdict ? inspection.verdict->ranks : std::vector<int>{}) {
    if (static_cast<size_t>(rank) >= inspection.ranks.size() || inspection.ranks[static_cast<size_t>(rank)].process != "dead") continue;
    const bool is_named = std::ranges::any_of(all, [&](const Blockage& blockage) {
      const std::vector<int> stuck = stuck_in(inspection, blockage);
      return std::ranges::count(blockage.missing, rank) + std::ranges::count(stuck, rank) > 0;
    });
    if (!is_named) deaths.push_back(rank);
  }
  return deaths;
}

/// mpirun may have killed the other ranks before one of them had to wait for the first that died.
std::string deaths_text(const Inspection& inspection) {
  constexpr size_t kMostRanks = 8;
  const std::vector<RankState> states = states_of(inspection);
  const std::vector<int> deaths = unawaited_deaths(inspection, blockages(states));
  std::string text;
  for (size_t i = 0; i < std::min(deaths.size(), kMostRanks); ++i) {
    const int rank = deaths[i];
    const RankState& state = states[static_cast<size_t>(rank)];
    text += on_a_line(concat("rank ", rank, " (host ", state.host, ", process ", state.pid, ") died before others waited for it: step ",
                             state.last.step, ", ", state.last.action.empty() ? "before its first action" : state.last.action)) +
            "\n";
    for (const NextOperation& next : next_operations(states, rank))
      text += "  " +
              on_a_line(concat("it never entered operation ", next.number, " of group ", next.group, ", with ", list_ranks(next.others),
                               next.begun.empty() ? "" : concat("; begun by ", list_ranks(next.begun)))) +
              "\n";
  }
  if (deaths.size() > kMostRanks) text += concat("and ", counted(deaths.size() - kMostRanks, "more rank"), " (--json lists them)\n");
  return text;
}

/// "ranks 0, 1 ended: done".
std::string ends_text(const Inspection& inspection) {
  std::map<std::string, std::vector<int>> ends;
  for (size_t r = 0; r < inspection.ranks.size(); ++r) {
    const auto& box = inspection.ranks[r].box;
    if (box && box->ended != 0) ends[box->end].push_back(static_cast<int>(r));
  }
  std::string text;
  for (const auto& [how, ranks] : ends) text += concat(list_ranks(ranks), " ended: ", on_a_line(how), "\n");
  return text;
}

/// Why black boxes cannot be read.
std::string problems_text(const Inspection& inspection) {
  constexpr size_t kMostProblems = 32;
  size_t problems = 0;
  std::string text;
  for (size_t r = 0; r < inspection.ranks.size(); ++r) {
    const std::string& problem = inspection.ranks[r].problem;
    if (!problem.empty() && ++problems <= kMostProblems) text += concat("rank ", r, ": ", on_a_line(problem), "\n");
  }
  if (problems > kMostProblems) text += concat("and ", counted(problems - kMostProblems, "more rank"), " without a black box (--json lists them)\n");
  return text;
}

ordered_json rank_json(const InspectedRank& rank, size_t number) {
  const RankState& state = rank.state;
  ordered_json row{{"rank", number}, {"process", rank.process}};
  if (!rank.problem.empty()) row["problem"] = rank.problem;
  if (state.life == RankState::Life::kAbsent) return row;
  const Progress::Snapshot& last = state.last;
  row.update({{"host", state.host},
              {"pid", state.pid},
              {"step", last.step},
              {"micro_batch", last.microbatch < 0 ? ordered_json() : ordered_json(last.microbatch)},
              {"action", last.action},
              {"operation", last.wait ? ordered_json(operation_of(state)) : ordered_json()},
              {"still_seconds", rank.still}});
  if (!rank.box) return row;
  row.update({{"device", rank.box->owner.device},
              {"coordinate", rank.box->owner.coordinate},
              {"memory_peak_bytes", last.memory_peak},
              {"resident_peak_bytes", last.resident_peak},
              {"started", utc_text(rank.box->begun)},
              {"last_progress", utc_text(rank.box->moved)},
              {"ended", rank.box->ended == 0 ? ordered_json() : ordered_json(utc_text(rank.box->ended))},
              {"end", rank.box->ended == 0 ? ordered_json() : ordered_json(rank.box->end)}});
  return row;
}

}  // namespace

std::string inspection_text(const Inspection& inspection) {
  std::map<std::string, int64_t> processes;
  for (const InspectedRank& rank : inspection.ranks) ++processes[rank.process];
  std::string text = concat(inspection.run.empty() ? "" : on_a_line(inspection.run) + ": ", counted(inspection.ranks.size(), "rank"));
  for (const auto& [process, count] : processes) text += concat(", ", count, process == kNoBlackBox ? " without a black box" : " " + process);
  if (inspection.age > 0) text += concat("; as of ", duration_text(inspection.age), " ago");
  text += "\n" + table_of_ranks(inspection);
  const std::string verdict = inspection.verdict ? concat("the job monitor found: ", on_a_line(inspection.verdict->text), "\n") : "";
  for (const std::string& part : {verdict, ends_text(inspection), blockages_text(inspection), deaths_text(inspection), problems_text(inspection)})
    if (!part.empty()) text += "\n" + part;
  return text;
}

ordered_json inspection_json(const Inspection& inspection) {
  ordered_json json{{"run", inspection.run},
                    {"age_seconds", inspection.age},
                    {"verdict", nullptr},
                    {"ranks", ordered_json::array()},
                    {"operations", ordered_json::array()}};
  if (const auto& verdict = inspection.verdict) json["verdict"] = {{"ranks", verdict->ranks}, {"text", verdict->text}};
  for (size_t r = 0; r < inspection.ranks.size(); ++r) json["ranks"].push_back(rank_json(inspection.ranks[r], r));
  const std::vector<RankState> states = states_of(inspection);
  const std::vector<Blockage> all = blockages(states);
  for (const int rank : unawaited_deaths(inspection, all)) {
    ordered_json& operations = json["ranks"][static_cast<size_t>(rank)]["never_entered"] = ordered_json::array();
    for (const NextOperation& next : next_operations(states, rank))
      operations.push_back({{"group", next.group}, {"number", next.number}, {"others", next.others}, {"begun", next.begun}});
  }
  for (const Blockage& blockage : all)
    json["operations"].push_back({{"operation", blockage.operation.text},
                                  {"verb", blockage.operation.verb},
                                  {"group", blockage.operation.group},
                                  {"number", blockage.operation.number},
                                  {"members", blockage.members},
                                  {"waiting", blockage.operation.waiting},
                                  {"missing", blockage.missing},
                                  {"stuck", stuck_in(inspection, blockage)}});
  return json;
}

std::string history_text(const BlackBoxContents& box) {
  std::vector<std::vector<std::string>> cells;
  for (const BlackBoxContents::Record& record : box.records) {
    std::string what;
    const std::string group = record.group < box.last.groups.size() ? box.last.groups[record.group].name : "?";
    switch (record.kind) {
      case BlackBoxRecord::kStep: what = concat("step ", record.number); break;
      case BlackBoxRecord::kAction: what = record.words; break;
      case BlackBoxRecord::kBegun:
        what = concat("begins ", record.words, " ", record.number, " of group ", group,
                      record.peer < 0 ? "" : concat(record.words == "send" ? " to rank " : " from rank ", record.peer), ", ",
                      binary_bytes_text(static_cast<double>(record.payload)));
        break;
      case BlackBoxRecord::kFinished:
        what = concat("ends ", record.words, " ", record.number, " of group ", group,
                      record.peer < 0 ? "" : concat(record.words == "send" ? " to rank " : " from rank ", record.peer));
        break;
      default: what = concat("record of kind ", record.kind);
    }
    cells.push_back({utc_text(record.time), on_a_line(what)});
  }
  return aligned(cells, {false, false});
}

}  // namespace trireme
