#include "trainer/audit/run_audit.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "parallel/crypto/key_file.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme::audit {

using nlohmann::ordered_json;

namespace {

constexpr const char* kKeyName = "security.audit.signing_key_file";
constexpr const char* kWithout = "restore it, or set security.audit.enabled to false to continue without an audit log";

std::optional<crypto::SigningKey> key_of(const SecurityConfig& config) {
  crypto::require_sodium("security.audit.enabled=true");
  if (!config.audit.signing_key_file) return std::nullopt;
  return crypto::read_signing_key(*config.audit.signing_key_file, kKeyName);
}

std::string digest_of_text(std::string_view text) { return crypto::hex(crypto::sha256(text)); }

ordered_json new_record(const char* event) { return {{"event", event}, {"time", utc_text(WallClock::now())}}; }

/// What a checkpoint says about itself.
struct Named {
  int64_t step;
  std::string manifest;  ///< SHA-256 of its manifest without the anchor
  std::optional<AuditAnchor> anchor;
};

Named named_by(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  const std::string text = read_text(path, kMaxInteger, Links::kRefuse);
  const Manifest manifest = parse_manifest(text, path.string());
  return {manifest.description.step, digest_of_text(text_without_anchor(text, path.string())), manifest.audit};
}

bool is_of(const Record& record, const Named& checkpoint) {
  return record.event() == "checkpoint" && record.member("step") == checkpoint.step && record.text("manifest") == checkpoint.manifest;
}

}  // namespace

void check_audit(const SecurityConfig& config) {
  if (config.audit.enabled) key_of(config);
}

RunAudit::RunAudit(fs::path run_directory, const SecurityConfig& config, std::function<void()> may_write)
    : directory_(std::move(run_directory)), may_write_(std::move(may_write)), key_(key_of(config)) {
  existed_ = fs::exists(fs::symlink_status(path()));
  if (existed_) before_ = read_log(path());
  head_ = before_.head;
  for (const Record& record : before_.records) {
    const std::string event = record.event();
    if (is_start(record)) start_ = record.value;
    if (event == "configuration") configuration_ = record.text("configuration");
    if (event == "data") data_ = record.text("identity");
    if (event == "checkpoint") saved_ = {{"step", record.member("step")}, {"tokens", record.member("tokens")}, {"manifest", record.text("manifest")}};
    if (event == "evaluation") validation_loss_ = record.member("validation_loss");
  }
}

/// Compares the checkpoint that a job resumes from with the log.
void RunAudit::check_anchor(const std::string& checkpoint) const {
  const Named named = named_by(checkpoint);
  const std::string refusal = concat("cannot resume from ", checkpoint, ": ");
  const auto recorded = [&](const Record& record) { return record.event() == "checkpoint" && record.member("step") == named.step; };
  if (!named.anchor) {
    if (std::ranges::any_of(before_.records, recorded))
      throw DataError(concat(refusal, path().string(), " has a record of step ", named.step, ", and the manifest does not name it: it was changed"));
    return;
  }
  const std::string in_it = concat("record ", named.anchor->records - 1, " of the audit log");
  if (!existed_) throw DataError(concat(refusal, "its manifest names ", in_it, ", and ", path().string(), " does not exist; ", kWithout));
  const Record* const record = before_.at(*named.anchor);
  if (record == nullptr)
    throw DataError(concat(refusal, "its manifest names ", in_it, ", which ", path().string(), ", of ", before_.head.records,
                           " records, does not contain: it was shortened or changed; ", kWithout));
  if (!is_of(*record, named)) throw DataError(concat(refusal, "its manifest is not the one of which ", in_it, " has the digest"));
  if (!named.anchor->public_key.empty() && !is_signed(*named.anchor, named.step, Anchored::kCheckpoint))
    throw DataError(concat(refusal, "the signature in its manifest is wrong"));
}

/// The checkpoints of the run without an anchor, which were saved without an audit log.
ordered_json RunAudit::unaudited_checkpoints() const {
  ordered_json found = ordered_json::array();
  for (const fs::path& checkpoint : checkpoints_of(directory_)) {
    try {
      if (const Named named = named_by(checkpoint); !named.anchor) found.push_back({{"step", named.step}, {"manifest", named.manifest}});
    } catch (const Error&) {  // an incomplete checkpoint, which cannot be resumed from
    }
  }
  return found;
}

/// Opens the log for appending, without a record that a crash cut off.
void RunAudit::open() {
  may_write_();
  if (!before_.torn.empty()) {
    if (::truncate(path().c_str(), before_.bytes) != 0) throw IoError(concat("cannot shorten ", path().string(), ": ", std::strerror(errno)));
    torn_ = {{"bytes", before_.torn.size()}, {"sha256", digest_of_text(before_.torn)}};
  }
  file_.emplace(path());
  file_->sync_all();
  sync_directory(directory_);
}

void RunAudit::begin(const Job& job) {
  const bool resumes = !job.checkpoint.empty();
  if (resumes && job.own_checkpoint) check_anchor(job.checkpoint);
  check_receipt();
  ordered_json record = new_record(before_.records.empty() ? "start" : "resume");
  record["step"] = 0;
  if (resumes) {
    const Named named = named_by(job.checkpoint);
    record["step"] = named.step;
    record["from"] = {{"checkpoint", job.checkpoint}, {"manifest", named.manifest}};
    if (named.anchor) record["from"]["audit"] = to_json(*named.anchor);
    if (!named.anchor) record["from"]["unaudited"] = true;
  }
  record.update({{"version", job.version},
                 {"build", job.build},
                 {"binary", job.binary},
                 {"world_size", job.world_size},
                 {"hosts", job.hosts},
                 {"layout", job.layout},
                 {"seed", job.seed}});
  if (key_) record["public_key"] = public_key();
  if (job.changes.is_object() && !job.changes.empty()) record["changes"] = job.changes;
  if (const ordered_json found = unaudited_checkpoints(); !found.empty()) record["unaudited"] = found;
  configuration_ = digest_of_text(job.configuration);
  data_ = job.data;
  const nlohmann::json members = start_;
  start_ = nlohmann::json(record);
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
  const ordered_json facts = {{"step", about.step}, {"tokens", about.tokens}, {"manifest", digest_of_text(manifest)}};
  ordered_json record = new_record("checkpoint");
  record.update(facts);
  const Head head = append(record);
  const std::lock_guard lock(mutex_);
  file_->sync_all();
  saved_ = facts;
  return make_anchor(head, about.step, Anchored::kCheckpoint, key_ ? &*key_ : nullptr);
}

void RunAudit::evaluated(int64_t step, const ordered_json& fields) {
  ordered_json record = new_record("evaluation");
  record["step"] = step;
  record.update(fields);
  append(record);
  const std::lock_guard lock(mutex_);
  validation_loss_ = fields.contains("validation_loss") ? fields["validation_loss"] : ordered_json();
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
  const auto of_start = [&](const char* key) { return start_.value(key, nlohmann::json()); };
  return {{"format", "trireme-receipt"},
          {"version", 1},
          {"run", summary_.name},
          {"model", summary_.model},
          {"parameters", summary_.parameters},
          {"steps", step},
          {"planned_steps", summary_.planned_steps},
          {"tokens", saved_.is_object() ? saved_["tokens"] : ordered_json()},
          {"seed", of_start("seed")},
          {"layout", of_start("layout")},
          {"data", data_},
          {"program", {{"version", of_start("version")}, {"build", of_start("build")}, {"binary", of_start("binary")}}},
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
  if (status == "done") write_receipt(nlohmann::json::parse(text_of(record)));
}

void RunAudit::write_receipt(const nlohmann::json& end_record) {
  const AuditAnchor anchor = make_anchor(head_, end_record["step"].get<int64_t>(), Anchored::kReceipt, key_ ? &*key_ : nullptr);
  write_durably(directory_ / kReceiptName, receipt_text(end_record, anchor));
  sync_directory(directory_);
}

/// The place that the receipt of an earlier job names; nullopt if there is none. Errors: DataError if it is damaged.
std::optional<AuditAnchor> RunAudit::receipt_anchor() const {
  const fs::path path = directory_ / kReceiptName;
  if (!fs::exists(fs::symlink_status(path))) return std::nullopt;
  const nlohmann::json receipt = parse_object(read_text(path, kMaxInteger, Links::kRefuse), path.string());
  return parse_anchor(object_member(receipt, "audit", path.string()), path.string());
}

/// A log that ends before the receipt of an earlier job must not be continued, because the next receipt replaces what shows that.
void RunAudit::check_receipt() const {
  const std::optional<AuditAnchor> anchor = receipt_anchor();
  if (anchor && before_.at(*anchor) == nullptr)
    throw DataError(concat((directory_ / kReceiptName).string(), ": names record ", anchor->records - 1, " of the audit log, which ", path().string(),
                           ", of ", before_.head.records, " records, does not contain: it was shortened, changed or removed"));
}

bool RunAudit::is_incomplete() const {
  if (before_.records.empty()) return false;  // the run was trained without an audit log
  if (!ends_with_receipt()) return true;
  const std::optional<AuditAnchor> anchor = receipt_anchor();
  return !anchor || anchor->records < before_.head.records;  // that of an earlier end
}

bool RunAudit::ends_with_receipt() const { return before_.torn.empty() && before_.records.back().value.contains("receipt"); }

void RunAudit::complete(const Job& job, int64_t step, std::optional<double> validation_loss) {
  if (!is_incomplete()) return;
  if (ends_with_receipt() && before_.key_at(before_.head.records - 1) == public_key()) {
    check_receipt();
    open();
    return write_receipt(before_.records.back().value);
  }
  begin(job);
  if (validation_loss) validation_loss_ = *validation_loss;
  end("done", step, "recorded by a later job, because the one before was killed at its end");
}

std::string RunAudit::public_key() const { return key_ ? crypto::hex(key_->public_key()) : ""; }

std::string RunAudit::write_error() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->error() : "";
}

}  // namespace trireme::audit
