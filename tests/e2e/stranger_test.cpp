// Another user of the machine, who tries to read, forge, take beforehand and delete what belongs to a job while it trains.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "kernels/core/check.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

constexpr uid_t kNobody = 65534;

/// Runs `body` as the user nobody in a child process, and returns what it has written: a line for each thing that it was able to do.
std::string as_nobody(const std::function<void(const std::function<void(const std::string&)>& did)>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    const auto did = [&](const std::string& what) {
      const std::string line = what + "\n";
      if (::write(ends[1], line.data(), line.size()) < 0) ::_exit(3);
    };
    if (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0 || ::geteuid() != kNobody) did("stay root");
    ::umask(0);
    try {
      body(did);
    } catch (const std::exception& error) {
      did(std::string("end with an error: ") + error.what());
    }
    did("end");
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<size_t>(count));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  REQUIRE(text.ends_with("end\n"));  // it has tried everything
  return text.substr(0, text.size() - 4);
}

/// The job's processes: the launcher, mpirun and the ranks.
std::vector<pid_t> processes_of(const LiveJob& job) { return processes_with(job.run_directory().string()); }

/// Ports at which one of the processes listens.
std::set<int> listening_ports(const std::vector<pid_t>& processes) {
  std::set<std::string> sockets;
  for (const pid_t process : processes) {
    std::error_code error;
    for (fs::directory_iterator entry(concat("/proc/", process, "/fd"), error), end; !error && entry != end; entry.increment(error)) {
      std::error_code ignored;
      const std::string target = fs::read_symlink(entry->path(), ignored).string();
      if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
    if (word.at(3) == "0A" && sockets.count(word.at(9)) == 1) ports.insert(std::stoi(word[1].substr(word[1].find(':') + 1), nullptr, 16));
  }
  return ports;
}

/// Sends `text` to a port of this host, and returns what comes back within `milliseconds` or until the end of the connection.
std::string answer_of(int port, const std::string& text, int milliseconds) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(port));
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  if (::connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) {
    ::send(file, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    char bytes[4096];
    pollfd ready{file, POLLIN, 0};
    while (::poll(&ready, 1, milliseconds) == 1) {
      const ssize_t count = ::recv(file, bytes, sizeof bytes, MSG_DONTWAIT);
      if (count <= 0) break;
      answer.append(bytes, static_cast<size_t>(count));
    }
  }
  ::close(file);
  return answer;
}

bool can_open(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK);
  if (file >= 0) ::close(file);
  return file >= 0;
}

bool can_list(const std::string& path) {
  DIR* const directory = ::opendir(path.c_str());
  if (directory != nullptr) ::closedir(directory);
  return directory != nullptr;
}

bool can_read(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  char byte = 0;
  const bool can = file >= 0 && ::read(file, &byte, 1) == 1;
  if (file >= 0) ::close(file);
  return can;
}

std::set<std::string> job_directories() {
  std::set<std::string> found;
  for (const char* place : {"/dev/shm", "/tmp"})
    for (const std::string& name : names_in(place))
      if (name.starts_with("trireme-mpi-")) found.insert(std::string(place) + "/" + name);
  return found;
}

}  // namespace

TEST_CASE("strangers: another user can neither read, forge, stop nor delete anything of a job, nor take its names beforehand") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  TemporaryDirectory directory;
  prepare_run(directory);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);  // where others may look, as in a shared project directory
  const mode_t mask = ::umask(022);
  const Arguments layouts = kNoEvaluation + sets({"parallel.data=2", "parallel.zero_stage=1", "training.steps=300", "checkpoint.every=0"});
  std::string host(256, '\0');
  REQUIRE(::gethostname(host.data(), host.size()) == 0);
  host.resize(std::strlen(host.c_str()));

  // Beforehand: names that Open MPI or the launcher might use, as links to where a stranger would like the job to write, and as a directory that
  // looks abandoned.
  TemporaryDirectory lure;
  REQUIRE(::chmod(lure.path().c_str(), 0777) == 0);
  const std::string suffix = std::to_string(::getpid());
  const std::vector<std::string> links = {"/tmp/ompi." + host + ".0", "/tmp/prte." + host + ".0", "/tmp/openmpi-sessions-root@" + host + "_0",
                                          "/dev/shm/trireme-mpi-link" + suffix};
  const std::string hollow = "/dev/shm/trireme-mpi-hollow" + suffix;
  std::vector<std::string> made;
  for (const std::string& link : links)
    if (!fs::exists(fs::symlink_status(link))) made.push_back(link);
  CHECK(as_nobody([&](const auto&) {
          for (const std::string& link : made) TRIREME_CHECK(::symlink(lure.path().c_str(), link.c_str()) == 0, link, ": ", std::strerror(errno));
          TRIREME_CHECK(::mkdir(hollow.c_str(), 0777) == 0 && ::mkfifo((hollow + "/lock").c_str(), 0666) == 0, hollow);
        }) == "");

  LiveJob job(directory, "watched", layouts);
  REQUIRE(job.wait_for_step(3));
  const std::vector<pid_t> processes = processes_of(job);
  REQUIRE(processes.size() >= 4);  // the launcher, mpirun and two ranks
  const std::set<int> ports = listening_ports(processes);
  REQUIRE(!ports.empty());
  const std::string environment = read_file(concat("/proc/", job.ranks(2).at(0), "/environ"));
  const size_t hub = environment.find("TRIREME_HUB=");
  REQUIRE(hub != std::string::npos);
  const std::string token = environment.substr(hub + 12, 32), address = environment.substr(hub, environment.find('\0', hub) - hub);
  const int hub_port = std::stoi(address.substr(address.rfind(':') + 1));
  CHECK(ports.count(hub_port) == 1);
  std::set<std::string> own;  // by name: other jobs of this host make theirs meanwhile
  for (const std::string& each : job_directories())
    if (environment.find("=" + each + '\0') != std::string::npos) own.insert(each);
  REQUIRE(!own.empty());
  const std::string run = job.run_directory().string();

  CHECK(as_nobody([&](const auto& did) {
          for (const pid_t process : processes) {
            const std::string proc = concat("/proc/", process, "/");
            for (const char* name : {"environ", "maps", "mem", "stack"})
              if (can_read(proc + name)) did("read " + proc + name);
            if (can_list(proc + "fd") || can_list(proc + "map_files")) did("list the open files of " + proc);
            for (int file = 0; file < 64; ++file)
              if (can_open(concat(proc, "fd/", file), O_RDONLY)) did(concat("open descriptor ", file, " of ", proc));
            for (const int signal : {0, SIGSTOP, SIGTERM, SIGKILL})
              if (::kill(process, signal) == 0) did(concat("send signal ", signal, " to ", process));
            if (::ptrace(PTRACE_SEIZE, process, nullptr, nullptr) == 0) did(concat("trace ", process));
            std::ifstream command(proc + "cmdline", std::ios::binary);
            const std::string words{std::istreambuf_iterator<char>(command), {}};
            if (words.find(token) != words.npos) did("read the token in the command line of " + proc);
          }
          for (const std::string& place : own) {
            if (can_list(place)) did("list " + place);
            if (::rename(place.c_str(), (place + "x").c_str()) == 0 || ::rmdir(place.c_str()) == 0) did("move or delete " + place);
            if (can_open(place + "/lock", O_RDONLY) || ::unlink((place + "/lock").c_str()) == 0) did("open or delete the lock of " + place);
            if (can_open(place + "/new", O_RDWR | O_CREAT)) did("write into " + place);
          }
          for (const char* name : {"run.lock", "metrics.jsonl", "config.yaml", "logs/rank-0000.log", "black-box/rank-0000.bin"}) {
            const std::string path = run + "/" + name;
            if (can_open(path, O_WRONLY)) did("write to " + path);
            if (::unlink(path.c_str()) == 0 || ::rename(path.c_str(), (run + "/x").c_str()) == 0) did("move or delete " + path);
          }
          if (can_open(run + "/new", O_RDWR | O_CREAT) || ::symlink("/tmp", (run + "/step-00000300").c_str()) == 0) did("write into " + run);
          if (can_open(run + "/run.lock", O_RDONLY)) did("open the lock of the run, and so keep it");
          const std::string forged[] = {
              "{\"token\": \"" + std::string(32, '0') + "\", \"rank\": 1, \"host\": \"x\", \"pid\": 1}\n{\"goodbye\": \"failed\"}\n",
              "{\"goodbye\": \"failed\"}\n",
              "{\"leave\": true}\n",
              "GET / HTTP/1.0\r\n\r\n",
              std::string(70'000, 'x'),
              std::string(64, '\0'),
              std::string(64, '\xff')};
          for (int round = 0; round < 5; ++round)
            for (const int port : ports)
              for (const std::string& text : forged) {
                const std::string answer = answer_of(port, text, port == hub_port && round == 0 ? 100 : 0);
                if (port == hub_port && !answer.empty()) did("get an answer of the job monitor: " + answer);
              }
        }) == "");
  REQUIRE(job.last_step() < 300);  // it was training all that time
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(count(outcome.err, "warning: the job monitor refused ") >= 1);
  CHECK(count(outcome.err, "warning: the job monitor refused ") <= 2);
  CHECK(fs::is_empty(lure.path()));  // nothing was written where the links lead

  CHECK(as_nobody([&](const auto& did) {  // between two jobs
          const int lock = ::open((run + "/run.lock").c_str(), O_RDONLY | O_CLOEXEC);
          if (lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0) did("lock the run directory");
        }) == "");
  for (const std::string& each : own) CHECK_FALSE(fs::exists(each));
  CHECK(fs::exists(hollow));  // which the launcher must not touch
  for (const std::string& link : made) fs::remove(link);
  fs::remove_all(hollow);

  must(directory, kTrain + layouts + in("alone"));
  CHECK(losses(directory / "alone", 300) == losses(job.run_directory(), 300));
  ::umask(mask);
}

}  // namespace trireme::test
