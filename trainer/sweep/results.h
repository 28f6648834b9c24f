#pragma once
// What a sweep has found: a table, files for other programs, and the best point as a configuration.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/sweep/range_test.h"
#include "trainer/sweep/standings.h"

namespace trireme::sweep {

struct ResultRow {
  const PointRun* run = nullptr;
  Standing standing;
  PointHistory history;
  int64_t steps = 0;  ///< that its metrics contain
};

struct Results {
  const SweepFile* file = nullptr;
  std::vector<ResultRow> rows;                     ///< best first: by objective within those that trained longest; then the others by index
  std::optional<RangeTestResult> range_test = {};  ///< of a range test that has begun
  /// The best point of those that trained longest; nullptr if no point has a finite objective, and for a range test.
  const ResultRow* best() const;
  size_t failed() const;
  size_t count(PointState state) const;
};

/// `standings` and `histories`: by index. Reads the metrics of the runs. Errors: those of report::read_run.
Results results_of(const SweepFile& file, const std::vector<PointRun>& runs, const std::vector<Standing>& standings,
                   const std::vector<PointHistory>& histories);

/// A table for a terminal, best first, at most `most` rows and those that failed; of a range test its sentence.
std::string results_table(const Results& results, size_t most = 40);
/// {"sweep", "objective", "points": [{"point", "name", "directory", "state", "settings", "objective", "objective_step", "steps", "seconds", "starts",
/// "failure"}], "best", "failed"}; points best first.
nlohmann::ordered_json results_json(const Results& results);
/// A row for each point, best first, with a column for each axis.
std::string results_csv(const Results& results);
/// The configuration of the best point with a comment on where it comes from; its run has a name and a directory of its own. Empty without a best point.
std::string best_yaml(const Results& results);
/// "key: a -> b" of each key that differs between the base configuration and the best point; the settings alone if the base is not valid by itself.
std::string best_difference(const Results& results);
/// Writes results.json, results.csv and best.yaml to the directory of the sweep. Errors: IoError.
void write_results(const Results& results);

}  // namespace trireme::sweep
