#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Whether a failed job is worth another try: a run that loses a rank now and then is, one that fails at the same place again is not. No clock and no
/// process in here.
class RestartPolicy {
 public:
  struct Failure {
    int64_t step = 0;   ///< the furthest a rank was in, from 1; 0 before the first
    int64_t saved = 0;  ///< step of the checkpoint a restart goes on from; 0 without one
  };
  struct Decision {
    std::optional<std::chrono::seconds> delay;  ///< until the next start; nothing: give up
    std::string reason;                         ///< to give up
  };

  explicit RestartPolicy(int64_t restarts) : restarts_(restarts) {}

  /// The delay is 0, 1, 2, 4, ... 60 s for failures in a row that no new checkpoint lies between. One before the first step says nothing of any step: a
  /// host may be on its way up again.
  Decision after(const Failure& failure);
  /// Restarts decided on so far.
  int64_t used() const { return used_; }

 private:
  int64_t restarts_;
  int64_t used_ = 0;
  int in_a_row_ = 0;
  std::optional<Failure> last_;  ///< the first, the last in a step, or the last after a new checkpoint
};

}  // namespace trireme
