// The environment of a launch: directories shared by all users, limits of the machine, and programs named mpirun that are not Open MPI's.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTwo = layout(1, 1, 2, 0) + sets({"training.steps=3", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
const Arguments kEndlessRanks =
    layout(1, 1, 2, 0) + sets({"training.steps=1000000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});

/// Runs `trireme arguments...` from a shell that first executes `before`.
Outcome run_after(const TemporaryDirectory& directory, const std::string& before, const Arguments& arguments) {
  return Process(Arguments{"sh", "-c", before + "; exec \"$@\"", "shell", kBinary} + arguments, directory.path()).wait();
}

/// TCP ports on which processes of a job listen.
std::set<int> ports_of(const std::vector<pid_t>& processes) {
  std::set<std::string> sockets;
  for (const pid_t process : processes) {
    std::error_code gone;
    for (const auto& file : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone))
      sockets.insert(fs::read_symlink(file.path(), gone).string());
  }
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(read_file(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, inode;
      words >> number >> local >> remote >> state;
      for (int skipped = 0; skipped < 5; ++skipped) words >> inode;
      words >> inode;
      if (state == "0A" && sockets.contains("socket:[" + inode + "]")) ports.insert(std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

/// Non-loopback IPv4 addresses of this host.
std::vector<in_addr> outer_addresses() {
  std::vector<in_addr> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next)
    if (each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET && (each->ifa_flags & IFF_LOOPBACK) == 0)
      found.push_back(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr);
  ::freeifaddrs(all);
  return found;
}

bool can_connect(in_addr address, int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr = address;
  const bool connected = ::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  ::close(socket);
  return connected;
}

std::set<fs::path> job_directories() {
  std::set<fs::path> found;
  for (const auto& item : fs::directory_iterator("/dev/shm"))
    if (item.path().filename().string().starts_with("trireme-mpi-")) found.insert(item.path());
  return found;
}

/// Paths of the open files of a process.
std::string open_files_of(pid_t process) {
  std::string text;
  std::error_code gone;
  for (const auto& file : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone))
    text += fs::read_symlink(file.path(), gone).string() + "\n";
  return text;
}

void write_program(const fs::path& path, const std::string& script) {
  fs::create_directories(path.parent_path());
  write_file(path, "#!/bin/sh\n" + script);
  fs::permissions(path, fs::perms::owner_all);
}

}  // namespace

TEST_CASE("launch: files that another user creates where jobs have their directories do not block a run") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can act as another user");
    return;
  }
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string mine = "/dev/shm/trireme-mpi-e2e" + std::to_string(::getpid());
  const std::string lay = "mkdir -m 755 " + mine + "a && mkfifo -m 666 " + mine + "a/lock && mkdir " + mine + "b && ln -s /etc/passwd " + mine +
                          "b/lock && mkfifo " + mine + "c && ln -s / " + mine + "d";
  const Outcome laid = Process({"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", lay}, directory.path()).wait();
  INFO(laid.err);
  CHECK(laid.code == 0);
  const Outcome outcome = Process(Arguments{kBinary, "train", "run.yaml"} + kTwo + in("run"), directory.path(), std::chrono::seconds(60)).wait();
  CHECK(fs::exists(mine + "a/lock"));
  CHECK(fs::is_symlink(mine + "b/lock"));
  for (const char* each : {"a", "b", "c", "d"}) fs::remove_all(mine + each);
  must(outcome);
}

TEST_CASE("launch: mpirun's files are in the job's directory, which the next launch removes after a kill") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::set<fs::path> before = job_directories();
  fs::path ours;
  {
    LiveJob job(directory, "killed", kEndlessRanks);
    REQUIRE(job.wait_for_step(3));
    const std::string files = open_files_of(job.mpirun());
    CAPTURE(files);
    for (const fs::path& path : job_directories())  // another job may run at the same time
      if (!before.contains(path) && files.find(path.string()) != std::string::npos) ours = path;
    REQUIRE_FALSE(ours.empty());
    struct stat status {};
    REQUIRE(::lstat(ours.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0700);
    CHECK(files.find("/tmp/ompi.") == std::string::npos);
    const pid_t mpirun = job.mpirun();
    job.signal(SIGKILL);  // no process cleans up
    ::kill(mpirun, SIGKILL);
    CHECK(job.wait_until_gone(20) >= 0);
    job.wait();
  }
  must(directory, Arguments{"train", "run.yaml"} + kTwo + in("next"));
  CHECK_FALSE(fs::exists(ours));
}

TEST_CASE("launch: on one host no process of the job accepts connections from other hosts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::vector<in_addr> addresses = outer_addresses();
  if (addresses.empty()) {
    WARN("skipped: this host has only a loopback address");
    return;
  }
  LiveJob job(directory, "run", kEndlessRanks);
  REQUIRE(job.wait_for_step(3));
  const std::set<int> ports = ports_of(processes_with(job.run_directory().string()));
  CHECK(ports.size() >= 2);  // mpirun's port for its ranks, and the hub's
  in_addr loopback{};
  loopback.s_addr = htonl(INADDR_LOOPBACK);
  int within = 0;
  for (const int port : ports) {
    CAPTURE(port);
    within += can_connect(loopback, port) ? 1 : 0;
    for (const in_addr& address : addresses) CHECK_FALSE(can_connect(address, port));
  }
  CHECK(within >= 2);
  job.signal(SIGTERM);
  CHECK(job.wait().code == 75);
}

TEST_CASE("launch: an unusable TMPDIR does not affect a run") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const char* place : {"/nowhere", "/dev/null", "/proc"}) {
    CAPTURE(place);
    const Outcome outcome =
        run_after(directory, std::string("export TMPDIR=") + place, Arguments{"train", "run.yaml"} + kTwo + in(std::string("run") + place));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.find("mpirun") == std::string::npos);
  }
}

TEST_CASE("launch: a low limit on open files is raised, an insufficient hard limit is refused in one line") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::vector<std::string> before = directory.listing();
  const Outcome refused = run_after(directory, "ulimit -n 32", Arguments{"train", "run.yaml"} + kTwo + in("refused"));
  check(refused, 64, "the limit of 32 open files (ulimit -Hn) is too low to start 2 ranks on this host; allowed at least ");
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  CHECK(directory.changes_since(before).empty());
  must(run_after(directory, "ulimit -Sn 32", Arguments{"train", "run.yaml"} + kTwo + in("raised")));
  must(run_after(directory, "ulimit -Sn 32; ulimit -Hn 76", Arguments{"train", "run.yaml"} + kTwo + in("just enough")));
}

TEST_CASE("launch: thousands of ranks on a few cores are refused without --oversubscribe") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::vector<std::string> before = directory.listing();
  const std::string many = "4096", words = "4096 ranks on a host with ";
  check(run(directory, Arguments{"train", "run.yaml"} + sets({"parallel.data=" + many, "training.global_batch_size=" + many}) + in("run")), 64,
        words);
  check(run(directory, {"bench", "comm", "--ranks", many}), 64, words);
  check(run(directory, Arguments{"bench", "step", "run.yaml"} + sets({"parallel.data=" + many, "training.global_batch_size=" + many})), 64, words);
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("launch: a fake mpirun is named in the error, and nothing is trained") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto run_with = [&](const std::string& script) {
    write_program(directory / "bin/mpirun", script);
    return run_after(directory, "PATH=" + (directory / "bin").string() + ":$PATH", Arguments{"train", "run.yaml"} + kTwo + in("run"));
  };
  const std::string named = (directory / "bin/mpirun").string();
  check(run_with("exit 0\n"), 70, named + ": exited with code 0 without starting a rank");
  check(run_with("shift 2; exec \"$@\"\n"), 70, named + ": started this program, but not as a rank");
  // An mpirun of a different MPI library: each process would be a world of size 1, and train alone.
  check(run_with("shift 2; PMI_RANK=0 \"$@\" & PMI_RANK=1 \"$@\"; code=$?; wait; exit $code\n"), 70,
        "mpirun was asked to start 2 ranks, but MPI reports a world size of 1");
  CHECK_FALSE(fs::exists(directory / "run/metrics.jsonl"));
}

TEST_CASE("launch: train starts its ranks on the hosts of a PBS job, and --hosts overrides them") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // This mpirun keeps the hostfile that it gets, and starts the ranks here.
  write_program(directory / "bin/mpirun",
                "for word; do\n  [ \"$last\" != --hostfile ] || { cp \"$word\" seen; echo localhost slots=9 > \"$word\"; }\n  last=$word\ndone\n"
                "PATH=${PATH#*:}\nexec mpirun \"$@\"\n");
  const std::string prefix = "PATH=" + (directory / "bin").string() + ":$PATH; export PBS_JOBID=7 PBS_NODEFILE=nodes";
  const auto train = [&](const std::string& run, const Arguments& more = {}) {
    fs::remove(directory / "seen");
    return run_after(directory, prefix, kTrainOnly + kTwo + sets({"training.steps=2"}) + in(run) + more);
  };
  write_file(directory / "nodes", "node-b\nnode-a\n");
  must(train("two"));
  CHECK(read_file(directory / "seen") == "node-b slots=1\nnode-a slots=1\n");
  CHECK(metrics(directory / "two").front()["world_size"] == 2);
  write_file(directory / "hosts", "localhost slots=5\n");
  must(train("given", {"--hosts", "hosts"}));
  CHECK(read_file(directory / "seen") == "localhost slots=5\n");
  write_file(directory / "nodes", "node-b\nnode-a\nnode-b\n");
  must(train("spare"));
  CHECK(read_file(directory / "seen") == "node-b slots=2\n");  // as of a hosts file: the hosts that the ranks need
  write_file(directory / "nodes", "node-b\nnode-b\n");
  must(train("one"));
  CHECK_FALSE(fs::exists(directory / "seen"));
  CHECK(losses(directory / "one", 2) == losses(directory / "two", 2));
  fs::remove(directory / "nodes");
  check_error(train("none"), 66, "PBS_NODEFILE nodes: ");
  CHECK_FALSE(fs::exists(directory / "none"));
}

TEST_CASE("launch: an srun task whose MPI world has size 1 does not train") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome alone =
      run_after(directory, "export SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", Arguments{"train", "run.yaml"} + kTwo + in("run"));
  CHECK(alone.code == 64);
  CHECK(alone.err.starts_with("rank 0: Slurm started 2 tasks, but MPI reports a world size of 1: use srun --mpi=pmix\n"));
  CHECK_FALSE(fs::exists(directory / "run"));
}

TEST_CASE("launch: control characters from files are escaped in messages") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string escape = "\x1b]0;owned\x07";
  write_file(directory / "schedule", "F0" + escape + "\n");
  fs::create_directories(directory / "run");
  write_file(directory / "run/run.lock", "1 " + escape + "\n");
  const Arguments file = layout(1, 2, 1, 0) + sets({"parallel.schedule=file", "parallel.schedule_file=schedule"});
  const Outcome schedule = run(directory, Arguments{"train", "run.yaml"} + file + in("run"));
  CHECK(schedule.code == 64);
  CHECK(schedule.err.find("\\x1b]0;owned\\x07") != std::string::npos);
  CHECK(schedule.err.find('\x1b') == std::string::npos);
  write_file(directory / "bad.yaml", "model: {" + escape + ": 1}\n");
  const Outcome yaml = run(directory, {"train", "bad.yaml"});
  CHECK(yaml.code == 64);
  CHECK(yaml.err.find('\x1b') == std::string::npos);
}

TEST_CASE("launch: waiting OpenMP threads spin briefly, unless the user has chosen") {
  TemporaryDirectory directory;
  // libgomp prints its settings whenever it is loaded; the last ones are those of the process that computes.
  const auto spin_counts = [&](const Arguments& variables) {
    const Arguments command = Arguments{"env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT", "OMP_DISPLAY_ENV=verbose"} + variables;
    const Outcome outcome = must(Process(command + Arguments{kBinary, "--version"}, directory.path()).wait());
    std::vector<std::string> counts;
    const std::regex count("GOMP_SPINCOUNT = '(\\d+)'");
    for (auto found = std::sregex_iterator(outcome.err.begin(), outcome.err.end(), count); found != std::sregex_iterator(); ++found)
      counts.push_back((*found)[1]);
    return counts;
  };
  const std::vector<std::string> by_default = spin_counts({"OMP_NUM_THREADS=2"});
  if (by_default.empty()) return;  // another OpenMP library
  REQUIRE(by_default.size() == 2);
  CHECK(by_default[1] == "1000");
  CHECK(spin_counts({"OMP_NUM_THREADS=2", "OMP_WAIT_POLICY=passive"}) == std::vector<std::string>{"0"});
  CHECK(spin_counts({"OMP_NUM_THREADS=2", "GOMP_SPINCOUNT=77"}) == std::vector<std::string>{"77"});
  CHECK(spin_counts({"OMP_NUM_THREADS=1"}).size() == 1);
}

}  // namespace trireme::test
