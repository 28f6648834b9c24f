// Which hosts a launcher uses for its next job.
#include "trainer/job/host_pool.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

std::vector<Host> three_hosts() { return parse_hosts("a slots=2\nb slots=2\nc slots=4\n"); }

std::string names(const std::optional<Placement>& placement) {
  if (!placement) return "none";
  std::string text = std::to_string(placement->ranks);
  for (const Host& host : placement->hosts) text += " " + host.name;
  return text;
}

}  // namespace

TEST_CASE("host pool: lines that mpirun would refuse or misread are named by number", "[job]") {
  const auto open_mpi = [](const std::string& text) { return problem_in_hosts(text, HostfileForm::kOpenMpi); };
  const auto hydra = [](const std::string& text) { return problem_in_hosts(text, HostfileForm::kHydra); };
  for (const char* good : {"a\nb\n", "# c\n\n a slots=2 # d\n", "a slots = 2 max_slots=4\n", "user@a slots=1\n", "10.0.0.1 slots=0\n", "fe80::1\n",
                           "a username=me\n", ""}) {
    CAPTURE(good);
    CHECK(open_mpi(good).empty());
  }
  for (const auto& [bad, words] : std::vector<std::pair<std::string, std::string>>{
           {"localhost slots=2\r\n", "1: the line ends in a carriage return"},
           {"a\n\nlocalhost:2\n", "3: localhost:2: is the form of MPICH; Open MPI's is localhost slots=2"},
           {"# c\na slots=-1\n", "2: slots=-1: is not a number of ranks"},
           {"a slots=two\n", "1: slots=two: is not a number of ranks"},
           {"a slots=2x\n", "1: slots=2x: is not"},
           {"a slots\n", "1: slots: has no value; allowed slots=N"},
           {"a slot=2\n", "1: slot=2: unknown option of a host; allowed slots=N"},
           {"a 2\n", "1: 2: unknown option"},
           {"slots=2\n", "1: slots=2: the line does not begin with a host"},
           {"\xef\xbb\xbfn1\n", "1: the file begins with a byte order mark"}}) {
    CAPTURE(bad);
    CHECK_THAT(open_mpi(bad), Catch::Matchers::StartsWith(words));
  }
  CHECK(hydra("a:2\nb\n").empty());
  CHECK(hydra("a slots=2\n") == "1: a slots=2: is the form of Open MPI; MPICH's is a:N");
  CHECK_THAT(hydra("a:two\n"), Catch::Matchers::StartsWith("1: a:two: has no number of ranks"));
  CHECK(line_of_host("# c\na slots=2\n\nb\n", "b") == 4);
  CHECK(line_of_host("a\n", "b") == 0);
}

TEST_CASE("host pool: the first faulty option of the first faulty line is named whole, and the line of a host that others resemble", "[job]") {
  const auto open_mpi = [](const std::string& text) { return problem_in_hosts(text, HostfileForm::kOpenMpi); };
  constexpr const char* kAllowed = ": is not a number of ranks; allowed an integer from 1, or no slots for as many ranks as the host has cores";
  CHECK(open_mpi("a slots=2\nb slots=3 max_slots=4 max-slots=4x user=me\nc slots=x\n") == concat("2: max-slots=4x", kAllowed));
  CHECK(open_mpi("a slots=02\n") == concat("1: slots=02", kAllowed));
  CHECK(open_mpi("a slots =2 user = me count= 7x\n") == concat("1: count=7x", kAllowed));
  CHECK(open_mpi("a slots=2\nb user\n") == "2: user: has no value; allowed user=N");
  CHECK(open_mpi("a user=7x slot=1 slots=x\n") == "1: slot=1: unknown option of a host; allowed slots=N");
  CHECK(open_mpi("a slots=1\nb:c:d\nfe80::1\ne:3\n") == "4: e:3: is the form of MPICH; Open MPI's is e slots=3");
  const auto hydra = [](const std::string& text) { return problem_in_hosts(text, HostfileForm::kHydra); };
  CHECK(hydra("a:2\nb\nc:\n") == "3: c:: has no number of ranks behind the colon; allowed HOST:N");
  CHECK(hydra("a:2\nb slots = 3\n") == "2: b slots = 3: is the form of Open MPI; MPICH's is b:N");
  CHECK(hydra("a:2\r\n").starts_with("1: the line ends in a carriage return"));
  CHECK(line_of_host("node10 slots=2\nnode1 slots=2\nnode1 slots=3\nnode:7\n", "node1") == 2);
  CHECK(line_of_host("node10 slots=2\n\n#node\nnode:7\n", "node") == 4);
}

TEST_CASE("hosts file: names and slots in the forms of Open MPI and Hydra", "[launcher]") {
  const std::vector<Host> hosts = parse_hosts(
      "# cluster\n n1 slots=4 max_slots=8  # first rack\r\n\nn2 max_slots=8 slots = 2\nn3:6\nfe80::1 slots=1\nn1 slots=1\nn4\nn5 max_slots=3\n");
  REQUIRE(hosts.size() == 6);
  CHECK((hosts[0].name == "n1" && !hosts[0].slots));  // listed twice
  CHECK(hosts[0].lines == "n1 slots=4 max_slots=8\nn1 slots=1\n");
  CHECK((hosts[1].name == "n2" && hosts[1].slots == 2));
  CHECK((hosts[2].name == "n3" && hosts[2].slots == 6 && hosts[2].lines == "n3:6\n"));
  CHECK((hosts[3].name == "fe80::1" && hosts[3].slots == 1));
  CHECK((hosts[4].name == "n4" && !hosts[4].slots));
  CHECK((hosts[5].name == "n5" && !hosts[5].slots));
  CHECK(parse_hosts("# none\n \t\n").empty());
  CHECK_FALSE(parse_hosts("n1 slots=four\n").front().slots);
}

TEST_CASE("host pool: the largest world that fits, on the first hosts", "[launcher]") {
  HostPool pool(three_hosts(), 2);
  CHECK(names(pool.place({8, 6, 4})) == "8 a b c");
  CHECK(names(pool.place({9, 6, 4})) == "6 a b c");
  CHECK(names(pool.place({9, 4})) == "4 a b");  // c is spare
  CHECK(names(pool.place({9})) == "none");
  const Placement all = *pool.place({8});
  CHECK(all.host_of(0) == "a");
  CHECK(all.host_of(1) == "a");
  CHECK(all.host_of(2) == "b");
  CHECK(all.host_of(4) == "c");
  CHECK(all.host_of(7) == "c");
}

TEST_CASE("host pool: a host is excluded after its strikes, and a lost one until it can be reached", "[launcher]") {
  HostPool pool(three_hosts(), 2);
  const std::vector<int> worlds{8, 6, 4, 2};
  pool.strike({"b"});
  CHECK(names(pool.place(worlds)) == "8 a b c");
  CHECK(pool.reasons_against(*pool.place(worlds)).empty());
  pool.strike({"b"});
  CHECK(names(pool.place(worlds)) == "6 a c");
  CHECK(pool.reasons_against(*pool.place(worlds)) == std::vector<std::string>{"b (2 failures)"});
  pool.set_reachable("c", false);
  pool.strike({"b"});
  CHECK(names(pool.place(worlds)) == "2 a");
  CHECK(pool.reasons_against(*pool.place(worlds)) == std::vector<std::string>{"b (3 failures)", "c (not reachable)"});
  pool.set_reachable("c", true);
  CHECK(names(pool.place(worlds)) == "6 a c");
}

TEST_CASE("host pool: excluded hosts are used again where no world fits without them, the best first", "[launcher]") {
  HostPool pool(three_hosts(), 1);
  for (int i = 0; i < 3; ++i) pool.strike({"c"});
  pool.strike({"a", "b"});
  CHECK(names(pool.place({8})) == "8 a b c");
  CHECK(names(pool.place({4})) == "4 a b");
  pool.set_reachable("c", false);
  CHECK(names(pool.place({8})) == "none");
  CHECK(names(pool.place({8, 2})) == "2 a");
}

TEST_CASE("host pool: spare hosts take the place of excluded ones", "[launcher]") {
  HostPool pool(parse_hosts("a slots=2\nb slots=2\nspare slots=2\n"), 1);
  CHECK(names(pool.place({4})) == "4 a b");
  pool.strike({"a"});
  CHECK(names(pool.place({4})) == "4 b spare");
  HostPool empty(parse_hosts("a slots=0\nb slots=2\n"), 1);
  CHECK(names(empty.place({2})) == "2 b");
}

TEST_CASE("host pool: what keeps a placement from being kept, on any of its hosts, and why hosts are left out") {
  const HostPool pool(three_hosts(), 2);
  const Placement all = pool.place({8}).value(), two = pool.place({4}).value();
  CHECK((pool.can_keep(all) && pool.can_keep(two)));
  for (const char* other : {"a slots=2\nb slots=2\n", "a slots=2\nb slots=2\nd slots=4\n", "a slots=2\nb slots=2\nc slots=5\n"}) {
    CAPTURE(other);
    const HostPool changed(parse_hosts(other), 2);
    CHECK_FALSE(changed.can_keep(all));
    CHECK(changed.can_keep(two));
  }
  HostPool failing = pool;
  failing.set_reachable("c", false);
  CHECK_FALSE(failing.can_keep(all));
  CHECK(failing.can_keep(two));
  failing.set_reachable("c", true);
  failing.strike({"c"});
  CHECK(failing.can_keep(all));
  failing.strike({"b", "c"});
  CHECK_FALSE(failing.can_keep(all));
  CHECK(failing.can_keep(two));

  HostPool strict(parse_hosts("a slots=1\nb slots=1\nc slots=1\nd slots=1\ne slots=1\n"), 1);
  strict.strike({"b", "e"});
  strict.strike({"e"});
  for (const char* lost : {"d", "e"}) strict.set_reachable(lost, false);
  CHECK(names(strict.place({5, 4, 2})) == "2 a c");
  CHECK(strict.reasons_against(*strict.place({2})) == std::vector<std::string>{"b (1 failure)", "d (not reachable)", "e (not reachable)"});
  const std::vector<Host> hosts = strict.hosts(), lost = strict.unreachable_hosts();
  CHECK(hosts.size() == 5);
  REQUIRE(lost.size() == 2);
  CHECK((lost[0] == hosts[3] && lost[1] == hosts[4]));
  CHECK(names(strict.place({3})) == "3 a b c");  // the one with a failure is needed
  CHECK(names(strict.place({4})) == "none");
}
