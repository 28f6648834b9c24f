#pragma once
// Chrome traces of executed and simulated steps, for Perfetto (ui.perfetto.dev) and chrome://tracing.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/loop/exposed.h"

namespace trireme {

/// One process of the trace.
struct TracedRank {
  std::string name;  ///< "rank 3: pipeline 1, replicate 0, shard 0, tensor 1"
  int pipeline = 0;  ///< its pipeline: ranks of one pipeline send to each other
  StepTrace step;    ///< only a timeline if simulated
};

TracedRank traced_rank(const MeshShape& shape, int rank, StepTrace step);

/// Rows of a rank: compute (actions of the list, reading of data, update), operations (of kernels/ops, if logged), pipeline (transfers, from start to
/// end of their wait), ZeRO and tensor (communication, likewise), waiting (intervals in which the rank was blocked). Overlapping events are spread
/// over several rows of one name. An arrow connects each send with its receive if both ranks are traced.
class ChromeTrace {
 public:
  /// Adds a step. `name`: its name in the events' arguments. `origin`: its start, in seconds since the trace's start. Same ranks in every call.
  void add(const std::string& name, double origin, const std::vector<TracedRank>& ranks);
  /// Content of the file: a JSON object with traceEvents, times in microseconds.
  std::string text() const;

 private:
  enum class Row : uint8_t { kCompute, kOperations, kPipeline, kZero, kTensor, kWaiting };
  struct Event {
    std::string name;
    Row row;
    double begin, end;
    std::string arrow;  ///< transfers: key shared by both ends
    bool arrives = false;
  };
  std::vector<Event> events_of(const TracedRank& rank) const;
  static std::optional<Row> row_of(const std::string& group);
  int place(int rank, Row row, int64_t begin, int64_t end);
  void write(const std::string& event);

  std::string events_;                                        ///< separated by commas
  std::map<std::pair<int, Row>, std::vector<int64_t>> ends_;  ///< by rank and row: end of the last event of each line, nanoseconds
  std::map<std::string, int64_t> arrows_;                     ///< arrow ids of the step being added
  int64_t next_arrow_ = 0;
};

}  // namespace trireme
