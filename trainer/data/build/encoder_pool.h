#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/data/build/document_encoder.h"

namespace trireme {

/// Threads that encode pieces, each with its own copy of the tokenizer. Pieces are returned in the order in which they were given.
class EncoderPool {
 public:
  /// Errors: IoError if the system cannot start that many threads.
  EncoderPool(const Tokenizer& tokenizer, const DocumentRules& rules, int threads);
  ~EncoderPool();
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  void give(Piece piece);
  bool empty() const { return jobs_.empty(); }
  /// True if `bytes` more text would exceed the limit on text in flight; an empty pool accepts any piece.
  bool full_for(int64_t bytes) const;
  bool ready();  ///< true if take() would not block
  /// Waits for the oldest piece and returns it. Throws the error of its encoding.
  Piece take();

 private:
  struct Job {
    Piece piece;
    bool done = false;
  };
  void work(Tokenizer tokenizer, const DocumentRules& rules);
  void end_threads();

  std::deque<std::unique_ptr<Job>> jobs_;  ///< oldest first; accessed by the caller's thread only
  int64_t bytes_ = 0;
  std::mutex mutex_;  ///< guards Job::done and the members below
  std::deque<Job*> open_;
  bool over_ = false;
  EncodeBudget turns_;
  std::condition_variable given_, finished_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
