// Evaluation during training.
#include <chrono>
#include <limits>

#include "kernels/core/counted.h"
#include "trainer/loop/collectively.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/rank_run.h"

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

bool Run::evaluates_at(int64_t step) const {
  const int64_t every = config_.training.evaluate.every;
  return !data_->validation.empty() && !is_member() && step > 0 && ((every > 0 && step % every == 0) || step == total_);
}

/// True on every rank if any rank has received a stop request. Collective.
bool Run::stop_agreed() { return all_reduce_scalar(world_, stop_.requested() ? 1 : 0, ReduceOp::kMax) > 0; }

/// Sets what is known of the evaluation after step done_ at a start. metrics.jsonl has it, because a checkpoint is saved before its evaluation.
void Run::recall_evaluation(const Resumed& resumed) {
  MetricsHistory history;
  collectively(world_, [&] {
    if (reports()) history = MetricsSink::history(directory() / "metrics.jsonl");
  });
  const bool missing = evaluates_at(done_) && history.evaluated < done_;
  evaluated_ = all_reduce_scalar(world_, reports() && missing ? 1 : 0, ReduceOp::kMax) == 0;
  stopper_ = EarlyStopping(config_.training.stop, resumed.early_stopping);
  recalled_loss_.reset();
  const bool known = reports() && done_ > 0 && history.evaluated == done_;
  if (all_reduce_scalar(world_, known ? 1 : 0, ReduceOp::kMax) == 0) return;
  recalled_loss_ = all_reduce_scalar(world_, known ? history.loss : 0, ReduceOp::kSum);
  stopper_.add(done_, *recalled_loss_);
}

/// What each evaluation of this run covers, so that a user knows the cost of the default, the whole set.
std::string Run::evaluation_text() const {
  const TrainingConfig& training = config_.training;
  const auto [batches, tokens] = size_of_evaluation(data_->validation, training);
  const int64_t every = training.evaluate.every;
  const std::string when = every == 0 ? "at the end" : every == 1 ? "after every step" : concat("every ", every, " steps and at the end");
  return concat("evaluation ", when, ": ", counted(batches, "batch", "batches"), ", ", counted(tokens, "token"),
                training.evaluate.batches == 0 ? ", all validation data; training.evaluate.batches limits it" : "");
}

/// Returns false if a stop request ended the evaluation between two batches; then nothing of it is reported.
bool Run::evaluate(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t done = 0;
  const auto go_on = [&, batches = size_of_evaluation(data_->validation, config_.training).batches] {
    reporter_.evaluating(step, done++, batches, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return !stop_agreed();
  };
  Trainer::Evaluation all;
  std::vector<std::pair<std::string, double>> losses;
  for (const ValidationSet& set : data_->validation) {
    const Trainer::Evaluation one = trainer_->evaluate(set.data, config_.training.evaluate.batches, go_on);
    all.add(one);
    if (!one.complete) break;
    if (has_named_sets(config_)) losses.emplace_back(set.name, loss_of(one));
  }
  if (first_step_reported_) {
    warn_of_plain_products(step);
    report_attention(step);
  }
  evaluated_ = all.complete;
  last_evaluation_ = all;
  if (!evaluated_) return false;
  if (step > 0) reporter_.evaluation(step, loss_of(all), losses);  // a member also evaluates the weights at the beginning
  checkpoints_->evaluated(step, loss_of(all));
  stopper_.add(step, loss_of(all));
  if (stopper_.reached() && step < last_step())
    reporter_.event("early_stop", step, to_json(stopper_.state()), concat("stopping early after step ", step, " of ", total_, ": ", stopper_.text()));
  return true;
}

}  // namespace trireme
