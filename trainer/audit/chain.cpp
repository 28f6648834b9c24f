#include "trainer/audit/chain.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace trireme::audit {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kBeforeHash = "{\"hash\":\"", kBeforeRecord = "\",\"record\":";
constexpr size_t kHashDigits = 2 * sizeof(crypto::Hash);

std::string le64(uint64_t number) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(number & 0xFF);
    number >>= 8;
  }
  return bytes;
}

/// The hash and the record of a line without its newline; nullopt if it is another kind of line.
std::optional<std::pair<std::string_view, std::string_view>> parts_of_line(std::string_view line) {
  const size_t record = kBeforeHash.size() + kHashDigits + kBeforeRecord.size();
  if (line.size() <= record || !line.starts_with(kBeforeHash) || line.back() != '}') return std::nullopt;
  if (line.substr(kBeforeHash.size() + kHashDigits, kBeforeRecord.size()) != kBeforeRecord) return std::nullopt;
  return std::pair(line.substr(kBeforeHash.size(), kHashDigits), line.substr(record, line.size() - record - 1));
}

std::string_view bytes_of(const crypto::Hash& hash) { return {reinterpret_cast<const char*>(hash.data()), hash.size()}; }

std::string signed_message(const AuditAnchor& anchor, int64_t step, Anchored what) {
  const std::string_view domain = what == Anchored::kCheckpoint ? "trireme-audit-checkpoint-v1\0"sv : "trireme-audit-receipt-v1\0"sv;
  crypto::Hash head{};
  if (!crypto::from_hex(anchor.head, head)) return "";
  return std::string(domain) + le64(static_cast<uint64_t>(anchor.records)) + le64(static_cast<uint64_t>(step)) + std::string(bytes_of(head));
}

}  // namespace

Head next(const Head& head, std::string_view record) {
  crypto::Sha256 sum;
  sum.update("audit-v1\0"sv);
  sum.update(le64(static_cast<uint64_t>(head.records)));
  sum.update(le64(record.size()));
  sum.update(bytes_of(head.hash));
  sum.update(record);
  return {head.records + 1, sum.finish()};
}

std::string line_of(const Head& head, std::string_view record) { return concat(kBeforeHash, crypto::hex(head.hash), kBeforeRecord, record, "}\n"); }

std::string text_of(const nlohmann::ordered_json& record) { return record.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace); }

Log read_log(const std::filesystem::path& path) {
  const std::string text = read_text(path, kMaxInteger, Links::kRefuse);
  Log log;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const std::string where = concat(path.string(), ": record ", log.head.records);
    const auto parts = parts_of_line(std::string_view(text).substr(begin, end - begin));
    if (!parts) throw DataError(where + ": its line was changed: it does not have the form of a line of the audit log");
    const auto [hash, record] = *parts;
    log.head = next(log.head, record);
    if (hash != crypto::hex(log.head.hash))
      throw DataError(where + ": its hash does not follow from its contents and the record before it: one of them was changed, removed or moved");
    Record& added = log.records.emplace_back();
    added.value = parse_object(record, where, ControlCharacters::kInKeys);  // such as names of validation sets
    added.hash = hash;
    string_member(added.value, "event", where);
  }
  log.bytes = static_cast<int64_t>(begin);
  log.torn = text.substr(begin);
  return log;
}

std::string Record::text(const char* key) const {
  const auto found = value.find(key);
  return found != value.end() && found->is_string() ? found->get<std::string>() : "";
}

const Record* Log::at(const AuditAnchor& anchor) const {
  if (anchor.records < 1 || anchor.records > std::ssize(records)) return nullptr;
  const Record& record = records[static_cast<size_t>(anchor.records - 1)];
  return record.hash == anchor.head ? &record : nullptr;
}

bool Log::lists_unaudited(const std::string& manifest) const {
  if (records.empty()) return false;
  const nlohmann::json list = records.front().member("unaudited");
  return list.is_array() &&
         std::ranges::any_of(list, [&](const nlohmann::json& one) { return one.is_object() && one.value("manifest", nlohmann::json()) == manifest; });
}

std::string Log::key_at(int64_t index) const {
  for (int64_t i = index; i >= 0; --i)
    if (const Record& record = records.at(static_cast<size_t>(i)); is_start(record)) return record.text("public_key");
  return "";
}

AuditAnchor make_anchor(const Head& head, int64_t step, Anchored what, const crypto::SigningKey* key) {
  AuditAnchor anchor{head.records, crypto::hex(head.hash)};
  if (key == nullptr) return anchor;
  anchor.public_key = crypto::hex(key->public_key());
  anchor.signature = crypto::hex(key->sign(signed_message(anchor, step, what)));
  return anchor;
}

bool is_signed(const AuditAnchor& anchor, int64_t step, Anchored what) {
  crypto::PublicKey key;
  crypto::Signature signature;
  return crypto::from_hex(anchor.public_key, key) && crypto::from_hex(anchor.signature, signature) &&
         crypto::is_signed_by(key, signed_message(anchor, step, what), signature);
}

std::string signature_problem(const Log& log, const AuditAnchor& anchor, int64_t step, Anchored what, const std::string& key) {
  const std::string signer = anchor.public_key.empty() ? "is not signed" : "is signed by the key " + anchor.public_key;
  if (const std::string expected = log.key_at(anchor.records - 1); anchor.public_key != expected)
    return concat(signer, ", and the job that wrote it ", expected.empty() ? "had no key" : "signed with " + expected);
  if (!key.empty() && anchor.public_key != key) return concat(signer, "; expected ", key);
  if (!anchor.public_key.empty() && !is_signed(anchor, step, what)) return "its signature is wrong";
  return "";
}

bool is_start(const Record& record) { return record.event() == "start" || record.event() == "resume"; }

std::string receipt_text(const nlohmann::json& end_record, const AuditAnchor& anchor) {
  nlohmann::json receipt = object_member(end_record, "receipt", concat("record ", anchor.records - 1, " of the audit log"));
  receipt["audit"] = to_json(anchor);
  return receipt.dump(2, ' ', true) + "\n";
}

}  // namespace trireme::audit
