#include "trainer/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "trainer/checkpoint/safetensors.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::string padded(int64_t value, int digits) {
  std::string text = std::to_string(value);
  return std::string(static_cast<size_t>(std::max(0, digits - static_cast<int>(text.size()))), '0') + text;
}

std::string rank_name(int rank) { return "rank-" + padded(rank, 5); }

}  // namespace

std::string checkpoint_name(int64_t step) { return "step-" + padded(step, 8); }

/// This rank's share of one save.
struct Checkpointer::Part {
  CheckpointDescription description;
  std::vector<StateTensor> tensors;
  int64_t number = 0;
  fs::path directory;  ///< where it is written
};

Checkpointer::Checkpointer(CheckpointOptions options) : options_(std::move(options)) {
  TRIREME_CHECK(
      !options_.session.empty() && std::all_of(options_.session.begin(), options_.session.end(), [](unsigned char c) { return std::isalnum(c); }),
      "session \"", options_.session, "\"");
}

Checkpointer::~Checkpointer() {
  abandoned_ = true;
  wait();
}

void Checkpointer::wait() {
  if (thread_.joinable()) thread_.join();
}

std::optional<std::string> Checkpointer::finish() {
  wait();
  return take_error();
}

std::optional<std::string> Checkpointer::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, std::nullopt);
}

void Checkpointer::save(const CheckpointDescription& description, std::span<const StateTensor> tensors) {
  wait();
  Part part{description, {tensors.begin(), tensors.end()}, ++saves_, {}};
  part.directory = options_.directory / concat(checkpoint_name(description.step), ".", options_.session, "-", part.number, ".partial");
  if (!options_.asynchronous) return write(part);

  const auto bytes_of = [](const StateTensor& tensor) {
    return tensor.storage.defined() ? size_t{0} : static_cast<size_t>(tensor.box.numel() * size_of(tensor.dtype));
  };
  size_t total = 0;
  for (const StateTensor& tensor : part.tensors) total += bytes_of(tensor);
  if (snapshot_.size() < total) snapshot_.resize(total);
  std::byte* next = snapshot_.data();
  for (StateTensor& tensor : part.tensors) {
    const size_t bytes = bytes_of(tensor);
    if (bytes == 0) continue;
    std::memcpy(next, tensor.data, bytes);
    tensor.data = next;
    next += bytes;
  }
  thread_ = std::thread([this, part = std::move(part)] { write(part); });
}

void Checkpointer::write(const Part& part) {
  const std::string name = rank_name(options_.rank);
  const std::string file = name + ".safetensors";
  try {
    fs::create_directories(part.directory);
    std::vector<SafetensorsSource> sources;
    for (const StateTensor& tensor : part.tensors) {
      std::vector<int64_t> shape(tensor.box.extent.begin(), tensor.box.extent.begin() + tensor.dims);
      sources.push_back({entry_name(tensor.name, tensor.box), tensor.dtype, std::move(shape), tensor.data});
    }
    const SafetensorsSummary written = write_safetensors(part.directory / file, sources, {{"format", "trireme"}});
    Contents contents;
    contents.files[file] = {written.bytes, written.digest};
    for (size_t i = 0; i < part.tensors.size(); ++i) {
      const StateTensor& tensor = part.tensors[i];
      StoredTensor& stored = contents.tensors[tensor.name];
      stored.dtype = tensor.dtype;
      stored.dims = tensor.dims;
      stored.shape = tensor.global_shape;
      stored.boxes.push_back({tensor.box, file, written.entries[i].begin, written.entries[i].end});
    }
    sync_directory(part.directory);
    write_durably(part.directory / (name + ".json"), contents_text(contents));
    if (options_.rank == 0) publish(part);
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = concat("checkpoint of step ", part.description.step, " was not saved: ", error.what());
    }
    std::error_code ignored;
    if (options_.rank == 0) {
      fs::remove_all(part.directory, ignored);
    } else {
      fs::remove(part.directory / file, ignored);
      std::ofstream(part.directory / (name + ".failed")) << error.what();  // so that rank 0 need not wait for its patience to end
    }
  }
}

Contents Checkpointer::gather_parts(const Part& part) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.patience;
  Contents whole;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const fs::path index = part.directory / (rank_name(rank) + ".json");
    const fs::path failed = part.directory / (rank_name(rank) + ".failed");
    auto pause = std::chrono::milliseconds(2);
    while (!fs::exists(index)) {
      if (fs::exists(failed)) throw IoError(concat("rank ", rank, ": ", read_text(failed)));
      if (abandoned_) throw IoError(concat("given up while waiting for rank ", rank));
      if (std::chrono::steady_clock::now() > deadline)
        throw IoError(concat("rank ", rank, " did not write its part within ", options_.patience.count(), " s"));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds(100));
    }
    merge(whole, parse_contents(read_text(index), index.string()), index.string());
  }
  return whole;
}

void Checkpointer::publish(const Part& part) {
  const Manifest manifest{part.description, gather_parts(part)};
  check_tiling(manifest.contents.tensors, part.directory.string());
  for (int rank = 0; rank < options_.world_size; ++rank) fs::remove(part.directory / (rank_name(rank) + ".json"));
  write_durably(part.directory / kManifestName, manifest_text(manifest));
  sync_directory(part.directory);
  move_into_place(part);

  const std::string name = checkpoint_name(part.description.step);
  const fs::path link = options_.directory / concat("latest.", options_.session);
  fs::remove(link);
  fs::create_symlink(name, link);
  rename_durably(link, options_.directory / "latest");
  remove_leftovers(part);
}

void Checkpointer::move_into_place(const Part& part) const {
  const fs::path target = options_.directory / checkpoint_name(part.description.step);
  // A step saved before (the run was started anew, or rolled back) is exchanged, so that at no moment neither of the two stands there.
  if (fs::exists(target) && ::renameat2(AT_FDCWD, part.directory.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_directory(options_.directory);
    fs::remove_all(part.directory);
    return;
  }
  if (fs::exists(target)) fs::rename(target, part.directory.string() + ".old");  // a file system without exchange
  rename_durably(part.directory, target);
}

void Checkpointer::remove_leftovers(const Part& published) const {
  std::vector<int64_t> steps;
  std::vector<fs::path> doomed;
  const std::string ours = "." + options_.session + "-";
  for (const auto& item : fs::directory_iterator(options_.directory)) {
    const std::string name = item.path().filename().string();
    if (name.rfind("latest.", 0) == 0) doomed.push_back(item.path());
    if (name.rfind("step-", 0) != 0) continue;
    int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (error != std::errc()) continue;
    const std::string suffix(end, name.data() + name.size());
    if (suffix.empty()) {
      if (step <= published.description.step && fs::exists(item.path() / kManifestName)) steps.push_back(step);
    } else if (suffix.rfind(ours, 0) == 0) {
      // Every rank has finished the saves up to this one; a later one may be under way already.
      int64_t number = 0;
      std::from_chars(suffix.data() + ours.size(), suffix.data() + suffix.size(), number);
      if (number <= published.number) doomed.push_back(item.path());
    } else {
      doomed.push_back(item.path());
    }
  }
  std::sort(steps.begin(), steps.end());
  while (options_.keep > 0 && static_cast<int64_t>(steps.size()) > options_.keep) {
    // Renamed first: a checkpoint that is half removed must not look whole.
    const fs::path old = options_.directory / checkpoint_name(steps.front());
    const fs::path renamed = old.string() + ours + "0.partial";
    fs::rename(old, renamed);
    doomed.push_back(renamed);
    steps.erase(steps.begin());
  }
  for (const fs::path& path : doomed) fs::remove_all(path);
}

}  // namespace trireme
