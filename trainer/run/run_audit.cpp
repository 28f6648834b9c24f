// The audit log of a run.
#include "trainer/config/write.h"
#include "trainer/files/sha256_file.h"
#include "trainer/loop/build_info.h"
#include "trainer/loop/environment.h"
#include "trainer/model/flops.h"
#include "trainer/run/rank_run.h"

namespace trireme {

/// What this job records about itself.
audit::Job Run::audit_job(const Resumed& resumed) const {
  const int per_host = options_.ranks_per_host.value_or(world_.size());
  audit::Job job;
  job.version = version();
  job.build = version_text();
  job.binary = sha256_of_file("/proc/self/exe");
  job.layout = describe_layout(trainer_->mesh().shape);
  job.world_size = world_.size();
  job.hosts = (world_.size() + per_host - 1) / per_host;
  job.configuration = to_yaml(config_);
  job.data = training_data_;
  job.seed = config_.run.seed;
  job.checkpoint = resumed.checkpoint;
  job.own_checkpoint = !resumed.checkpoint.empty() && is_own(resumed.checkpoint, config_);
  if (resumed.changed) job.changes = nlohmann::ordered_json(resumed.history.branch.back().changes);
  return job;
}

static audit::RunSummary summary_of(const Config& config, int64_t steps) {
  return {config.run.name, describe_model(config.model), parameter_count(config.model), steps};
}

/// On rank 0, which holds the lock, before anything of this job is written.
void Run::open_audit(const Resumed& resumed) {
  if (!config_.security.audit.enabled) return;
  audit_ = std::make_unique<audit::RunAudit>(directory(), config_.security, [this] { lock_->check(); });
  audit_->set_summary(summary_of(config_, total_));
  audit_->begin(audit_job(resumed));
}

/// Writes what a job that was killed at its very end has left out. On rank 0.
void Run::complete_audit(const Resumed& resumed) {
  if (!reports()) return;
  std::unique_ptr<RunLock> own_lock;
  const auto check = [&] { (lock_ ? lock_ : own_lock)->check(); };
  if (!audit::RunAudit(directory(), config_.security, check).is_incomplete()) return;
  if (!lock_) {
    try {
      own_lock = std::make_unique<RunLock>(directory());
    } catch (const ConfigError&) {  // the job that is ending holds it
      return;
    }
  }
  audit::RunAudit log(directory(), config_.security, check);
  log.set_summary(summary_of(config_, total_));
  log.complete(audit_job(resumed));
}

/// On rank 0; has no effect without an audit log.
void Run::end_audit(const char* status, const std::string& reason) {
  if (audit_) audit_->end(status, done_, reason);
}

}  // namespace trireme
