#include "trainer/resilience/rank_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/printable.h"
#include "trainer/machine/build_info.h"
#include "trainer/machine/environment.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int kRequestStackSeconds = 20;

std::string line_of(RankRecord::Level level, const std::string& text) {
  constexpr std::array kLevelNames{"info   ", "warning", "error  "};
  std::string line = concat(utc_text(WallClock::now()), " ", kLevelNames[static_cast<size_t>(level)], "  ");
  for (const char c : printable(text)) line += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return line + "\n";
}

}  // namespace

RankRecord::~RankRecord() {
  if (stack_thread_.joinable()) stack_thread_.join();
  progress_.record(nullptr);
  signals_.reset();
  if (log_ >= 0) ::close(log_);
}

std::string RankRecord::open(const fs::path& run_directory, const BlackBoxOwner& owner, bool black_box) {
  const fs::path box_path = black_box_path(run_directory, owner.rank);
  const fs::path path = fs::path(box_path).replace_extension(".log");
  int log = -1;
  try {
    make_directories(run_directory);
    make_directories_in(run_directory, path.parent_path().filename());
    log = open_writable(path, Existing::kAppended);
  } catch (const IoError& refused) {  // a run can do without them
    return concat("rank ", owner.rank, " has no log and no black box: ", refused.what());
  }
  log_ = log;
  {
    const std::lock_guard lock(stack_mutex_);
    log_path_ = path.string();
  }
  write(Level::kInfo, concat("start of rank ", owner.rank, " of ", owner.world, ": host ", host_name(), ", process ", ::getpid(), ", ", owner.device,
                             ", ", owner.coordinate, ", version ", version()));
  std::string problem;
  if (black_box) {
    try {
      box_.emplace(box_path, owner);
    } catch (const IoError& refused) {
      problem = refused.what();
      write(Level::kWarning, problem);
    }
  }
  BlackBox* const box = box_ ? &box_->box() : nullptr;
  written_box_ = box;
  signals_.emplace(log, box, stack_writer_);
  progress_.record(box);
  return problem;
}

void RankRecord::write(Level level, const std::string& text) {
  const int log = log_;
  if (log < 0) return;
  const std::string line = line_of(level, text);
  const ssize_t written = ::write(log, line.data(), line.size());  // one call: appended lines of several threads do not mix
  (void)written;                                                   // a log on a full disk does not stop the run
}

void RankRecord::end(Level level, const std::string& how) {
  if (ended_.exchange(true)) return;
  if (BlackBox* const box = written_box_; box != nullptr) write_end(*box, how);
  write(level, concat("end: ", how));
}

void RankRecord::end_in_time(const std::string& how) {
  const auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread([this, how, done] {
    end(Level::kError, how);
    *done = true;
  }).detach();
  for (int tries = 0; !*done && tries < 500; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void RankRecord::request_stacks(const std::string& why) {
  const std::lock_guard lock(stack_mutex_);
  if (std::exchange(writes_stacks_, true)) return;
  if (stack_thread_.joinable()) stack_thread_.join();  // it has ended
  stack_thread_ = std::thread([this, why] { write_stacks(why); });
}

void RankRecord::write_stacks(const std::string& why) {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);  // the signal thread, which may have started this one, accepts signals
  write(Level::kWarning, concat(why, "; stacks of all threads:"));
  const int log = log_;
  const bool read = stack_writer_.write(log >= 0 ? log : STDERR_FILENO, kRequestStackSeconds);
  write(Level::kInfo, read ? "end of the stacks" : "the stacks could not be read");
  const std::lock_guard lock(stack_mutex_);
  stacks_ = read ? log_path_ : "";
  writes_stacks_ = false;
}

std::optional<std::string> RankRecord::take_stacks() {
  const std::lock_guard lock(stack_mutex_);
  return std::exchange(stacks_, std::nullopt);
}

}  // namespace trireme
