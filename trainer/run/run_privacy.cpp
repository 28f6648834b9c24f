// security.privacy in a run: its key, RUN/privacy.json, the budget, and what is reported.
#include <algorithm>

#include "parallel/crypto/key_file.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/sha256_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/loop/collectively.h"
#include "trainer/run/rank_run.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

bool has_statement(const fs::path& run_directory) { return fs::exists(fs::symlink_status(run_directory / privacy::kStatementName)); }

/// The history in privacy.json of a run directory; empty if there is no such file.
privacy::History history_of(const fs::path& run_directory) {
  if (!has_statement(run_directory)) return {};
  const fs::path path = run_directory / privacy::kStatementName;
  return privacy::history_in(read_text(path, int64_t{1} << 26), path.string());
}

/// Covers everything that steps read: tokens, targets and documents of all samples.
std::string digest_of_samples(const Dataset& data, int64_t sequence) {
  std::vector<int32_t> values(static_cast<size_t>(2 * sequence));
  std::vector<int64_t> lengths;
  crypto::Sha256 hash;
  for (int64_t sample = 0; sample < data.sequences(); ++sample) {
    lengths.clear();
    data.read(sample, values.data(), values.data() + sequence, lengths);
    hash.update(values.data(), values.size() * sizeof(int32_t));
    hash.update(lengths.data(), lengths.size() * sizeof(int64_t));
  }
  return crypto::hex(hash.finish());
}

/// Covers the files of a checkpoint or of a Hugging Face folder.
std::string digest_of_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  std::string digests;
  for (const fs::path& file : files) digests += sha256_of_file(file);
  return crypto::hex(crypto::sha256(digests));
}

}  // namespace

/// What jobs of this run, and of the run that the checkpoint belongs to, may have released. On rank 0.
/// Errors: DataError if the privacy.json beside the checkpoint is missing, or older than the checkpoint.
privacy::History Run::known_history(const Resumed& resumed) const {
  privacy::History known = history_of(directory());
  if (resumed.checkpoint.empty()) return known;
  const bool own = resumed.peers || is_own(resumed.checkpoint, config_);
  const fs::path run = own ? fs::path(directory()) : fs::canonical(resumed.checkpoint).parent_path().parent_path();
  const privacy::History source = own ? known : history_of(run);
  for (const privacy::Segment& saved : resumed.history.privacy) {
    const bool found = std::ranges::any_of(source, [&](privacy::Segment one) {
      const bool as_long = one.steps >= saved.steps;
      one.steps = saved.steps;
      return as_long && one == saved;
    });
    if (!found)
      throw DataError(
          concat("cannot resume from ", resumed.checkpoint, ": ", (run / privacy::kStatementName).string(),
                 " is missing, or older than the checkpoint. It has the steps that jobs may have released after the checkpoint; restore it"));
  }
  if (!own) known.insert(known.end(), source.begin(), source.end());
  return known;
}

/// Collective. Rank 0 reads all data once.
void Run::digest_private_data() {
  if (!samples_digest_.empty()) return;
  std::string samples, weights;
  collectively(world_, [&] {
    if (!reports()) return;
    progress_.act("computing a digest of the training data");
    samples = digest_of_samples(data_->train, config_.training.sequence_length);
    if (const std::string& from = config_.training.initial_weights; from != "none" && done_ == 0) weights = digest_of_files(fs::canonical(from));
  });
  samples_digest_ = all_gather_strings(world_, samples)[0];
  weights_digest_ = all_gather_strings(world_, weights)[0];
}

/// Collective. Called again under the lock on the run directory, as another job may have been ending.
void Run::open_privacy(const Resumed& resumed) {
  const bool is_private_now = is_private(config_.security);
  privacy_.reset();
  std::optional<crypto::Key> key;
  std::string fingerprint, known;
  collectively(world_, [&] {
    if (is_private_now) {
      crypto::require_sodium("security.privacy.clip");
      key = crypto::read_shared_key(*config_.security.privacy.key_file, "security.privacy.key_file");
      fingerprint = crypto::PrivateRandom(*key).fingerprint();
    }
    // A statement about this directory must not outlive a change to training without privacy.
    const bool concerns_privacy = is_private_now || !resumed.history.privacy.empty() || (reports() && has_statement(directory()));
    if (reports() && concerns_privacy) known = privacy::to_json(known_history(resumed)).dump();
  });
  known = all_gather_strings(world_, known)[0];
  if (known.empty()) return;
  check_same_everywhere(world_, {{"the key in security.privacy.key_file", fingerprint}});
  if (is_private_now) digest_private_data();
  collectively(world_, [&] {
    PrivacyStart start{done_, total_, data_->train.sequences(), samples_digest_, weights_digest_, resumed.history.privacy};
    start.known = privacy::parse_history(parse_value(known, privacy::kStatementName), privacy::kStatementName);
    if (resumed.changed) start.changes = nlohmann::json(resumed.history.branch.back().changes).dump();
    privacy_ = std::make_unique<PrivateTraining>(config_, start, key ? &*key : nullptr);
  });
}

/// Tells the trainer, and the user what the job is about to do.
void Run::begin_privacy() {
  if (!privacy_) return;
  if (privacy_->random() != nullptr) trainer_->set_privacy(*privacy_->random(), privacy_->mechanism().noise);
  if (!reports()) return;
  reporter_.message(privacy_->text());
  if (!privacy_->warning().empty()) reporter_.message("warning: " + privacy_->warning());
}

void Run::write_statement(int64_t step, const std::optional<privacy::Bracket>& tight) const {
  lock_->check();
  write_durably(directory() / privacy::kStatementName, privacy::statement(privacy_->facts(), privacy_->history(step), tight).dump(2) + "\n");
  sync_directory(directory());
}

/// Writes the steps up to the next checkpoint to privacy.json before the first of them, so that none is forgotten if the job is killed. Collective.
void Run::announce_steps(int64_t step) {
  if (!privacy_ || step <= announced_) return;
  announced_ = announced_step(step, config_.checkpoint.every.value_or(0), last_step());
  collectively(world_, [&] {
    if (reports()) write_statement(announced_, std::nullopt);
  });
}

/// At the end of a job: the exact number of steps, the second accountant, and the line that an auditor reads. Collective.
void Run::report_privacy() {
  if (!privacy_) return;
  collectively(world_, [&] {
    if (!reports()) return;
    const std::optional<privacy::Bracket> tight = privacy_->tight(done_);
    write_statement(done_, tight);
    nlohmann::ordered_json fields = privacy::statement(privacy_->facts(), privacy_->history(done_), tight);
    fields.erase("outside");
    if (audit_) audit_->stated(done_, fields);
    reporter_.event("privacy", done_, fields, "privacy: " + privacy::text_of(privacy_->facts(), privacy_->epsilon(done_), tight));
    if (done_ < total_ && done_ == privacy_->last_step())
      reporter_.event("privacy_budget", done_, {{"target_epsilon", *config_.security.privacy.target_epsilon}, {"planned_steps", total_}},
                      concat("the privacy budget is used up: a step more would exceed security.privacy.target_epsilon=",
                             *config_.security.privacy.target_epsilon));
  });
}

}  // namespace trireme
