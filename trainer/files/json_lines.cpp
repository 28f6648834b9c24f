#include "trainer/files/json_lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trainer/files/mapped_file.h"
#include "trainer/files/strict_json.h"

namespace trireme {

JsonLines::JsonLines(const std::string& path) : path_(path), file_(open_regular_file(path, Links::kFollow).descriptor) {}

bool JsonLines::next() {
  if (!read_text()) return false;
  value_ = text_.size() <= kMaxJsonLine ? json_line<nlohmann::ordered_json>(text_) : nlohmann::ordered_json();
  return true;
}

bool JsonLines::read_text() {
  text_.clear();
  whole_ = true;
  bool any = false, fits = true;
  for (;;) {
    const size_t end = buffer_.find('\n', at_);
    const size_t part = std::min(end, buffer_.size()) - at_;
    fits = fits && text_.size() + part <= kMaxJsonLine;
    if (fits) text_.append(buffer_, at_, part);
    any = any || part > 0;
    at_ += part;
    whole_ = fits;
    if (end != buffer_.npos) return ++at_, true;
    if (fill()) continue;
    whole_ = false;
    return any;
  }
}

bool JsonLines::fill() {
  constexpr size_t kBlock = size_t{1} << 16;
  buffer_.resize(kBlock);
  at_ = 0;
  ssize_t count = 0;
  do {
    count = ::read(file_, buffer_.data(), kBlock);
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw_file_error(path_, "cannot be read", errno);
  buffer_.resize(static_cast<size_t>(count));
  return count > 0;
}

}  // namespace trireme
