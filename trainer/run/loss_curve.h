#pragma once
// The losses of a run as a drawing of characters, for the end of its output on a terminal.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// Collects losses in bounded memory: means over steps whose number doubles as the run gets longer. Losses that are not finite are left out.
class LossCurve {
 public:
  void add(int64_t step, double loss);
  void add_validation(int64_t step, double loss);

  /// A drawing of at most `columns` x 13 characters with axes, training losses as '*' and validation losses as 'o', each line ended by a newline. Empty
  /// if there are fewer than ten steps, or if `columns` is less than 40.
  std::string text(size_t columns) const;

 private:
  struct Bucket {
    double sum = 0;
    int64_t count = 0;
  };
  struct Validation {
    int64_t step;
    double loss;
  };

  static constexpr size_t kMostBuckets = 4096;

  int64_t first_ = 0, last_ = 0, steps_ = 0;
  int64_t steps_per_bucket_ = 1;
  std::vector<Bucket> buckets_;  ///< bucket i: steps first_ + i * steps_per_bucket_ and the next ones
  std::vector<Validation> validations_;
};

}  // namespace trireme
