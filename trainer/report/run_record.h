#pragma once
// What a run leaves in its directory, read for `trireme report` and `trireme compare`: config.yaml, environment.json and metrics.jsonl.
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/rank_step_times.h"
#include "trainer/report/slurm_tries.h"
#include "trainer/resilience/job_record.h"
#include "trainer/submit/accounts.h"

namespace trireme::report {

/// The figures of a step event that are kept, one column each.
enum class Figure : uint8_t { kLoss, kGradNorm, kLearningRate, kTokens, kStepSeconds, kTokensPerSecond, kModelTflops, kMfu, kLossScale };
inline constexpr std::array kFigureNames{"loss",         "grad_norm", "learning_rate", "tokens", "step_seconds", "tokens_per_second",
                                         "model_tflops", "mfu",       "loss_scale"};

/// The step events in the order of their steps. A figure that a line does not have, or has as null (NaN and infinity), is NaN.
struct StepTable {
  std::vector<int64_t> step;
  std::vector<double> time;             ///< end of the step in seconds since 1970, UTC; NaN: not recorded
  std::vector<double> elapsed_seconds;  ///< sum of step_seconds up to and including the step: without evaluations, saves and pauses between jobs
  std::array<std::vector<double>, kFigureNames.size()> figures;
  /// The data ranks that security.aggregation suspected in each step, with their distances; NaN: infinite.
  std::vector<std::vector<std::pair<int, double>>> suspects;

  size_t size() const { return step.size(); }
  std::span<const double> operator[](Figure figure) const { return figures[static_cast<size_t>(figure)]; }
  bool has(Figure figure) const;  ///< true if a step has a finite value
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;                                   ///< NaN if it was not finite
  std::vector<std::pair<std::string, double>> sets;  ///< of each validation set that has a name
  double time = 0;                                   ///< seconds since 1970, UTC; NaN: not recorded
};

/// Any other event, such as "start", "checkpoint", "memory" or "rejected_step".
struct EventRecord {
  std::string kind;
  int64_t after_step = 0;  ///< the event's step; if it has none, the last step in the file before it
  double time = 0;         ///< seconds since 1970, UTC; NaN: not recorded
  nlohmann::ordered_json fields;
};

/// How much of the steps' time the ranks spent on what, on the mean, as far as it was measured: on CPUs always, on GPUs in traced steps.
struct StepShares {
  double measured = 0;       ///< seconds of steps that were divided; 0: none
  double communication = 0;  ///< seconds of them in which a rank waited for others: exposed communication and bubbles
  double data = 0;           ///< seconds of them in which it read samples
};

/// Keys of config.yaml with their values as text, in file order; text without quotes, lists as "[a, b]".
using ConfigTexts = std::vector<std::pair<std::string, std::string>>;

/// Errors: ConfigError if `yaml` is not a YAML mapping.
ConfigTexts config_texts(const std::string& yaml);

struct RunRecord {
  std::filesystem::path directory;
  std::string config_yaml;  ///< contents of config.yaml; empty if there is none
  ConfigTexts config;
  nlohmann::ordered_json environment = nlohmann::ordered_json::object();
  StepTable steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<EventRecord> events;
  RankStepTimes ranks;
  std::vector<SlurmTry> slurm;  ///< starts of its Slurm jobs
  submit::Accounts accounts;    ///< what Slurm says about them, if it was asked
  StepShares shares;
  std::vector<JobRecord> jobs;        ///< of jobs.jsonl; runs of older versions have none
  int64_t skipped_lines = 0;          ///< lines of metrics.jsonl that are cut, damaged or too long
  std::vector<std::string> problems;  ///< sentences about files that are missing or damaged

  std::string value(const std::string& key) const;  ///< of config.yaml; empty if there is none
  std::string name() const;                         ///< run.name; the directory's name if there is none
  const EventRecord* first(const std::string& kind) const;
  const EventRecord* last(const std::string& kind) const;
};

/// Reads a run, also one that is being written. Lines of metrics.jsonl that cannot be read are skipped and counted. If a step occurs again, the later
/// lines count, as after a roll-back. Memory does not grow with the number of ranks times steps.
/// Errors: MissingFileError if the directory does not exist; DataError if it is not the directory of a run: neither config.yaml nor metrics.jsonl;
/// IoError.
RunRecord read_run(const std::filesystem::path& directory);

/// A number of an event; NaN if it is not there or not a number.
double number_in(const nlohmann::ordered_json& object, const char* key);

/// A label for each run: its name, or its directory if two names are equal.
std::vector<std::string> labels_of(std::span<const RunRecord> runs);

}  // namespace trireme::report
