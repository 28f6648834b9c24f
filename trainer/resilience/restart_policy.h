#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Decides whether a failed job is restarted: yes after an occasional loss of a rank, no after repeated failures at the same step on the same hosts. Pure
/// logic, without clocks and processes.
class RestartPolicy {
 public:
  struct Failure {
    int64_t step = 0;        ///< the highest step that a rank reached, from 1; 0: none
    int64_t saved = 0;       ///< step of the checkpoint that a restart resumes from; 0: none
    bool elsewhere = false;  ///< a restart uses other hosts
  };
  struct Decision {
    std::optional<std::chrono::seconds> delay;  ///< delay before the restart; nullopt: give up
    std::string reason;                         ///< reason for giving up
  };

  explicit RestartPolicy(int64_t restarts) : restarts_(restarts) {}

  /// The delay is 0, 1, 2, 4, ... 60 s for consecutive failures without a new checkpoint in between. A failure before the first step does not count
  /// as a failure of a step: a host may still be booting.
  Decision after(const Failure& failure);
  /// Number of restarts so far.
  int64_t used() const { return used_; }

 private:
  int64_t restarts_;
  int64_t used_ = 0;
  int in_a_row_ = 0;
  std::optional<Failure> last_;  ///< the first failure, replaced by later ones in a step or after a new checkpoint
};

}  // namespace trireme
