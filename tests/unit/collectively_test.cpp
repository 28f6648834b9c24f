// What all ranks say when some of them fail or differ, and how they describe their layout.
#include "trainer/machine/collectively.h"

#include <array>
#include <functional>
#include <map>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/machine/environment.h"

namespace trireme::test {

TEST_CASE("collectively: the first error of several ranks, and the ranks that failed or differ, of which eight are listed") {
  std::map<std::string, std::string> said;
  run_ranks(12, [&](Communicator& world) {
    const int rank = world.rank();
    const auto message_of = [&](const std::string& what, const std::function<void()>& body) {
      std::string message = "no error";
      try {
        body();
      } catch (const AgreedError& error) {
        message = concat(static_cast<int>(error.code()), " ", error.what());
      }
      if (rank == 0) said[what] = message;
    };
    const auto failing_on = [&](int from, int to) {
      return [&world, rank, from, to] {
        collectively(world, [&] {
          if (rank == from) throw IoError(concat("no space on rank ", rank));
          if (rank > from && rank <= to) throw DataError(concat("rank ", rank, " is late"));
        });
      };
    };
    message_of("two", failing_on(3, 4));
    message_of("ten", failing_on(1, 10));
    message_of("all", failing_on(0, 11));
    message_of("none", failing_on(12, 12));
    message_of("facts", [&] {
      check_same_everywhere(world, {{"the binary", rank == 5 || rank == 7 ? "b" : "a"}, {"the data", rank == 0 ? "x" : "y"}, {"the seed", "1"}});
    });
    message_of("results", [&] { check_same_result(world, "step 7", std::array{1.5, rank == 2 || rank == 9 ? 0.25 + rank : 0.25, 3.0}); });
    message_of("halves", [&] { check_same_result(world, "step 8", std::array{rank < 6 ? 1.5 : 2.5}); });
  });
  CHECK(said.at("two") == "74 no space on rank 3 (on ranks 3, 4)");
  CHECK(said.at("ten") == "74 no space on rank 1 (on ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more)");
  CHECK(said.at("all") == "74 no space on rank 0");
  CHECK(said.at("none") == "no error");
  CHECK(said.at("facts") ==
        "64 the ranks of this job disagree: the binary differs between rank 0 and ranks 5, 7; the data differs between rank 0 and ranks 1, 2, 3, 4, "
        "5, 6, "
        "7, 8 and 3 more");
  CHECK(said.at("results").starts_with(concat("70 the ranks have different copies of the results of step 7: rank 2 on ", host_name(), ", rank 9 on ",
                                              host_name(), " may be at fault. ")));
  // Neither half is the right one.
  CHECK(said.at("halves").find(concat("rank 0 on ", host_name(), ", rank 1 on ")) != std::string::npos);
  CHECK(said.at("halves").find(concat("rank 11 on ", host_name(), " may be at fault. ")) != std::string::npos);
}

TEST_CASE("environment: a layout has the degree of each of its axes") {
  CHECK(describe_layout({.pipeline = 6, .replicate = 2, .shard = 3, .tensor = 4, .islands = 5}).dump() ==
        R"({"islands":5,"pipeline":6,"replicate":2,"shard":3,"tensor":4})");
}

}  // namespace trireme::test
