#pragma once
// Steps as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open: executed ones and simulated ones alike.
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
  int pipeline = 0;  ///< which of the pipelines it belongs to: ranks of one send to each other
  StepTrace step;    ///< of a simulated rank the timeline alone
};

TracedRank traced_rank(const MeshShape& shape, int rank, StepTrace step);

/// Rows of a rank: compute (the list's actions, reading of data, update), operations (those of kernels/ops, where they were logged), pipeline (transfers, from their start until somebody has waited for them),
/// ZeRO and tensor (communication, likewise), waiting (where the rank could do nothing else). What overlaps lies in further rows of the same name. An
/// arrow goes from each send to its receive, where both of the ranks are among the traced.
class ChromeTrace {
 public:
  /// `name`: of the step, in the events' arguments. `origin`: seconds from the trace's beginning to that of the step. The same ranks in every call.
  void add(const std::string& name, double origin, const std::vector<TracedRank>& ranks);
  /// The whole file: a JSON object with traceEvents, times in microseconds.
  std::string text() const;

 private:
  enum class Row : uint8_t { kCompute, kOperations, kPipeline, kZero, kTensor, kWaiting };
  struct Event {
    std::string name;
    Row row;
    double begin, end;
    std::string arrow;  ///< of a transfer: the same at its other end
    bool arrives = false;
  };
  std::vector<Event> events_of(const TracedRank& rank) const;
  static std::optional<Row> row_of(const std::string& group);
  int place(int rank, Row row, int64_t begin, int64_t end);
  void write(const std::string& event);

  std::string events_;                                        ///< separated by commas
  std::map<std::pair<int, Row>, std::vector<int64_t>> ends_;  ///< by rank and row: where the last event of each of its lines ends, nanoseconds
  std::map<std::string, int64_t> arrows_;                     ///< of the step being added
  int64_t next_arrow_ = 0;
};

}  // namespace trireme
