#include "tests/support/audited_run.h"

#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;

namespace trireme::test {

SecurityConfig audited(const std::optional<std::string>& key_file) {
  SecurityConfig config;
  config.audit.enabled = true;
  config.audit.signing_key_file = key_file;
  return config;
}

audit::Job small_job(const std::string& checkpoint) {
  audit::Job job;
  job.version = "0.1.0 (test)";
  job.build = "trireme 0.1.0";
  job.binary = std::string(64, 'b');
  job.layout = {{"tensor", 1}, {"data", 1}};
  job.configuration = "run: {name: test}\n";
  job.data = "0123456789abcdef";
  job.seed = 7;
  job.checkpoint = checkpoint;
  return job;
}

AuditedJob::AuditedJob(const fs::path& directory, const std::optional<std::string>& key_file, std::function<void()> observe)
    : directory_(directory), log_(directory, audited(key_file), [] {}), checkpointer_([&] {
        CheckpointOptions options{directory / "checkpoints", "s1", 0, 1, 0, false};
        options.audited = true;
        options.anchor = [this, observe](const CheckpointDescription& about, const std::string& manifest) {
          const AuditAnchor anchor = log_.anchor(about, manifest);
          if (observe) observe();
          return anchor;
        };
        return options;
      }()) {}

void AuditedJob::begin(const audit::Job& job) {
  log_.set_summary({"test", {{"architecture", "llama"}}, 12});
  log_.begin(job);
  write_durably(directory_ / "config.yaml", job.configuration);
}

void AuditedJob::save(int64_t step) {
  CheckpointDescription about;
  about.step = step;
  about.tokens = 100 * step;
  about.config = small_job().configuration;
  about.model = {{"architecture", "llama"}};
  about.training_data = small_job().data;
  about.layout = {{"tensor", 1}};
  const std::vector<float> values = {static_cast<float>(step), 1, 2, 3, 4, 5};
  const StateTensor tensor{"weight/w", DType::kF32, {2, 3}, 2, {{0, 0}, {2, 3}}, values.data()};
  checkpointer_.save(about, {&tensor, 1});
  const auto report = checkpointer_.finish();
  TRIREME_CHECK(report && !report->error, report ? report->error.value_or("") : "no report");
}

std::string checkpoint_of(const fs::path& directory, int64_t step) { return (directory / "checkpoints" / checkpoint_name(step)).string(); }

void make_audited_run(const fs::path& directory, const std::optional<std::string>& key_file) {
  fs::create_directories(directory / "checkpoints");
  {
    AuditedJob job(directory, key_file);
    job.begin(small_job());
    job.log().stepped(1, 5.5, {{"3", 12.25}});
    job.save(2);
    job.log().evaluated(2, {{"validation_loss", 5.25}});
    job.save(4);
    job.log().end("stopped", 4);
  }
  AuditedJob job(directory, key_file);
  job.begin(small_job(checkpoint_of(directory, 4)));
  job.log().stepped(6, 4.5, {});
  job.save(6);
  job.log().evaluated(6, {{"validation_loss", 4.75}});
  job.log().end("done", 6);
}

}  // namespace trireme::test
