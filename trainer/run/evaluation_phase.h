#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/run/early_stopping.h"
#include "trainer/run/kernel_notes.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"

namespace trireme {

/// Evaluation during training, and whether it stops the run early.
class EvaluationPhase final : public RunPhase {
 public:
  EvaluationPhase(RunContext& run, KernelNotes& kernels) : run_(run), kernels_(kernels) {}

  /// Sets what is known of the evaluation after the steps that are done. metrics.jsonl has it, because a checkpoint is saved before its evaluation.
  /// Collective.
  void load(const Resumed& resumed) override;
  void open() override;
  void add_state(int64_t step, SavedState& state) const override;
  /// What each evaluation of this run covers, so that a user knows the cost of the default, the whole set.
  std::string text() const;
  /// Returns false if a stop request ended the evaluation between two batches; then nothing of it is reported. Collective.
  bool evaluate(int64_t step);
  /// False if the evaluation due after the steps that are done is missing: a run may be stopped or killed in it.
  bool is_complete() const { return evaluated_; }
  const Trainer::Evaluation& last() const { return last_; }
  const EarlyStopping& stopper() const { return stopper_; }

 private:
  RunContext& run_;
  KernelNotes& kernels_;
  bool evaluated_ = false;    ///< is_complete()
  Trainer::Evaluation last_;  ///< of all validation sets
  EarlyStopping stopper_;
  std::optional<double> recalled_loss_;  ///< of an evaluation after the steps done that was made before this start
};

}  // namespace trireme
