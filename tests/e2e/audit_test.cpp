// The audit log of real runs: killed, stopped, resumed, of several ranks; `trireme audit verify` and `trireme audit keygen`.
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "tests/e2e/harness.h"
#include "tests/e2e/live_job.h"
#include "tests/e2e/save_trials.h"
#include "tests/support/catch.h"
#include "trainer/audit/chain.h"
#include "trainer/audit/verify.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kAudit = sets({"security.audit.enabled=true"});

std::vector<nlohmann::json> audit_records(const fs::path& run) {
  std::vector<nlohmann::json> records;
  for (const audit::Record& record : audit::read_log(run / audit::kLogName).records) records.push_back(record.value);
  return records;
}

std::vector<nlohmann::json> records_of(const fs::path& run, const std::string& event) {
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& record : audit_records(run))
    if (record["event"] == event) found.push_back(record);
  return found;
}

Outcome verify_audit(const TemporaryDirectory& directory, const Arguments& more = {}) {
  return run(directory, Arguments{"audit", "verify", "run"} + more);
}

}  // namespace

TEST_CASE("audit: a run of two ranks that was killed with kill -9 and resumed is valid, signed, and without its key in any file") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check(run(directory, {"audit", "keygen", "--output", "key"}), 0, "public key in key.pub");
  check_error(run(directory, {"audit", "keygen", "--output", "key"}), 64, "key exists, and keys are never overwritten");
  const Arguments arguments =
      kAudit + layout(1, 1, 2, 3) + sets({"security.audit.signing_key_file=key", "training.steps=200", "training.evaluate.every=25"});
  LiveJob job(directory, "run", arguments);
  REQUIRE(job.wait_for_step(30));
  for (const auto& [rank, process] : job.ranks(2)) ::kill(process, SIGKILL);
  job.signal(SIGKILL);
  job.wait();
  const Outcome between = verify_audit(directory);
  CAPTURE(between.err);
  CHECK((between.code == 0 || says(between, "is incomplete")));
  CHECK((between.code != 0 || between.out.find("the log does not end with the end of a job") != std::string::npos));
  must(directory, kTrain + arguments);
  const Outcome valid = must(verify_audit(directory, {"--public-key", "key.pub", "--json"}));
  const auto found = nlohmann::json::parse(valid.out);
  CHECK(found["valid"] == true);
  CHECK(found["jobs"] == 2);
  CHECK(found["checkpoints"] == nlohmann::json{196, 198, 200});
  CHECK(found["status"] == "done");
  CHECK(found["receipt"] == true);
  CHECK(found["signatures"] == 4);
  CHECK(found["compared"] == true);
  check(verify_audit(directory), 0, "the key that signed was not compared");

  const auto records = audit_records(directory / "run");
  CHECK(records.front()["event"] == "start");
  CHECK(records.front()["world_size"] == 2);
  CHECK(records.front()["hosts"] == 1);
  CHECK(records_of(directory / "run", "resume").size() == 1);
  CHECK(records_of(directory / "run", "resume")[0]["step"].get<int64_t>() >= 25);
  CHECK(records_of(directory / "run", "evaluation").size() >= 8);
  CHECK(records_of(directory / "run", "membership").empty());
  CHECK(records.back()["validation_loss"] == validation_loss(directory / "run"));
  CHECK(records.back()["loss"] == losses(directory / "run", 200).back());
  const auto receipt = nlohmann::json::parse(read_file(directory / "run/receipt.json"));
  CHECK(receipt["steps"] == 200);
  CHECK(receipt["planned_steps"] == 200);
  CHECK(receipt["tokens"] == 200 * 8 * 16);
  CHECK(receipt["data"] == CheckpointReader(directory / "run/checkpoints/latest").description().training_data);

  const std::string secret = read_file(directory / "key").substr(15, 64);
  for (const auto& file : fs::recursive_directory_iterator(directory / "run"))
    if (file.is_regular_file() && !file.is_symlink()) CHECK(read_file(file.path()).find(secret) == std::string::npos);
  for (const char* log : {"run.out", "run.err"}) CHECK(read_file(directory / log).find(secret) == std::string::npos);

  // A log that was shortened, a checkpoint that was changed, another key.
  const std::string log = read_file(directory / "run/audit.jsonl");
  write_file(directory / "run/audit.jsonl", log.substr(0, log.rfind('\n', log.size() - 2) + 1));
  check_error(verify_audit(directory), 65, "receipt.json: names run/audit.jsonl: record " + std::to_string(records.size() - 1));
  check_error(run(directory, kTrain + arguments), 65, "receipt.json: names record " + std::to_string(records.size() - 1));
  write_file(directory / "run/audit.jsonl", log.substr(0, log.size() / 2));
  const Outcome refused = run(directory, kTrain + arguments + sets({"training.steps=210"}) + Arguments{"--change", "training.steps"});
  check_error(refused, 65, "it was shortened or changed");
  write_file(directory / "run/audit.jsonl", log);
  must(directory, {"audit", "keygen", "--output", "other"});
  check_error(verify_audit(directory, {"--public-key", "other.pub"}), 65, "; expected ");
  const fs::path weights = directory / "run/checkpoints/step-00000198/rank-00000.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_file(weights, bytes);
  const Outcome changed = verify_audit(directory, {"--json"});
  check_error(changed, 65, "step-00000198/rank-00000.safetensors: was changed");
  CHECK(nlohmann::json::parse(changed.out)["valid"] == false);
}

TEST_CASE("audit: what cannot be done is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, {"audit", "keygen", "--output", "key"});
  fs::create_symlink("key", directory / "link");
  write_file(directory / "open", read_file(directory / "key"));
  ::chmod((directory / "open").c_str(), 0644);
  const auto with_key = [](const std::string& file) { return kTrain + kAudit + sets({"security.audit.signing_key_file=" + file}); };
  const auto before = directory.listing();
  check_error(run(directory, with_key("open")), 64, "security.audit.signing_key_file: open has mode 0644");
  check_error(run(directory, with_key("open") + layout(1, 1, 2, 0)), 64, "security.audit.signing_key_file: open has mode 0644");
  check_error(run(directory, with_key("link")), 64, "security.audit.signing_key_file: link is a symbolic link");
  check_error(run(directory, with_key("none")), 66, "security.audit.signing_key_file: none does not exist");
  check_error(run(directory, with_key("run.yaml")), 64, "run.yaml has mode");
  check_error(run(directory, kTrain + sets({"security.audit.signing_key_file=key"})), 64, "has no effect: audit.enabled is false");
  check_error(run(directory, {"audit", "verify", "run"}), 66, "run does not exist");
  check_error(run(directory, {"audit", "verify", ".", "--json"}), 66, "audit.jsonl does not exist");
  CHECK(nlohmann::json::parse(run(directory, {"audit", "verify", ".", "--json"}).out)["valid"] == false);
  check_error(run(directory, {"audit", "verify", "."}), 66, "audit.jsonl does not exist: this run has no audit log");
  check_error(run(directory, {"audit", "verify", ".", "--public-key", "none.pub"}), 66, "--public-key: none.pub does not exist");
  check_error(run(directory, {"audit", "verify", ".", "--public-key", "key"}), 65, "does not contain a public key");
  check_error(run(directory, {"audit"}), 64, "see trireme --help");
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("audit: a stopped and resumed run records both jobs, and the log changes nothing of training") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + in("plain"));
  must(directory, kTrain + kAudit + in("run") + Arguments{"--max-steps", "4"});
  check(verify_audit(directory), 0, "ended: done");
  must(directory, kTrain + kAudit + in("run") + layout(1, 1, 2, 0));
  check(verify_audit(directory), 0, "3 checkpoints, the receipt, ended: done");
  CHECK(records_of(directory / "run", "end").size() == 2);
  CHECK(records_of(directory / "run", "membership").size() == 1);
  must(directory, kTrain + kAudit + in("same"));
  CHECK(losses(directory / "same", 6) == losses(directory / "plain", 6));
  for (const char* name : {"step-00000004", "step-00000006"})
    CHECK(read_file(directory / "same/checkpoints" / name / "rank-00000.safetensors") ==
          read_file(directory / "plain/checkpoints" / name / "rank-00000.safetensors"));
  CHECK_FALSE(fs::exists(directory / "plain/audit.jsonl"));
  CHECK_FALSE(CheckpointReader(directory / "plain/checkpoints/latest").audit());

  // A job without the log says that what follows has none; verification finds its checkpoints.
  const Arguments longer = sets({"training.steps=8"}) + Arguments{"--change", "training.steps"};
  check_error(run(directory, kTrain + in("run") + layout(1, 1, 2, 0) + longer), 0, "warning: security.audit.enabled=false");
  check_error(verify_audit(directory), 65, "step-00000008/manifest.json: names no record of the audit log");
}

TEST_CASE("audit: a run that gets a log at a resume starts a chain that says so") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + in("run") + Arguments{"--max-steps", "4"});
  must(directory, kTrain + kAudit + in("run"));
  const Outcome valid = verify_audit(directory);
  check(valid, 0, "checkpoint of step 4: saved without an audit log");
  CHECK(valid.out.find("1 checkpoint, the receipt") != std::string::npos);
  CHECK(audit_records(directory / "run").front()["from"]["unaudited"] == true);
  must(directory, kTrain + kAudit + in("other") + Arguments{"--resume", "run/checkpoints/step-00000004"});
  CHECK(audit_records(directory / "other").front()["from"]["unaudited"] == true);
  check(run(directory, {"audit", "verify", "other"}), 0, "1 checkpoint, the receipt");
}

TEST_CASE("audit: the check of a resume does not depend on how the checkpoint is named, and a refused one leaves latest as it was") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + kAudit + in("run") + Arguments{"--max-steps", "4"});
  fs::remove(directory / "run/receipt.json");
  fs::remove(directory / "run/audit.jsonl");
  fs::create_directory_symlink("run/checkpoints/step-00000002", directory / "link");
  const fs::path latest = fs::read_symlink(directory / "run/checkpoints/latest");
  REQUIRE(latest == "step-00000004");
  for (const char* name : {"run/checkpoints/step-00000002", "run/checkpoints/step-00000002/", "run/checkpoints/./step-00000002//", "link", "link/"}) {
    CAPTURE(name);
    check_error(run(directory, kTrain + kAudit + in("run") + Arguments{"--resume", name}), 65, "audit.jsonl does not exist");
    CHECK(fs::read_symlink(directory / "run/checkpoints/latest") == latest);
    CHECK_FALSE(fs::exists(directory / "run/audit.jsonl"));
  }
}

TEST_CASE("audit: suspects are recorded as metrics.jsonl has them") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory,
       kTrain + kAudit + in("run") + layout(1, 1, 5, 0) +
           sets({"training.global_batch_size=10", "security.aggregation.rule=median", "security.aggregation.byzantine=2", "training.steps=30"}));
  std::vector<nlohmann::json> expected, found;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.contains("suspects") && line.contains("loss") && !line["suspects"].empty()) expected.push_back({line["step"], line["suspects"]});
  for (const nlohmann::json& record : records_of(directory / "run", "suspicion")) found.push_back({record["step"], record["suspects"]});
  CHECK(found == expected);
  check(verify_audit(directory), 0, "ended: done");
}

/// Kills at the first call of a save, at one in its middle, and at every `stride`-th of its last calls, in which the log and the checkpoint meet.
static void check_kills_in_a_save(int stride) {
  const Trials trials(layout(1, 1, 1, 0) + kAudit);
  const int calls = trials.calls_of_a_save(0);
  std::set<int> at{1, calls / 2};
  for (int call = calls; call > std::max(1, calls - 24); call -= stride) at.insert(call);
  for (const int call : at) {
    CAPTURE(call, calls);
    trials.copy();
    const Outcome killed = trials.disturbed({"RANK=0", "KILL_AT=" + std::to_string(call)}, {"--max-steps", "4"});
    REQUIRE(killed.code != 0);
    trials.require_whole();
    CHECK_NOTHROW(audit::verify_run(trials.path("trial"), {}));
    must(trials.run("trial", {}));
    trials.require_as_undisturbed({"2", "4", "6"});
    CHECK(audit::verify_run(trials.path("trial"), {}).status == "done");
  }
}

TEST_CASE("audit: killed at a call of a save, the log has what every checkpoint names, and the resumed run is valid") { check_kills_in_a_save(5); }

TEST_CASE("audit: killed at each of the last calls of a save, the log has what every checkpoint names", "[slow]") { check_kills_in_a_save(1); }

}  // namespace trireme::test
