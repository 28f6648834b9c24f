// The length of the time slices of ranks.
#include "parallel/comm/time_slices.h"

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/time_slice.h"

namespace trireme::test {

TEST_CASE("time slices: a thread takes short ones, and so do the threads that it starts, but not the others") {
  const uint64_t usual = time_slice_nanoseconds();
  const uint64_t expected = usual == 0 ? 0 : 100'000;
  uint64_t own = 0, inherited = 0;
  std::thread([&] {
    take_short_time_slices();
    own = time_slice_nanoseconds();
    std::thread([&] { inherited = time_slice_nanoseconds(); }).join();
  }).join();
  CHECK(own == expected);
  CHECK(inherited == expected);
  CHECK(time_slice_nanoseconds() == usual);
}

}  // namespace trireme::test
