#include "trainer/data/build/encoder_pool.h"

#include <system_error>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"

namespace trireme {
namespace {

/// Limit on text in flight. Its tokens take up to four times as much memory.
constexpr int64_t kMaxBytes = int64_t{16} << 20;

}  // namespace

EncoderPool::EncoderPool(const Tokenizer& tokenizer, const DocumentRules& rules, int threads) {
  std::string failure;
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, tokenizer, &rules]() mutable { work(std::move(tokenizer), rules); });
  } catch (const std::exception& error) {  // the system is out of threads or memory
    failure = printable(error);
  }
  if (failure.empty()) return;
  const size_t started = threads_.size();
  end_threads();
  throw IoError(concat("--threads=", threads, ": only ", started, " could be started: ", failure, "; use fewer"));
}

EncoderPool::~EncoderPool() { end_threads(); }

void EncoderPool::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  given_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void EncoderPool::work(Tokenizer tokenizer, const DocumentRules& rules) {
  std::unique_lock lock(mutex_);
  for (;;) {
    given_.wait(lock, [this] { return over_ || !open_.empty(); });
    if (over_) return;
    Job* const job = open_.front();
    open_.pop_front();
    lock.unlock();
    try {
      encode_piece(tokenizer, rules, turns_, job->piece);
    } catch (...) {
      job->piece.error = std::current_exception();
    }
    lock.lock();
    job->done = true;
    finished_.notify_one();
  }
}

void EncoderPool::give(Piece piece) {
  bytes_ += piece.bytes;
  jobs_.push_back(std::make_unique<Job>(Job{std::move(piece)}));
  {
    const std::lock_guard lock(mutex_);
    open_.push_back(jobs_.back().get());
  }
  given_.notify_one();
}

bool EncoderPool::full_for(int64_t bytes) const { return !jobs_.empty() && bytes_ + bytes > kMaxBytes; }

bool EncoderPool::ready() {
  if (jobs_.empty()) return false;
  const std::lock_guard lock(mutex_);
  return jobs_.front()->done;
}

Piece EncoderPool::take() {
  {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return jobs_.front()->done; });
  }
  Piece piece = std::move(jobs_.front()->piece);
  jobs_.pop_front();
  bytes_ -= piece.bytes;
  if (piece.error) std::rethrow_exception(piece.error);
  return piece;
}

}  // namespace trireme
