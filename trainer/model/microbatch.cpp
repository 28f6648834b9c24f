#include "trainer/model/microbatch.h"

#include <algorithm>

namespace trireme {

void write_bounds(const std::vector<int64_t>& lengths, int64_t rows, int64_t sequence, int32_t* starts, int32_t* ends) {
  int64_t row = 0;
  for (const int64_t length : lengths) {
    const int64_t start = row % sequence;
    TRIREME_CHECK(length > 0 && start + length <= sequence && row + length <= rows, "document of ", length, " rows at row ", row,
                  " is empty or crosses a sequence of ", sequence, " in a micro-batch of ", rows);
    std::fill_n(starts + row, length, static_cast<int32_t>(start));
    std::fill_n(ends + row, length, static_cast<int32_t>(start + length));
    row += length;
  }
  TRIREME_CHECK(row == rows, "documents cover ", row, " rows of a micro-batch of ", rows);
}

}  // namespace trireme
