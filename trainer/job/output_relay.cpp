#include "trainer/job/output_relay.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "kernels/core/check.h"

namespace trireme {

void OutputRelay::add(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    const size_t end = bytes.find_first_of("\n\r");  // a progress line ends with \r
    const std::string_view line = bytes.substr(0, end == bytes.npos ? end : end + 1);
    bytes.remove_prefix(line.size());
    if (at_line_start_) {
      // Keep dropped lines in one block: accept lines again only when everything before them is written.
      skipping_ = left_out_ > 0 ? pending() : line.size() > limit_ - std::min(limit_, pending_.size());
      if (skipping_) {
        ++left_out_;
      } else {
        report_left_out();
      }
    }
    if (!skipping_) pending_.append(line);
    at_line_start_ = line.back() == '\n' || line.back() == '\r';
  }
}

void OutputRelay::report_left_out() {
  if (left_out_ == 0) return;
  pending_ += concat("[", left_out_, left_out_ == 1 ? " line was" : " lines were", " dropped here: the output was not read in time]\n");
  left_out_ = 0;
}

/// A pipe that poll() reports as writable accepts PIPE_BUF bytes without blocking.
void OutputRelay::write_some() {
  const ssize_t written = ::write(descriptor_, pending_.data(), std::min<size_t>(pending_.size(), PIPE_BUF));
  if (written >= 0) {
    pending_.erase(0, static_cast<size_t>(written));
  } else if (errno != EAGAIN && errno != EINTR) {
    failed_ = true;
    pending_.clear();
  }
}

void OutputRelay::finish(std::chrono::milliseconds timeout) {
  if (!failed_) report_left_out();
  while (pending()) {
    pollfd reader{descriptor_, POLLOUT, 0};
    if (::poll(&reader, 1, static_cast<int>(timeout.count())) <= 0) return;
    write_some();
  }
}

}  // namespace trireme
