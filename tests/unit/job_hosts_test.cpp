// Hosts of the jobs that a launcher starts one after the other, with a script in place of mpirun.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/job_hosts.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

/// A hosts file, and an mpirun that reaches hosts unless a file `lost` names them.
class Cluster {
 public:
  explicit Cluster(const std::string& hosts) {
    write(hosts);
    scratch_.write("mpirun", concat("#!/bin/sh\ntest -e ", scratch_ / "lost", " && grep -q -f ", scratch_ / "lost", " \"$4\" && exit 1\nexit 0\n"));
    for (const char* name : {"mpirun.openmpi", "mpirun.mpich"}) fs::copy_file(scratch_ / "mpirun", scratch_ / name);
    for (const char* name : {"mpirun", "mpirun.openmpi", "mpirun.mpich"}) fs::permissions(scratch_ / name, fs::perms::owner_all);
    environment_.search_path = scratch_ / "";
  }
  void write(const std::string& hosts) const { scratch_.write("hosts", hosts); }
  void lose(const std::string& host) const { scratch_.write("lost", host + "\n"); }
  void regain() const { fs::remove(scratch_ / "lost"); }

  JobHosts hosts(std::vector<int> worlds, int64_t strikes, double wait_seconds = 0) {
    return {environment_,
            {.hosts_file = scratch_ / "hosts", .worlds = std::move(worlds), .strikes = strikes, .wait_seconds = wait_seconds},
            [this](const std::string& line) { said_ += line + "\n"; }};
  }
  std::string said() {
    std::string all;
    all.swap(said_);
    return all;
  }

 private:
  Scratch scratch_;
  LaunchEnvironment environment_;
  std::string said_;
};

/// The ranks and hosts of the next job.
std::string next(JobHosts& hosts, const StopRequest& stop) {
  const std::optional<JobHosts::World> world = hosts.next(stop);
  if (!world) return "none";
  std::string text = std::to_string(world->ranks);
  for (const Host& host : parse_hosts(read_text(world->hosts_file.value()))) text += " " + host.name;
  return text;
}

TEST_CASE("job hosts: the host with most ranks decides how many files and cores a host needs", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  for (const auto& [ranks, most] : {std::pair(3, 3), {5, 4}, {6, 4}}) {
    Cluster cluster("a slots=4\nb slots=2\n");
    JobHosts hosts = cluster.hosts({ranks}, 2);
    const std::optional<JobHosts::World> world = hosts.next(stop);
    REQUIRE(world);
    CHECK(world->host_ranks == most);
  }
}

TEST_CASE("job hosts: where mpirun decides, the ranks of a host are those of all hosts, divided and rounded up", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  for (const auto& [ranks, most] : {std::pair(2, 1), {3, 1}, {4, 2}, {6, 2}, {7, 3}}) {
    Cluster cluster("a\nb\nc\n");
    JobHosts hosts = cluster.hosts({ranks}, 2);
    const std::optional<JobHosts::World> world = hosts.next(stop);
    REQUIRE(world);
    CHECK(world->ranks == ranks);
    CHECK(world->host_ranks == most);
    CHECK(hosts.next(stop)->host_ranks == most);
    LaunchEnvironment environment;
    environment.allocated_nodes = 3;
    JobHosts allocated(environment, {.worlds = {ranks}}, [](const std::string&) {});
    const std::optional<JobHosts::World> in_slurm = allocated.next(stop);
    REQUIRE(in_slurm);
    CHECK(in_slurm->host_ranks == most);
    CHECK_FALSE(in_slurm->hosts_file);
    environment.allocated_nodes.reset();
    JobHosts here(environment, {.worlds = {ranks}}, [](const std::string&) {});
    CHECK(here.next(stop)->host_ranks == ranks);
  }
}

TEST_CASE("job hosts: those of an allocation are written for mpirun, and its file is that of the user only if all hosts are used", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  const LaunchEnvironment environment;
  for (const char* text : {"a slots=3\nb slots=2\n", "a\nb\n"}) {
    JobHosts hosts(environment, {.allocation_hosts = [&] { return std::string(text); }, .worlds = {4}}, [](const std::string&) {});
    const std::optional<JobHosts::World> world = hosts.next(stop);
    REQUIRE((world && world->hosts_file));
    CHECK(read_text(*world->hosts_file) == text);
    CHECK(world->host_ranks == (std::string(text) == "a\nb\n" ? 2 : 3));
  }
  Cluster cluster("a slots=3\nb slots=2 # and more\nc slots=1\n");
  JobHosts all = cluster.hosts({6}, 2), some = cluster.hosts({5}, 2), several = cluster.hosts({6, 5}, 2);
  const std::string whole = all.next(stop)->hosts_file.value(), part = some.next(stop)->hosts_file.value();
  CHECK(read_text(whole) == "a slots=3\nb slots=2 # and more\nc slots=1\n");  // the file itself
  CHECK(read_text(part) == "a slots=3\nb slots=2\n");
  const std::string copy = several.next(stop)->hosts_file.value();
  CHECK(read_text(copy) == "a slots=3\nb slots=2\nc slots=1\n");
  CHECK((copy != whole && copy != part));
}

Verdict verdict_on(Verdict::Kind kind, std::vector<int> ranks) { return {.kind = kind, .ranks = std::move(ranks)}; }

/// Asks for two seconds.
bool moves(JobHosts& hosts) {
  for (int i = 0; i < 20; ++i) {
    if (hosts.should_move()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

TEST_CASE("job hosts: the host of the ranks that died gets a strike, the others none", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\nc slots=2\n");
  JobHosts hosts = cluster.hosts({6, 4, 2}, 2);
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK(cluster.said().empty());
  CHECK_FALSE(hosts.failed(verdict_on(Verdict::Kind::kDead, {2, 3})));  // one strike for both
  CHECK(next(hosts, stop) == "6 a b c");
  for (const Verdict::Kind kind : {Verdict::Kind::kDeadlock, Verdict::Kind::kDisagreement, Verdict::Kind::kLeft, Verdict::Kind::kLauncher}) {
    hosts.failed(verdict_on(kind, {3}));
    CHECK(next(hosts, stop) == "6 a b c");
  }
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "6 a b c");
  hosts.failed(verdict_on(Verdict::Kind::kHung, {3}));
  CHECK(next(hosts, stop) == "4 a c");
  CHECK(cluster.said() == "using 4 of 6 ranks on 2 hosts, without b (2 failures)\n");
  hosts.failed(verdict_on(Verdict::Kind::kSilent, {2}));  // now a rank of c
  hosts.failed(verdict_on(Verdict::Kind::kAbsent, {3}));
  CHECK(next(hosts, stop) == "2 a");
  CHECK(cluster.said() == "using 2 of 6 ranks on 1 host, without b (2 failures), c (2 failures)\n");
}

TEST_CASE("job hosts: ranks of several hosts that fail together blame none, and a rank that mpirun names blames its host", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\nc slots=2\n");
  JobHosts hosts = cluster.hosts({6, 4, 2}, 1);
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK_FALSE(hosts.failed(verdict_on(Verdict::Kind::kSilent, {2, 3, 4, 5})));
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK(hosts.failed(std::nullopt, 5));
  CHECK(next(hosts, stop) == "4 a b");
  CHECK(hosts.failed(verdict_on(Verdict::Kind::kDead, {0})));
  CHECK(next(hosts, stop) == "2 b");
}

TEST_CASE("job hosts: a reported failure is that of its host, and a rank that the job does not have is on no host", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\nc slots=2\n");
  JobHosts hosts = cluster.hosts({6, 4, 2}, 1);
  CHECK_FALSE(hosts.failed(verdict_on(Verdict::Kind::kFailed, {0})));  // no job has run
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK_FALSE(hosts.failed(std::nullopt, 6));
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK_FALSE(hosts.failed(verdict_on(Verdict::Kind::kDeadlock, {5}), 3));  // the verdict counts, and blames no host
  CHECK(next(hosts, stop) == "6 a b c");
  CHECK(hosts.failed(verdict_on(Verdict::Kind::kFailed, {5, 4})));
  CHECK(next(hosts, stop) == "4 a b");
  CHECK(hosts.failed(std::nullopt, 3));
  CHECK(next(hosts, stop) == "2 a");
}

TEST_CASE("job hosts: a host that cannot be reached is left out and asked again", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\n");
  JobHosts hosts = cluster.hosts({4, 2}, 9);
  CHECK(next(hosts, stop) == "4 a b");
  cluster.lose("b");
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "2 a");
  CHECK(cluster.said() == "using 2 of 4 ranks on 1 host, without b (not reachable)\n");
  CHECK_FALSE(hosts.should_move());
  cluster.regain();
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "4 a b");
  cluster.lose("slots");
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "none");
  CHECK(cluster.said().find("giving up: the hosts that can be reached have no room for 2 ranks\n") != std::string::npos);
}

TEST_CASE("job hosts: two hosts that have failed and two that are lost are named with their reasons, and waited for", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=1\nb slots=2\nc slots=3\nd slots=2\ne slots=1\n");
  JobHosts hosts = cluster.hosts({9, 6, 4, 1}, 2);
  CHECK(next(hosts, stop) == "9 a b c d e");
  hosts.failed(verdict_on(Verdict::Kind::kDead, {1}));
  hosts.failed(verdict_on(Verdict::Kind::kHung, {2}));
  CHECK(next(hosts, stop) == "6 a c d");  // e is spare
  for (const int rank : {1, 3}) hosts.failed(verdict_on(Verdict::Kind::kDead, {rank}));
  CHECK(next(hosts, stop) == "4 a d e");
  cluster.lose("d\ne");
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "1 a");
  CHECK(cluster.said() ==
        "using 6 of 9 ranks on 3 hosts, without b (2 failures)\n"
        "using 4 of 9 ranks on 3 hosts, without b (2 failures), c (2 failures)\n"
        "using 1 of 9 ranks on 1 host, without b (2 failures), c (2 failures), d (not reachable), e (not reachable)\n");

  cluster.regain();
  JobHosts large = cluster.hosts({9, 8}, 2, 1);
  CHECK(next(large, stop) == "9 a b c d e");
  CHECK(large.waited_seconds() == 0);
  cluster.lose("d\ne");
  large.failed(std::nullopt);
  CHECK(next(large, stop) == "none");
  CHECK(large.waited_seconds() >= 1);
  CHECK(cluster.said() ==
        "waiting up to 1 s for hosts: those that can be reached have no room for 8 ranks; not reachable: d, e\n"
        "giving up: the hosts that can be reached have no room for 8 ranks\n");
}

TEST_CASE("job hosts: a changed hosts file moves the job, and its hosts are as new", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\n");
  JobHosts hosts = cluster.hosts({4, 2}, 1);
  CHECK(next(hosts, stop) == "4 a b");
  cluster.write("# the same\na slots=2\nb slots=2 # hosts\n");
  CHECK_FALSE(moves(hosts));
  cluster.write("a slots=2\nb slots=2\nspare slots=2\n");  // nothing better
  CHECK_FALSE(moves(hosts));
  for (const char* broken : {"", "a\nb\n", "# none\n"}) {
    cluster.write(broken);
    CHECK_FALSE(moves(hosts));
  }
  cluster.write("a slots=2\n");
  CHECK(moves(hosts));
  CHECK(next(hosts, stop) == "2 a");
  cluster.write("b slots=2\na slots=2\n");
  CHECK(moves(hosts));
  CHECK(next(hosts, stop) == "4 b a");
  hosts.failed(verdict_on(Verdict::Kind::kDead, {0}));
  CHECK(next(hosts, stop) == "2 a");
  cluster.write("b  slots=2\na slots=2\n");
  CHECK(moves(hosts));
  CHECK(next(hosts, stop) == "4 b a");
  cluster.write("c slots=2\nb max_slots=4 slots=2\na slots=2\n");  // nothing better
  CHECK_FALSE(moves(hosts));
  cluster.write("c slots=2\nb slots=2\n");  // a is gone
  CHECK(moves(hosts));
  CHECK(next(hosts, stop) == "4 c b");
}

TEST_CASE("job hosts: a job with one number of ranks does not move", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a slots=2\nb slots=2\n");
  JobHosts hosts = cluster.hosts({4}, 1);
  CHECK(next(hosts, stop) == "4 a b");
  cluster.write("c slots=2\nd slots=2\n");
  CHECK_FALSE(moves(hosts));
  hosts.failed(std::nullopt);
  CHECK(next(hosts, stop) == "4 c d");
}

TEST_CASE("job hosts: without slots mpirun decides, and so it does where one number of ranks never fitted", "[launcher]") {
  const StopRequest stop(StopRequest::Second::kReport);
  Cluster cluster("a\nb\n");
  JobHosts hosts = cluster.hosts({4}, 1);
  CHECK(next(hosts, stop) == "4 a b");
  hosts.failed(verdict_on(Verdict::Kind::kDead, {0}));
  CHECK(next(hosts, stop) == "4 a b");
  CHECK_THROWS_AS(cluster.hosts({4, 2}, 1), ConfigError);
  Cluster laptop("localhost slots=2\n");
  JobHosts more = laptop.hosts({8}, 1);
  CHECK(next(more, stop) == "8 localhost");
  CHECK(laptop.said().empty());
}

}  // namespace
}  // namespace trireme
