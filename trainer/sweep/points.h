#pragma once
// The points of a sweep: a pure function of its file, so that every job of the sweep, and every task of an array, has the same list.
#include <string>
#include <vector>

#include "trainer/sweep/sweep_file.h"

namespace trireme::sweep {

struct Point {
  size_t index = 0;
  std::vector<Setting> settings = {};  ///< one for each axis, in file order
};

/// All combinations of the values of the axes; those of `zip` advance together, and so do random axes, whose draws vary most slowly. Then the first
/// axis varies more slowly than the second, and so forth. Every combination has the same draws, so that its points can be compared pair by pair.
/// A range test has one point.
/// Errors: ConfigError if there are more than kMostSweepPoints, or random axes have fewer than `samples` different draws.
std::vector<Point> points_of(const SweepFile& file);

/// The draw `index` of a random axis. Numbers have six significant digits.
Setting draw(const Axis& axis, int64_t seed, uint64_t index);

/// "learning_rate=0.001, layers=4"; keys are shortened to their last part where that is unique.
std::string label_of(const Point& point);

/// "007-learning_rate=0.001,layers=4": the name of the point's run and of its directory. Characters other than letters, digits and ".=,+-_" are
/// replaced, and it has at most 100 characters.
std::string name_of(const Point& point);

/// label_of's name of a key.
std::string short_key(const std::string& key, const std::vector<Setting>& settings);

}  // namespace trireme::sweep
