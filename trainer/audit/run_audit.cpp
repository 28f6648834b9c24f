#include "trainer/audit/run_audit.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/core/writable_file.h"
#include "parallel/crypto/key_file.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/descriptor.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/privacy/statement.h"

namespace fs = std::filesystem;

namespace trireme::audit {

using nlohmann::ordered_json;

namespace {

constexpr const char* kKeyName = "security.audit.signing_key_file";
constexpr const char* kHowToContinue = "restore it, or set security.audit.enabled to false to continue without an audit log";

std::optional<crypto::SigningKey> key_of(const SecurityConfig& config) {
  crypto::require_sodium("security.audit.enabled=true");
  if (!config.audit.signing_key_file) return std::nullopt;
  return crypto::read_signing_key(*config.audit.signing_key_file, kKeyName);
}

std::string digest_of_text(std::string_view text) { return crypto::hex(crypto::sha256(text)); }

ordered_json new_record(const char* event) { return {{"event", event}, {"time", utc_text(WallClock::now())}}; }

/// A checkpoint as its manifest describes it.
struct CheckpointFacts {
  int64_t step;
  int64_t tokens;
  std::string configuration;
  std::string training_data;
  std::string manifest;  ///< SHA-256 of the manifest without its anchor
  std::optional<AuditAnchor> anchor;

  /// What the record of the checkpoint says about it.
  ordered_json recorded() const { return {{"step", step}, {"tokens", tokens}, {"manifest", manifest}}; }
};

CheckpointFacts read_facts(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  const std::string text = read_text(path, kMaxInteger, Links::kRefuse);
  const Manifest manifest = parse_manifest(text, path.string());
  const CheckpointDescription& about = manifest.description;
  return {about.step, about.tokens, about.config, about.training_data, digest_of_text(text_without_anchor(text, path.string())), manifest.audit};
}

/// What the run has released of its training data up to a checkpoint.
ordered_json privacy_record(const CheckpointDescription& about, const PrivacyConfig& config) {
  ordered_json record = new_record("privacy");
  record["step"] = about.step;
  record["clip"] = config.clip ? ordered_json(*config.clip) : ordered_json();
  record["delta"] = config.delta ? ordered_json(*config.delta) : ordered_json();
  record["epsilon"] =
      config.clip && config.delta ? privacy::to_json(privacy::rdp_epsilon(privacy::steps_of(about.privacy), *config.delta).value) : ordered_json();
  record["history"] = privacy::to_json(about.privacy);
  return record;
}

bool describes(const Record& record, const CheckpointFacts& checkpoint) {
  return record.event() == "checkpoint" && record.member("step") == checkpoint.step && record.text("manifest") == checkpoint.manifest;
}

}  // namespace

void check_audit(const SecurityConfig& config) {
  if (config.audit.enabled) key_of(config);
}

RunAudit::RunAudit(fs::path run_directory, const SecurityConfig& config, std::function<void()> may_write)
    : directory_(std::move(run_directory)), may_write_(std::move(may_write)), key_(key_of(config)), privacy_(config.privacy) {
  existed_ = fs::exists(fs::symlink_status(path()));
  if (existed_) before_ = read_log(path());
  head_ = before_.head;
  for (const Record& record : before_.records)
    if (is_start(record)) start_ = record.value;
}

/// Compares the checkpoint that a job resumes from with the log.
void RunAudit::check_anchor(const std::string& checkpoint) const {
  const CheckpointFacts facts = read_facts(checkpoint);
  const std::string refusal = concat("cannot resume from ", checkpoint, ": ");
  if (!facts.anchor) return check_unaudited(facts.step, facts.manifest, refusal);
  const std::string in_it = concat("record ", facts.anchor->records - 1, " of the audit log");
  if (!existed_) throw DataError(concat(refusal, "its manifest names ", in_it, ", and ", path().string(), " does not exist; ", kHowToContinue));
  const Record* const record = before_.at(*facts.anchor);
  if (record == nullptr)
    throw DataError(concat(refusal, "its manifest names ", in_it, ", which ", path().string(), ", of ", before_.head.records,
                           " records, does not contain: it was shortened or changed; ", kHowToContinue));
  if (!describes(*record, facts)) throw DataError(concat(refusal, "its manifest is not the one of which ", in_it, " has the digest"));
  const std::string key = is_unsigned() ? "" : public_key();
  if (const std::string problem = signature_problem(before_, *facts.anchor, facts.step, Anchored::kCheckpoint, key); !problem.empty())
    throw DataError(concat(refusal, "its manifest ", problem));
}

/// A checkpoint without an anchor may be older than the log, which then lists it in its first record.
void RunAudit::check_unaudited(int64_t step, const std::string& manifest, const std::string& refusal) const {
  if (before_.records.empty()) return;
  const auto is_of_step = [&](const Record& record) { return record.event() == "checkpoint" && record.member("step") == step; };
  if (std::ranges::any_of(before_.records, is_of_step))
    throw DataError(concat(refusal, path().string(), " has a record of step ", step, ", and the manifest does not name it: it was changed"));
  if (!before_.lists_unaudited(manifest))
    throw DataError(concat(refusal, "its manifest names no record of ", path().string(),
                           ", which is older: it was saved without the audit log, or changed; resume from a checkpoint in the log, or set ",
                           "security.audit.enabled to false to continue without an audit log"));
}

/// True if no job until now has had a key.
bool RunAudit::is_unsigned() const {
  return std::ranges::none_of(before_.records, [](const Record& record) { return is_start(record) && !record.text("public_key").empty(); });
}

/// The checkpoints of the run without an anchor, which were saved without an audit log.
ordered_json RunAudit::unaudited_checkpoints() const {
  ordered_json found = ordered_json::array();
  for (const fs::path& checkpoint : checkpoints_of(directory_)) {
    try {
      if (const CheckpointFacts facts = read_facts(checkpoint); !facts.anchor) found.push_back({{"step", facts.step}, {"manifest", facts.manifest}});
    } catch (const Error&) {  // an incomplete checkpoint, which cannot be resumed from
    }
  }
  return found;
}

/// Opens the log for appending, without a record that a crash cut off.
void RunAudit::open() {
  may_write_();
  const auto check_size = [&](int64_t bytes, int64_t expected) {
    if (bytes != expected)
      throw IoError(concat(path().string(), ": has ", bytes, " bytes, and had ", expected, " when it was checked: another program changes it"));
  };
  file_.emplace(path());
  check_size(file_->bytes(), before_.bytes + std::ssize(before_.torn));
  if (!before_.torn.empty()) {
    file_.reset();
    const Descriptor log(open_writable(path(), Existing::kChanged));
    if (::ftruncate(log, before_.bytes) != 0) throw IoError(concat("cannot shorten ", path().string(), ": ", std::strerror(errno)));
    torn_ = {{"bytes", before_.torn.size()}, {"sha256", digest_of_text(before_.torn)}};
    file_.emplace(path());
    check_size(file_->bytes(), before_.bytes);
  }
  file_->sync_all();
  sync_directory(directory_);
}

/// Takes from the log what the checkpoint covers that the job resumes from. Records behind it may have been appended by anyone.
void RunAudit::restore(const Job& job) {
  saved_ = loss_ = validation_loss_ = nullptr;
  trained_by_ = nullptr;
  if (job.checkpoint.empty()) return;
  const CheckpointFacts facts = read_facts(job.checkpoint);
  saved_ = facts.recorded();
  if (!facts.anchor || before_.at(*facts.anchor) == nullptr) return;
  for (const Record& record : std::span(before_.records).first(static_cast<size_t>(facts.anchor->records))) {
    if (is_start(record)) trained_by_ = record.value;
    if (record.event() == "evaluation" && record.member("step") == facts.step) validation_loss_ = record.member("validation_loss");
  }
}

void RunAudit::begin(const Job& job) {
  const bool resumes = !job.checkpoint.empty();
  if (resumes && (job.own_checkpoint || !before_.records.empty())) check_anchor(job.checkpoint);
  check_receipt();
  restore(job);
  ordered_json record = new_record(before_.records.empty() ? "start" : "resume");
  record["step"] = 0;
  if (resumes) {
    const CheckpointFacts facts = read_facts(job.checkpoint);
    record["step"] = facts.step;
    record["from"] = {{"checkpoint", job.checkpoint}, {"manifest", facts.manifest}};
    if (facts.anchor) record["from"]["audit"] = to_json(*facts.anchor);
    if (!facts.anchor) record["from"]["unaudited"] = true;
    if (!job.own_checkpoint) record["from"]["other_run"] = true;
  }
  record.update({{"version", job.version},
                 {"build", job.build},
                 {"binary", job.binary},
                 {"world_size", job.world_size},
                 {"hosts", job.hosts},
                 {"layout", job.layout},
                 {"seed", job.seed}});
  if (key_) record["public_key"] = public_key();
  if (key_ && !before_.records.empty() && is_unsigned()) record["unsigned_before"] = true;
  if (job.changes.is_object() && !job.changes.empty()) record["changes"] = job.changes;
  if (before_.records.empty())
    if (const ordered_json found = unaudited_checkpoints(); !found.empty()) record["unaudited"] = found;
  configuration_ = digest_of_text(job.configuration);
  data_ = job.data;
  const nlohmann::json members = start_;
  trained_by_ = start_ = nlohmann::json(record);
  open();
  append(record);
  record = new_record("configuration");
  record["configuration"] = configuration_;
  append(record);
  record = new_record("data");
  record["identity"] = job.data;
  append(record);
  if (members.is_object() &&
      (members.value("world_size", nlohmann::json()) != job.world_size || members.value("layout", nlohmann::json()) != start_["layout"])) {
    record = new_record("membership");
    record["before"] = {{"world_size", members.value("world_size", nlohmann::json())}, {"layout", members.value("layout", nlohmann::json())}};
    record["now"] = {{"world_size", job.world_size}, {"layout", job.layout}};
    append(record);
  }
  const std::lock_guard lock(mutex_);
  file_->sync_all();
}

Head RunAudit::append(ordered_json record) {
  const std::lock_guard lock(mutex_);
  file_->check_unchanged();
  if (!torn_.is_null()) record["torn"] = std::exchange(torn_, {});
  const std::string text = text_of(record);
  head_ = next(head_, text);
  file_->append(line_of(head_, text));
  return head_;
}

/// The record is durable before the manifest that names it exists.
AuditAnchor RunAudit::anchor(const CheckpointDescription& about, const std::string& manifest) {
  may_write_();
  if (!about.privacy.empty()) append(privacy_record(about, privacy_));
  const ordered_json facts = {{"step", about.step}, {"tokens", about.tokens}, {"manifest", digest_of_text(manifest)}};
  ordered_json record = new_record("checkpoint");
  record.update(facts);
  const Head head = append(record);
  const std::lock_guard lock(mutex_);
  file_->sync_all();
  saved_ = facts;
  return make_anchor(head, about.step, Anchored::kCheckpoint, key_ ? &*key_ : nullptr);
}

void RunAudit::stated(int64_t step, const ordered_json& statement) {
  ordered_json record = new_record("privacy");
  record["step"] = step;
  record.update(statement);
  append(record);
}

void RunAudit::evaluated(int64_t step, const ordered_json& fields) {
  ordered_json record = new_record("evaluation");
  record["step"] = step;
  record.update(fields);
  append(record);
  const std::lock_guard lock(mutex_);
  validation_loss_ = fields.contains("validation_loss") ? fields["validation_loss"] : ordered_json();
}

void RunAudit::took_round(int64_t step, const ordered_json& fields) {
  ordered_json record = new_record("round");
  record["step"] = step;
  record.update(fields);
  append(record);
}

void RunAudit::stepped(int64_t step, const ordered_json& loss, const ordered_json& suspects) {
  {
    const std::lock_guard lock(mutex_);
    loss_ = loss;
  }
  if (!suspects.is_object() || suspects.empty()) return;
  ordered_json record = new_record("suspicion");
  record["step"] = step;
  record["suspects"] = suspects;
  append(record);
}

ordered_json RunAudit::receipt(const std::string& status, int64_t step) const {
  const auto of_job = [&](const char* key) { return trained_by_.is_object() ? trained_by_.value(key, nlohmann::json()) : nlohmann::json(); };
  return {{"format", "trireme-receipt"},
          {"version", 1},
          {"run", summary_.name},
          {"model", summary_.model},
          {"parameters", summary_.parameters},
          {"steps", step},
          {"planned_steps", summary_.planned_steps},
          {"tokens", saved_.is_object() ? saved_["tokens"] : ordered_json()},
          {"seed", of_job("seed")},
          {"layout", of_job("layout")},
          {"data", data_},
          {"program", {{"version", of_job("version")}, {"build", of_job("build")}, {"binary", of_job("binary")}}},
          {"configuration", configuration_},
          {"result", {{"status", status}, {"loss", loss_}, {"validation_loss", validation_loss_}, {"checkpoint", saved_}}}};
}

void RunAudit::end(const std::string& status, int64_t step, const std::string& reason) {
  may_write_();
  ordered_json record = new_record("end");
  record.update({{"status", status}, {"step", step}, {"loss", loss_}, {"validation_loss", validation_loss_}});
  if (!reason.empty()) record["reason"] = reason;
  if (status == "done") record["receipt"] = receipt(status, step);
  append(record);
  {
    const std::lock_guard lock(mutex_);
    file_->sync_all();
  }
  if (status == "done") write_receipt(record);
}

/// `end_record`: made by this job. A receipt that was found in the log is never signed, because anyone can append to it.
void RunAudit::write_receipt(const ordered_json& end_record) {
  const AuditAnchor anchor = make_anchor(head_, end_record["step"].get<int64_t>(), Anchored::kReceipt, key_ ? &*key_ : nullptr);
  write_durably(directory_ / kReceiptName, receipt_text(parse_value(text_of(end_record), path().string()), anchor));
  sync_directory(directory_);
}

/// The place that the receipt of an earlier job names, and its step; nullopt if there is none. Errors: DataError if it is damaged.
std::optional<std::pair<AuditAnchor, int64_t>> RunAudit::receipt_anchor() const {
  const std::string path = (directory_ / kReceiptName).string();
  if (!fs::exists(fs::symlink_status(path))) return std::nullopt;
  const nlohmann::json receipt = parse_object(read_text(path, kMaxInteger, Links::kRefuse), path, ControlCharacters::kInKeys);
  return std::pair(parse_anchor(object_member(receipt, "audit", path), path), integer_member(receipt, "steps", path));
}

/// A log that ends before the receipt of an earlier job must not be continued, because the next receipt replaces what shows that.
void RunAudit::check_receipt() const {
  const auto found = receipt_anchor();
  if (!found) return;
  const auto& [anchor, step] = *found;
  const std::string receipt = (directory_ / kReceiptName).string();
  if (before_.at(anchor) == nullptr)
    throw DataError(concat(receipt, ": names record ", anchor.records - 1, " of the audit log, which ", path().string(), ", of ",
                           before_.head.records, " records, does not contain: it was shortened, changed or removed"));
  if (const std::string problem = signature_problem(before_, anchor, step, Anchored::kReceipt, ""); !problem.empty())
    throw DataError(concat(receipt, ": ", problem));
}

bool RunAudit::is_incomplete() const {
  if (before_.records.empty()) return false;  // the run was trained without an audit log
  if (!ends_with_receipt()) return true;
  const auto found = receipt_anchor();
  return !found || found->first.records < before_.head.records;  // that of an earlier end
}

bool RunAudit::ends_with_receipt() const { return before_.torn.empty() && before_.records.back().value.contains("receipt"); }

void RunAudit::complete(Job job) {
  if (!is_incomplete()) return;
  const CheckpointFacts facts = read_facts(job.checkpoint);
  job.configuration = facts.configuration;
  job.data = facts.training_data;
  check_anchor(job.checkpoint);
  restore(job);
  const nlohmann::json trained_by = trained_by_;
  begin(job);
  trained_by_ = trained_by;
  // A finished run keeps its config.yaml, unless it is not the one that the checkpoint was trained with.
  if (const fs::path file = directory_ / "config.yaml"; !fs::exists(fs::symlink_status(file)) || read_text(file) != job.configuration)
    write_durably(file, job.configuration);
  end("done", facts.step, "recorded by a later job, because the one before was killed at its end");
}

std::string RunAudit::public_key() const { return key_ ? crypto::hex(key_->public_key()) : ""; }

std::string RunAudit::write_error() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->error() : "";
}

}  // namespace trireme::audit
