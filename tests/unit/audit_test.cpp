// The audit log: known hashes and signatures; no edit of a log, a manifest, a receipt or a checkpoint's data passes; a checkpoint is published only after
// its record; a run is not resumed from a checkpoint that its log does not have; keys are read from private files only.
#include "trainer/audit/run_audit.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <random>
#include <thread>

#include "parallel/crypto/key_file.h"
#include "tests/support/audited_run.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/audit/verify.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;
using namespace trireme;
using namespace trireme::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::array kKnownRecords = {R"({"ev":"start","step":0})", R"({"ev":"ckpt","step":10})", R"({"ev":"stop","step":20})"};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; begin < text.size(); begin = end)
    lines.push_back(text.substr(begin, (end = std::min(text.find('\n', begin), text.size() - 1) + 1) - begin));
  return lines;
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

void overwrite(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }

/// What verification says: "valid", or the message of its refusal.
std::string verify_result(const fs::path& run, const std::optional<crypto::PublicKey>& key = {}) {
  try {
    audit::verify_run(run, key);
  } catch (const DataError& error) {
    return error.what();
  } catch (const MissingFileError& error) {
    return std::string("missing: ") + error.what();
  }
  return "valid";
}

/// What a job says that resumes from the checkpoint after `step`.
std::string resume_result(const fs::path& run, int64_t step, const std::optional<std::string>& key_file = {}) {
  try {
    audit::RunAudit log(run, audited(key_file), [] {});
    log.begin(small_job(checkpoint_of(run, step)));
  } catch (const DataError& error) {
    return error.what();
  }
  return "resumed";
}

/// The log with record `index` replaced and all later hashes made to fit.
std::string forged_log(const std::string& log, size_t index, const std::function<void(nlohmann::ordered_json&)>& edit) {
  audit::Head head;
  std::string text;
  size_t i = 0;
  for (const std::string& line : split_lines(log)) {
    nlohmann::ordered_json record = nlohmann::ordered_json::parse(line)["record"];
    if (i++ == index) edit(record);
    const std::string record_text = audit::text_of(record);
    head = audit::next(head, record_text);
    text += audit::line_of(head, record_text);
  }
  return text;
}

size_t first_record(const fs::path& run, const std::string& event) {
  const audit::Log log = audit::read_log(run / audit::kLogName);
  for (size_t i = 0; i < log.records.size(); ++i)
    if (log.records[i].event() == event) return i;
  FAIL("no record " << event);
  return 0;
}

}  // namespace

TEST_CASE("audit: a chain has the known hashes") {
  constexpr std::array kHashes = {"67a3ddf653cae2b6a7ea6478d1230ec665ec4ae477a12f9b8185d7a78696185c",
                                  "c8ae5760136816ccdd3a220bfb7d2653f6df8818418c0dbbc80a4c5ffeef7f52",
                                  "db976b5a466e6be31c2e18b22df1f3f0761bdda3dcaf864561b4df4319048773"};
  audit::Head head;
  for (size_t i = 0; i < kHashes.size(); ++i) {
    head = audit::next(head, kKnownRecords[i]);
    CHECK(head.records == static_cast<int64_t>(i) + 1);
    CHECK(crypto::hex(head.hash) == kHashes[i]);
  }
}

TEST_CASE("crypto: SHA-256 and Ed25519 have the known answers of FIPS 180-2 and RFC 8032") {
  CHECK(crypto::hex(crypto::sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  std::array<uint8_t, crypto::kSeedBytes> seed;
  REQUIRE(crypto::from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", seed));
  const crypto::SigningKey key = crypto::SigningKey::from_seed(seed);
  CHECK(crypto::hex(key.public_key()) == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  crypto::Signature signature = key.sign("");
  CHECK(crypto::hex(signature) ==
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b");
  CHECK(crypto::is_signed_by(key.public_key(), "", signature));
  CHECK_FALSE(crypto::is_signed_by(key.public_key(), "a", signature));
  for (size_t bit = 0; bit < 8 * signature.size(); ++bit) {
    crypto::Signature wrong = signature;
    wrong[bit / 8] = static_cast<uint8_t>(wrong[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(crypto::is_signed_by(key.public_key(), "", wrong));
  }
  std::array<uint8_t, 2> two;
  CHECK(crypto::from_hex("0aff", two));
  for (const char* text : {"0aF0", "0a", "0aff0", "0a f", "0axy"}) CHECK_FALSE(crypto::from_hex(text, two));
}

TEST_CASE("crypto: key files are made with mode 0600, never overwritten, and refused in any other state") {
  const Scratch scratch;
  const std::string path = scratch / "key";
  const mode_t mask = ::umask(0);
  const crypto::PublicKey made = crypto::write_new_key_pair(path);
  ::umask(mask);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(crypto::read_signing_key(path, "key").public_key() == made);
  CHECK(crypto::read_public_key(path + ".pub", "key") == made);
  const std::string before = slurp(path);
  CHECK_THROWS_AS(crypto::write_new_key_pair(path), ConfigError);
  fs::rename(path, path + "2");
  CHECK_THROWS_AS(crypto::write_new_key_pair(path), ConfigError);  // only the public key is there
  CHECK_FALSE(fs::exists(path));
  fs::rename(path + "2", path);
  overwrite(scratch / "zeros", "ed25519-secret:" + std::string(64, '0') + "\n");
  overwrite(scratch / "repeated", "ed25519-secret:" + std::string(32, 'a') + std::string(32, 'a') + "\n");
  for (const std::string name : {"zeros", "repeated"}) {
    REQUIRE(::chmod((scratch / name).c_str(), 0600) == 0);
    CHECK_THROWS_WITH(crypto::read_signing_key(scratch / name, "key"), Contains("contains a key that can be guessed"));
  }
  CHECK(slurp(path) == before);
  CHECK_THROWS_AS(crypto::write_new_key_pair(scratch / "none/key"), IoError);

  const auto read = [](const std::string& file) { return crypto::read_signing_key(file, "security.audit.signing_key_file"); };
  for (const mode_t mode : {0644, 0640, 0604, 0660, 0700, 0610, 04600}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    INFO(mode);
    CHECK_THROWS_AS(read(path), ConfigError);
  }
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  CHECK_THROWS_WITH(read(path), Contains("has mode 0644, so others may read or change the key; allowed 0600"));
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(read(path).public_key() == made);
  fs::create_symlink(path, scratch / "link");
  CHECK_THROWS_AS(read(scratch / "link"), ConfigError);
  CHECK_THROWS_WITH(read(scratch / "link"), Contains("is a symbolic link"));
  CHECK_THROWS_AS(read(scratch / "none"), MissingFileError);
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(read(scratch / "pipe"), ConfigError);
  CHECK_THROWS_AS(read(fs::path(path).parent_path()), ConfigError);
  if (::geteuid() == 0) {  // only root can give a file away
    scratch.write("foreign", before);
    REQUIRE(::chmod((scratch / "foreign").c_str(), 0600) == 0);
    REQUIRE(::chown((scratch / "foreign").c_str(), 1234, 1234) == 0);
    CHECK_THROWS_AS(read(scratch / "foreign"), ConfigError);
  }
  for (const std::string& text : {std::string(), before + "x", before.substr(1), before.substr(0, before.size() - 1), slurp(path + ".pub")}) {
    const std::string bad = scratch.write("bad", text);
    REQUIRE(::chmod(bad.c_str(), 0600) == 0);
    CHECK_THROWS_AS(read(bad), DataError);
    if (text.size() > 40) CHECK_THROWS_WITH(read(bad), !Contains(text.substr(20, 20)));
  }
  CHECK_THROWS_AS(crypto::read_public_key(path, "key"), DataError);
}

TEST_CASE("audit: a run whose log, checkpoints and receipt were not changed is valid") {
  const Scratch scratch;
  const bool with_key = GENERATE(false, true);
  std::optional<std::string> key_file;
  std::optional<crypto::PublicKey> key;
  if (with_key) key = crypto::write_new_key_pair(*(key_file = scratch / "key"));
  const fs::path run = scratch / "run";
  make_audited_run(run, key_file);
  const audit::Verification found = audit::verify_run(run, key);
  CHECK(found.jobs == 2);
  CHECK(found.checkpoints == std::vector<int64_t>{2, 4, 6});
  CHECK(found.status == "done");
  CHECK(found.has_receipt);
  CHECK(found.signatures == (with_key ? 4 : 0));
  std::vector<std::string> events;
  for (const audit::Record& record : audit::read_log(run / audit::kLogName).records) events.push_back(record.event());
  CHECK(events == std::vector<std::string>{"start", "configuration", "data", "suspicion", "checkpoint", "evaluation", "checkpoint", "end", "resume",
                                           "configuration", "data", "checkpoint", "evaluation", "end"});
  const auto receipt = nlohmann::json::parse(slurp((run / audit::kReceiptName).string()));
  CHECK(receipt["steps"] == 6);
  CHECK(receipt["tokens"] == 600);
  CHECK(receipt["data"] == small_job().data);
  CHECK(receipt["configuration"] == crypto::hex(crypto::sha256(small_job().configuration)));
  CHECK(receipt["result"]["loss"] == 4.5);
  CHECK(receipt["result"]["validation_loss"] == 4.75);
  CHECK(receipt["result"]["checkpoint"]["step"] == 6);
  CHECK(receipt["program"]["binary"] == small_job().binary);
  CHECK(receipt["audit"]["records"] == events.size());
  CHECK(CheckpointReader(checkpoint_of(run, 2)).audit()->records == 5);
  if (with_key) {
    const crypto::PublicKey other = crypto::write_new_key_pair(scratch / "other");
    CHECK_THAT(verify_result(run, other), Contains("; expected "));
    for (const auto& file : fs::recursive_directory_iterator(run)) {
      if (!file.is_regular_file()) continue;
      const std::string secret = slurp(*key_file).substr(15, 64), text = slurp(file.path().string());
      std::array<uint8_t, crypto::kSeedBytes> seed;
      REQUIRE(crypto::from_hex(secret, seed));
      CHECK(text.find(secret) == text.npos);
      CHECK(text.find(std::string(seed.begin(), seed.end())) == text.npos);
    }
  } else {
    CHECK_THAT(verify_result(run, crypto::write_new_key_pair(scratch / "other")), Contains("is not signed"));
  }
}

/// One random edit of the text; equal to it if the edit happens to change nothing.
static std::string random_edit(const std::string& text, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  std::string result = text;
  std::vector<std::string> lines = split_lines(text);
  const size_t one = below(lines.size()), other = below(lines.size()), at = below(text.size());
  switch (below(9)) {
    case 0:
    case 1: result[at] = static_cast<char>(result[at] ^ (1 << below(8))); return result;
    case 2: result[at] = static_cast<char>(below(256)); return result;
    case 3: return result.erase(at, 1 + below(3));
    case 4: return result.insert(at, 1, static_cast<char>(below(256)));
    case 5: lines.erase(lines.begin() + static_cast<ptrdiff_t>(one)); return joined_lines(lines);
    case 6: lines.insert(lines.begin() + static_cast<ptrdiff_t>(other), lines[one]); return joined_lines(lines);
    case 7: std::swap(lines[one], lines[other]); return joined_lines(lines);
    default: return text.substr(0, below(2) == 0 ? at : joined_lines({lines.begin(), lines.begin() + static_cast<ptrdiff_t>(one)}).size());
  }
}

/// The text with its own digest recomputed, if it still begins with one, so that only the audit log can find the edit.
static std::string with_fitting_digest(const std::string& text) {
  try {
    return with_digest(text);
  } catch (const DataError&) {
    return text;
  }
}

TEST_CASE("audit: of 1,000 random edits of log, manifests, receipt, data and configuration none is missed") {
  const Scratch scratch;
  const bool with_key = GENERATE(true, false);
  std::optional<std::string> key_file;
  if (with_key) crypto::write_new_key_pair(*(key_file = scratch / "key"));
  const fs::path run = scratch / "run";
  make_audited_run(run, key_file);
  REQUIRE(verify_result(run) == "valid");
  std::vector<fs::path> files = {run / audit::kLogName, run / audit::kLogName, run / audit::kReceiptName, run / "config.yaml"};
  for (const int64_t step : {2, 4, 6}) {
    files.push_back(fs::path(checkpoint_of(run, step)) / kManifestName);
    files.push_back(fs::path(checkpoint_of(run, step)) / "rank-00000.safetensors");
  }
  std::mt19937_64 random(with_key ? 1 : 2);
  int edits = 0, missed = 0;
  while (edits < 1000) {
    const fs::path& file = files[std::uniform_int_distribution<size_t>(0, files.size() - 1)(random)];
    const std::string before = slurp(file.string());
    std::string after = random_edit(before, random);
    if (edits % 2 == 0 && file.filename() == kManifestName) after = with_fitting_digest(after);
    if (after == before) continue;
    ++edits;
    overwrite(file, after);
    if (verify_result(run) == "valid") {
      ++missed;
      FAIL_CHECK(file << " after edit " << edits << ":\n" << after);
    }
    overwrite(file, before);
  }
  CHECK(missed == 0);
  CHECK(verify_result(run) == "valid");
}

TEST_CASE("audit: manifests whose digests were made to fit are found") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  const fs::path path = fs::path(checkpoint_of(run, 4)) / kManifestName;
  const std::string before = slurp(path.string());
  const auto rewritten = [&](const std::function<void(Manifest&)>& edit) {
    Manifest manifest = parse_manifest(before, "manifest");
    edit(manifest);
    return manifest_text(manifest);
  };
  CHECK(rewritten([](Manifest&) {}) == before);
  const auto says = [&](const std::string& text, const std::string& words) {
    overwrite(path, text);
    CHECK_THAT(verify_result(run), Contains(words));
    CHECK(resume_result(run, 4) != "resumed");
  };
  says(rewritten([](Manifest& m) { m.description.tokens += 1; }), "is not the manifest that");
  says(rewritten([](Manifest& m) { m.description.training_data[0] = 'f'; }), "is not the manifest that");
  says(rewritten([](Manifest& m) { m.audit->records -= 1; }), "differs from the one in the log");
  says(rewritten([](Manifest& m) { m.audit->records += 100; }), "it was shortened");
  says(rewritten([](Manifest& m) { m.audit.reset(); }), "names no record of the audit log");
  const AuditAnchor of_two = *CheckpointReader(checkpoint_of(run, 2)).audit();
  says(rewritten([&](Manifest& m) { m.audit = of_two; }), "is not the manifest that");
  overwrite(path, rewritten([](Manifest& m) { m.description.tokens += 1, m.audit.reset(); }));
  CHECK_THAT(verify_result(run), Contains("names no record of the audit log"));
  CHECK_THAT(resume_result(run, 4), Contains("and the manifest does not name it"));
}

TEST_CASE("audit: a shortened log is found, with and without its receipt") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  const std::string log = slurp((run / audit::kLogName).string());
  const std::vector<std::string> lines = split_lines(log);
  for (size_t kept = 0; kept < lines.size(); ++kept) {
    overwrite(run / audit::kLogName, joined_lines({lines.begin(), lines.begin() + static_cast<ptrdiff_t>(kept)}));
    INFO(kept);
    CHECK_THAT(verify_result(run), Contains("it was shortened"));
  }
  overwrite(run / audit::kLogName, log.substr(0, log.size() - 1));
  CHECK_THAT(verify_result(run), Contains("is incomplete"));
  // Without the receipt only the missing end tells of records behind the last checkpoint.
  overwrite(run / audit::kLogName, log);
  fs::remove(run / audit::kReceiptName);
  CHECK_THAT(verify_result(run), Contains("receipt.json does not exist"));
  const size_t last_checkpoint = lines.size() - 3;
  for (size_t kept = 1; kept < lines.size(); ++kept) {
    overwrite(run / audit::kLogName, joined_lines({lines.begin(), lines.begin() + static_cast<ptrdiff_t>(kept)}));
    INFO(kept);
    if (kept <= last_checkpoint) {
      CHECK_THAT(verify_result(run), Contains("it was shortened"));
    } else {
      CHECK(audit::verify_run(run, {}).status.empty());
    }
  }
  fs::remove(run / audit::kLogName);
  CHECK_THAT(verify_result(run), Contains("missing: "));
  CHECK_THAT(verify_result(scratch / "none"), Contains("missing: "));
}

TEST_CASE("audit: a log made anew is found by what the checkpoints name, and by the key that does not sign it") {
  const Scratch scratch;
  const std::string key_file = scratch / "key";
  const crypto::PublicKey key = crypto::write_new_key_pair(key_file);
  const fs::path run = scratch / "run";
  make_audited_run(run, key_file);
  const std::string log = slurp((run / audit::kLogName).string());
  overwrite(run / audit::kLogName, forged_log(log, first_record(run, "evaluation"), [](auto& record) { record["validation_loss"] = 1.0; }));
  CHECK_THAT(verify_result(run), Contains("differs from the one in the log"));
  // Manifests made to fit as well: now only signatures tell.
  const auto forge_anchors = [&](bool sign_by_other) {
    const audit::Log now = audit::read_log(run / audit::kLogName);
    const crypto::SigningKey other = crypto::SigningKey::generate();
    for (const int64_t step : {2, 4, 6}) {
      const fs::path path = fs::path(checkpoint_of(run, step)) / kManifestName;
      Manifest manifest = parse_manifest(slurp(path.string()), "manifest");
      const int64_t records = manifest.audit->records;
      audit::Head head{records, {}};
      REQUIRE(crypto::from_hex(now.records[static_cast<size_t>(records - 1)].hash, head.hash));
      const std::string before = manifest.audit->signature;
      manifest.audit = audit::make_anchor(head, step, audit::Anchored::kCheckpoint, sign_by_other ? &other : nullptr);
      overwrite(path, manifest_text(manifest));
    }
  };
  forge_anchors(false);
  CHECK_THAT(verify_result(run), Contains("is not signed"));
  forge_anchors(true);
  CHECK_THAT(verify_result(run), Contains("is signed by the key"));
  const std::string second = slurp((run / audit::kLogName).string());
  overwrite(run / audit::kLogName, forged_log(second, 0, [](auto& record) { record.erase("public_key"); }));
  overwrite(run / audit::kLogName, forged_log(slurp((run / audit::kLogName).string()), first_record(run, "resume"), [&](auto& record) {
              record.erase("public_key");
              const int64_t records = record["from"]["audit"]["records"].template get<int64_t>();
              const std::string hash = audit::read_log(run / audit::kLogName).records.at(static_cast<size_t>(records - 1)).hash;
              record["from"]["audit"] = {{"records", records}, {"head", hash}};
            }));
  forge_anchors(false);
  fs::remove(run / audit::kReceiptName);
  overwrite(run / audit::kLogName, joined_lines([&] {
              auto lines = split_lines(slurp((run / audit::kLogName).string()));
              lines.pop_back();
              return lines;
            }()));
  CHECK(verify_result(run) == "valid");  // to somebody who does not know the key
  CHECK_THAT(verify_result(run, key), Contains("is not signed"));
}

TEST_CASE("audit: a signature stands for one place, one step and one kind of file") {
  const crypto::SigningKey key = crypto::SigningKey::generate();
  const audit::Head head = audit::next({}, kKnownRecords[0]);
  const AuditAnchor anchor = audit::make_anchor(head, 10, audit::Anchored::kCheckpoint, &key);
  CHECK(audit::is_signed(anchor, 10, audit::Anchored::kCheckpoint));
  CHECK_FALSE(audit::is_signed(anchor, 11, audit::Anchored::kCheckpoint));
  CHECK_FALSE(audit::is_signed(anchor, 10, audit::Anchored::kReceipt));
  AuditAnchor other = anchor;
  other.records = 2;
  CHECK_FALSE(audit::is_signed(other, 10, audit::Anchored::kCheckpoint));
  other = anchor;
  other.head = crypto::hex(audit::next({}, kKnownRecords[1]).hash);
  CHECK_FALSE(audit::is_signed(other, 10, audit::Anchored::kCheckpoint));
  other = anchor;
  other.public_key = crypto::hex(crypto::SigningKey::generate().public_key());
  CHECK_FALSE(audit::is_signed(other, 10, audit::Anchored::kCheckpoint));
  CHECK_FALSE(audit::is_signed(AuditAnchor{1, anchor.head}, 10, audit::Anchored::kCheckpoint));
}

TEST_CASE("audit: a job resumes only from a checkpoint that the log has a record of") {
  const Scratch scratch;
  const fs::path run = scratch / "run", log = run / audit::kLogName;
  make_audited_run(run);
  const std::string before = slurp(log.string());
  const std::vector<std::string> lines = split_lines(before);
  fs::remove(log);
  CHECK_THAT(resume_result(run, 6), Contains("audit.jsonl does not exist"));
  CHECK_FALSE(fs::exists(log));
  overwrite(log, joined_lines({lines.begin(), lines.begin() + 9}));
  CHECK_THAT(resume_result(run, 6), Contains("does not contain: it was shortened or changed"));
  CHECK(split_lines(slurp(log.string())).size() == 9);
  CHECK_THAT(resume_result(run, 4), Contains("receipt.json: names record 13 of the audit log"));
  const std::string receipt = slurp((run / audit::kReceiptName).string());
  fs::remove(run / audit::kReceiptName);
  CHECK(resume_result(run, 4) == "resumed");  // rolled back to a checkpoint that the log has
  overwrite(log, forged_log(before, 3, [](auto& record) { record["step"] = 0; }));
  CHECK_THAT(resume_result(run, 6), Contains("does not contain: it was shortened or changed"));
  std::string damaged = before;
  damaged[200] = damaged[200] == 'x' ? 'y' : 'x';
  overwrite(log, damaged);
  CHECK_THAT(resume_result(run, 6), Contains("record 0: "));
  CHECK(slurp(log.string()) == damaged);
  overwrite(log, before);
  overwrite(run / audit::kReceiptName, receipt);
  CHECK(resume_result(run, 6) == "resumed");
  CHECK(slurp(log.string()).starts_with(before));
  CHECK(verify_result(run) == "valid");
}

TEST_CASE("audit: a record that a crash cut off is removed by the next job, which records that") {
  const Scratch scratch;
  const fs::path run = scratch / "run", log = run / audit::kLogName;
  make_audited_run(run);
  const std::string before = slurp(log.string());
  const std::vector<std::string> lines = split_lines(before);
  const std::string torn = lines.back().substr(0, 40), kept = joined_lines({lines.begin(), lines.end() - 1});
  fs::remove(run / audit::kReceiptName);
  overwrite(log, kept + torn);
  CHECK_THAT(verify_result(run), Contains("record 13 is incomplete"));
  CHECK(resume_result(run, 6) == "resumed");
  CHECK(slurp(log.string()).starts_with(kept));
  CHECK(verify_result(run) == "valid");
  const audit::Record record = audit::read_log(log).records.at(13);
  CHECK(record.event() == "resume");
  CHECK(record.member("torn") == nlohmann::json{{"bytes", 40}, {"sha256", crypto::hex(crypto::sha256(torn))}});
  // A record that a checkpoint names was complete before the checkpoint existed, so that it cannot have been cut off by a crash.
  overwrite(log, joined_lines({lines.begin(), lines.begin() + 11}) + lines[11].substr(0, 50));
  CHECK_THAT(resume_result(run, 6), Contains("it was shortened or changed"));
}

TEST_CASE("audit: the record of a checkpoint is in the log before its manifest exists") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "checkpoints");
  int observed = 0;
  AuditedJob job(run, {}, [&] {
    ++observed;
    const audit::Log log = audit::read_log(run / audit::kLogName);
    CHECK(log.torn.empty());
    CHECK(log.records.back().event() == "checkpoint");
    for (const auto& entry : fs::recursive_directory_iterator(run / "checkpoints")) CHECK(entry.path().filename() != kManifestName);
  });
  job.begin(small_job());
  job.save(1);
  CHECK(observed == 1);
  CHECK(verify_result(run) == "valid");
}

TEST_CASE("audit: no checkpoint is published while its record cannot be written") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "checkpoints");
  AuditedJob job(run);
  job.begin(small_job());
  std::ofstream(run / audit::kLogName, std::ios::app) << "x";  // another program
  CHECK_THROWS_WITH(job.save(1), Contains("another program changes it"));
  CHECK_FALSE(fs::exists(checkpoint_of(run, 1)));
}

TEST_CASE("audit: evaluations recorded while checkpoints are saved keep the chain valid") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "checkpoints");
  AuditedJob job(run);
  job.begin(small_job());
  std::thread other([&] {
    for (int step = 1; step <= 500; ++step) job.log().evaluated(step, {{"validation_loss", 1.0 / step}});
  });
  for (int64_t step = 1; step <= 20; ++step) job.save(step);
  other.join();
  job.log().end("stopped", 20);
  const audit::Verification found = audit::verify_run(run, {});
  CHECK(found.records == 3 + 500 + 20 + 1);
  CHECK(found.checkpoints.size() == 20);
}

TEST_CASE("audit: a run that gets a log at a resume says so, and checkpoints from before stay what they were") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  fs::remove(run / audit::kReceiptName);
  fs::remove(run / audit::kLogName);
  for (const int64_t step : {2, 4, 6}) {  // as if they were saved without a log
    const fs::path path = fs::path(checkpoint_of(run, step)) / kManifestName;
    overwrite(path, text_without_anchor(slurp(path.string()), "manifest"));
  }
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);
    job.log().end("done", 8);
  }
  const audit::Verification found = audit::verify_run(run, {});
  CHECK(found.unaudited == std::vector<int64_t>{2, 4, 6});
  CHECK(found.checkpoints == std::vector<int64_t>{8});
  const audit::Record start = audit::read_log(run / audit::kLogName).records.front();
  CHECK(start.event() == "start");
  CHECK(start.member("step") == 6);
  CHECK(start.member("from")["unaudited"] == true);
  const fs::path path = fs::path(checkpoint_of(run, 4)) / kManifestName;
  Manifest manifest = parse_manifest(slurp(path.string()), "manifest");
  manifest.description.tokens += 1;
  overwrite(path, manifest_text(manifest));
  CHECK_THAT(verify_result(run), Contains("it was changed or added"));
}

TEST_CASE("audit: what a kill at the very end has left out is written by the next job") {
  const Scratch scratch;
  const bool ended = GENERATE(false, true);
  std::optional<std::string> key_file;
  if (ended) crypto::write_new_key_pair(*(key_file = scratch / "key"));
  const fs::path run = scratch / "run", log = run / audit::kLogName;
  make_audited_run(run, key_file);
  const std::string receipt = slurp((run / audit::kReceiptName).string());
  fs::remove(run / audit::kReceiptName);
  if (!ended) {
    auto lines = split_lines(slurp(log.string()));
    lines.pop_back();
    overwrite(log, joined_lines(lines));
  }
  {
    audit::RunAudit audit(run, audited(key_file), [] {});
    REQUIRE(audit.is_incomplete());
    audit.set_summary({"test", {{"architecture", "llama"}}, 12});
    audit::Job job = small_job(checkpoint_of(run, 6));
    job.layout = {{"tensor", 1}, {"data", 2}};
    job.configuration = "something: else\n";
    audit.complete(job);
  }
  const audit::Verification found = audit::verify_run(run, {});
  CHECK(found.has_receipt);
  CHECK(found.status == "done");
  auto expected = nlohmann::json::parse(receipt), made = nlohmann::json::parse(slurp((run / audit::kReceiptName).string()));
  for (auto* one : {&expected, &made}) {
    one->erase("audit");
    (*one)["result"].erase("loss");  // behind the last checkpoint nothing attests a record
    (*one)["result"].erase("validation_loss");
  }
  CHECK(made == expected);
  CHECK(slurp((run / "config.yaml").string()) == small_job().configuration);
  CHECK_FALSE(audit::RunAudit(run, audited(key_file), [] {}).is_incomplete());
}

TEST_CASE("audit: another layout is recorded as a change of members") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  audit::Job job = small_job(checkpoint_of(run, 6));
  job.world_size = 2;
  job.layout = {{"tensor", 1}, {"data", 2}};
  audit::RunAudit(run, audited(), [] {}).begin(job);
  const audit::Record last = audit::read_log(run / audit::kLogName).records.back();
  CHECK(last.event() == "membership");
  CHECK(last.member("before")["world_size"] == 1);
  CHECK(last.member("now")["layout"]["data"] == 2);
}

namespace {

/// Appends a record whose hash follows from the log, as anyone can who may write the file.
void append_record(const fs::path& run, const nlohmann::ordered_json& record) {
  const audit::Log log = audit::read_log(run / audit::kLogName);
  const std::string text = audit::text_of(record);
  std::ofstream(run / audit::kLogName, std::ios::app) << audit::line_of(audit::next(log.head, text), text);
}

void rewrite_manifest(const fs::path& run, int64_t step, const std::function<void(Manifest&)>& edit) {
  const fs::path path = fs::path(checkpoint_of(run, step)) / kManifestName;
  Manifest manifest = parse_manifest(slurp(path.string()), "manifest");
  edit(manifest);
  overwrite(path, manifest_text(manifest));
}

void complete(const fs::path& run, const std::optional<std::string>& key_file, int64_t step = 6) {
  audit::RunAudit log(run, audited(key_file), [] {});
  log.set_summary({"test", {{"architecture", "llama"}}, 12});
  log.complete(small_job(checkpoint_of(run, step)));
}

/// Removes everything that shows that the run had a log.
void make_unaudited(const fs::path& run) {
  fs::remove(run / audit::kReceiptName);
  fs::remove(run / audit::kLogName);
  for (const int64_t step : {2, 4, 6})
    rewrite_manifest(run, step, [](Manifest& m) {
      m.audit.reset();
      for (auto& [name, file] : m.contents.files) file.sha256.clear();
    });
}

}  // namespace

TEST_CASE("audit: a receipt that was appended to the log is never signed") {
  const Scratch scratch;
  const std::string key_file = scratch / "key";
  const crypto::PublicKey key = crypto::write_new_key_pair(key_file);
  const fs::path run = scratch / "run";
  make_audited_run(run, key_file);
  auto forged = nlohmann::ordered_json::parse(slurp((run / audit::kReceiptName).string()));
  forged.erase("audit");
  forged["tokens"] = 1000000;
  forged["result"]["validation_loss"] = 0.5;
  nlohmann::ordered_json receipt = GENERATE(nlohmann::ordered_json(), nlohmann::ordered_json("text"));
  if (receipt.is_null()) receipt = forged;
  fs::remove(run / audit::kReceiptName);
  append_record(run, {{"event", "checkpoint"}, {"step", 6}, {"tokens", 1000000}, {"manifest", std::string(64, 'a')}});
  append_record(run, {{"event", "evaluation"}, {"step", 6}, {"validation_loss", 0.5}});
  append_record(run, {{"event", "start"}, {"step", 6}, {"seed", 99}, {"public_key", crypto::hex(key)}});
  append_record(run, {{"event", "end"}, {"status", "done"}, {"step", 6}, {"receipt", receipt}});
  complete(run, key_file);
  const auto made = nlohmann::json::parse(slurp((run / audit::kReceiptName).string()));
  CHECK(made["tokens"] == 600);
  CHECK(made["seed"] == 7);
  CHECK(made["result"]["validation_loss"].is_null());
  CHECK(made["result"]["checkpoint"]["tokens"] == 600);
  CHECK(verify_result(run, key) == "valid");
}

TEST_CASE("audit: a malformed receipt in the log or beside it is an error of the data") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  CHECK_THROWS_AS(audit::receipt_text({{"event", "end"}, {"receipt", 5}}, AuditAnchor{1, std::string(64, 'a')}), DataError);
  CHECK_THROWS_AS(audit::receipt_text({{"event", "end"}}, AuditAnchor{1, std::string(64, 'a')}), DataError);
  overwrite(run / audit::kReceiptName, "{\"audit\": 5}");
  CHECK_THAT(verify_result(run), Contains("receipt.json: \"audit\" is 5"));
  CHECK_THROWS_AS(complete(run, {}), DataError);
}

TEST_CASE("audit: a signed run is resumed only from a checkpoint that its key has signed") {
  const Scratch scratch;
  const std::string key_file = scratch / "key", other_file = scratch / "other";
  const crypto::PublicKey key = crypto::write_new_key_pair(key_file);
  crypto::write_new_key_pair(other_file);
  const fs::path run = scratch / "run";
  make_audited_run(run, key_file);
  const AuditAnchor anchor = *CheckpointReader(checkpoint_of(run, 6)).audit();
  CHECK_THAT(resume_result(run, 6, other_file), Contains("expected "));
  rewrite_manifest(run, 6, [](Manifest& m) { m.audit->public_key = m.audit->signature = ""; });
  CHECK_THAT(resume_result(run, 6, key_file), Contains("its manifest is not signed"));
  CHECK_THAT(resume_result(run, 6), Contains("its manifest is not signed"));
  rewrite_manifest(run, 6, [&](Manifest& m) { m.audit = anchor, m.audit->signature[3] = m.audit->signature[3] == 'a' ? 'b' : 'a'; });
  CHECK_THAT(resume_result(run, 6, key_file), Contains("its signature is wrong"));
  // A job of the attacker's own, without the key.
  rewrite_manifest(run, 6, [&](Manifest& m) { m.audit = anchor; });
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);
  }
  CHECK_THAT(resume_result(run, 8, key_file), Contains("its manifest is not signed; expected"));
  CHECK(resume_result(run, 6, key_file) == "resumed");
  fs::remove_all(checkpoint_of(run, 8));
  fs::remove(run / "checkpoints/latest");
  const audit::Verification found = audit::verify_run(run, key);
  CHECK(found.unattested.size() == 1);
  CHECK(found.uncovered > 0);
}

TEST_CASE("audit: a run that is signed from some job on says so, and nothing before counts as signed") {
  const Scratch scratch;
  const std::string key_file = scratch / "key";
  const crypto::PublicKey key = crypto::write_new_key_pair(key_file);
  const fs::path run = scratch / "run";
  make_audited_run(run);
  {
    AuditedJob job(run, key_file);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);
    job.log().end("done", 8);
  }
  CHECK(verify_result(run) == "valid");
  CHECK_THAT(verify_result(run, key), Contains("is not signed; expected"));
  for (const int64_t step : {2, 4, 6}) fs::remove_all(checkpoint_of(run, step));
  const audit::Verification found = audit::verify_run(run, key);
  CHECK(found.unattested == std::vector<int64_t>{0, 8});
  CHECK(audit::read_log(run / audit::kLogName).records.at(14).member("unsigned_before") == true);
  // Verification checks the anchor that the record of the resume contains.
  auto lines = split_lines(slurp((run / audit::kLogName).string()));
  lines.pop_back();
  const std::string without_receipt = forged_log(joined_lines(lines), 13, [](auto& record) { record.erase("receipt"); });
  overwrite(run / audit::kLogName, without_receipt);
  for (const char* name : {"receipt.json", "checkpoints/step-00000008", "checkpoints/latest"}) fs::remove_all(run / name);
  CHECK(verify_result(run) == "valid");
  overwrite(run / audit::kLogName, forged_log(without_receipt, 14, [](auto& record) { record["from"]["audit"]["records"] = 3; }));
  CHECK_THAT(verify_result(run), Contains("is not a checkpoint that an earlier record has"));
}

TEST_CASE("audit: checkpoints that are older than the log count only below an anchor, and their files are read") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  make_unaudited(run);
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    CHECK_THAT(verify_result(run), Contains("checkpoint or receipt attests that record"));
    job.save(8);
  }
  CHECK(verify_result(run) == "valid");
  const fs::path weights = fs::path(checkpoint_of(run, 4)) / "rank-00000.safetensors";
  std::string bytes = slurp(weights.string());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  overwrite(weights, bytes);
  CHECK_THAT(verify_result(run), Contains("rank-00000.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  overwrite(weights, bytes);
  CHECK(resume_result(run, 4) == "resumed");  // it is in the list
  // A checkpoint that appears later is neither listed nor resumed from.
  rewrite_manifest(run, 4, [](Manifest& m) { m.description.tokens += 1; });
  CHECK_THAT(resume_result(run, 4), Contains("which is older"));
  CHECK(resume_result(run, 8) == "resumed");
  CHECK_THAT(verify_result(run), Contains("step-00000004/manifest.json: names no record of the audit log"));
  for (size_t i = 1; i < audit::read_log(run / audit::kLogName).records.size(); ++i)
    CHECK(audit::read_log(run / audit::kLogName).records[i].member("unaudited").is_null());
}

TEST_CASE("audit: a list of older checkpoints that no job with the expected key has written does not count") {
  const Scratch scratch;
  const std::string key_file = scratch / "key";
  const crypto::PublicKey key = crypto::write_new_key_pair(key_file);
  const fs::path run = scratch / "run";
  const bool began_with_key = GENERATE(true, false);
  make_audited_run(run);
  make_unaudited(run);
  {
    AuditedJob job(run, began_with_key ? std::optional(key_file) : std::nullopt);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);
  }
  if (!began_with_key) {
    AuditedJob job(run, key_file);
    job.begin(small_job(checkpoint_of(run, 8)));
    job.save(10);
    fs::remove_all(checkpoint_of(run, 8));
  }
  CHECK(verify_result(run) == "valid");
  CHECK_THAT(verify_result(run, key), began_with_key ? Contains("valid") : Contains("no signed checkpoint or receipt attests that record"));
}

TEST_CASE("audit: deleted, swapped and linked checkpoints and latest") {
  const Scratch scratch;
  const fs::path run = scratch / "run", checkpoints = run / "checkpoints";
  make_audited_run(run);
  const std::string name = "step-00000004";
  fs::rename(checkpoints / name, checkpoints / "aside");
  CHECK(verify_result(run) == "valid");  // retention removes checkpoints too
  fs::create_directory_symlink("step-00000002", checkpoints / name);
  CHECK_THAT(verify_result(run), Contains("step-00000004: is a symbolic link"));
  fs::remove(checkpoints / name);
  fs::rename(checkpoints / "step-00000002", checkpoints / name);
  fs::rename(checkpoints / "aside", checkpoints / "step-00000002");
  CHECK_THAT(verify_result(run), Contains("the manifest says step"));
  fs::rename(checkpoints / name, checkpoints / "aside");
  fs::rename(checkpoints / "step-00000002", checkpoints / name);
  fs::rename(checkpoints / "aside", checkpoints / "step-00000002");
  CHECK(verify_result(run) == "valid");
  for (const std::string& target : {std::string("../other"), std::string("step-00000005"), (checkpoints / name).string(), name + "/"}) {
    fs::remove(checkpoints / "latest");
    fs::create_directory_symlink(target, checkpoints / "latest");
    CHECK_THAT(verify_result(run), Contains("latest: points to "));
  }
  fs::remove(checkpoints / "latest");
  overwrite(checkpoints / "latest", name);
  CHECK_THAT(verify_result(run), Contains("latest: is not a symbolic link"));
}

TEST_CASE("audit: records that were appended are counted as behind the last anchor") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  CHECK(audit::verify_run(run, {}).uncovered == 0);
  append_record(run, {{"event", "evaluation"}, {"step", 6}, {"validation_loss", 0.5}});
  CHECK(audit::verify_run(run, {}).uncovered == 1);
  CHECK_THAT(audit::text_of(audit::verify_run(run, {})), Contains("1 record at the end of the log follows"));
  append_record(run, {{"event", "end"}, {"status", "done"}, {"step", 6}, {"receipt", nlohmann::json::object()}});
  CHECK_THAT(verify_result(run), Contains("record 15 has a later one; `trireme train` with its configuration writes it again"));
}

TEST_CASE("audit: a log may name validation sets with control characters") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.log().evaluated(6, {{"validation_losses", {{"a\nb\x1b", 1.5}}}});
    job.log().end("done", 6);
  }
  CHECK(verify_result(run) == "valid");
  CHECK(resume_result(run, 6) == "resumed");
}

TEST_CASE("audit: jobs that were killed before they wrote config.yaml do not make it look changed") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  for (const char* text : {"a: 1\n", "b: 2\n"}) {
    audit::Job job = small_job(checkpoint_of(run, 6));
    job.configuration = text;
    audit::RunAudit(run, audited(), [] {}).begin(job);
  }
  CHECK(verify_result(run) == "valid");
  overwrite(run / "config.yaml", "a: 1\n");  // the first of them may have written it
  CHECK(verify_result(run) == "valid");
  overwrite(run / "config.yaml", "c: 3\n");
  CHECK_THAT(verify_result(run), Contains("it was changed"));
  const fs::path fresh = scratch / "fresh";
  fs::create_directories(fresh / "checkpoints");
  for (int i = 0; i < 2; ++i) audit::RunAudit(fresh, audited(), [] {}).begin(small_job());
  CHECK(verify_result(fresh) == "valid");
}

TEST_CASE("audit: a log that grew after it was checked is not continued") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  audit::RunAudit log(run, audited(), [] {});
  append_record(run, {{"event", "evaluation"}, {"step", 6}});
  const std::string before = slurp((run / audit::kLogName).string());
  CHECK_THROWS_WITH(log.begin(small_job(checkpoint_of(run, 6))), Contains("another program changes it"));
  CHECK(slurp((run / audit::kLogName).string()) == before);
}

TEST_CASE("audit: a run that went on past its receipt and was killed behind a later checkpoint names no unattested records") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);  // then it is killed
  }
  const audit::Verification found = audit::verify_run(run, {});
  CHECK(found.has_receipt);
  CHECK(found.status.empty());
  CHECK(found.checkpoints == std::vector<int64_t>{2, 4, 6, 8});
  CHECK(found.uncovered == 0);
  CHECK_THAT(audit::text_of(found), !Contains("nothing attests"));
  append_record(run, {{"event", "evaluation"}, {"step", 8}, {"validation_loss", 0.5}});
  CHECK(audit::verify_run(run, {}).uncovered == 1);  // behind both
}

TEST_CASE("audit: a file that was added to a checkpoint is found, and one that no record covers is named") {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  make_audited_run(run);
  record_loss(checkpoint_of(run, 4), 4, 1.5);
  CHECK_THAT(audit::text_of(audit::verify_run(run, {})), Contains("note: no record covers validation.json of the checkpoints"));
  for (const std::string name : {"rank-00001.safetensors", "tokenizer.json", ".hidden", "manifest.json.tmp"}) {
    overwrite(fs::path(checkpoint_of(run, 2)) / name, "x");
    CHECK_THAT(verify_result(run), Contains(name + ": is in no manifest: it was added"));
    fs::remove(fs::path(checkpoint_of(run, 2)) / name);
  }
  fs::create_directory(fs::path(checkpoint_of(run, 6)) / "more");
  CHECK_THAT(verify_result(run), Contains("more: is in no manifest"));
  fs::remove(fs::path(checkpoint_of(run, 6)) / "more");
  fs::rename(fs::path(checkpoint_of(run, 4)) / "validation.json", fs::path(checkpoint_of(run, 4)) / "aside");
  fs::create_symlink("/dev/null", fs::path(checkpoint_of(run, 4)) / "validation.json");
  CHECK_THAT(verify_result(run), Contains("aside: is in no manifest") || Contains("validation.json: is in no manifest"));
}

TEST_CASE("audit: an older copy of a whole run is found by a head that was noted, and its possibility is said without one") {
  const Scratch scratch;
  const fs::path run = scratch / "run", older = scratch / "older";
  make_audited_run(run);
  fs::copy(run, older, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const std::string first = audit::verify_run(run, {}).head;
  {
    AuditedJob job(run);
    job.begin(small_job(checkpoint_of(run, 6)));
    job.save(8);
    job.log().end("done", 8);
  }
  const audit::Verification now = audit::verify_run(run, {}, first);
  CHECK(now.contains_head);
  CHECK_THAT(audit::text_of(now), Contains("the log contains the noted head") && !Contains("older copy"));
  CHECK(audit::verify_run(run, {}, now.head).contains_head);
  CHECK_THROWS_WITH(audit::verify_run(older, {}, now.head), Contains("has no record with the hash " + now.head) && Contains("is an older copy"));
  CHECK_THAT(audit::text_of(audit::verify_run(older, {})), Contains("an older copy of the whole run directory would be valid too"));
}
