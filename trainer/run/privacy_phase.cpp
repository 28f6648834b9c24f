#include "trainer/run/privacy_phase.h"

#include <algorithm>
#include <limits>

#include "parallel/crypto/key_file.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/sha256_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/machine/collectively.h"

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
privacy::History PrivacyPhase::known_history(const Resumed& resumed) const {
  privacy::History known = history_of(run_.directory());
  if (resumed.checkpoint.empty()) return known;
  const bool own = resumed.peers || is_own(resumed.checkpoint, run_.config);
  const fs::path run = own ? fs::path(run_.directory()) : fs::canonical(resumed.checkpoint).parent_path().parent_path();
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
void PrivacyPhase::digest_data() {
  if (!samples_digest_.empty()) return;
  std::string samples, weights;
  collectively(run_.world, [&] {
    if (!run_.reports()) return;
    run_.progress.act("computing a digest of the training data");
    samples = digest_of_samples(run_.data->train, run_.config.training.sequence_length);
    if (const std::string& from = run_.config.training.initial_weights; from != "none" && run_.done == 0)
      weights = digest_of_files(fs::canonical(from));
  });
  samples_digest_ = all_gather_strings(run_.world, samples)[0];
  weights_digest_ = all_gather_strings(run_.world, weights)[0];
}

void PrivacyPhase::load(const Resumed& resumed) {
  const bool is_private_now = is_private(run_.config.security);
  privacy_.reset();
  run_.affordable = std::numeric_limits<int64_t>::max();
  std::optional<crypto::Key> key;
  std::string fingerprint, known;
  collectively(run_.world, [&] {
    if (is_private_now) {
      crypto::require_sodium("security.privacy.clip");
      key = crypto::read_shared_key(*run_.config.security.privacy.key_file, "security.privacy.key_file");
      fingerprint = crypto::PrivateRandom(*key).fingerprint();
    }
    // A statement about this directory must not outlive a change to training without privacy.
    const bool concerns_privacy = is_private_now || !resumed.history.privacy.empty() || (run_.reports() && has_statement(run_.directory()));
    if (run_.reports() && concerns_privacy) known = privacy::to_json(known_history(resumed)).dump();
  });
  known = all_gather_strings(run_.world, known)[0];
  if (known.empty()) return;
  check_same_everywhere(run_.world, {{"the key in security.privacy.key_file", fingerprint}});
  if (is_private_now) digest_data();
  collectively(run_.world, [&] {
    PrivacyStart start{run_.done, run_.total, run_.data->train.sequences(), samples_digest_, weights_digest_, resumed.history.privacy};
    start.known = privacy::parse_history(parse_value(known, privacy::kStatementName), privacy::kStatementName);
    if (resumed.changed) start.changes = nlohmann::json(resumed.history.branch.back().changes).dump();
    privacy_ = std::make_unique<PrivateTraining>(run_.config, start, key ? &*key : nullptr);
  });
  run_.affordable = privacy_->last_step();
}

void PrivacyPhase::begin() {
  if (!privacy_) return;
  if (privacy_->random() != nullptr) run_.trainer->set_privacy(*privacy_->random(), privacy_->mechanism().noise);
  if (!run_.reports()) return;
  run_.reporter.message(privacy_->text());
  if (!privacy_->warning().empty()) run_.reporter.message("warning: " + privacy_->warning());
}

void PrivacyPhase::write_statement(int64_t step, const std::optional<privacy::Bracket>& tight) const {
  run_.lock->check();
  write_durably(run_.directory() / privacy::kStatementName, privacy::statement(privacy_->facts(), privacy_->history(step), tight).dump(2) + "\n");
  sync_directory(run_.directory());
}

void PrivacyPhase::before_step(int64_t step) {
  if (!privacy_ || step <= announced_) return;
  announced_ = announced_step(step, run_.config.checkpoint.every.value_or(0), run_.last_step());
  collectively(run_.world, [&] {
    if (run_.reports()) write_statement(announced_, std::nullopt);
  });
}

void PrivacyPhase::add_figures(int64_t step, nlohmann::ordered_json& fields) const {
  if (privacy_) fields["epsilon"] = privacy::to_json(privacy_->epsilon(step).value);
}

void PrivacyPhase::add_state(int64_t step, SavedState& state) const {
  if (privacy_) state.privacy = privacy_->history(step);
}

void PrivacyPhase::end() {
  if (!privacy_) return;
  collectively(run_.world, [&] {
    if (!run_.reports()) return;
    const std::optional<privacy::Bracket> tight = privacy_->tight(run_.done);
    write_statement(run_.done, tight);
    nlohmann::ordered_json fields = privacy::statement(privacy_->facts(), privacy_->history(run_.done), tight);
    fields.erase("outside");
    if (run_.audit) run_.audit->stated(run_.done, fields);
    run_.reporter.event("privacy", run_.done, fields, "privacy: " + privacy::text_of(privacy_->facts(), privacy_->epsilon(run_.done), tight));
    if (run_.done < run_.total && run_.done == privacy_->last_step())
      run_.reporter.event("privacy_budget", run_.done,
                          {{"target_epsilon", *run_.config.security.privacy.target_epsilon}, {"planned_steps", run_.total}},
                          concat("the privacy budget is used up: a step more would exceed security.privacy.target_epsilon=",
                                 *run_.config.security.privacy.target_epsilon));
  });
}

}  // namespace trireme
