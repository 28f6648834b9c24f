#include "tests/support/reporter_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <regex>

#include "kernels/core/check.h"
#include "tests/support/scratch.h"

namespace trireme::test {
namespace {

/// Redirects a standard stream to a file for a scope.
class Redirected {
 public:
  Redirected(std::FILE* stream, int descriptor, const std::string& path) : stream_(stream), descriptor_(descriptor) {
    std::fflush(stream_);
    before_ = ::dup(descriptor_);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    TRIREME_CHECK(file >= 0, path);
    ::dup2(file, descriptor_);
    ::close(file);
  }
  ~Redirected() {
    std::fflush(stream_);
    ::dup2(before_, descriptor_);
    ::close(before_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  std::FILE* stream_;
  int descriptor_;
  int before_;
};

std::string without_clock(const std::string& text) {
  static const std::regex in_metrics(R"re(,"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"\})re");
  static const std::regex in_log(R"re((\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d  )re");
  return std::regex_replace(std::regex_replace(text, in_metrics, "}"), in_log, "");
}

}  // namespace

ReporterOutput reporter_output(ReportedRun run, const std::function<void(Reporter& reporter, const std::string& metrics)>& body) {
  const Scratch scratch;
  run.config.run.directory = std::filesystem::path(scratch / "x").parent_path().string();
  if (!run.metrics.empty()) scratch.write("metrics.jsonl", run.metrics);
  {
    const Redirected out(stdout, STDOUT_FILENO, scratch / "out"), messages(stderr, STDERR_FILENO, scratch / "messages");
    Reporter reporter;
    reporter.message("has no effect before open()");
    reporter.open(run.config, run.environment, run.forecast, run.history, run.steps, run.width);
    body(reporter, scratch / "metrics.jsonl");
  }
  return {without_clock(slurp(scratch / "metrics.jsonl")), without_clock(slurp(scratch / "out")), without_clock(slurp(scratch / "messages"))};
}

}  // namespace trireme::test
