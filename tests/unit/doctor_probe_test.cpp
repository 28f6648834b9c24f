// The probes of `trireme doctor`.
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/doctor/bounded.h"
#include "trainer/doctor/deadline.h"
#include "trainer/doctor/needs.h"
#include "trainer/doctor/probe_disk.h"
#include "trainer/doctor/probe_host.h"
#include "trainer/doctor/probe_links.h"
#include "trainer/doctor/reach.h"
#include "trainer/doctor/report.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/cgroup.h"

namespace trireme::doctor {

TEST_CASE("doctor: quotas of CPU time and tasks of both versions of control groups") {
  const test::Scratch files;
  const auto cores = [&] { return cpu_quota(files / "groups", files / "mount"); };
  const auto tasks = [&] { return task_limit(files / "groups", files / "mount"); };
  CHECK(std::isinf(cores()));
  files.write("groups", "0::/job/task\n");
  files.write("mount/job/task/cpu.max", "max 100000\n");
  CHECK(std::isinf(cores()));
  files.write("mount/job/cpu.max", "250000 100000\n");
  files.write("mount/job/task/pids.max", "300\n");
  CHECK(cores() == 2.5);
  CHECK(tasks() == 300);
  files.write("groups", "12:cpu,cpuacct:/docker/1\n9:pids:/\n");
  files.write("mount/cpu/cpu.cfs_quota_us", "-1\n");
  files.write("mount/cpu/cpu.cfs_period_us", "100000\n");
  files.write("mount/pids/pids.max", "max\n");
  CHECK(std::isinf(cores()));
  CHECK(std::isinf(tasks()));
  files.write("mount/cpu/cpu.cfs_quota_us", "150000\n");
  CHECK(cores() == 1.5);
}

TEST_CASE("doctor: memory and network interfaces from the kernel's files") {
  const test::Scratch files;
  CHECK(available_memory(files.write("meminfo", "MemTotal:  100 kB\nMemAvailable:   60 kB\n")) == 60 * 1024);
  CHECK(available_memory(files / "none") == 0);
  for (const char* name : {"lo", "eth1", "eth0", "off"}) files.write(std::string("net/") + name + "/operstate", "up\n");
  files.write("net/off/operstate", "down\n");
  files.write("net/eth1/speed", "25000\n");
  files.write("net/eth0/speed", "-1\n");
  const std::vector<NetworkInterface> found = interfaces_in(files / "net");
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "eth0");
  CHECK(found[0].megabits == kNone);
  CHECK(found[1].megabits == 25000);
}

TEST_CASE("doctor: a directory is probed at its nearest existing parent, and nothing is left in it") {
  const test::Scratch files;
  files.write("runs/file", "x");
  const DirectoryFacts facts = probe_directory(files / "runs/new/run", true, 10);
  CHECK(facts.probed == files / "runs");
  CHECK(facts.error == "");
  CHECK(facts.write_rate > 0);
  CHECK(facts.sync_seconds > 0);
  CHECK(facts.free > 0);
  CHECK(files.names() == std::vector<std::string>{"runs"});
  CHECK(test::slurp(files / "runs/file") == "x");
  CHECK(std::distance(std::filesystem::directory_iterator(files / "runs"), {}) == 1);
  CHECK(probe_directory(files / "runs", false, 10).write_rate == kNone);
  CHECK(probe_directory(files / "runs/.", false, 10).probed == files / "runs");
  CHECK(probe_directory(files / "runs/file", true, 10).error == "not a directory");
  const std::string mark = make_mark(files / "runs");
  CHECK(has_mark(files / "runs", mark));
  CHECK_FALSE(has_mark(files / "", mark));
  remove_mark(files / "runs", mark);
  CHECK_FALSE(has_mark(files / "runs", mark));
}

TEST_CASE("doctor: the key files that a run opens are opened as the run does") {
  const test::Scratch files;
  const std::string shared = files.write("shared.key", "q8Zr2kVf0xT6mYw1LcJd9sHb4nGe7uAp3iRo5tXz\n");
  Config config;
  SecurityConfig& security = config.security;
  security.key_file = security.privacy.key_file = shared;
  security.audit.signing_key_file = security.federation.identity_key_file = files / "none.key";
  CHECK(probe_keys(config, 0).empty());  // named, but the run does not open them
  security.encryption = Encryption::kRequired;
  security.privacy.clip = 1;
  std::filesystem::permissions(shared, std::filesystem::perms{0600});
  std::vector<KeyFileFacts> keys = probe_keys(config, 0);
  REQUIRE(keys.size() == 2);
  CHECK(keys[0].key == "security.key_file");
  CHECK(keys[1].key == "security.privacy.key_file");
  for (const KeyFileFacts& key : keys) CHECK(key.error.empty() == crypto::has_sodium());
  std::filesystem::permissions(shared, std::filesystem::perms{0640});
  security.audit.enabled = true;
  security.federation.members = 2;
  CHECK(probe_keys(config, 1).size() == 2);  // rank 0 signs, and speaks for the member
  keys = probe_keys(config, 0);
  REQUIRE(keys.size() == 4);
  for (const KeyFileFacts& key : keys) CHECK(key.error.starts_with(key.key));
  if (!crypto::has_sodium()) return;
  CHECK(keys[0].error.find("has mode 0640, so others may read") != std::string::npos);
  CHECK(keys[3].error.find("none.key does not exist") != std::string::npos);
}

TEST_CASE("doctor: work that does not return in time is left behind") {
  CHECK(within(10, [] { return 7; }) == 7);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(within(0.05, [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return 7;
  }));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500));
  std::mutex mutex;
  std::string stuck;
  {
    Deadline deadline(0.02, [&](const std::string& stage) {
      const std::lock_guard lock(mutex);
      stuck = stage;
    });
    deadline.stage("all ranks");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  CHECK(stuck == "all ranks");
  {
    const Deadline unused(0.2, [&](const std::string&) { stuck = "late"; });
  }
  CHECK(stuck == "all ranks");
}

TEST_CASE("doctor: every two hosts meet once, and no rank is in two pairs of a round") {
  for (const int hosts : {2, 3, 4, 7}) {
    std::vector<std::string> names;
    for (int rank = 0; rank < 2 * hosts; ++rank) names.push_back(std::to_string(rank / 2));
    const Pairs pairs = pairs_of(names);
    CHECK(pairs.count == hosts + hosts * (hosts - 1) / 2);  // the two ranks of each host, and the first ranks
    std::set<std::pair<int, int>> met;
    for (const auto& round : pairs.rounds) {
      std::set<int> busy;
      for (const auto& [low, high] : round) {
        CHECK(low < high);
        CHECK(busy.insert(low).second);
        CHECK(busy.insert(high).second);
        CHECK(met.emplace(low, high).second);
      }
    }
    CHECK(static_cast<int64_t>(met.size()) == pairs.count);
  }
  CHECK(pairs_of({"a", "a", "a"}).count == 3);
  CHECK(pairs_of({"a"}).count == 0);
  CHECK(pairs_of(std::vector<std::string>(40, "a")).count == 16 * 15 / 2);
}

TEST_CASE("doctor: the offset of a clock comes from the exchange with the shortest round trip") {
  // A clock 100 s ahead; the answer of the first exchange was delayed by 2 s on its way.
  const ClockOffset offset = offset_of({{10, 110.5, 13}, {20, 120.25, 20.5}, {30, 131, 32}});
  CHECK(offset.ahead == Approx(100));
  CHECK(offset.error == Approx(0.25));
  CHECK(offset_of({}).error == 0);
}

TEST_CASE("doctor: links between ranks are measured pair by pair") {
  std::mutex mutex;
  std::vector<Link> of_first, of_last;
  std::map<int, ClockOffset> clocks;
  std::vector<std::string> gathered;
  std::vector<int> waited;
  run_ranks(5, [&](Communicator& world) {
    const std::vector<std::string> hosts{"a", "a", "b", "b", "c"};
    const std::vector<Link> links = probe_links(world, hosts, pairs_of(hosts), 10, {{4, 0}});
    const ClockOffset clock = probe_clock(world, hosts);
    const std::vector<std::string> texts = gather_in_order(world, std::string(static_cast<size_t>(5 * world.rank()), 'x'), [&](int rank) {
      const std::lock_guard lock(mutex);
      waited.push_back(rank);
    });
    const std::lock_guard lock(mutex);
    clocks[world.rank()] = clock;
    if (world.rank() == 0) of_first = links;
    if (world.rank() == 4) of_last = links;
    if (world.rank() == 0) gathered = texts;
  });
  REQUIRE(of_first.size() == 4);  // a and b within; a-b and b-c between; a-c is left out
  CHECK(of_last.size() == 4);
  std::set<std::pair<int, int>> met;
  for (const Link& link : of_first) {
    met.emplace(link.from, link.to);
    CHECK(link.latency > 0);
    CHECK(link.bandwidth > 1e6);
    CHECK(link.bandwidth < 1e13);
    CHECK(link.one_host == (link.from / 2 == link.to / 2));
  }
  CHECK(met == std::set<std::pair<int, int>>{{0, 1}, {2, 3}, {0, 2}, {2, 4}});
  for (const auto& [rank, clock] : clocks) CHECK(std::abs(clock.ahead) <= clock.error + 0.01);
  CHECK(clocks[2].error > 0);
  CHECK(clocks[3].error == clocks[2].error);
  CHECK(waited == std::vector<int>{1, 2, 3, 4});
  REQUIRE(gathered.size() == 5);
  for (size_t rank = 0; rank < gathered.size(); ++rank) CHECK(gathered[rank].size() == 5 * rank);
}

TEST_CASE("doctor: a pair without a connection begins with the rank that could not reach the other one") {
  using Pair = std::pair<int, int>;
  CHECK(pairs_without_connection({"[2,4]", "[]", "[]", "[]", "[2]"}) == std::vector<Pair>{{0, 2}, {0, 4}, {4, 2}});
  CHECK(pairs_without_connection({"[]", "[]"}).empty());
}

TEST_CASE("doctor: a door answers its own token only, and a closed port is found in time") {
  const Door door;
  std::string address = door.address();
  if (address.empty()) {
    WARN("skipped: no network interface but loopback");
    return;
  }
  std::string closed = address, stranger = address;
  stranger[0] = stranger[0] == '0' ? '1' : '0';
  closed = closed.substr(0, closed.find(':')) + ":1";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(reaches({address, closed, stranger, ""}, 1) == std::vector<bool>{true, false, false, false});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  CHECK(reaches({}, 1).empty());
}

TEST_CASE("doctor: what a configuration needs") {
  const LoadedConfig loaded = parse_config(
      "model: {layers: 2, hidden_size: 64, heads: 2, vocab_size: 256}\nparallel: {tensor: 2, data: 2, zero_stage: 1}\n"
      "training: {steps: 100, precision: bf16}\ncheckpoint: {every: 10, keep: 2}\nrun: {device: cpu}\ndata: {train: [none]}\n",
      "run.yaml");
  const Config config = resolve(loaded);
  const Needs needs = needs_of(config);
  CHECK(needs.ranks == 4);
  CHECK_FALSE(needs.may_use_gpu);
  CHECK(needs.precision == Arithmetic::kBf16);
  CHECK(needs.checkpoint > 12 * 2 * 64 * 64);
  CHECK(needs.storage == 3 * needs.checkpoint);  // two are kept, and one is being written
  CHECK(forecast_bytes(config, 0) > needs.checkpoint / 4);
}

TEST_CASE("doctor: ranks are written as ranges") {
  CHECK(ranges_of({0, 1, 2, 5, 7, 8}) == "0-2, 5, 7-8");
  CHECK(ranges_of({4}) == "4");
  CHECK(ranges_of({}) == "");
}

}  // namespace trireme::doctor
