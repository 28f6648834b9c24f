#include "trainer/tokenizer/count_pieces.h"

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "trainer/tokenizer/text_chunk_reader.h"

namespace trireme {
namespace {

/// Hands out the stretches of all files, in order, to the worker threads.
class SharedText {
 public:
  SharedText(const std::vector<std::string>& files, Cut cut) : files_(files), cut_(std::move(cut)) {}

  /// The next stretch; empty after the last file. `begins`: the stretch begins a document.
  std::string next(bool& begins) {
    const std::lock_guard lock(mutex_);
    while (stretches_ != nullptr || file_ < files_.size()) {
      begins = stretches_ == nullptr;
      if (begins) stretches_ = std::make_unique<TextChunkReader>(files_[file_++], cut_);
      std::string stretch = stretches_->next();
      if (!stretch.empty()) return stretch;
      stretches_.reset();
    }
    return {};
  }

  /// Keeps the first error and ends the text for every thread.
  void fail(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    stretches_.reset();
    file_ = files_.size();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::vector<std::string>& files_;
  const Cut cut_;
  std::mutex mutex_;
  size_t file_ = 0;
  std::unique_ptr<TextChunkReader> stretches_;
  std::exception_ptr error_;
};

void count(std::string_view piece, int64_t times, PieceCounts& counts) {
  const auto found = counts.find(piece);
  if (found != counts.end())
    found->second += times;
  else
    counts.emplace(piece, times);
}

}  // namespace

PieceCounts count_pieces(const std::vector<std::string>& files, const NamedPattern& pattern, int threads, const std::function<void(int64_t)>& read) {
  const Pretokenizer pretokenizer({.splits = {{.regex = std::string(pattern.regex)}}}, std::string(pattern.name));
  SharedText text(files, [&](std::string_view stretch) {
    const size_t line = pretokenizer.last_line(stretch);
    return line > 0 ? line : pretokenizer.last_boundary(stretch, false, pattern.nfc);
  });
  const auto work = [&](PieceCounts& counts) {
    try {
      Pretokenizer own = pretokenizer;
      std::string room;
      bool begins = true;
      for (std::string stretch = text.next(begins); !stretch.empty(); stretch = text.next(begins)) {
        own.pieces(pattern.nfc ? to_nfc(stretch, room) : stretch, begins, [&](std::string_view piece) { count(piece, 1, counts); });
        read(static_cast<int64_t>(stretch.size()));
      }
    } catch (...) {
      text.fail(std::current_exception());
    }
  };
  std::vector<PieceCounts> counts(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < counts.size(); ++i) workers.emplace_back(work, std::ref(counts[i]));
    work(counts.front());
  }
  text.rethrow();
  PieceCounts all = std::move(counts.front());
  for (size_t i = 1; i < counts.size(); ++i) {
    for (const auto& [piece, times] : counts[i]) count(piece, times, all);
    PieceCounts().swap(counts[i]);
  }
  return all;
}

}  // namespace trireme
