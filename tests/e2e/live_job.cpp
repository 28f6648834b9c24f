#include "tests/e2e/live_job.h"

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Seconds until `done` returns true, polled every 10 ms; negative after `limit`.
double time_until(const std::function<bool()>& done, double limit) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const bool now = done();
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (now) return passed;
    if (passed > limit) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// The contents of a file in /proc, which may disappear at any time.
std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // unlike an iterator, no exception if the process has just ended
  return text.str();
}

bool is_zombie(pid_t process) {
  const std::string stat = text_of(fs::path("/proc") / std::to_string(process) / "stat");
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos || stat[name_end + 2] == 'Z';
}

}  // namespace

LiveJob::LiveJob(const TemporaryDirectory& directory, const std::string& run, const Arguments& arguments, const Arguments& environment,
                 const std::string& program, std::chrono::seconds limit)
    : run_(directory / run),
      out_(directory / (run + ".out")),
      err_(directory / (run + ".err")),
      process_(Arguments{"env"} + environment + Arguments{"sh", "-c", "exec \"$@\" >>\"$0.out\" 2>>\"$0.err\"", run, program, "train", "run.yaml"} +
                   arguments + sets({"run.directory=" + run_.string()}),
               directory.path(), limit) {
  std::ofstream(out_, std::ios::app).flush();
  std::ofstream(err_, std::ios::app).flush();
  REQUIRE(time_until([&] { return !processes_with(run_.string()).empty(); }, 10) >= 0);
}

size_t LiveJob::last_step() const {
  const std::string text = text_of(run_ / "metrics.jsonl");
  const std::string key = "{\"step\":";
  const size_t found = text.rfind(key);
  return found == std::string::npos ? 0 : std::strtoul(text.c_str() + found + key.size(), nullptr, 10);
}

/// Processes are only looked for once the launcher has ended, as each look takes some of the processor time that the job could use. Checks twice: during
/// exec a process has no command line.
bool LiveJob::over() const {
  if (process_.running()) return false;
  if (!processes_with(run_.string()).empty()) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return processes_with(run_.string()).empty();
}

bool LiveJob::wait_until(const std::function<bool()>& done) {
  bool ended = false;
  const double waited = time_until([&] { return done() || (ended = over()); }, 60);
  if (waited >= 0 && !ended) return true;
  WARN("standard error: " << err());
  return false;
}

bool LiveJob::wait_for_step(size_t step) {
  return wait_until([&] { return last_step() >= step; });
}

double LiveJob::wait_for_error(const std::string& text, double limit) {
  bool found = false;
  const double waited = time_until(
      [&] {
        const bool ended = over();
        return (found = err().find(text) != std::string::npos) || ended;
      },
      limit);
  if (found) return waited;
  WARN("no \"" << text << "\" in standard error: " << err());
  return -1;
}

double LiveJob::wait_until_gone(double limit) const {
  return time_until([&] { return processes_with(run_.string()).empty(); }, limit);
}

Outcome LiveJob::wait() {
  Outcome outcome = process_.wait();
  outcome.out = read_file(out_);
  outcome.err = err();
  return outcome;
}

std::map<int, pid_t> LiveJob::ranks(size_t count) const {
  std::map<int, pid_t> found;
  const std::string variable = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=";
  const double waited = time_until(
      [&] {
        found.clear();
        for (pid_t process : processes_with(run_.string())) {
          const std::string environment = text_of(fs::path("/proc") / std::to_string(process) / "environ");
          const size_t at = environment.find(variable);
          if (at != std::string::npos && !is_zombie(process)) found[std::atoi(environment.c_str() + at + variable.size())] = process;
        }
        return found.size() == count;
      },
      10);
  INFO("ranks found: " << found.size());
  REQUIRE(waited >= 0);
  return found;
}

pid_t LiveJob::mpirun() const {
  for (pid_t process : processes_with(run_.string()))
    if (text_of(fs::path("/proc") / std::to_string(process) / "comm").starts_with("mpirun")) return process;
  FAIL("mpirun is not running");
  return -1;
}

Arguments misbehaviour(int rank, const std::string& deed, const fs::path& trigger, const std::string& text) {
  return {"LD_PRELOAD=" + shim("behave"), "TRIREME_SHIM_RANK=" + std::to_string(rank), "TRIREME_SHIM_DO=" + deed,
          "TRIREME_SHIM_TRIGGER=" + trigger.string(), "TRIREME_SHIM_TEXT=" + text};
}

}  // namespace trireme::test
