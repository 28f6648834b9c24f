#include "trainer/resilience/restart_policy.h"
#include "tests/support/catch.h"

using namespace trireme;
using std::chrono::seconds;

TEST_CASE("restart policy: restarts immediately, then with growing delays, reset by a new checkpoint") {
  RestartPolicy policy(100);
  int64_t step = 10;
  for (int64_t expected : {0, 1, 2, 4, 8, 16, 32, 60, 60, 60}) CHECK(policy.after({++step, 10}).delay == seconds(expected));
  CHECK(policy.after({++step, 20}).delay == seconds(0));
  CHECK(policy.after({++step, 20}).delay == seconds(1));
  CHECK(policy.used() == 12);
}

TEST_CASE("restart policy: gives up when all restarts are used up") {
  RestartPolicy none(0), two(2);
  CHECK_FALSE(none.after({5, 0}).delay);
  CHECK(two.after({5, 0}).delay);
  CHECK(two.after({6, 0}).delay);
  const RestartPolicy::Decision last = two.after({7, 0});
  CHECK_FALSE(last.delay);
  CHECK(last.reason == "all 2 restarts are used up");
  CHECK(two.used() == 2);
}

TEST_CASE("restart policy: one restart is the only one, and a step that fails twice is the reason even if none is left") {
  RestartPolicy one(1);
  CHECK(one.after({5, 0}).delay == seconds(0));
  CHECK(one.after({6, 0}).reason == "the only restart is used up");
  CHECK(one.used() == 1);
  RestartPolicy same(1);
  CHECK(same.after({5, 3}).delay);
  CHECK(same.after({5, 3}).reason == "step 5 has failed twice in a row, with no new checkpoint in between");
}

TEST_CASE("restart policy: gives up when a step fails twice in a row without a new checkpoint") {
  RestartPolicy policy(9);
  CHECK(policy.after({17, 10}).delay);
  CHECK(policy.after({15, 10}).delay);  // an earlier step: a different fault
  CHECK(policy.after({17, 10}).delay);  // not twice in a row
  CHECK(policy.after({17, 16}).delay);  // now resumes from step 16
  const RestartPolicy::Decision again = policy.after({17, 16});
  CHECK_FALSE(again.delay);
  CHECK(again.reason == "step 17 has failed twice in a row, with no new checkpoint in between");
}

TEST_CASE("restart policy: the same step on other hosts is another failure", "[launcher]") {
  RestartPolicy policy(5);
  CHECK(policy.after({7, 0}).delay);
  CHECK(policy.after({7, 0, true}).delay);
  CHECK_FALSE(policy.after({7, 0}).delay);
}

TEST_CASE("restart policy: failures before the first step only use up restarts, with growing delays") {
  RestartPolicy policy(7);
  CHECK(policy.after({500, 490}).delay == seconds(0));
  CHECK(policy.after({0, 490}).delay == seconds(1));
  CHECK(policy.after({0, 490}).delay == seconds(2));
  CHECK(policy.after({501, 490}).delay == seconds(4));
  CHECK(policy.after({0, 490}).delay == seconds(8));
  CHECK(policy.after({501, 495}).delay == seconds(0));  // a new checkpoint
  CHECK(policy.after({0, 495}).delay == seconds(1));
  CHECK(policy.after({0, 495}).reason == "all 7 restarts are used up");

  RestartPolicy no_retry_reason(9);
  CHECK(no_retry_reason.after({500, 490}).delay);
  CHECK(no_retry_reason.after({0, 490}).delay);
  CHECK(no_retry_reason.after({500, 490}).reason == "step 500 has failed twice in a row, with no new checkpoint in between");

  RestartPolicy never_starts(4);
  for (int64_t expected : {0, 1, 2, 4}) CHECK(never_starts.after({0, 0}).delay == seconds(expected));
  CHECK(never_starts.after({0, 0}).reason == "all 4 restarts are used up");
}
