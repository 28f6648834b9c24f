#pragma once
// `trireme compare`: what differs between two runs, from where on, and why.
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/field.h"
#include "trainer/report/checkpoint_comparison.h"
#include "trainer/report/run_record.h"

namespace trireme::report {

enum class Result : uint8_t { kEqual, kDifferent, kUnknown };
const char* name_of(Result result);  ///< "equal", "different", "not recorded"

/// What one part of two runs compares like: "configuration", "code", "hardware", "data", "sample ids", "micro-batches" (only with
/// decisions of resilience.rebalance), "jobs" (only where results differ), "losses", "gradient norms", "learning rates", "steps", "validation losses", "checkpoints".
struct Part {
  std::string name;
  Result result = Result::kEqual;
  std::string detail;  ///< one line; of what differs, or what was compared
};

/// A configuration key whose values differ.
struct KeyValues {
  std::string key;
  std::array<std::string, 2> values;      ///< empty: not set. Those at the end, or, if these are equal, of the first step at which they differ
  Aspect decides = Aspect::kMathematics;  ///< of an unknown key: mathematics
  std::string remark = {};                ///< why it does not count, or since when it differs, and whether it is equal again
  bool ends_equal = false;
  bool counts = true;  ///< false for names and directories, and for paths of equal data
};

/// The first step at which a figure differs.
struct StepDifference {
  int64_t step = 0;
  std::string figure;  ///< "loss", "grad_norm", ..., "validation_loss"
  std::array<double, 2> values{0, 0};
};

/// What the jobs of two runs had different while they trained the same step.
struct JobDifference {
  int64_t step = 0;    ///< the first such step
  std::string layout;  ///< ranks, threads and keys of the layout, "world_size 1 -> 2"; empty if only the hosts differ
  std::string hosts;   ///< "x -> y"; empty if they are the same
};

struct Comparison {
  std::array<std::string, 2> runs;  ///< as named on the command line
  std::vector<Part> parts;
  std::vector<KeyValues> keys;
  std::optional<StepDifference> step;      ///< the earliest
  std::optional<int64_t> splits_from;      ///< the first common step whose micro-batches were split differently
  std::vector<JobDifference> jobs;         ///< of the steps that both have, where something else begins to differ
  std::optional<TensorDifference> tensor;  ///< the first in the order of the model, of the earliest checkpoint that differs
  CheckpointComparison checkpoints;
  std::string cause;  ///< a sentence; empty if the runs are equal

  bool equal() const;  ///< restarts, times, names, hosts and directories do not count
};

/// Compares what both runs have recorded, and all checkpoints of the same steps.
Comparison compare(const RunRecord& a, const RunRecord& b, CheckpointComparison checkpoints);

std::string comparison_text(const Comparison& comparison);  ///< a short table, the first difference and the likely cause
nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace trireme::report
