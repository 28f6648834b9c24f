#include "trainer/run/job_audit.h"

#include "trainer/config/write.h"
#include "trainer/files/sha256_file.h"
#include "trainer/machine/build_info.h"
#include "trainer/machine/environment.h"
#include "trainer/model/flops.h"

namespace trireme {

/// What this job records about itself.
static audit::Job job_of(const RunContext& run, const Resumed& resumed) {
  const int per_host = run.options.ranks_per_host.value_or(run.world.size());
  audit::Job job;
  job.version = version();
  job.build = version_text();
  job.binary = sha256_of_file("/proc/self/exe");
  job.layout = describe_layout(run.trainer->mesh().shape);
  job.world_size = run.world.size();
  job.hosts = (run.world.size() + per_host - 1) / per_host;
  job.configuration = to_yaml(run.config);
  job.data = run.training_data;
  job.seed = run.config.run.seed;
  job.checkpoint = resumed.checkpoint;
  job.own_checkpoint = !resumed.checkpoint.empty() && is_own(resumed.checkpoint, run.config);
  if (resumed.changed) job.changes = nlohmann::ordered_json(resumed.history.branch.back().changes);
  return job;
}

static audit::RunSummary summary_of(const Config& config, int64_t steps) {
  return {config.run.name, describe_model(config.model), parameter_count(config.model), steps};
}

void open_audit(RunContext& run, const Resumed& resumed) {
  if (!run.config.security.audit.enabled) return;
  run.audit = std::make_unique<audit::RunAudit>(run.directory(), run.config.security, [&run] { run.lock->check(); });
  run.audit->set_summary(summary_of(run.config, run.total));
  run.audit->begin(job_of(run, resumed));
}

void complete_audit(const RunContext& run, const Resumed& resumed) {
  if (!run.reports()) return;
  std::unique_ptr<RunLock> own_lock;
  const auto check = [&] { (run.lock ? run.lock : own_lock)->check(); };
  if (!audit::RunAudit(run.directory(), run.config.security, check).is_incomplete()) return;
  if (!run.lock) {
    try {
      own_lock = std::make_unique<RunLock>(run.directory());
    } catch (const ConfigError&) {  // the job that is ending holds it
      return;
    }
  }
  audit::RunAudit log(run.directory(), run.config.security, check);
  log.set_summary(summary_of(run.config, run.total));
  log.complete(job_of(run, resumed));
}

void end_audit(RunContext& run, const char* status, const std::string& reason) {
  if (run.audit) run.audit->end(status, run.done, reason);
}

}  // namespace trireme
