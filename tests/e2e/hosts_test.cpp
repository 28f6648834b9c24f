// Two hosts, simulated by network namespaces with a link between them that can be taken down.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include "kernels/core/check.h"
#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHostSteps = 100;

/// Hosts galley-a with two ranks and galley-b with `second`. The launcher runs on galley-a and reaches galley-b through a replacement for ssh.
class TwoHosts {
 public:
  TwoHosts(const TemporaryDirectory& directory, int second) : directory_(directory), tag_(std::to_string(::getpid())) {
    ready_ = ip({"netns", "add", name('a')}) && ip({"netns", "add", name('b')}) &&
             ip({"link", "add", link('a'), "netns", name('a'), "type", "veth", "peer", "name", link('b'), "netns", name('b')}) && set_up('a') &&
             set_up('b');
    write_file(directory / "hosts", address('a') + " slots=2\n" + address('b') + " slots=" + std::to_string(second) + "\n");
    write_agent("");
  }
  ~TwoHosts() {
    for (const char host : {'a', 'b'}) {
      for (const pid_t process : processes(host)) ::kill(process, SIGKILL);
      ip({"netns", "delete", name(host)});
    }
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool ready() const { return ready_; }
  const std::string& why_not() const { return error_; }

  /// Limits the sending rate of both hosts to `kilobits` kbit/s, with bursts of at most 64 KiB.
  bool limit_link(int kilobits) {
    bool done = true;
    for (const char host : {'a', 'b'})
      done = done && command({"ip", "netns", "exec", name(host), "tc", "qdisc", "replace", "dev", link(host), "root", "tbf", "rate",
                              std::to_string(kilobits) + "kbit", "burst", "64kb", "latency", "20s"});
    return done;
  }
  bool set_link(const std::string& state) { return ip({"-n", name('b'), "link", "set", link('b'), state}); }

  /// From now on `file` is another file, with the contents of `other`, for what runs on the second host.
  void replace_on_second(const fs::path& file, const fs::path& other) { write_agent("mount --bind " + other.string() + " " + file.string() + "; "); }
  /// Starts a program beside the job on the second host. interface(): of the link there.
  Arguments beside(const Arguments& words) const { return Arguments{"ip", "netns", "exec", name('b')} + words; }
  std::string interface() const { return link('b'); }

  /// `trireme train` on the first host.
  Arguments train(const Arguments& arguments, const Arguments& environment = {}) const {
    return start(Arguments{kBinary, "train", "run.yaml", "--hosts", "hosts"} + arguments, environment);
  }
  /// Runs a program on the first host that launches ranks on both.
  Arguments start(const Arguments& words, const Arguments& environment = {}) const {
    const std::string agent = "OMPI_MCA_plm_rsh_agent=" + (directory_ / "agent.sh").string();
    // The two hosts share the cores of this machine.
    return Arguments{"env", agent, "OMPI_MCA_mpi_yield_when_idle=1"} + environment + Arguments{"sh", "-c", "exec " + on('a'), "galley-a"} + words;
  }

  /// All processes of a host.
  std::vector<pid_t> processes(char host) {
    const Outcome found = Process({"ip", "netns", "pids", name(host)}, directory_.path()).wait();
    std::vector<pid_t> all;
    std::istringstream lines(found.out);
    for (pid_t process; lines >> process;) all.push_back(process);
    return all;
  }

 private:
  std::string name(char host) const { return "trireme-" + tag_ + host; }
  std::string link(char host) const { return "tr" + tag_ + host; }  // at most 15 characters
  static std::string address(char host) { return std::string("10.231.7.") + (host == 'a' ? "1" : "2"); }
  void write_agent(const std::string& first) const {
    write_file(directory_ / "agent.sh", "#!/bin/sh\nshift  # the address of the other host: there is one\nexec " + on('b', first) + "\n");
    fs::permissions(directory_ / "agent.sh", fs::perms::owner_all);
  }
  /// A shell command that runs its arguments on a host, after `first`.
  std::string on(char host, const std::string& first = "") const {
    const std::string words = host == 'a' ? "exec \"$@\"" : "exec sh -c \"$*\"";  // like ssh, which passes one string to a shell
    return "ip netns exec " + name(host) + " unshare --uts --mount sh -c 'hostname galley-" + host + "; " + first + words + "' shell \"$@\"";
  }
  bool set_up(char host) {
    return ip({"-n", name(host), "addr", "add", address(host) + "/24", "dev", link(host)}) && ip({"-n", name(host), "link", "set", "lo", "up"}) &&
           ip({"-n", name(host), "link", "set", link(host), "up"});
  }
  bool ip(const Arguments& arguments) { return command(Arguments{"ip"} + arguments); }
  bool command(const Arguments& words) {
    const Outcome outcome = Process(words, directory_.path()).wait();
    error_ += outcome.err;
    return outcome.code == 0;
  }

  const TemporaryDirectory& directory_;
  std::string tag_;
  std::string error_;
  bool ready_ = false;
};

bool can_test(const TwoHosts& hosts) {
  if (!hosts.ready()) WARN("skipped: cannot create network namespaces (needs root): " << hosts.why_not());
  return hosts.ready();
}

}  // namespace

TEST_CASE("hosts: communicators of ranks on two hosts fulfil their contract", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 2);
  if (!can_test(hosts)) return;
  const Outcome outcome = Process(hosts.start({comm_mpi_program(), "4", "hosts"}), directory.path()).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("with 4 ranks, 2 on this host") != std::string::npos);
}

TEST_CASE("hosts: a link that goes down ends the ranks on both hosts, and the same command resumes", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 2);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  const Arguments about =
      layout(1, 2, 2, 2) + sets({"training.steps=" + std::to_string(kHostSteps), "checkpoint.every=10", "training.evaluate.every=0"});

  const Outcome whole = Process(hosts.train(about + in("whole")), directory.path()).wait();
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  CHECK(hosts.processes('a').empty());
  CHECK(hosts.processes('b').empty());

  Process process(hosts.train(about + in("cut")), directory.path());
  REQUIRE(process.wait_for("step 30/"));
  CHECK(hosts.processes('b').size() >= 2);  // two ranks and Open MPI's daemon
  REQUIRE(hosts.set_link("down"));
  const auto begin = Clock::now();
  std::optional<double> gone_a, gone_b;
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  while ((!gone_a || !gone_b) && seconds() < 30) {
    if (!gone_a && hosts.processes('a').empty()) gone_a = seconds();
    if (!gone_b && hosts.processes('b').empty()) gone_b = seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::cout << "hosts: link down; galley-a empty after " << gone_a.value_or(-1) << " s, galley-b after " << gone_b.value_or(-1) << " s" << std::endl;
  CHECK(gone_a.value_or(1e9) < 15);
  CHECK(gone_b.value_or(1e9) < 15);
  for (const char host : {'a', 'b'})
    for (const pid_t left : hosts.processes(host)) {
      UNSCOPED_INFO("left on galley-" << host << ": " << read_file("/proc/" + std::to_string(left) + "/comm"));
      ::kill(left, SIGKILL);
    }
  const Outcome cut = process.wait();
  CAPTURE(cut.err);
  CHECK(cut.code == 70);
  CHECK(cut.err.find("galley-b") != std::string::npos);

  REQUIRE(hosts.set_link("up"));
  const Outcome resumed = Process(hosts.train(about + in("cut")), directory.path()).wait();
  CAPTURE(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(resumed.err.find("resuming from cut/checkpoints/step-") != std::string::npos);
  const Fingerprint expected = fingerprint_of(directory / "whole", kHostSteps), found = fingerprint_of(directory / "cut", kHostSteps);
  CHECK(found.state == expected.state);
  CHECK(found.steps == expected.steps);
}

// Ranks of one host communicate through shared memory; a single rank on its host takes part only in creating it.
TEST_CASE("hosts: two ranks on one host and a single rank on the other", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 1);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  const Arguments about = layout(1, 1, 3, 3) + sets({"training.steps=5", "training.global_batch_size=12", "training.evaluate.every=0"});
  const Outcome apart = Process(hosts.train(about + in("apart")), directory.path()).wait();
  INFO(apart.err);
  REQUIRE(apart.code == 0);
  const Outcome together = Process(Arguments{kBinary, "train", "run.yaml"} + about + in("together"), directory.path()).wait();
  INFO(together.err);
  REQUIRE(together.code == 0);
  const std::vector<double> expected = losses(directory / "together", 5), found = losses(directory / "apart", 5);
  for (size_t step = 0; step < expected.size(); ++step) CHECK(found[step] == Approx(expected[step]).epsilon(1e-5));
}

/// The ranks among the processes of a host, without Open MPI's daemon.
std::vector<pid_t> ranks_of_host(TwoHosts& hosts, char host) {
  std::vector<pid_t> ranks;
  for (const pid_t process : hosts.processes(host))
    if (fs::read_symlink("/proc/" + std::to_string(process) + "/exe").filename() == "trireme") ranks.push_back(process);
  return ranks;
}

TEST_CASE("hosts: an elastic job excludes a host whose ranks die twice, and takes a host back whose link was down", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 2);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  const Arguments about = layout(1, 1, 4, 3) + sets({"training.steps=1000000", "checkpoint.every=5", "training.evaluate.every=0",
                                                     "resilience.hang_seconds=3", "resilience.elastic=replicas", "resilience.minimum_replicas=2",
                                                     "resilience.restarts=9", "resilience.host_strikes=2"});
  const Arguments words = hosts.train(about + in("run"));
  const Process process(Arguments{"sh", "-c", "exec \"$@\" >out 2>err", "sh"} + words, directory.path(), std::chrono::seconds(240));
  const auto wait_for = [&](const std::string& text, size_t times) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (Clock::now() < end && process.running() && count(read_file(directory / "err"), text) < times)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    INFO(text << "\n" << read_file(directory / "err"));
    REQUIRE(count(read_file(directory / "err"), text) >= times);
  };
  const auto steps = [&](size_t more) {
    const auto lines = [&] { return fs::exists(directory / "out") ? count(read_file(directory / "out"), "step ") : 0; };
    const size_t before = lines();
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (Clock::now() < end && process.running() && lines() < before + more) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    REQUIRE(lines() >= before + more);
  };
  for (size_t strike = 1; strike <= 2; ++strike) {
    steps(12);
    const std::vector<pid_t> ranks = ranks_of_host(hosts, 'b');
    REQUIRE(ranks.size() == 2);
    ::kill(ranks.front(), SIGKILL);
    wait_for("\nrestart ", strike);
  }
  wait_for("using 2 of 4 ranks on 1 host, without 10.231.7.2 (2 failures)\n", 1);
  steps(12);
  CHECK(ranks_of_host(hosts, 'b').empty());

  write_file(directory / "hosts", "10.231.7.1 slots=2\n10.231.7.2  slots=2\n");  // a changed file ends the exclusion
  wait_for("using 4 of 4 ranks on 2 hosts\n", 1);
  steps(12);
  REQUIRE(hosts.set_link("down"));
  wait_for("using 2 of 4 ranks on 1 host, without 10.231.7.2 (not reachable)\n", 1);
  steps(12);
  REQUIRE(hosts.set_link("up"));
  wait_for("using 4 of 4 ranks on 2 hosts\n", 2);
  steps(12);
  process.signal(SIGTERM);
}

/// The "exposed" line of the last traced step.
nlohmann::json exposed_line(const fs::path& run_directory) {
  nlohmann::json found;
  for (const nlohmann::json& line : metrics(run_directory))
    if (line.value("event", "") == "exposed") found = line;
  REQUIRE(found.is_object());
  return found;
}

// Data parallel, one rank per host: the exposed communication of a step is the transfer time of the link minus what overlaps with compute.
TEST_CASE("hosts: exposed time matches the rate of a slow link, and overlap hides a part of it", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 1);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  write_file(directory / "hosts", "10.231.7.1 slots=1\n10.231.7.2 slots=1\n");
  const Arguments about =
      layout(1, 1, 2, 1) +
      sets({"training.steps=3", "training.evaluate.every=0", "checkpoint.every=0", "model.layers=8", "model.hidden_size=64", "model.ffn_size=256",
            "training.sequence_length=512", "training.micro_batch_size=12", "training.global_batch_size=24"}) +
      Arguments{"--trace-steps", "3:3"};
  // Open MPI progresses large messages only inside its calls, which are too rare here, between the parts of a model. Eager messages are passed to the
  // kernel immediately, which sends them in the background.
  const Arguments eager{"OMPI_MCA_btl_tcp_eager_limit=1048576", "OMPI_MCA_btl_tcp_rndv_eager_limit=1048576",
                        "OMPI_MCA_btl_tcp_max_send_size=1048576"};
  constexpr int kKilobits = 8000;
  const auto run_on = [&](const std::string& name, const Arguments& more) {
    const Outcome outcome = Process(hosts.train(about + in(name) + more, eager), directory.path()).wait();
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return exposed_line(directory / name);
  };
  const auto zero = [](const nlohmann::json& line) { return line["zero_gather"].get<double>() + line["zero_reduce"].get<double>(); };
  const nlohmann::json fast = run_on("fast", {});
  REQUIRE(hosts.limit_link(kKilobits));
  const nlohmann::json on = run_on("on", {}), off = run_on("off", sets({"parallel.overlap=false"}));
  // A ring of two ranks sends half of the gathered and half of the reduced data: together the bytes of all parameters in fp32.
  const double bytes = 4 * metrics(directory / "fast").front()["parameters"].get<double>();
  const double wire = bytes / (kKilobits * 1000.0 / 8);
  std::cout << "hosts: " << bytes << " bytes, " << wire << " s on the link; exposed of ZeRO " << zero(fast) << " s at full speed, " << zero(on)
            << " s with overlap, " << zero(off) << " s without; compute " << on["compute"] << " s" << std::endl;
  CHECK(zero(fast) < 0.5 * wire);
  CHECK(zero(off) > 0.75 * wire);
  CHECK(zero(off) < 2 * wire);
  CHECK(zero(on) < zero(off) - 0.1 * std::min(wire, on["compute"].get<double>()));
  CHECK(losses(directory / "on", 3) == losses(directory / "fast", 3));
  CHECK(losses(directory / "off", 3) == losses(directory / "fast", 3));
}

// If messages waited for acknowledgements behind the data of the other direction, the directions would take turns: nearly twice the time.
TEST_CASE("hosts: a collective uses both directions of a slow link at the same time", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 1);
  if (!can_test(hosts)) return;
  write_file(directory / "hosts", "10.231.7.1 slots=1\n10.231.7.2 slots=1\n");
  constexpr int kKilobits = 40000;
  constexpr double kBytes = 1.2e6, kPayload = 1448.0 / 1514;  // of a packet on the link
  REQUIRE(hosts.limit_link(kKilobits));
  const Outcome outcome = Process(hosts.start({"mpirun", "--allow-run-as-root", "--hostfile", "hosts", "--map-by", "slot", "-np", "2", kBinary,
                                               "bench", "comm", "--algorithm", "ring", "--seconds", "0.5", "--sizes", "1200000", "--json"}),
                                  directory.path())
                              .wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  double seconds = 0;
  const nlohmann::json printed = nlohmann::json::parse(outcome.out);
  for (const nlohmann::json& row : printed["algorithms"])
    if (row["operation"] == "all_reduce" && row["algorithm"] == "ring") seconds = row["microseconds"].get<double>() / 1e6;
  const double link = kBytes / (kKilobits * 1000.0 / 8 * kPayload);
  std::cout << "hosts: an all-reduce of " << kBytes << " bytes takes " << seconds << " s, the link " << link << " s in each direction" << std::endl;
  CHECK(seconds > 0.7 * link);  // bursts are sent at once
  CHECK(seconds < 1.25 * link);
}

/// Keeps every packet of an interface until it is terminated.
constexpr const char* kCapture = R"(
import signal, socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
packets.bind((sys.argv[1], 0))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
with open(sys.argv[2], "wb", buffering=0) as out:
    while True:
        out.write(packets.recv(1 << 18))
)";

Arguments encrypted(const TemporaryDirectory& directory) {
  write_file(directory / "key", "8uXk1Zp0m5Qw3nV7rT9yB2cD4eF6gH8jKlMnPqRsTuV\n");
  fs::permissions(directory / "key", fs::perms::owner_read | fs::perms::owner_write);
  return sets({"security.encryption=required", "security.key_file=" + (directory / "key").string()});
}

TEST_CASE("hosts: an encrypted run shows no byte of weights or reports on the link, and trains the same bits", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 2);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  write_file(directory / "capture.py", kCapture);
  const Arguments about = layout(1, 1, 4, 3) + sets({"training.steps=5", "training.evaluate.every=0", "checkpoint.every=5"});
  const auto captured = [&](const std::string& name, const Arguments& more) {
    Process capture(hosts.beside({"python3", "capture.py", hosts.interface(), name + ".packets"}), directory.path());
    REQUIRE(capture.wait_for("ready"));
    const Outcome outcome = Process(hosts.train(about + more + in(name)), directory.path()).wait();
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    capture.signal(SIGTERM);
    capture.wait();
    return read_file(directory / (name + ".packets"));
  };
  const Arguments ring = sets({"parallel.collectives=ring"});
  const std::string plain = captured("plain", ring), ring_sealed = captured("sealed", ring + encrypted(directory)),
                    sealed = captured("library", encrypted(directory));
  std::string ones;  // weights of norms before the first update
  for (int i = 0; i < 8; ++i) ones += std::string("\x00\x00\x80\x3f", 4);
  std::cout << "hosts: " << plain.size() << " bytes on the link in clear, with " << count(plain, ones) << " markers and "
            << count(plain, "\"started\"") << " reports; " << ring_sealed.size() << " bytes encrypted, with " << count(ring_sealed, ones) << " and "
            << count(ring_sealed, "\"started\"") << std::endl;
  CHECK(count(plain, ones) > 0);
  CHECK(count(plain, "\"started\"") > 0);
  for (const std::string& packets : {ring_sealed, sealed}) {
    CHECK(packets.size() > plain.size() / 2);
    CHECK(count(packets, ones) == 0);
    CHECK(count(packets, "\"started\"") == 0);
  }
  const Fingerprint expected = fingerprint_of(directory / "plain", 5), found = fingerprint_of(directory / "sealed", 5);
  CHECK(found.state == expected.state);
  CHECK(found.steps == expected.steps);
  const std::vector<double> losses_in_clear = losses(directory / "plain", 5), other = losses(directory / "library", 5);
  for (size_t step = 0; step < other.size(); ++step) CHECK(other[step] == Approx(losses_in_clear[step]).epsilon(1e-5));
}

TEST_CASE("hosts: another key, or none, on one host is named, and nothing is trained", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 2);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  const Arguments about = layout(1, 1, 4, 1) + sets({"training.steps=2", "training.evaluate.every=0"}) + encrypted(directory) + in("run");
  write_file(directory / "other", "1uXk1Zp0m5Qw3nV7rT9yB2cD4eF6gH8jKlMnPqRsTuV\n");
  fs::permissions(directory / "other", fs::perms::owner_read | fs::perms::owner_write);
  hosts.replace_on_second(directory / "key", directory / "other");
  const Outcome another = Process(hosts.train(about), directory.path()).wait();
  check_error(another, 64, "rank 0 on host galley-a and rank 2 on host galley-b, rank 3 on host galley-b do not have the same key");
  fs::permissions(directory / "other", fs::perms::others_read, fs::perm_options::add);
  const Outcome open = Process(hosts.train(about), directory.path()).wait();
  check_error(open, 64, "has mode 0604, so others may read or change the key");
  CHECK_FALSE(fs::exists(directory / "run" / "metrics.jsonl"));
}

TEST_CASE("hosts: parameter servers on two hosts are encrypted and train", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 1);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  write_file(directory / "hosts", "10.231.7.1 slots=1\n10.231.7.2 slots=1\n");
  const Arguments about = sets({"training.steps=6", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0", "parallel.islands=2",
                                "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=3", "training.asynchronous.staleness=2",
                                "training.schedule.warmup_steps=0"});
  const Outcome outcome = Process(hosts.train(about + encrypted(directory) + in("run")), directory.path()).wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(losses(directory / "run", 6).size() == 6);
}

TEST_CASE("hosts: doctor asks both hosts and names a slow link with the remedy", "[slow]") {
  TemporaryDirectory directory;
  TwoHosts hosts(directory, 1);
  if (!can_test(hosts)) return;
  prepare_run(directory);
  write_file(directory / "hosts", "10.231.7.1 slots=1\n10.231.7.2 slots=1\n");
  const auto report = [&] {
    const Outcome outcome =
        Process(hosts.start(Arguments{kBinary, "doctor", "run.yaml", "--hosts", "hosts", "--json"} + layout(1, 1, 2, 1)), directory.path()).wait();
    INFO(outcome.err);
    INFO(outcome.out);
    CHECK(outcome.seconds < 20);
    nlohmann::json all = nlohmann::json::parse(outcome.out, nullptr, false);
    REQUIRE(all.is_object());
    CHECK((outcome.code == 1) == (all["grade"] == "bad"));
    return all;
  };
  const auto line = [](const nlohmann::json& all, const std::string& check) {
    for (const nlohmann::json& finding : all["findings"])
      if (finding["check"] == check) return finding;
    return nlohmann::json();
  };
  const nlohmann::json fast = report();
  CHECK(fast["hosts"] == std::vector<std::string>{"galley-a", "galley-b"});
  CHECK(fast["unreachable"].empty());
  REQUIRE(fast["links"].size() == 1);
  CHECK(fast["links"][0]["one_host"] == false);
  CHECK(line(fast, "run_directory")["grade"] == "good");
  CHECK(line(fast, "clocks")["grade"] == "good");
  CHECK(line(fast, "encryption")["grade"] == "weak");
  constexpr int kKilobits = 40000;
  REQUIRE(hosts.limit_link(kKilobits));
  const nlohmann::json slow = report(), network = line(slow, "network");
  std::cout << "hosts: doctor found " << fast["links"].dump() << " at full speed and " << slow["links"].dump() << " at " << kKilobits << " kbit/s"
            << std::endl;
  CHECK(slow["links"][0]["bandwidth"].get<double>() == Approx(kKilobits * 1000 / 8).epsilon(0.3));
  CHECK(network["grade"] == "weak");
  CHECK(network["text"].get<std::string>().find("hosts galley-a and galley-b") != std::string::npos);
  CHECK(network["remedy"].get<std::string>().find("ethtool") != std::string::npos);
}

}  // namespace trireme::test
