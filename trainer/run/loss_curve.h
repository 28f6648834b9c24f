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
    double mean() const { return sum / static_cast<double>(count); }
  };
  struct Validation {
    int64_t step;
    double loss;
  };

  /// What a drawing of `width` columns shows: the losses of each column, of which some have none, and the validations, with the extremes of both.
  struct Shown {
    std::vector<Bucket> columns;
    std::vector<Validation> validations;
    double least = 0, most = 0;
  };

  static constexpr size_t kMostBuckets = 4096;

  size_t column_of(int64_t step, size_t width) const {
    return static_cast<size_t>((step - first_) * static_cast<int64_t>(width - 1) / (last_ - first_));
  }
  Shown shown_in(size_t width) const;

  int64_t first_ = 0, last_ = 0, steps_ = 0;
  int64_t steps_per_bucket_ = 1;
  std::vector<Bucket> buckets_;  ///< bucket i: steps first_ + i * steps_per_bucket_ and the next ones
  std::vector<Validation> validations_;
};

}  // namespace trireme
