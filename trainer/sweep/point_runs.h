#pragma once
// The points of a sweep as runs: each configuration is loaded, checked and resolved before anything is written.
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/sweep/points.h"

namespace trireme::sweep {

struct PointRun {
  Point point;
  std::string name;   ///< name_of
  Config config;      ///< resolved; run.name and run.directory are those that the sweep gives it
  int64_t steps = 0;  ///< of the complete run
  int ranks = 1;
};

/// Run directory of a point: DIRECTORY/points/NAME.
std::string run_directory(const std::string& sweep_directory, const std::string& name);

/// Loads all points. Errors: ConfigError with every violation of any point, at the position of the value in the sweep file; also if two points are the
/// same run; MissingFileError and DataError if the base configuration or data cannot be read.
std::vector<PointRun> load_points(const SweepFile& file, const std::vector<Point>& points);

/// The resolved base configuration with `set` but without the values of axes; nullopt if it is not valid alone, or gone.
std::optional<Config> base_config(const SweepFile& file);

}  // namespace trireme::sweep
