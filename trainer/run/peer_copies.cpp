#include "trainer/run/peer_copies.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <system_error>
#include <utility>

#include "kernels/core/counted.h"
#include "trainer/checkpoint/peer_placement.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/random_access_file.h"
#include "trainer/loop/state.h"
#include "trainer/machine/collectively.h"
#include "trainer/plan/text.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPieceBytes = 1 << 20;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// What the sender of a part says first. The bytes of its files follow, and the receiver answers with one byte: 0 if it has kept them.
struct PartHeader {
  int64_t step = 0;
  int64_t about_bytes = 0;   ///< of the description, which rank 0 sends; 0: another rank
  int64_t tensor_bytes = 0;  ///< of the safetensors file; 0: the rank has no tensors
  int64_t index_bytes = 0;   ///< of its Contents
};

template <class T>
std::span<const std::byte> bytes_of_value(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void send_file(const Link& link, const fs::path& path, int64_t bytes, std::vector<std::byte>& piece) {
  if (bytes == 0) return;
  const RandomAccessFile file(path.string());
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, bytes - at);
    file.read(at, count, piece.data());
    link.send({piece.data(), static_cast<size_t>(count)});
  }
}

}  // namespace

PeerCopies::PeerCopies(Trainer& trainer, const Config& config, const std::string& session)
    : trainer_(trainer),
      world_(trainer.mesh().world),
      wanted_(static_cast<int>(config.resilience.peer_copies)),
      copies_(wanted_),
      every_(config.resilience.peer_every),
      place_(config.resilience.peer_directory),
      session_(session),
      directory_(place_, config.run.directory) {
  hosts_ = all_gather_strings(world_, directory_.host());
  domains_ = failure_domains(hosts_);
  copies_ = std::min(copies_, static_cast<int>(domains_.size()) - 1);
  collectively(world_, [&] {
    if (copies_ == 0) throw ConfigError("resilience.peer_copies: the job has one rank, and a state and its copies are on different ones; allowed 0");
    directory_.check();
  });
  std::string name;
  collectively(world_, [&] {
    if (is_first_of_host(hosts_, world_.rank())) name = directory_.create();
  });
  const std::vector<std::string> names = all_gather_strings(world_, name);
  directory_.use(names[static_cast<size_t>(std::ranges::find(hosts_, hosts_[static_cast<size_t>(world_.rank())]) - hosts_.begin())]);
  const std::vector<std::vector<int>> holders = peer_holders(domains_, copies_);
  const std::vector<int> groups = peer_groups(domains_, copies_);
  const auto own = static_cast<size_t>(world_.rank());
  holders_ = holders[own];
  for (size_t rank = 0; rank < holders.size(); ++rank) {
    if (std::ranges::find(holders[rank], world_.rank()) != holders[rank].end()) sources_.push_back(static_cast<int>(rank));
    if (groups[rank] == groups[own]) members_.push_back(static_cast<int>(rank));
  }
  check_memory();
  group_ = world_.host_group(members_, "peers");
  collectively(world_, [&] { links_ = std::make_unique<RankLinks>(*group_, is_encrypted(config.security)); });
  for (const int source : sources_) servers_.emplace_back([this, source] { serve(source); });
}

PeerCopies::~PeerCopies() {
  if (links_) links_->shut_down();
  if (thread_.joinable()) thread_.join();
  for (std::thread& server : servers_) server.join();
}

/// Two copies of the own part and of each held one are on the host at a time.
void PeerCopies::check_memory() {
  collectively(world_, [&] { part_bytes_ = bytes_of(state_tensors(trainer_)); });
  const std::vector<std::string> parts = all_gather_strings(world_, std::to_string(part_bytes_));
  int64_t mine = part_bytes_;
  for (const int source : sources_) mine += std::stoll(parts[static_cast<size_t>(source)]);
  const std::vector<std::string> all = all_gather_strings(world_, std::to_string(2 * mine));
  const std::string& host = hosts_[static_cast<size_t>(world_.rank())];
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (hosts_[rank] == host) host_bytes_ += std::stoll(all[rank]);
  collectively(world_, [&] {
    struct statvfs status {};
    if (::statvfs(place_.c_str(), &status) != 0) throw ConfigError(concat("resilience.peer_directory=", place_, ": cannot be read"));
    const int64_t free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize) + directory_.bytes();
    if (status.f_blocks > 0 && free < host_bytes_)  // a file system without a limit has no blocks
      throw ConfigError(concat("resilience.peer_copies=", copies_, ": the copies on host ", host.substr(0, host.find(' ')), " take ",
                               bytes_text(static_cast<double>(host_bytes_)), ", and ", place_, " has room for ",
                               bytes_text(static_cast<double>(free)),
                               "; allowed fewer copies, or a resilience.peer_directory with more room (a container's /dev/shm is often small)"));
  });
}

std::string PeerCopies::text() const {
  const bool one_host = std::ranges::all_of(hosts_, [&](const std::string& host) { return host == hosts_.front(); });
  return concat(
      copies_ < wanted_ ? concat("warning: resilience.peer_copies=", wanted_, " needs ", wanted_ + 1, one_host ? " ranks" : " hosts", "; ") : "",
      "peer copies: every ", counted(every_, "step"), " the state of each rank is copied to ", counted(copies_, "other rank"),
      one_host ? " of this host, which protects it from the loss of a rank's copies but not of the host" : " on other hosts", "; they take ",
      bytes_text(static_cast<double>(host_bytes_)), " of ", place_, " on each host");
}

void PeerCopies::fail(int64_t step, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.first != step) failure_ = {step, reason.empty() ? "unknown error" : reason};
}

/// Why the copy of a step failed on this rank; empty if it did not. What this rank could not receive may come later: then its sender knows.
std::string PeerCopies::failure_of(int64_t step) {
  const std::lock_guard lock(mutex_);
  return failure_.first == step ? failure_.second : "";
}

std::optional<PeerReport> PeerCopies::save(const CheckpointDescription& description) {
  const auto begin = Clock::now();
  const std::optional<PeerReport> ended = finish();
  writing_ = {description.step, session_, world_.size()};
  forget_older();
  CheckpointDescription about = description;
  about.tokenizer.files.clear();  // copies contain no files of the tokenizer
  in_flight_ = PeerReport{description.step};
  std::vector<StateTensor> tensors = state_tensors(trainer_);
  const std::string text = manifest_text({std::move(about), {}});
  if (snapshot_.take(tensors)) {
    try {
      thread_ = std::thread([this, text, tensors] { copy(writing_, text, tensors); });
    } catch (const std::system_error& error) {
      fail(description.step, concat("cannot start a thread: ", error.what()));
    }
  } else {
    fail(description.step, "no memory for a copy of the state");
  }
  in_flight_->stall_seconds = seconds_since(begin);
  return ended;
}

/// Waits for the copy in flight, on all ranks.
std::optional<PeerReport> PeerCopies::finish() {
  if (!in_flight_) return std::nullopt;
  const auto begin = Clock::now();
  if (thread_.joinable()) thread_.join();
  const std::vector<std::string> failures = all_gather_strings(world_, failure_of(in_flight_->step));
  PeerReport report = *std::exchange(in_flight_, std::nullopt);
  report.stall_seconds += seconds_since(begin);
  const auto first = std::ranges::find_if(failures, [](const std::string& each) { return !each.empty(); });
  if (first != failures.end())
    report.error = concat("rank ", first - failures.begin(), ": ", *first);
  else
    complete_ = writing_;
  return report;
}

/// Removes what is neither complete nor about to be written. The first rank of a host also removes what earlier jobs left, which may have had other ranks: all
/// but the copies that this job continued from, and these too once it has its own.
void PeerCopies::forget_older() {
  directory_.keep_only(world_.rank(),
                       [&](const PeerGeneration& generation) { return generation == (complete_ ? complete_ : before_) || generation == writing_; });
  if (is_swept_ || !is_first_of_host(hosts_, world_.rank())) return;
  is_swept_ = complete_.has_value();
  directory_.keep_only(-1, [&](const PeerGeneration& generation) { return generation.session == session_ || (!complete_ && generation == before_); });
}

void PeerCopies::copy(const PeerGeneration& generation, const std::string& about, const std::vector<StateTensor>& tensors) noexcept {
  const auto begin = Clock::now();
  try {
    directory_.create(world_.rank(), generation);
    const fs::path directory = directory_.of(world_.rank(), generation);
    if (world_.rank() == 0) write_durably(directory / kPeerAboutName, about);
    const int64_t bytes = write_part(directory, world_.rank(), tensors, {.read_back = false});
    for (const int holder : holders_) send(generation, bytes, holder);
  } catch (const std::exception& error) {
    fail(generation.step, printable(error));
  }
  in_flight_->copy_seconds = seconds_since(begin);
}

const Link& PeerCopies::link_to(int holder) const {
  return links_->to_server(static_cast<int>(std::ranges::find(members_, holder) - members_.begin()));
}

/// A part that is not sent completely ends the connection, because its receiver could not tell where the next one begins.
void PeerCopies::send(const PeerGeneration& generation, int64_t tensor_bytes, int holder) {
  const fs::path directory = directory_.of(world_.rank(), generation);
  const fs::path part = directory / part_name(world_.rank()), tensors = part.string() + ".safetensors", index = part.string() + ".json";
  const fs::path about = directory / kPeerAboutName;
  const Link& link = link_to(holder);
  try {
    const auto size_of_file = [](const fs::path& path) { return static_cast<int64_t>(fs::file_size(path)); };
    const PartHeader header{generation.step, world_.rank() == 0 ? size_of_file(about) : 0, tensor_bytes, size_of_file(index)};
    std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
    link.send(bytes_of_value(header));
    send_file(link, about, header.about_bytes, piece);
    send_file(link, tensors, header.tensor_bytes, piece);
    send_file(link, index, header.index_bytes, piece);
    std::byte answer{};
    if (!link.receive({&answer, 1})) throw IoError("the connection is closed");
    if (answer != std::byte{0}) return fail(generation.step, concat("rank ", holder, " could not keep its copy"));
    in_flight_->sent_bytes += header.about_bytes + header.tensor_bytes + header.index_bytes;
  } catch (const std::exception& error) {
    link.shut_down();
    throw IoError(concat("copy to rank ", holder, ": ", printable(error)));
  }
}

/// Receives the parts of one rank until its connection ends.
void PeerCopies::serve(int source) {
  const Link& link = links_->from_client(static_cast<int>(std::ranges::find(members_, source) - members_.begin()));
  try {
    for (;;) receive(source, link);
  } catch (const std::exception&) {  // the connection has ended, as the job does; or its sender learns of it
    link.shut_down();
  }
}

void PeerCopies::receive(int source, const Link& link) {
  PartHeader header;
  if (!link.receive(std::as_writable_bytes(std::span(&header, 1)))) throw IoError("closed");
  const PeerGeneration generation{header.step, session_, world_.size()};
  const fs::path directory = directory_.of(world_.rank(), generation);
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  std::string failure;
  const auto guarded = [&](const auto& body) {  // what cannot be kept is still received, so that the next part is found
    if (!failure.empty()) return;
    try {
      body();
    } catch (const std::exception& error) {
      failure = printable(error);
    }
  };
  guarded([&] { directory_.create(world_.rank(), generation); });
  const std::string part = part_name(source);
  const std::array<std::pair<std::string, int64_t>, 3> files{
      {{kPeerAboutName, header.about_bytes}, {part + ".safetensors", header.tensor_bytes}, {part + ".json", header.index_bytes}}};
  for (const auto& [name, bytes] : files) {
    if (bytes == 0) continue;
    std::unique_ptr<DurableFile> file;
    guarded([&, name = name] { file = std::make_unique<DurableFile>(directory / name); });
    for (int64_t at = 0; at < bytes; at += kPieceBytes) {
      const auto count = static_cast<size_t>(std::min(kPieceBytes, bytes - at));
      if (!link.receive({piece.data(), count})) throw IoError("closed");
      guarded([&] { file->write(piece.data(), count); });
    }
    guarded([&] { file->commit(); });
  }
  if (!failure.empty()) fail(header.step, failure);
  const std::byte answer{failure.empty() ? uint8_t{0} : uint8_t{1}};
  link.send({&answer, 1});
}

}  // namespace trireme
