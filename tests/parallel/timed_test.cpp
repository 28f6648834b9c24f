// The log of a traced step contains only the operations of that step, even if earlier ones are waited for during it.
#include "parallel/comm/timed.h"

#include "tests/support/catch.h"

namespace trireme {

TEST_CASE("a communication log ignores the wait of an operation that began in an earlier step") {
  DeviceClock clock({}, DeviceClock::Host::now());
  CommunicationLog log;
  log.start(clock);
  const size_t place = log.add("shard", "all_gather", {1}, {2});
  const uint64_t recording = log.recording();
  log.waited(place, recording, {3}, {4});
  const std::vector<TimedOperation> first = log.stop();
  REQUIRE(first.size() == 1);
  CHECK(first[0].begin == 1);
  CHECK(first[0].started == 2);
  CHECK(first[0].wait == 3);
  CHECK(first[0].end == 4);

  log.start(clock);
  log.add("tensor", "all_reduce", {5}, {6});
  log.waited(place, recording, {7}, {8});  // the earlier step's operation, as without a barrier between the steps
  const std::vector<TimedOperation> second = log.stop();
  REQUIRE(second.size() == 1);
  CHECK(second[0].group == "tensor");
  CHECK(second[0].wait == 6);
  CHECK(second[0].end == 6);
  log.waited(place, recording, {8}, {9});  // the log is stopped
  CHECK_FALSE(log.running());
}

}  // namespace trireme
