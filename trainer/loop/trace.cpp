#include "trainer/loop/trace.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace trireme {
namespace {

constexpr int kMostLines = 100000;  ///< per row; thread id = row * kMostLines + line

const char* row_name(int row) {
  constexpr const char* kNames[] = {"compute", "operations", "pipeline", "ZeRO", "tensor", "waiting"};
  return kNames[row];
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

int64_t nanoseconds(double seconds) { return std::llround(1e9 * seconds); }

std::string microseconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", 1e-3 * static_cast<double>(ns));
  return text;
}

/// "shard all_gather".
std::string name_of(const TimedOperation& operation) { return operation.group + " " + operation.verb; }

/// Names a transfer by its receive action, which both ends know.
std::string arrow_of(const Action& transfer) { return to_string(is_receive(transfer.type) ? transfer : counterpart(transfer)); }

}  // namespace

TracedRank traced_rank(const MeshShape& shape, int rank, StepTrace step) {
  const MeshCoordinate at = coordinate_of(shape, rank);
  std::string place;
  for (const MeshAxisRow& row : shown_axes(shape)) place += concat(place.empty() ? "" : ", ", row.name, " ", at.*row.index);
  return {concat("rank ", rank, ": ", place), group_of(shape, MeshAxis::kPipeline, rank, shape.tensor).first, std::move(step)};
}

/// nullopt for groups shown elsewhere: the pipeline's exchanges as transfers of the list, the world's operations within reading and update.
std::optional<ChromeTrace::Row> ChromeTrace::row_of(const std::string& group) {
  const auto is = [&](MeshAxis axis) { return group == name_of(axis); };
  if (is(MeshAxis::kTensor) || is(MeshAxis::kKv)) return Row::kTensor;
  if (is(MeshAxis::kShard) || is(MeshAxis::kSecondary) || is(MeshAxis::kReplicate) || is(MeshAxis::kEmbedding)) return Row::kZero;
  return std::nullopt;
}

void ChromeTrace::write(const std::string& event) { events_ += (events_.empty() ? "\n" : ",\n") + event; }

/// Thread id of a line of the row that is free from `begin` on; names the line on first use.
int ChromeTrace::place(int rank, Row row, int64_t begin, int64_t end) {
  std::vector<int64_t>& lines = ends_[{rank, row}];
  size_t line = 0;
  while (line < lines.size() && lines[line] > begin) ++line;
  const int tid = static_cast<int>(row) * kMostLines + static_cast<int>(line);
  if (line == lines.size()) {
    lines.push_back(0);
    const std::string name = row_name(static_cast<int>(row)) + (line > 0 ? " " + std::to_string(line + 1) : "");
    const std::string of = concat(R"("ph":"M","pid":)", rank, R"(,"tid":)", tid);
    write(concat(R"({"name":"thread_name",)", of, R"(,"args":{"name":)", quoted(name), "}}"));
    write(concat(R"({"name":"thread_sort_index",)", of, R"(,"args":{"sort_index":)", tid, "}}"));
  }
  lines[line] = end;
  return tid;
}

std::vector<ChromeTrace::Event> ChromeTrace::events_of(const TracedRank& rank) const {
  std::vector<Event> events;
  for (const auto& [action, begin, end] : rank.step.timeline) {
    if (is_transfer(action.type)) {
      events.push_back({to_string(action), Row::kPipeline, begin, end, concat(rank.pipeline, " ", arrow_of(action)), is_receive(action.type)});
    } else {
      events.push_back({to_string(action), is_compute(action.type) || ends_step(action.type) ? Row::kCompute : Row::kZero, begin, end, "", false});
    }
  }
  for (const auto& [cause, begin, end] : rank.step.stretches) events.push_back({name_of(cause), Row::kCompute, begin, end, "", false});
  for (const TimedKernel& one : rank.step.kernels) events.push_back({one.name, Row::kOperations, one.begin, one.end, "", false});
  for (const TimedOperation& one : rank.step.operations) {
    const std::optional<Row> row = row_of(one.group);
    if (row) events.push_back({name_of(one), *row, one.begin, one.end, "", false});
    for (const auto& [begin, end] : {std::pair(one.begin, one.started), std::pair(one.wait, one.end)})
      if (begin < end) events.push_back({name_of(one), Row::kWaiting, begin, end, "", false});
  }
  std::ranges::stable_sort(events, {}, &Event::begin);
  return events;
}

void ChromeTrace::add(const std::string& name, double origin, const std::vector<TracedRank>& ranks) {
  arrows_.clear();
  std::vector<std::vector<Event>> events;
  std::map<std::string, int> ends;  // events per arrow, among these ranks
  for (const TracedRank& rank : ranks) {
    events.push_back(events_of(rank));
    for (const Event& event : events.back()) ++ends[event.arrow];
  }
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const TracedRank& rank = ranks[static_cast<size_t>(r)];
    if (!ends_.contains({r, Row::kCompute})) {
      write(concat(R"({"name":"process_name","ph":"M","pid":)", r, R"(,"args":{"name":)", quoted(rank.name), "}}"));
      write(concat(R"({"name":"process_sort_index","ph":"M","pid":)", r, R"(,"args":{"sort_index":)", r, "}}"));
      ends_[{r, Row::kCompute}] = {};
    }
    for (const Event& event : events[static_cast<size_t>(r)]) {
      const int64_t begin = nanoseconds(origin + event.begin), end = nanoseconds(origin + event.end);
      const int tid = place(r, event.row, begin, end);
      const std::string where = concat(R"("pid":)", r, R"(,"tid":)", tid);
      write(concat(R"({"name":)", quoted(event.name), R"(,"cat":")", row_name(static_cast<int>(event.row)), R"(","ph":"X","ts":)",
                   microseconds(begin), R"(,"dur":)", microseconds(end - begin), ",", where, R"(,"args":{"step":)", quoted(name), "}}"));
      if (event.arrow.empty() || ends[event.arrow] < 2) continue;
      // An arrow binds to the event that encloses its time stamp, and an event does not enclose its end.
      const int64_t at = event.arrives ? std::max(begin, end - 1) : begin;
      const int64_t id = arrows_.try_emplace(event.arrow, next_arrow_ + static_cast<int64_t>(arrows_.size())).first->second;
      write(concat(R"({"name":"transfer","cat":"pipeline","id":)", id, event.arrives ? R"(,"ph":"f","bp":"e","ts":)" : R"(,"ph":"s","ts":)",
                   microseconds(at), ",", where, "}"));
    }
  }
  next_arrow_ += static_cast<int64_t>(arrows_.size());
}

std::string ChromeTrace::text() const { return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + events_ + "\n]}\n"; }

}  // namespace trireme
