#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/data/build/document_encoder.h"

namespace trireme {

/// Threads that encode pieces, each with a tokenizer of its own; the pieces come back in the order in which they were given.
class EncoderPool {
 public:
  /// Errors: IoError where the system does not give that many threads.
  EncoderPool(const Tokenizer& tokenizer, const DocumentRules& rules, int threads);
  ~EncoderPool();
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  void give(Piece piece);
  bool empty() const { return jobs_.empty(); }
  /// Whether another `bytes` of text are too many to be under way together with what is; one piece is never too many.
  bool full_for(int64_t bytes) const;
  bool ready();  ///< whether take() would not wait
  /// The oldest piece. Throws the error that its encoding met.
  Piece take();

 private:
  struct Job {
    Piece piece;
    bool done = false;
  };
  void work(Tokenizer tokenizer, const DocumentRules& rules);
  void end_threads();

  std::deque<std::unique_ptr<Job>> jobs_;  ///< oldest first; the caller's alone
  int64_t bytes_ = 0;
  std::mutex mutex_;  ///< of what follows, and of done
  std::deque<Job*> open_;
  bool over_ = false;
  UncutTurns turns_;
  std::condition_variable given_, finished_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
