#include "trainer/run/peer_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "kernels/core/writable_file.h"
#include "trainer/checkpoint/rank_part.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/random_access_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/machine/collectively.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int64_t kTransferBytes = 16 << 20;

/// Calls `body`; returns its error.
template <class F>
std::string error_of(const F& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return printable(error);
  }
  return "";
}

/// Errors of the file system and of parsing, as errors that a resume answers with an older state.
void as_damage(const std::function<void()>& body) {
  try {
    body();
  } catch (const fs::filesystem_error& error) {
    throw IoError(error.what());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(error.what());
  }
}

/// The parts of a rank's host as lines, and back.
std::string text_of(const std::vector<PeerPart>& parts) {
  std::string text;
  for (const PeerPart& part : parts)
    text += concat(part.generation.step, " ", part.generation.session, " ", part.generation.ranks, " ", part.source, " ", part.holder, "\n");
  return text;
}

std::vector<PeerPart> parts_of(const std::string& text) {
  std::istringstream lines(text);
  std::vector<PeerPart> parts;
  for (PeerPart part; lines >> part.generation.step >> part.generation.session >> part.generation.ranks >> part.source >> part.holder;)
    parts.push_back(part);
  return parts;
}

std::set<std::string> lines_of(const std::string& text) {
  std::istringstream lines(text);
  std::set<std::string> all;
  for (std::string line; std::getline(lines, line);) all.insert(line);
  return all;
}

/// The peer record of rank 0, on all ranks. Collective.
std::optional<PeerRecord> shared_record(Communicator& world, const fs::path& run_directory) {
  std::string text;
  collectively(world, [&] {
    if (world.rank() != 0) return;
    const std::optional<PeerRecord> record = read_peer_record(run_directory);
    if (!record) return;
    text = record->session;
    if (record->before) text += concat(" ", record->before->step, " ", record->before->session, " ", record->before->ranks);
  });
  std::istringstream words(all_gather_strings(world, text)[0]);
  PeerRecord record;
  if (!(words >> record.session)) return std::nullopt;
  if (PeerGeneration before; words >> before.step >> before.session >> before.ranks) record.before = before;
  return record;
}

}  // namespace

std::unique_ptr<PeerState> PeerState::find(Communicator& world, const Config& config, int64_t after, int64_t before) {
  const std::optional<PeerRecord> record = shared_record(world, config.run.directory);
  if (!record) return nullptr;
  const PeerDirectory directory(config.resilience.peer_directory, config.run.directory);
  std::vector<std::string> hosts = all_gather_strings(world, directory.host());
  const std::vector<std::string> texts = all_gather_strings(world, is_first_of_host(hosts, world.rank()) ? text_of(directory.parts()) : "");
  std::map<PeerGeneration, std::map<int, std::vector<Available>>> found;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    for (const PeerPart& part : parts_of(texts[rank]))
      if (record->allows(part.generation) && part.generation.step > after && part.generation.step < before)
        found[part.generation][part.source].push_back({part, static_cast<int>(rank)});
  for (auto newest = found.rbegin(); newest != found.rend(); ++newest) {
    const auto& [generation, sources] = *newest;
    if (std::ssize(sources) != generation.ranks) continue;
    std::vector<Available> available;
    for (const auto& [source, copies] : sources) available.insert(available.end(), copies.begin(), copies.end());
    return std::unique_ptr<PeerState>(new PeerState(world, config, generation, std::move(hosts), std::move(available)));
  }
  return nullptr;
}

PeerState::PeerState(Communicator& world, const Config& config, PeerGeneration generation, std::vector<std::string> hosts,
                     std::vector<Available> available)
    : world_(world),
      directory_(config.resilience.peer_directory, config.run.directory),
      generation_(std::move(generation)),
      hosts_(std::move(hosts)),
      available_(std::move(available)) {}

PeerState::~PeerState() {
  std::error_code ignored;
  fs::remove_all(directory_of(world_.rank()), ignored);
}

std::string PeerState::name() const { return concat("peer copies of step ", generation_.step); }

fs::path PeerState::directory_of(int rank) const { return directory_.path() / concat("loading-", rank); }

bool PeerState::is_on_this_host(int rank) const { return hosts_[static_cast<size_t>(rank)] == hosts_[static_cast<size_t>(world_.rank())]; }

fs::path PeerState::path_of(const PeerPart& part, const std::string& file) const { return directory_.of(part) / file; }

/// The Contents of all parts and the description of the state, of which each is read by one rank. As JSON: {"about": text, "parts": {source: text}}.
std::string PeerState::contents_of_parts() const {
  nlohmann::json mine = {{"parts", nlohmann::json::object()}};
  std::set<int> seen;
  for (const Available& copy : available_) {
    if (!seen.insert(copy.part.source).second || copy.reader != world_.rank()) continue;
    const std::string index = part_name(copy.part.source) + ".json";
    mine["parts"][std::to_string(copy.part.source)] = read_text(path_of(copy.part, index));
    if (copy.part.source == 0) mine["about"] = read_text(path_of(copy.part, kPeerAboutName));
  }
  return mine.dump();
}

std::unique_ptr<CheckpointReader> PeerState::open() {
  const fs::path own = directory_of(world_.rank());
  std::string mine;
  collectively(world_, [&] {
    as_damage([&] {
      directory_.create();
      fs::remove_all(own);
      make_directories_in(own.parent_path(), own.filename());
      mine = contents_of_parts();
      for (const Available& copy : available_) {
        const std::string file = part_name(copy.part.source) + ".safetensors";
        const bool is_here = is_on_this_host(copy.reader) && fs::exists(path_of(copy.part, file));
        if (is_here && !fs::exists(own / file)) fs::create_hard_link(path_of(copy.part, file), own / file);
      }
    });
  });
  const std::vector<std::string> all = all_gather_strings(world_, mine);
  std::unique_ptr<CheckpointReader> reader;
  collectively(world_, [&] {
    as_damage([&] {
      Manifest manifest;
      for (const std::string& of_rank : all) {
        const nlohmann::json object = parse_value(of_rank, "peer copies of a rank");
        if (object.contains("about")) manifest.description = parse_manifest(object["about"].get<std::string>(), name()).description;
        for (const auto& [source, text] : object.at("parts").items())
          merge(manifest.contents, parse_contents(text.get<std::string>(), concat(name(), ": rank ", source)), name());
      }
      write_durably(own / kManifestName, manifest_text(manifest));
      reader = std::make_unique<CheckpointReader>(own, Absent::kAllowed);
    });
  });
  return reader;
}

/// The first rank of a host that needs a file receives it, from one of the ranks that can read it.
std::vector<PeerState::Transfer> PeerState::transfers_for(const std::vector<std::set<std::string>>& files_of_ranks) const {
  std::vector<Transfer> transfers;
  std::set<std::pair<std::string, std::string>> planned;  // host and file
  for (size_t rank = 0; rank < files_of_ranks.size(); ++rank)
    for (const std::string& file : files_of_ranks[rank]) {
      if (!planned.emplace(hosts_[rank], file).second) continue;
      std::vector<Available> copies;
      for (const Available& copy : available_)
        if (part_name(copy.part.source) + ".safetensors" == file) copies.push_back(copy);
      TRIREME_CHECK(!copies.empty(), file, " is not one of the peer copies");
      transfers.push_back({file, copies[transfers.size() % copies.size()], static_cast<int>(rank)});
    }
  return transfers;
}

/// Returns the error of this rank. Whatever fails, both sides exchange all messages.
std::string PeerState::carry_out(Communicator& group, const Transfer& transfer) const {
  const bool sends = transfer.from.reader == world_.rank(), receives = transfer.to == world_.rank();
  if (!sends && !receives) return "";
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const auto pass = [&](const Tensor& tensor) {
    const PointToPoint message{sends ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv, tensor, sends ? transfer.to : transfer.from.reader};
    group.exchange(host, {&message, 1}).wait(host);
  };
  std::unique_ptr<RandomAccessFile> source;
  std::unique_ptr<DurableFile> target;
  const Tensor length = Tensor::zeros(host, {1}, DType::kI64, MemoryCategory::kCommunication);
  std::string error = error_of([&] {
    if (sends) source = std::make_unique<RandomAccessFile>(path_of(transfer.from.part, transfer.file).string());
    if (receives) target = std::make_unique<DurableFile>(directory_of(world_.rank()) / transfer.file);
    if (sends) length.data<int64_t>()[0] = source->bytes();
  });
  pass(length);
  const int64_t bytes = length.data<int64_t>()[0];
  const Tensor piece = Tensor::zeros(host, {std::max<int64_t>(1, std::min(bytes, kTransferBytes))}, DType::kU8, MemoryCategory::kCommunication);
  for (int64_t at = 0; at < bytes; at += kTransferBytes) {
    const Tensor part = piece.flat(0, std::min(kTransferBytes, bytes - at));
    if (sends && error.empty()) error = error_of([&] { source->read(at, part.numel(), part.raw()); });
    pass(part);
    if (receives && error.empty()) error = error_of([&] { target->write(part.raw(), static_cast<size_t>(part.numel())); });
  }
  if (receives && error.empty()) error = error_of([&] { target->commit(); });
  return error;
}

void PeerState::fetch(const std::set<std::string>& files) {
  std::string mine;
  for (const std::string& file : files) mine += file + "\n";
  std::vector<std::set<std::string>> files_of_ranks;
  for (const std::string& text : all_gather_strings(world_, mine)) files_of_ranks.push_back(lines_of(text));
  const std::vector<Transfer> transfers = transfers_for(files_of_ranks);
  if (transfers.empty()) return;
  std::vector<int> ranks(static_cast<size_t>(world_.size()));
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int>(rank);
  const std::unique_ptr<Communicator> group = world_.host_group(ranks, "peer copies");
  std::string error;
  for (const Transfer& transfer : transfers) {
    const std::string reason = carry_out(*group, transfer);
    if (error.empty()) error = reason;
  }
  collectively(world_, [&] {
    if (!error.empty()) throw DataError(concat(name(), ": ", error));
  });
  collectively(world_, [&] {  // the file that another rank of this host has received
    as_damage([&] {
      for (const Transfer& transfer : transfers)
        if (files.contains(transfer.file) && transfer.to != world_.rank() && is_on_this_host(transfer.to))
          fs::create_hard_link(directory_of(transfer.to) / transfer.file, directory_of(world_.rank()) / transfer.file);
    });
  });
}

}  // namespace trireme
