#include "trainer/audit/verify.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/audit/chain.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/sha256_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme::audit {
namespace {

struct StoredCheckpoint {
  std::unique_ptr<CheckpointReader> reader;
  std::string manifest;  ///< SHA-256 of the manifest without its anchor
  std::string path;      ///< path of the manifest

  int64_t step() const { return reader->description().step; }
};

/// All checkpoints are read before the log, so that the log of a run that is going on contains what they name.
std::vector<StoredCheckpoint> read_checkpoints(const fs::path& run_directory) {
  std::vector<StoredCheckpoint> checkpoints;
  for (const fs::path& directory : checkpoints_of(run_directory)) {
    if (fs::is_symlink(directory)) throw DataError(concat(directory.string(), ": is a symbolic link; expected the directory of a checkpoint"));
    StoredCheckpoint& one = checkpoints.emplace_back();
    one.path = (directory / kManifestName).string();
    one.reader = std::make_unique<CheckpointReader>(directory);
    if (const std::string problem = one.reader->name_mismatch(); !problem.empty()) throw DataError(problem);
    one.manifest = crypto::hex(crypto::sha256(text_without_anchor(read_text(one.path, kMaxInteger, Links::kRefuse), one.path)));
  }
  std::ranges::sort(checkpoints, {}, &StoredCheckpoint::step);
  return checkpoints;
}

/// The target of `latest`; empty if there is no such file. Errors: DataError if it is not a link.
std::string target_of_latest(const fs::path& run_directory) {
  const fs::path latest = run_directory / "checkpoints" / "latest";
  if (!fs::exists(fs::symlink_status(latest))) return "";
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);
  if (error) throw DataError(concat(latest.string(), ": is not a symbolic link"));
  return target.string();
}

/// True for records that a job writes at its start, before config.yaml, and for the end of a job that failed before it wrote that.
bool precedes_configuration(const Record& record) {
  const std::string event = record.event();
  return event == "configuration" || event == "data" || event == "membership" || (event == "end" && record.text("status") == "failed");
}

class Verifier {
 public:
  Verifier(const fs::path& run_directory, const std::optional<crypto::PublicKey>& key, const std::optional<std::string>& head)
      : run_(run_directory), noted_head_(head) {
    if (key) key_ = crypto::hex(*key);
    result_.compared = key.has_value();
  }

  Verification verify() {
    const std::string latest_before = target_of_latest(run_);
    const std::vector<StoredCheckpoint> checkpoints = read_checkpoints(run_);
    // A run that is going on may have moved the link meanwhile.
    if (const std::string latest = target_of_latest(run_); latest == latest_before) check_latest(latest, checkpoints);
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
    check_head();
    for (const StoredCheckpoint& checkpoint : checkpoints)
      if (checkpoint.reader->audit()) check(checkpoint);
    check_receipt(receipt.string(), receipt_text);
    for (int64_t i = 0; i < log_.head.records; ++i)
      if (is_start(record(i))) check_start(i);
    for (const StoredCheckpoint& checkpoint : checkpoints)  // the list of these counts only below an anchor
      if (!checkpoint.reader->audit()) check_unaudited(checkpoint);
    check_configuration();
    conclude();
    return std::move(result_);
  }

 private:
  std::string log_path() const { return (run_ / kLogName).string(); }
  std::string record_name(int64_t index) const { return concat(log_path(), ": record ", index); }

  const Record& record(int64_t index) const { return log_.records[static_cast<size_t>(index)]; }

  void check_latest(const std::string& target, const std::vector<StoredCheckpoint>& checkpoints) const {
    const auto has_this_name = [&](const StoredCheckpoint& one) { return one.reader->directory().filename().string() == target; };
    if (!target.empty() && std::ranges::none_of(checkpoints, has_this_name))
      throw DataError(concat((run_ / "checkpoints" / "latest").string(), ": points to ", target, "; expected the name of a checkpoint beside it"));
  }

  /// True if records of the job that starts with record `index` count.
  bool is_attested(int64_t index) const { return key_.empty() || log_.key_at(index) == key_; }

  /// Checks the start of a job, and the checkpoint that it resumed from as the job has found it.
  void check_start(int64_t index) {
    ++result_.jobs;
    if (!is_attested(index)) {
      result_.unattested.push_back(index);
      result_.notes.push_back(concat("the job that begins with record ", index, " did not sign with the expected key: nothing attests its records"));
    }
    const nlohmann::json from = record(index).member("from");
    if (from.is_null()) return;
    const std::string where = record_name(index) + ": \"from\"", manifest = string_member(from, "manifest", where);
    const int64_t step = integer_member(record(index).value, "step", where);
    if (from.contains("unaudited")) {
      if (index > 0 && !log_.lists_unaudited(manifest))
        throw DataError(concat(where, ": a checkpoint of step ", step, " that neither a record nor the list in record 0 has"));
      result_.notes.push_back(concat("step ", step, " was resumed from a checkpoint without a place in an audit log"));
      return;
    }
    if (index == 0) {
      result_.notes.push_back(concat("step ", step, " was resumed from a checkpoint of another run, which has its own audit log"));
      return;
    }
    const AuditAnchor anchor = parse_anchor(object_member(from, "audit", where), where + ": \"audit\"");
    const Record* const named = anchor.records <= index ? log_.at(anchor) : nullptr;
    if (named == nullptr || named->event() != "checkpoint" || named->member("step") != step || named->text("manifest") != manifest)
      throw DataError(concat(where, ": is not a checkpoint that an earlier record has"));
    const bool may_be_unsigned = !is_attested(index) || (record(index).value.contains("unsigned_before") && anchor.public_key.empty());
    if (const std::string problem = signature_problem(log_, anchor, step, Anchored::kCheckpoint, may_be_unsigned ? "" : key_); !problem.empty())
      throw DataError(concat(where, ": ", problem));
  }

  /// Returns the record that the anchor names, and counts its signature.
  const Record& anchored(const AuditAnchor& anchor, int64_t step, Anchored what, const std::string& path) {
    if (anchor.records > log_.head.records)
      throw DataError(concat(path, ": names ", record_name(anchor.records - 1), ", and the log has only ", counted(log_.head.records, "record"),
                             ": it was shortened"));
    const Record* const named = log_.at(anchor);
    if (named == nullptr) throw DataError(concat(path, ": the hash of ", record_name(anchor.records - 1), " differs from the one in the log"));
    if (const std::string problem = signature_problem(log_, anchor, step, what, key_); !problem.empty()) throw DataError(concat(path, ": ", problem));
    if (!anchor.public_key.empty()) {
      ++result_.signatures;
      result_.keys.insert(anchor.public_key);
    }
    return *named;
  }

  /// A copy of the whole run from an earlier time agrees with itself. What it lacks is a record that somebody has noted since.
  void check_head() {
    if (!noted_head_) return;
    result_.contains_head = std::ranges::any_of(log_.records, [&](const Record& one) { return one.hash == *noted_head_; });
    if (!result_.contains_head)
      throw DataError(concat(log_path(), ": has no record with the hash ", *noted_head_,
                             ": the run directory is an older copy, or that of another run, or the log was made anew"));
  }

  /// A checkpoint is a directory of the files that its manifest lists, the manifest, and the loss of a later evaluation.
  void check_entries(const StoredCheckpoint& checkpoint) {
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint.reader->directory())) {
      const std::string name = entry.path().filename().string();
      if (name == kManifestName || checkpoint.reader->files().contains(name)) continue;
      if (name != kLossName || !entry.is_regular_file()) throw DataError(concat(entry.path().string(), ": is in no manifest: it was added"));
      result_.beside.insert(name);
    }
  }

  void check(const StoredCheckpoint& checkpoint) {
    const AuditAnchor& anchor = *checkpoint.reader->audit();
    const Record& named = anchored(anchor, checkpoint.step(), Anchored::kCheckpoint, checkpoint.path);
    if (named.event() != "checkpoint" || named.member("step") != checkpoint.step() || named.text("manifest") != checkpoint.manifest)
      throw DataError(concat(checkpoint.path, ": is not the manifest that ", record_name(anchor.records - 1), " has the digest of: it was changed"));
    for (const auto& [name, file] : checkpoint.reader->files())
      if (file.sha256.empty()) throw DataError(concat(checkpoint.path, ": has no SHA-256 of ", name));
    check_entries(checkpoint);
    check_files(checkpoint);
    covered_ = std::max(covered_, anchor.records);
    result_.checkpoints.push_back(checkpoint.step());
  }

  static void check_files(const StoredCheckpoint& checkpoint) {
    for (const auto& [name, file] : checkpoint.reader->files()) {
      if (file.sha256.empty()) continue;
      const std::string path = (checkpoint.reader->directory() / name).string();
      if (const std::string digest = sha256_of_file(path); digest != file.sha256)
        throw DataError(concat(path, ": was changed: its SHA-256 is ", digest, ", and the manifest has ", file.sha256));
    }
  }

  void check_unaudited(const StoredCheckpoint& checkpoint) {
    if (!log_.lists_unaudited(checkpoint.manifest))
      throw DataError(concat(checkpoint.path, ": names no record of the audit log, and is not one of the checkpoints that are older than the log, ",
                             "which record 0 lists: it was changed or added"));
    if (covered_ < 1 || !is_attested(0))
      throw DataError(concat(checkpoint.path, ": names no record of the audit log. Record 0 lists it, and no ", key_.empty() ? "" : "signed ",
                             "checkpoint or receipt ", "attests that record"));
    check_files(checkpoint);
    checkpoint.reader->verify_digests();
    result_.unaudited.push_back(checkpoint.step());
  }

  /// A job records its configuration, then writes config.yaml. One that was killed in between has left the file of the job before.
  void check_configuration() {
    const std::string path = (run_ / "config.yaml").string();
    const bool exists = fs::exists(fs::symlink_status(path));
    const std::string digest = exists ? crypto::hex(crypto::sha256(read_text(path, kMaxInteger, Links::kRefuse))) : "";
    int64_t newest = -1;
    bool begun = false;
    for (int64_t i = log_.head.records - 1; i >= 0; --i) {
      if (record(i).event() == "configuration") {
        if (exists && record(i).text("configuration") == digest) return;
        if (newest < 0) newest = i;
      }
      if (!is_start(record(i)) && !precedes_configuration(record(i))) begun = true;
      if (is_start(record(i)) && begun) break;
    }
    if (!begun) {
      if (exists) result_.notes.push_back("no job has done anything after its start, so that config.yaml was not compared");
      return;
    }
    if (newest < 0) throw DataError(concat(log_path(), ": has no record of a configuration"));
    throw DataError(concat(path, exists ? ": is not the configuration that " : ": does not exist, and is the configuration that ",
                           record_name(newest), " has the digest of", exists ? ": it was changed" : ""));
  }

  void check_receipt(const std::string& path, const std::optional<std::string>& text) {
    int64_t newest = log_.head.records - 1;
    while (newest >= 0 && !record(newest).value.contains("receipt")) --newest;
    constexpr const char* kWritesItAgain = "; `trireme train` with its configuration writes it again";
    if (!text) {
      if (newest >= 0) throw DataError(concat(path, " does not exist, and ", record_name(newest), " says that the run has one", kWritesItAgain));
      return;
    }
    const nlohmann::json object = parse_object(*text, path, ControlCharacters::kInKeys);
    const AuditAnchor anchor = parse_anchor(object_member(object, "audit", path), path + ": \"audit\"");
    const Record& named = anchored(anchor, integer_member(object, "steps", path), Anchored::kReceipt, path);
    if (named.event() != "end" || !named.member("receipt").is_object() || audit::receipt_text(named.value, anchor) != *text)
      throw DataError(concat(path, ": is not the receipt that ", record_name(anchor.records - 1), " contains: it was changed"));
    if (anchor.records - 1 != newest)
      throw DataError(
          concat(path, ": is the receipt in ", record_name(anchor.records - 1), ", and record ", newest, " has a later one", kWritesItAgain));
    covered_ = std::max(covered_, anchor.records);
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
    result_.uncovered = log_.head.records - covered_;
    if (result_.uncovered > 0 && covered_ > 0)
      result_.notes.push_back(concat(counted(result_.uncovered, "record"), " at the end of the log ", result_.uncovered == 1 ? "follows" : "follow",
                                     " the last one that a checkpoint or the receipt names: nothing attests ",
                                     result_.uncovered == 1 ? "it" : "them"));
    if (covered_ == 0)
      result_.notes.push_back("no checkpoint and no receipt names a record of the log, so that a log made anew would not be noticed");
    if (result_.signatures == 0) result_.notes.push_back("nothing is signed: whoever can write all files of the run can make them anew");
    for (const std::string& name : result_.beside)
      result_.notes.push_back(concat("no record covers ", name, " of the checkpoints, which an evaluation has written later"));
    if (!noted_head_)
      result_.notes.push_back(
          "an older copy of the whole run directory would be valid too: keep the head elsewhere, and compare it later with --head");
    if (result_.signatures > 0 && !result_.compared)
      result_.notes.push_back("the key that signed was not compared with a known one; --public-key does that");
  }

  const fs::path run_;
  const std::optional<std::string> noted_head_;
  std::string key_;  ///< the expected one, in hexadecimal; empty: any
  Log log_;
  int64_t covered_ = 0;  ///< number of records up to the last one that a checkpoint or the receipt names
  Verification result_;
};

}  // namespace

Verification verify_run(const fs::path& run_directory, const std::optional<crypto::PublicKey>& key, const std::optional<std::string>& head) {
  crypto::require_sodium("audit verify");
  if (!fs::is_directory(run_directory)) throw MissingFileError(concat(run_directory.string(), " does not exist or is not the directory of a run"));
  return Verifier(run_directory, key, head).verify();
}

nlohmann::ordered_json to_json(const Verification& v) {
  return {{"valid", true},
          {"records", v.records},
          {"uncovered", v.uncovered},
          {"head", v.head},
          {"jobs", v.jobs},
          {"unattested", v.unattested},
          {"checkpoints", v.checkpoints},
          {"unaudited", v.unaudited},
          {"status", v.status},
          {"receipt", v.has_receipt},
          {"signatures", v.signatures},
          {"public_keys", v.keys},
          {"compared", v.compared},
          {"contains_head", v.contains_head},
          {"beside", v.beside},
          {"notes", v.notes}};
}

std::string text_of(const Verification& v) {
  std::string text =
      concat("valid: ", counted(v.records, "record"), " of ", counted(v.jobs, "job"), ", ", counted(v.checkpoints.size(), "checkpoint"),
             v.has_receipt ? ", the receipt" : "", v.status.empty() ? "" : ", ended: " + v.status, "\nhead ", v.head, "\n");
  if (v.contains_head) text += "the log contains the noted head\n";
  for (const int64_t step : v.unaudited) text += concat("checkpoint of step ", step, ": saved without an audit log\n");
  for (const std::string& key : v.keys) text += concat("signed by ", key, v.compared ? ", as expected" : "", "\n");
  for (const std::string& note : v.notes) text += concat("note: ", note, "\n");
  return text;
}

}  // namespace trireme::audit
