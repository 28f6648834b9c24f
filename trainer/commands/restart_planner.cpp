#include "trainer/commands/restart_planner.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "kernels/core/check.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace trireme {

namespace fs = std::filesystem;

std::vector<std::string> without(const std::string& option, const std::vector<std::string>& words) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == option) {
      ++i;
    } else if (!words[i].starts_with(option + "=")) {
      rest.push_back(words[i]);
    }
  }
  return rest;
}

RestartPlanner::RestartPlanner(fs::path run_directory, std::string resume, std::vector<std::string> words)
    : run_(std::move(run_directory)), resume_(std::move(resume)), words_(std::move(words)), at_launch_(look()), before_(at_launch_) {}

Continuation RestartPlanner::operator()() {
  const State now = look();
  Continuation next{words_, 0, resume_ == "auto" || resume_ == "never" ? "the start" : resume_, 0};
  // If the job failed before training, metrics.jsonl still ends with steps of an earlier job.
  if (now.metrics != before_.metrics) {
    const Tail tail = tail_of_metrics();
    next.done = tail.step;
    next.no_retry_reason = tail.no_retry_reason;
  }
  before_ = now;
  if (!resumes_automatically(now)) return next;
  next.arguments = without("--resume", words_);
  const auto command = std::find(next.arguments.begin(), next.arguments.end(), "train");
  next.arguments.insert(command + 1, {"--resume", "auto"});
  if (!now.checkpoint) return next;
  next.from = now.checkpoint->filename().string();
  next.saved = std::atoll(next.from.c_str() + next.from.find_first_of("0123456789"));
  return next;
}

bool RestartPlanner::resumes_automatically(const State& now) const {
  if (resume_ == "auto") return true;
  if (resume_ == "never") return !at_launch_.checkpoint && (now.checkpoint || now.metrics != at_launch_.metrics);
  // Checkpoints from before the launch belong to a different history, except the chosen checkpoint itself.
  std::error_code error;
  return now.checkpoint &&
         (now.checkpoint != at_launch_.checkpoint || now.saved != at_launch_.saved || fs::equivalent(*now.checkpoint, resume_, error));
}

RestartPlanner::State RestartPlanner::look() const {
  State state;
  std::error_code error;
  const auto metrics = fs::last_write_time(run_ / "metrics.jsonl", error);
  if (!error) state.metrics = metrics;
  try {
    std::vector<std::string> ignored;
    state.checkpoint = find_newest_checkpoint(run_, ignored);
  } catch (const Error&) {  // the job itself reports the error
  }
  if (state.checkpoint) state.saved = fs::last_write_time(*state.checkpoint / "manifest.json", error);
  return state;
}

/// Reads more and more of the end of the file until it finds a step: with many ranks a line of the event "ranks" alone has megabytes.
RestartPlanner::Tail RestartPlanner::tail_of_metrics() const {
  constexpr std::streamoff kLeast = 1 << 16, kMost = 1 << 26;
  for (std::streamoff bytes = kLeast;; bytes *= 4) {
    const Tail tail = tail_of_metrics(bytes);
    if (tail.step > 0 || tail.is_whole_file || bytes >= kMost) return tail;
  }
}

RestartPlanner::Tail RestartPlanner::tail_of_metrics(std::streamoff bytes) const {
  constexpr std::string_view kStep = "{\"step\":", kStart = "{\"event\":\"start\"", kDiverged = "{\"event\":\"diverged\"";
  constexpr std::string_view kAnomaly = "{\"event\":\"anomaly_stop\"";
  std::ifstream file(run_ / "metrics.jsonl", std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::streamoff>(file.tellg());
  Tail tail{.is_whole_file = size <= bytes};
  file.seekg(tail.is_whole_file ? 0 : size - bytes);
  std::string line;
  if (!tail.is_whole_file) std::getline(file, line);  // its beginning has not been read
  while (std::getline(file, line) && !file.eof()) {   // the last line may be incomplete
    if (line.starts_with(kStep)) tail.step = std::atoll(line.c_str() + kStep.size());
    if (line.starts_with(kStart)) tail.no_retry_reason.clear();
    if (line.starts_with(kDiverged)) tail.no_retry_reason = "the run diverged and would diverge again";
    if (line.starts_with(kAnomaly)) tail.no_retry_reason = "the run stopped at an anomalous step and would stop there again";
  }
  return tail;
}

}  // namespace trireme
