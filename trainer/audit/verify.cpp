#include "trainer/audit/verify.h"

#include <algorithm>
#include <map>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/audit/chain.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/sha256_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme::audit {
namespace {

/// A checkpoint as it lies in the run directory.
struct Found {
  std::unique_ptr<CheckpointReader> reader;
  std::string manifest;  ///< SHA-256 of the manifest without its anchor
  std::string path;      ///< of the manifest

  int64_t step() const { return reader->description().step; }
};

/// All checkpoints are read before the log, so that the log of a run that is going on contains what they name.
std::vector<Found> find_checkpoints(const fs::path& run_directory) {
  std::vector<Found> found;
  for (const fs::path& directory : checkpoints_of(run_directory)) {
    Found& one = found.emplace_back();
    one.path = (directory / kManifestName).string();
    one.reader = std::make_unique<CheckpointReader>(directory);
    if (const std::string problem = one.reader->name_mismatch(); !problem.empty()) throw DataError(problem);
    one.manifest = crypto::hex(crypto::sha256(text_without_anchor(read_text(one.path, kMaxInteger, Links::kRefuse), one.path)));
  }
  std::ranges::sort(found, {}, &Found::step);
  return found;
}

class Verifier {
 public:
  Verifier(const fs::path& run_directory, const std::optional<crypto::PublicKey>& key) : run_(run_directory) {
    if (key) key_ = crypto::hex(*key);
    result_.compared = key.has_value();
  }

  Verification verify() {
    const std::vector<Found> checkpoints = find_checkpoints(run_);
    const fs::path receipt = run_ / kReceiptName;
    std::optional<std::string> receipt_text;
    if (fs::exists(fs::symlink_status(receipt))) receipt_text = read_text(receipt, kMaxInteger, Links::kRefuse);
    if (!fs::exists(fs::symlink_status(log_path()))) throw MissingFileError(concat(log_path(), " does not exist: this run has no audit log"));
    log_ = read_log(log_path());
    if (!log_.torn.empty())
      throw DataError(concat(record_name(log_.head.records),
                             " is incomplete: a crash has cut it off, or it was shortened; a job that resumes the run removes it"));
    if (log_.records.empty()) throw DataError(concat(log_path(), ": is empty: it was shortened"));
    if (log_.records.front().event() != "start") throw DataError(concat(record_name(0), " is not the start of a run: records before it are missing"));
    for (const Record& record : log_.records) read(record);
    for (const Found& checkpoint : checkpoints) check(checkpoint);
    check_configuration();
    check_receipt(receipt.string(), receipt_text);
    conclude();
    return std::move(result_);
  }

 private:
  std::string log_path() const { return (run_ / kLogName).string(); }
  std::string record_name(int64_t index) const { return concat(log_path(), ": record ", index); }

  void read(const Record& record) {
    if (!is_start(record)) return;
    ++result_.jobs;
    for (const auto& one : record.member("unaudited"))
      if (one.is_object() && one.contains("manifest") && one["manifest"].is_string()) unaudited_.insert(one["manifest"].get<std::string>());
    const nlohmann::json from = record.member("from");
    if (from.is_object() && from.contains("unaudited"))
      result_.notes.push_back(concat("step ", record.member("step").dump(), " was resumed from a checkpoint without a place in an audit log"));
  }

  /// Returns the record that the anchor names, and counts its signature.
  const Record& anchored(const AuditAnchor& anchor, int64_t step, Anchored what, const std::string& path) {
    if (anchor.records > log_.head.records)
      throw DataError(concat(path, ": names ", record_name(anchor.records - 1), ", and the log has only ", counted(log_.head.records, "record"),
                             ": it was shortened"));
    const Record* const record = log_.at(anchor);
    if (record == nullptr) throw DataError(concat(path, ": the hash of ", record_name(anchor.records - 1), " is another one than in the log"));
    const std::string expected = log_.key_at(anchor.records - 1);
    if (anchor.public_key != expected)
      throw DataError(concat(path, anchor.public_key.empty() ? ": is not signed" : concat(": is signed by the key ", anchor.public_key),
                             ", and the job that wrote it ", expected.empty() ? "had no key" : "signed with " + expected));
    if (!key_.empty() && anchor.public_key != key_)
      throw DataError(
          concat(path, anchor.public_key.empty() ? ": is not signed" : ": is signed by another key, " + anchor.public_key, "; expected ", key_));
    if (anchor.public_key.empty()) return *record;
    if (!is_signed(anchor, step, what)) throw DataError(concat(path, ": its signature is wrong"));
    ++result_.signatures;
    result_.keys.insert(anchor.public_key);
    return *record;
  }

  void check(const Found& checkpoint) {
    const CheckpointReader& reader = *checkpoint.reader;
    if (!reader.audit()) {
      if (!unaudited_.contains(checkpoint.manifest))
        throw DataError(
            concat(checkpoint.path, ": names no record of the audit log, and no job of the run has found it like this: it was changed or put there"));
      result_.unaudited.push_back(checkpoint.step());
      return;
    }
    const AuditAnchor& anchor = *reader.audit();
    const Record& record = anchored(anchor, checkpoint.step(), Anchored::kCheckpoint, checkpoint.path);
    if (record.event() != "checkpoint" || record.member("step") != checkpoint.step() || record.text("manifest") != checkpoint.manifest)
      throw DataError(concat(checkpoint.path, ": is not the manifest that ", record_name(anchor.records - 1), " has the digest of: it was changed"));
    for (const auto& [name, file] : reader.files()) {
      const std::string path = (reader.directory() / name).string();
      if (file.sha256.empty()) throw DataError(concat(checkpoint.path, ": has no SHA-256 of ", name));
      if (const std::string digest = sha256_of_file(path); digest != file.sha256)
        throw DataError(concat(path, ": was changed: its SHA-256 is ", digest, ", and the manifest has ", file.sha256));
    }
    result_.checkpoints.push_back(checkpoint.step());
  }

  /// A job records its configuration, then writes config.yaml. One that was killed in between has left the file of the job before.
  void check_configuration() const {
    std::vector<std::pair<size_t, std::string>> recorded;
    for (size_t i = 0; i < log_.records.size(); ++i)
      if (log_.records[i].event() == "configuration") recorded.emplace_back(i, log_.records[i].text("configuration"));
    if (recorded.empty() && std::ranges::all_of(log_.records, is_start)) return;  // a job was killed while it started
    if (recorded.empty()) throw DataError(concat(log_path(), ": has no record of a configuration"));
    const std::string path = (run_ / "config.yaml").string();
    const bool may_be_missing = recorded.size() == 1 && !has_begun(recorded.back().first);
    if (may_be_missing && !fs::exists(fs::symlink_status(path))) return;
    const std::string digest = crypto::hex(crypto::sha256(read_text(path, kMaxInteger, Links::kRefuse)));
    if (digest == recorded.back().second) return;
    if (!has_begun(recorded.back().first) && recorded.size() > 1 && digest == recorded[recorded.size() - 2].second) return;
    throw DataError(concat(path, ": is not the configuration that ", record_name(static_cast<int64_t>(recorded.back().first)),
                           " has the digest of: it was changed"));
  }

  /// True if a job has done anything after it recorded its configuration.
  bool has_begun(size_t configuration) const {
    return std::any_of(log_.records.begin() + static_cast<ptrdiff_t>(configuration) + 1, log_.records.end(),
                       [](const Record& record) { return record.event() != "data" && record.event() != "membership"; });
  }

  void check_receipt(const std::string& path, const std::optional<std::string>& text) {
    const auto ended =
        std::ranges::find_if(log_.records.rbegin(), log_.records.rend(), [](const Record& record) { return record.value.contains("receipt"); });
    if (!text) {
      if (ended != log_.records.rend())
        throw DataError(concat(path, " does not exist, and ", record_name(log_.records.rend() - ended - 1),
                               " says that the run has one; `trireme train` with its configuration writes it again"));
      return;
    }
    const nlohmann::json object = parse_object(*text, path);
    const AuditAnchor anchor = parse_anchor(object_member(object, "audit", path), path + ": \"audit\"");
    if (anchor.records > log_.head.records)
      throw DataError(concat(path, ": names ", record_name(anchor.records - 1), ", and the log has only ", counted(log_.head.records, "record"),
                             ": it was shortened"));
    const int64_t step = integer_member(object, "steps", path);
    const Record& record = anchored(anchor, step, Anchored::kReceipt, path);
    if (record.event() != "end" || !record.member("receipt").is_object() || &record != &*ended || audit::receipt_text(record.value, anchor) != *text)
      throw DataError(concat(path, ": is not the receipt that ", record_name(anchor.records - 1), " contains: it was changed"));
    result_.has_receipt = true;
  }

  void conclude() {
    result_.records = log_.head.records;
    result_.head = log_.records.back().hash;
    if (log_.records.back().event() == "end") result_.status = log_.records.back().text("status");
    if (!key_.empty() && result_.signatures == 0) throw DataError(concat(log_path(), ": nothing of this run is signed by the key ", key_));
    if (result_.status.empty())
      result_.notes.push_back(
          "the log does not end with the end of a job: the run is going on, was killed, or records behind the last checkpoint were removed");
    if (result_.checkpoints.empty() && !result_.has_receipt)
      result_.notes.push_back("no checkpoint and no receipt names a record of the log, so that a log made anew would not be noticed");
    if (result_.signatures == 0) result_.notes.push_back("nothing is signed: whoever can write all files of the run can make them anew");
    if (result_.signatures > 0 && !result_.compared)
      result_.notes.push_back("the key that signed was not compared with a known one; --public-key does that");
  }

  const fs::path run_;
  std::string key_;  ///< the expected one, in hexadecimal; empty: any
  Log log_;
  std::set<std::string> unaudited_;  ///< digests of manifests without an anchor that a job has found at its start
  Verification result_;
};

}  // namespace

Verification verify_run(const fs::path& run_directory, const std::optional<crypto::PublicKey>& key) {
  crypto::require_sodium("audit verify");
  if (!fs::is_directory(run_directory)) throw MissingFileError(concat(run_directory.string(), " does not exist or is not the directory of a run"));
  return Verifier(run_directory, key).verify();
}

nlohmann::ordered_json to_json(const Verification& v) {
  return {{"whole", true},         {"records", v.records},         {"head", v.head},
          {"jobs", v.jobs},        {"checkpoints", v.checkpoints}, {"unaudited", v.unaudited},
          {"status", v.status},    {"receipt", v.has_receipt},     {"signatures", v.signatures},
          {"public_keys", v.keys}, {"compared", v.compared},       {"notes", v.notes}};
}

std::string text_of(const Verification& v) {
  std::string text =
      concat("whole: ", counted(v.records, "record"), " of ", counted(v.jobs, "job"), ", ", counted(v.checkpoints.size(), "checkpoint"),
             v.has_receipt ? ", the receipt" : "", v.status.empty() ? "" : ", ended: " + v.status, "\nhead ", v.head, "\n");
  for (const int64_t step : v.unaudited) text += concat("checkpoint of step ", step, ": saved without an audit log\n");
  for (const std::string& key : v.keys) text += concat("signed by ", key, v.compared ? ", as expected" : "", "\n");
  for (const std::string& note : v.notes) text += concat("note: ", note, "\n");
  return text;
}

}  // namespace trireme::audit
