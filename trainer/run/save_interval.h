#pragma once
#include <cstdint>
#include <deque>
#include <optional>

namespace trireme {

/// Chooses the steps between checkpoints for checkpoint.every auto: Daly's interval for the measured cost of a save and the mean time between failures.
/// Pure logic, on one rank: whether a save is due is then shared with the others.
///
/// A save costs what training feels of it: the time that it stands still, and what the steps last longer than others, on the mean, until the checkpoint
/// is written and for one step more. The cost of ten saves is averaged. The interval is chosen after every save, and again if steps have become slower or
/// faster by a quarter.
class SaveInterval {
 public:
  struct Start {
    std::optional<double> mtbf = {};  ///< given, seconds; else it is learned_mtbf() of all jobs
    int64_t failures = 0;             ///< of earlier jobs
    double trained_seconds = 0;       ///< by earlier jobs
    int64_t step = 0;                 ///< that this job begins after
    int64_t last_step = 0;            ///< at which the run saves in any case
    double save_seconds = 0;          ///< cost of a save in an earlier job; 0: unknown
    double step_seconds = 0;          ///< Choice::step_seconds of that job; 0: unknown
  };
  struct Choice {
    int64_t steps = 0;        ///< between checkpoints, from 1
    double save_seconds = 0;  ///< cost of a save
    double step_seconds = 0;  ///< of one without a save, on the mean: the time between two saves counts, and slow steps are a part of it
    double mtbf = 0;          ///< seconds
    int64_t failures = 0;
  };

  explicit SaveInterval(const Start& start);

  /// A step that took `seconds` has ended.
  void add_step(double seconds);
  /// Training stood still for `seconds` to save after `step`.
  void saved(int64_t step, double seconds);
  /// The checkpoint has been written, which took `seconds`; nullopt: it has failed.
  void written(std::optional<double> seconds);
  /// True if a checkpoint should be saved after `step`.
  bool due(int64_t step) const { return step >= next_; }
  /// A new choice, once.
  std::optional<Choice> take_choice();

 private:
  /// The last save, until its cost is known.
  struct Pending {
    double stall = 0, extra = 0;  ///< `extra`: sum of the steps
    int64_t steps = 0;
    bool is_written = false;
  };
  void settle();
  void choose();
  void choose(double save_seconds, double step_seconds);
  void follow_speed();
  double mean_step() const;
  double mtbf() const;

  Start start_;
  double seconds_ = 0;         ///< of this job, steps and saves
  std::deque<double> steps_;   ///< the last ones without a save
  std::deque<double> stalls_;  ///< of the last saves
  std::deque<double> extras_;  ///< of the last saves: what the steps took longer
  double write_seconds_ = 0;   ///< of the last save
  std::optional<Pending> pending_;
  int64_t unsteady_ = 3;  ///< first steps of the job, which allocate buffers and fault pages in: not yet made
  int64_t interval_;
  int64_t saved_;  ///< step of the last save
  int64_t next_;
  std::optional<Choice> choice_;
  double chosen_for_ = 0;     ///< Choice::step_seconds of the last choice
  size_t steps_to_look_ = 0;  ///< before step_seconds is compared with it
};

}  // namespace trireme
