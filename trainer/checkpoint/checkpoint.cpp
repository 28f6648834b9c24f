#include "trainer/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <system_error>

#include "parallel/crypto/sodium.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/tokenizer_copy.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string reason_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return printable(error);
  } catch (...) {
    return "unknown error";
  }
}

struct NotFiniteState : DataError {
  using DataError::DataError;
};

bool is_not_finite(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const NotFiniteState&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

/// This rank's part of one save.
struct Checkpointer::Part {
  CheckpointDescription description;
  std::vector<StateTensor> tensors;
  int64_t number = 0;
  fs::path directory;  ///< partial_directory() of this save
  double stall_seconds = 0;
};

Checkpointer::Checkpointer(CheckpointOptions options) : options_(std::move(options)) {
  TRIREME_CHECK(
      !options_.session.empty() && std::all_of(options_.session.begin(), options_.session.end(), [](unsigned char c) { return std::isalnum(c); }),
      "session \"", options_.session, "\"");
}

Checkpointer::~Checkpointer() {
  abandoned_ = true;
  wait();
  discard_failed();
}

void Checkpointer::discard_failed() {
  if (failed_ > 0) remove_partials(options_.directory, options_.session, failed_);
}

void Checkpointer::wait() {
  const auto begin = std::chrono::steady_clock::now();
  if (thread_.joinable()) thread_.join();
  waited_ += seconds_since(begin);
}

std::optional<SaveReport> Checkpointer::finish() {
  wait();
  return take_report();
}

std::optional<SaveReport> Checkpointer::take_report() {
  const std::lock_guard lock(mutex_);
  if (reports_.empty()) return std::nullopt;
  const SaveReport oldest = std::move(reports_.front());
  reports_.erase(reports_.begin());
  return oldest;
}

void Checkpointer::save(const CheckpointDescription& description, std::span<const StateTensor> tensors) {
  wait();
  const auto begin = std::chrono::steady_clock::now();
  const auto part = std::make_shared<Part>(Part{description, {tensors.begin(), tensors.end()}, ++saves_, {}, std::exchange(waited_, 0)});
  part->directory = partial_directory(options_.directory, description.step, options_.session, part->number);
  {
    const std::lock_guard lock(mutex_);
    reports_.reserve(reports_.size() + 1);  // so that even a save that runs out of memory can be reported
  }
  if (options_.asynchronous && snapshot_.take(part->tensors)) {
    part->stall_seconds += seconds_since(begin);
    try {
      thread_ = std::thread([this, part] { write(*part, false); });
      return;
    } catch (const std::system_error&) {  // no thread available: write synchronously
    }
  }
  write(*part, true);
}

void Checkpointer::write(const Part& part, bool caller_waits) noexcept {
  const auto begin = std::chrono::steady_clock::now();
  SaveReport report{part.description.step, 0, part.stall_seconds, 0, std::nullopt};
  try {
    discard_failed();
    report.bytes = write_part(part.directory, options_.rank, part.tensors, {.sha256 = options_.audited});
    if (options_.rank == 0) report.bytes = publish(part);
    report.write_seconds = seconds_since(begin);
    if (options_.rank == 0) tidy_up(part);
  } catch (...) {
    report.bytes = 0;
    try {
      const std::string reason = reason_of(std::current_exception());
      clean_up(part, reason);
      report.error = reason;
      report.not_finite = is_not_finite(std::current_exception());
    } catch (...) {
      report.error = "out of memory";  // short enough for the small-string buffer
    }
  }
  if (caller_waits) report.stall_seconds += seconds_since(begin);
  const std::lock_guard lock(mutex_);
  reports_.push_back(std::move(report));
}

/// Called after a failure. Other ranks may still be writing there: their files are removed before the next save, or by the destructor.
void Checkpointer::clean_up(const Part& part, const std::string& reason) {
  failed_ = part.number;
  std::error_code ignored;
  if (options_.rank == 0) {
    fs::remove_all(part.directory, ignored);
    return;
  }
  const std::string name = part_name(options_.rank);
  fs::remove(part.directory / (name + ".safetensors"), ignored);
  fs::remove(part.directory / (name + ".json"), ignored);
  // The link tells rank 0 to stop waiting before its timeout. Creating a link is atomic and needs no descriptor and usually no disk space. If even
  // that fails, retry: other failing ranks may free space.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (::symlink(reason.substr(0, 1000).c_str(), (part.directory / (name + ".failed")).c_str()) != 0 && errno != EEXIST && !abandoned_ &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void Checkpointer::give_up(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  given_up_ = {saves_, reason};
}

std::string Checkpointer::given_up(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return given_up_.first >= number ? given_up_.second : "";
}

Contents Checkpointer::gather_parts(const Part& part) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  Contents whole;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const fs::path index = part.directory / (part_name(rank) + ".json");
    const fs::path failed = part.directory / (part_name(rank) + ".failed");
    auto pause = std::chrono::milliseconds(2);
    while (!fs::exists(index)) {
      if (fs::is_symlink(failed)) throw IoError(concat("rank ", rank, ": ", fs::read_symlink(failed).string()));
      if (const std::string reason = given_up(part.number); !reason.empty()) throw IoError(reason);
      if (abandoned_) throw IoError(concat("abandoned while waiting for rank ", rank));
      if (!fs::exists(part.directory)) throw IoError(concat(part.directory.string(), " was removed while being written"));
      if (std::chrono::steady_clock::now() > deadline)
        throw IoError(concat("rank ", rank, " did not write its part within ", options_.timeout.count(), " s"));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds(100));
    }
    merge(whole, parse_contents(read_text(index), index.string()), index.string());
  }
  return whole;
}

int64_t Checkpointer::publish(const Part& part) const {
  Manifest manifest{part.description, gather_parts(part)};
  if (const NonFinite found = recorded_non_finite(manifest.contents.tensors); options_.only_finite && !found.empty())
    throw NotFiniteState(concat("the state is not finite: ", to_string(found)));
  check_tiling(manifest.contents.tensors, part.directory.string());
  for (int rank = 0; rank < options_.world_size; ++rank) fs::remove(part.directory / (part_name(rank) + ".json"));
  write_tokenizer(options_.tokenizer, part.directory, manifest.contents);
  if (options_.audited)
    for (const auto& [name, text] : options_.tokenizer) manifest.contents.files.at(name).sha256 = crypto::hex(crypto::sha256(text));
  if (options_.anchor) {
    options_.may_publish();  // a job that has lost the directory must not write into another job's log
    manifest.audit = options_.anchor(part.description, manifest_text(manifest));
  }
  write_durably(part.directory / kManifestName, manifest_text(manifest));
  sync_directory(part.directory);
  const CheckpointReader as_it_stands(part.directory);  // never publish what cannot be read back
  as_it_stands.tokenizer_spec();
  const std::string name = checkpoint_name(part.description.step);
  options_.may_publish();
  move_into_place(part.directory, options_.directory / name);
  options_.may_publish();
  point_latest(options_.directory, name, options_.session);
  return as_it_stands.bytes();
}

void Checkpointer::tidy_up(const Part& published) const {
  remove_partials(options_.directory, options_.session, published.number);
  remove_old_checkpoints(options_.directory, published.description, options_.retention(), options_.session);
}

void Checkpointer::remove_old(int64_t newest) const {
  const auto about = description_of(options_.directory / checkpoint_name(newest));
  if (about) remove_old_checkpoints(options_.directory, *about, options_.retention(), options_.session);
}

}  // namespace trireme
