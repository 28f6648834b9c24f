#include "trainer/tokenizer/text_chunk_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/mapped_file.h"

namespace trireme {
namespace {

constexpr size_t kStretch = size_t{1} << 20;
constexpr size_t kLongest = size_t{64} << 20;

}  // namespace

TextChunkReader::TextChunkReader(const std::string& path, Cut cut)
    : path_(path == "-" ? "standard input" : path),
      cut_(std::move(cut)),
      descriptor_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw_file_error(path_, "cannot open", errno);
}

TextChunkReader::~TextChunkReader() {
  if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
}

void TextChunkReader::fill(size_t bytes) {
  size_t filled = rest_.size();
  rest_.resize(std::max(filled, bytes));
  while (filled < rest_.size() && !ended_) {
    const ssize_t count = ::read(descriptor_, rest_.data() + filled, rest_.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error(path_, "cannot read", errno);
    ended_ = count == 0;
    filled += static_cast<size_t>(count);
  }
  rest_.resize(filled);
}

std::string TextChunkReader::next() {
  size_t cut = 0;
  for (size_t bytes = kStretch; cut == 0 && !ended_; bytes *= 2) {
    if (bytes > kLongest)
      throw DataError(
          concat(path_, ": the ", kLongest >> 20, " MiB after byte ", position_, " contain no place to split the text, such as between words"));
    fill(bytes);
    if (!ended_) cut = cut_(rest_);
  }
  if (ended_) {
    position_ += rest_.size();
    return std::exchange(rest_, {});
  }
  std::string stretch = rest_.substr(0, cut);
  rest_.erase(0, cut);
  position_ += cut;
  return stretch;
}

}  // namespace trireme
