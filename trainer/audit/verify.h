#pragma once
// `trireme audit verify`.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/crypto/sodium.h"

namespace trireme::audit {

/// What verify_run() finds in a run that agrees with its audit log.
struct Verification {
  int64_t records = 0;
  int64_t uncovered = 0;             ///< records at the end of the log that no checkpoint and no receipt covers
  std::string head;                  ///< hash of the last record, in hexadecimal
  int64_t jobs = 0;                  ///< starts of the run
  std::vector<int64_t> unattested;   ///< numbers of the start records of jobs that did not use the expected key
  std::vector<int64_t> checkpoints;  ///< steps of the checkpoints that the log has a record of
  std::vector<int64_t> unaudited;    ///< steps of the checkpoints that are older than the log
  std::string status;                ///< status of the end record, if it is the last record; else empty: the run has not ended, or the log was cut
  bool has_receipt = false;
  int64_t signatures = 0;          ///< number of signed checkpoints and receipts
  std::set<std::string> keys;      ///< public keys that made them, in hexadecimal
  bool compared = false;           ///< the keys were compared with the expected one
  bool contains_head = false;      ///< the log has the record that was noted elsewhere
  std::set<std::string> beside;    ///< files of checkpoints that no record covers
  std::vector<std::string> notes;  ///< what a reader should know
};

/// Checks the chain of the log, and against it every checkpoint with all its files, config.yaml and the receipt. With `key`, only its signatures count.
/// With `head`, hexadecimal, the log must have a record of that hash: one that was noted elsewhere is missing in an older copy of the run.
/// Errors: MissingFileError if there is no run or no log; DataError naming the file and what is wrong in it.
Verification verify_run(const std::filesystem::path& run_directory, const std::optional<crypto::PublicKey>& key,
                        const std::optional<std::string>& head = {});

nlohmann::ordered_json to_json(const Verification& verification);
/// For people: several lines.
std::string text_of(const Verification& verification);

}  // namespace trireme::audit
