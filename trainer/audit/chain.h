#pragma once
// audit.jsonl: one line for each record, {"hash":"<64 hexadecimal digits>","record":{...}}. The hash of record i is
//   h_i = SHA-256("audit-v1\0" || le64 i || le64 length || h_(i-1) || record), h_(-1) = 32 zero bytes,
// over the bytes of the record as they are in the file. No record can be changed, removed or moved without a change of all later hashes.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/crypto/sodium.h"
#include "trainer/checkpoint/manifest.h"

namespace trireme::audit {

inline constexpr const char* kLogName = "audit.jsonl";
inline constexpr const char* kReceiptName = "receipt.json";

/// The end of a chain; it continues from there.
struct Head {
  int64_t records = 0;
  crypto::Hash hash{};  ///< hash of the last record; zero if there is none
};

/// The head behind one more record.
Head next(const Head& head, std::string_view record);
/// The line of the last record of `head`, with its newline.
std::string line_of(const Head& head, std::string_view record);
/// A record as text: one line of ASCII.
std::string text_of(const nlohmann::ordered_json& record);

struct Record {
  nlohmann::json value;  ///< an object with "event"
  std::string hash;      ///< in hexadecimal

  /// A member; null if there is none.
  nlohmann::json member(const char* key) const { return value.value(key, nlohmann::json()); }
  /// A member that is a text; empty if there is none.
  std::string text(const char* key) const;
  std::string event() const { return text("event"); }
};

struct Log {
  std::vector<Record> records;
  Head head;
  int64_t bytes = 0;  ///< size of the complete lines
  std::string torn;   ///< what follows the last newline: a record that a crash cut off

  /// The record that an anchor names; null if the log has no record with this number and hash.
  const Record* at(const AuditAnchor& anchor) const;
  /// True if the first record lists a checkpoint without an anchor whose manifest has this digest: it was saved before the log began.
  bool lists_unaudited(const std::string& manifest) const;
  /// The public key that signs anchors at record `index`, in hexadecimal: that of the job that wrote it. Empty: none.
  std::string key_at(int64_t index) const;
};

/// Reads a log and checks its chain. Errors: MissingFileError; DataError naming file and record.
Log read_log(const std::filesystem::path& path);

/// What is signed. Checkpoints and receipts differ, so that neither can take the place of the other.
enum class Anchored : uint8_t { kCheckpoint, kReceipt };
/// `step`: of the checkpoint, or the last of the run.
AuditAnchor make_anchor(const Head& head, int64_t step, Anchored what, const crypto::SigningKey* key);
/// True if the signature of `anchor` is that of the owner of the public key in it.
bool is_signed(const AuditAnchor& anchor, int64_t step, Anchored what);

/// Why the signature of `anchor` is not accepted; empty if it is. `anchor` must name a record of the log. It must be signed by the key of the job that
/// wrote the record, or not at all if that had none; with `key`, in hexadecimal, only by this key.
std::string signature_problem(const Log& log, const AuditAnchor& anchor, int64_t step, Anchored what, const std::string& key);

/// True if the record is that of a job's start, after which its configuration and data follow.
bool is_start(const Record& record);

/// receipt.json: the member "receipt" of an end record, and the anchor of that record. Errors: DataError if it has no such object.
std::string receipt_text(const nlohmann::json& end_record, const AuditAnchor& anchor);

}  // namespace trireme::audit
