// Counts in messages: "1 rank", "2 ranks".
#include "kernels/core/counted.h"

#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("counts: singular and plural") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(size_t{2}, "rank") == "2 ranks");
  CHECK(counted(int64_t{1}, "micro-batch", "micro-batches") == "1 micro-batch");
  CHECK(counted(3, "micro-batch", "micro-batches") == "3 micro-batches");
}
