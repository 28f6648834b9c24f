#include "trainer/run/evaluation_phase.h"

#include <chrono>
#include <limits>

#include "kernels/core/counted.h"
#include "trainer/machine/collectively.h"

namespace trireme {

/// NaN if the evaluated batches contain no target: the mean over zero tokens.
static double loss_of(const Trainer::Evaluation& evaluation) {
  return evaluation.tokens > 0 ? evaluation.loss : std::numeric_limits<double>::quiet_NaN();
}

struct EvaluationSize {
  int64_t batches = 0, tokens = 0;
};

/// What an evaluation of all sets covers.
static EvaluationSize size_of_evaluation(const std::vector<ValidationSet>& sets, const TrainingConfig& training) {
  EvaluationSize size;
  for (const ValidationSet& set : sets) {
    const int64_t batches = evaluation_batches(set.data.sequences(), training.global_batch_size, training.evaluate.batches);
    size.batches += batches;
    size.tokens += set.data.positions(std::min(batches * training.global_batch_size, set.data.sequences()));
  }
  return size;
}

void EvaluationPhase::load(const Resumed& resumed) {
  MetricsHistory history;
  collectively(run_.world, [&] {
    if (run_.reports()) history = MetricsSink::history(run_.directory() / "metrics.jsonl");
  });
  const bool missing = run_.evaluates_at(run_.done) && history.evaluated < run_.done;
  evaluated_ = all_reduce_scalar(run_.world, run_.reports() && missing ? 1 : 0, ReduceOp::kMax) == 0;
  stopper_ = EarlyStopping(run_.config.training.stop, resumed.early_stopping);
  recalled_loss_.reset();
  const bool known = run_.reports() && run_.done > 0 && history.evaluated == run_.done;
  if (all_reduce_scalar(run_.world, known ? 1 : 0, ReduceOp::kMax) == 0) return;
  recalled_loss_ = all_reduce_scalar(run_.world, known ? history.loss : 0, ReduceOp::kSum);
  stopper_.add(run_.done, *recalled_loss_);
}

std::string EvaluationPhase::text() const {
  const TrainingConfig& training = run_.config.training;
  const auto [batches, tokens] = size_of_evaluation(run_.data->validation, training);
  const int64_t every = training.evaluate.every;
  const std::string when = every == 0 ? "at the end" : every == 1 ? "after every step" : concat("every ", every, " steps and at the end");
  return concat("evaluation ", when, ": ", counted(batches, "batch", "batches"), ", ", counted(tokens, "token"),
                training.evaluate.batches == 0 ? ", all validation data; training.evaluate.batches limits it" : "");
}

bool EvaluationPhase::evaluate(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t done = 0;
  const auto go_on = [&, batches = size_of_evaluation(run_.data->validation, run_.config.training).batches] {
    run_.reporter.evaluating(step, done++, batches, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return !run_.stop_agreed();
  };
  Trainer::Evaluation all;
  std::vector<std::pair<std::string, double>> losses;
  for (const ValidationSet& set : run_.data->validation) {
    const Trainer::Evaluation one = run_.trainer->evaluate(set.data, run_.config.training.evaluate.batches, go_on);
    all.add(one);
    if (!one.complete) break;
    if (has_named_sets(run_.config)) losses.emplace_back(set.name, loss_of(one));
  }
  kernels_.after_evaluation(step);
  evaluated_ = all.complete;
  last_ = all;
  if (!evaluated_) return false;
  if (step > 0) run_.reporter.evaluation(step, loss_of(all), losses);  // a member also evaluates the weights at the beginning
  run_.checkpoints->evaluated(step, loss_of(all));
  stopper_.add(step, loss_of(all));
  if (stopper_.reached() && step < run_.last_step())
    run_.reporter.event("early_stop", step, to_json(stopper_.state()),
                        concat("stopping early after step ", step, " of ", run_.total, ": ", stopper_.text()));
  return true;
}

void EvaluationPhase::open() {
  if (recalled_loss_) run_.checkpoints->evaluated(run_.done, *recalled_loss_);
}

void EvaluationPhase::add_state(int64_t, SavedState& state) const { state.early_stopping = stopper_.state(); }

}  // namespace trireme
