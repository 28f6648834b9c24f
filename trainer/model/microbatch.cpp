#include "trainer/model/microbatch.h"

namespace trireme {

std::vector<SegmentRun> segment_runs(const std::vector<int64_t>& segments, int64_t rows, int64_t sequence) {
  if (segments.empty()) return {{rows / sequence, sequence, 0}};
  std::vector<SegmentRun> runs;
  int64_t row = 0;
  for (const int64_t length : segments) {
    TRIREME_CHECK(length > 0 && row % sequence + length <= sequence, "segment of ", length, " rows at row ", row,
                  " is empty or crosses a sequence of ", sequence);
    if (runs.empty() || runs.back().length != length) runs.push_back({0, length, row});
    ++runs.back().count;
    row += length;
  }
  TRIREME_CHECK(row == rows, "segments cover ", row, " rows of a micro-batch of ", rows);
  return runs;
}

}  // namespace trireme
