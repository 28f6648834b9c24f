// The directory of a job, next to directories of other jobs, other users and killed launchers.
#include "trainer/job/job_directory.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"

namespace fs = std::filesystem;
using namespace trireme;

namespace {

constexpr const char* kSession = "OMPI_MCA_orte_tmpdir_base";
constexpr const char* kPrteSession = "PRTE_MCA_prte_tmpdir_base";
constexpr const char* kSegments = "OMPI_MCA_btl_vader_backing_directory";

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

/// The return value of `body`, run in a child process with a time limit of ten seconds; -1 after a timeout.
template <class F>
int in_time(F&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t alarm;  // blocked by other tests of this program
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
    ::alarm(10);
    for (const char* variable : {kSession, kPrteSession, kSegments, "TMPDIR"}) ::unsetenv(variable);
    ::_exit(body());
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A directory next to those of jobs, removed by the destructor.
struct Neighbour {
  explicit Neighbour(const std::string& name) : path(fs::path("/dev/shm") / concat("trireme-mpi-", name, ::getpid())) { fs::create_directory(path); }
  ~Neighbour() { fs::remove_all(path); }
  fs::path path;
};

}  // namespace

TEST_CASE("job directory: is private to the user, set for Open MPI, and removed with the job") {
  CHECK(in_time([] {
          fs::path path;
          {
            const JobDirectory directory(read_launch_environment(), true);
            path = value_of(kSession);
            struct stat status {};
            if (path.empty() || value_of(kSegments) != path.string() || value_of(kPrteSession) != path.string() || !value_of("TMPDIR").empty())
              return 1;
            if (::lstat(path.c_str(), &status) != 0 || (status.st_mode & 07777) != 0700 || status.st_uid != ::geteuid()) return 2;
            fs::create_directories(path / "ompi.host.0/pid.1/0");
          }
          if (fs::exists(path)) return 3;
          if (!value_of(kSession).empty() || !value_of(kPrteSession).empty() || !value_of(kSegments).empty()) return 4;
          for (const char* before : {"", "/var/tmp"}) {
            if (*before != '\0') ::setenv("TMPDIR", before, 1);
            {
              const JobDirectory several(read_launch_environment(),
                                         false);  // it does not exist on the other hosts, to which Open MPI would forward the other variables
              const bool told = value_of("TMPDIR").starts_with("/dev/shm/trireme-mpi-") && fs::exists(value_of("TMPDIR"));
              if (!told || !value_of(kSession).empty() || !value_of(kSegments).empty()) return 5;
            }
            if (value_of("TMPDIR") != before) return 6;
          }
          return 0;
        }) == 0);
}

TEST_CASE("job directory: variables set by the user are respected") {
  CHECK(in_time([] {
          ::setenv(kSession, "/nowhere/of the user's", 1);
          const JobDirectory directory(read_launch_environment(), true);
          return value_of(kSession) != "/nowhere/of the user's" || !fs::exists(value_of(kSegments)) || !value_of("TMPDIR").empty() ? 1 : 0;
        }) == 0);
  CHECK(in_time([] {
          ::setenv(kSegments, "/nowhere", 1);
          const JobDirectory directory(read_launch_environment(), true);
          return value_of(kSegments) != "/nowhere" || !fs::exists(value_of(kSession)) ? 1 : 0;
        }) == 0);
}

TEST_CASE("job directory: pipes, links and directories of other users are skipped without blocking") {
  const Neighbour pipe("pipe"), link("link"), foreign("foreign"), abandoned("abandoned"), alive("alive");
  REQUIRE(::mkfifo((pipe.path / "lock").c_str(), 0666) == 0);
  const test::TemporaryDirectory elsewhere;
  std::ofstream(elsewhere.path / "precious").put('x');
  fs::create_symlink(elsewhere.path / "precious", link.path / "lock");
  for (const Neighbour* each : {&foreign, &abandoned, &alive}) std::ofstream(each->path / "lock").flush();
  const fs::path to_directory = fs::path("/dev/shm") / concat("trireme-mpi-todir", ::getpid()), as_pipe = concat(to_directory.string(), "p");
  fs::create_directory_symlink(abandoned.path, to_directory);
  REQUIRE(::mkfifo(as_pipe.c_str(), 0666) == 0);
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::chown(foreign.path.c_str(), 65534, 65534) == 0);
  const int held = ::open((alive.path / "lock").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(::flock(held, LOCK_EX | LOCK_NB) == 0);
  CHECK(in_time([] {
          const JobDirectory directory(read_launch_environment(), true);
          return fs::exists(value_of(kSession)) ? 0 : 1;
        }) == 0);
  ::close(held);
  CHECK(fs::exists(pipe.path));
  CHECK(fs::exists(link.path));
  CHECK(fs::exists(elsewhere.path / "precious"));
  if (root) CHECK(fs::exists(foreign.path));
  CHECK(fs::exists(alive.path));
  CHECK_FALSE(fs::exists(abandoned.path));
  CHECK(fs::is_symlink(to_directory));
  fs::remove(to_directory);
  fs::remove(as_pipe);
}

TEST_CASE("job directory: TMPDIR is used if shared memory is scarce or missing, and named in the error if it is unusable") {
  const test::TemporaryDirectory directory;
  // Runs `body` in a new mount namespace with this /dev/shm.
  const auto with_memory = [](unsigned long flags, const char* options, const std::string& temporary, const auto& body) {
    return in_time([&] {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
      if (::mount("none", "/dev/shm", "tmpfs", flags, options) != 0) return 77;
      ::setenv("TMPDIR", temporary.c_str(), 1);
      return body();
    });
  };
  const std::string place = directory.path.string();
  const int served = with_memory(MS_RDONLY, "", place, [&] {
    const JobDirectory made(read_launch_environment(), true);
    return value_of(kSession).starts_with(place + "/trireme-mpi-") && value_of(kSegments).empty() ? 0 : 1;
  });
  if (served == 77) {
    WARN("skipped: no permission to mount");
    return;
  }
  CHECK(served == 0);
  CHECK(with_memory(0, "size=16m", place, [&] {
          const JobDirectory made(read_launch_environment(), true);
          return value_of(kSession).starts_with(place + "/trireme-mpi-") && value_of(kSegments).starts_with("/dev/shm/trireme-mpi-") ? 0 : 1;
        }) == 0);
  CHECK(fs::is_empty(directory.path));
  // The session wants 32 MiB free, and ranks 5 MiB each, either by itself: the place of both, by the free memory and the number of ranks.
  struct Case {
    const char* memory;
    int ranks;
    bool session, segments;  // in memory
  };
  for (const Case& each : {Case{"size=31m", 6, false, true}, Case{"size=31m", 7, false, false}, Case{"size=40m", 8, true, true},
                           Case{"size=40m", 9, true, false}, Case{"size=33m", 1, true, true}}) {
    CAPTURE(each.memory, each.ranks);
    CHECK(with_memory(0, each.memory, place, [&] {
            const JobDirectory made(read_launch_environment(), true, each.ranks);
            const auto in = [&](const char* variable, bool memory) {
              return value_of(variable).starts_with((memory ? "/dev/shm" : place) + "/trireme-mpi-");
            };
            if (!in(kSession, each.session) || !in(kPrteSession, each.session)) return 1;
            if (!in(kSegments, each.segments)) return 2;
            if (each.segments) return made.note().empty() ? 0 : 3;
            const std::string note = concat("note: /dev/shm has ", std::string(each.memory).substr(5, 2), " MiB free, and the shared memory of ",
                                            each.ranks, " ranks may take ", 5 * each.ranks, " MiB, so it is in ", place, ", which is slower; ");
            return made.note().starts_with(note) ? 0 : 4;
          }) == 0);
  }
  CHECK(fs::is_empty(directory.path));
  const std::string missing = place + "/missing";
  CHECK(with_memory(MS_RDONLY, "", missing, [&] {
          try {
            const JobDirectory made(read_launch_environment(), true);
            return 1;
          } catch (const IoError& error) {
            const std::string start = "TMPDIR=" + missing + ": mpirun cannot create its files there: No such file or directory";
            return std::string(error.what()).starts_with(start) ? 0 : 2;
          }
        }) == 0);
}
