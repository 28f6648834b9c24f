#include "trainer/run/checkpoint_manager.h"

#include <algorithm>
#include <filesystem>

#include "trainer/config/write.h"
#include "trainer/loop/state.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

std::filesystem::path directory_of(const Config& config) { return std::filesystem::path(config.run.directory) / "checkpoints"; }

std::function<AuditAnchor(const CheckpointDescription&, const std::string&)> anchor_of(audit::RunAudit* audit) {
  if (audit == nullptr) return {};
  return [audit](const CheckpointDescription& about, const std::string& manifest) { return audit->anchor(about, manifest); };
}

}  // namespace

double state_timeout(const Config& config) {
  constexpr double kSetUp = 600, kSlowestDisk = 1e8;
  return kSetUp + static_cast<double>(state_bytes(config)) / kSlowestDisk;
}

CheckpointManager::CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data,
                                     RunHistory history, const RunLock* lock, Reporter& reporter, Progress& progress, audit::RunAudit* audit)
    : CheckpointManager(trainer, config, session, std::move(training_data), std::move(history), copy_of(Tokenizer::open(config.data.tokenizer)), lock,
                        reporter, progress, audit) {}

CheckpointManager::CheckpointManager(Trainer& trainer, const Config& config, const std::string& session, std::string training_data,
                                     RunHistory history, TokenizerCopy tokenizer, const RunLock* lock, Reporter& reporter, Progress& progress,
                                     audit::RunAudit* audit)
    : trainer_(trainer),
      world_(trainer.mesh().world),
      config_(config),
      tokenizer_(std::move(tokenizer.entry)),
      training_data_(std::move(training_data)),
      history_(std::move(history)),
      lock_(lock),
      reporter_(reporter),
      progress_(progress),
      checkpointer_({directory_of(config), session, world_.rank(), world_.size(), config.checkpoint.keep, config.checkpoint.asynchronous,
                     std::chrono::seconds(static_cast<int64_t>(state_timeout(config))),
                     [this] {
                       lock_->check();
                       reporter_.sync();
                     },
                     std::move(tokenizer.texts), config.checkpoint.keep_best, config.checkpoint.keep_every, true, config.security.audit.enabled,
                     anchor_of(audit)}),
      last_saved_(history_.step) {}

void CheckpointManager::save(int64_t step, const SavedState& state) {
  progress_.act("saving step " + std::to_string(step));
  progress_.set_timeout(2 * state_timeout(config_));  // writing this rank's part, then waiting for the others
  finish();
  if (reports()) checkpointer_.discard_failed();
  const auto obstacle = reports() ? free_space_error(directory_of(config_), state_bytes(config_)) : std::nullopt;
  failed_ = all_reduce_scalar(world_, obstacle ? 1 : 0, ReduceOp::kMax) > 0;
  outcome_.reset();
  if (failed_) return note(SaveReport{step, 0, 0, 0, obstacle});
  last_saved_ = step;
  in_flight_ = reports();
  checkpointer_.save(describe(step, state), state_tensors(trainer_));
}

CheckpointDescription CheckpointManager::describe(int64_t step, const SavedState& state) const {
  const std::vector<int64_t> rejections = island_numbers(trainer_, state.rejected_steps);
  const int64_t most_rejected = rejections.empty() ? state.rejected_steps : std::ranges::max(rejections);
  const int64_t samples = (step - history_.step) * config_.training.global_batch_size;  // since the start of this job
  return {step,
          history_.tokens + samples * config_.training.sequence_length - state.padding,
          trainer_.scalars().accepted_steps(),
          to_yaml(config_),
          describe_model(config_.model),
          tokenizer_,
          training_data_,
          config_.run.seed,
          history_.samples + samples,
          describe_layout(trainer_.mesh().shape),
          scales_loss(config_.training) ? std::optional(trainer_.scalars().loss_scale()) : std::nullopt,
          most_rejected,
          history_.branch,
          state.early_stopping,
          state.anomaly_window,
          history_.product_algorithms,
          config_.resilience.rebalance == Rebalance::kNone ? MicroBatchSplit() : trainer_.batches().split(),
          island_numbers(trainer_, trainer_.scalars().accepted_steps()),
          rejections,
          state.privacy};
}

void CheckpointManager::poll() {
  note(checkpointer_.take_report());
  record_evaluation();
}

void CheckpointManager::evaluated(int64_t step, double loss) {
  if (!reports() || config_.checkpoint.keep_best == 0) return;
  evaluated_ = {step, loss};
  record_evaluation();
}

void CheckpointManager::record_evaluation() {
  if (!evaluated_ || in_flight_ || evaluated_->first != last_saved_) return;
  const auto [step, loss] = *std::exchange(evaluated_, std::nullopt);
  const std::filesystem::path checkpoint = directory_of(config_) / checkpoint_name(step);
  if (!std::filesystem::exists(checkpoint) || recorded_loss(checkpoint)) return;  // the save has failed, or the checkpoint is that of another run
  try {
    lock_->check();
    record_loss(checkpoint, step, loss);
  } catch (const Error& error) {
    reporter_.message(concat("warning: ", checkpoint.string(), " does not count for checkpoint.keep_best: ", error.what()));
  }
}

void CheckpointManager::remove_old() {
  if (reports() && config_.checkpoint.keep_best > 0) checkpointer_.remove_old(last_saved_);
}

/// Rank 0 finishes last: it waits for the parts of all ranks, unless one is known to have failed.
void CheckpointManager::finish() {
  if (!reports()) note(checkpointer_.finish());
  share_failures();
  if (reports()) note(checkpointer_.finish());
  record_evaluation();
}

void CheckpointManager::share_failures() {
  const std::vector<std::string> reasons = all_gather_strings(world_, std::exchange(failure_to_tell_, {}));
  const auto failed = std::find_if(reasons.begin(), reasons.end(), [](const std::string& reason) { return !reason.empty(); });
  if (failed == reasons.end()) return;
  checkpointer_.give_up(concat("rank ", failed - reasons.begin(), ": ", *failed));
  collectively(world_, [&] {  // if the run directory is lost, nothing that this job does can be saved
    if (reports()) lock_->check();
  });
}

/// The failure of any rank makes rank 0's save fail too and rank 0 reports the cause: one message per job.
void CheckpointManager::note(const std::optional<SaveReport>& report) {
  if (!report) return;
  in_flight_ = false;
  if (report->error) {
    failed_ = true;
    failure_to_tell_ = *report->error;
  }
  outcome_ = report;
  reporter_.saved(*report);
}

}  // namespace trireme
