#include "trainer/checkpoint/rank_part.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <new>

#include "kernels/core/writable_file.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/non_finite.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/sha256_file.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

/// Verifies a file before it is published. Reads with pread, not through a mapping, because an I/O error in a mapping raises SIGBUS.
/// Errors: IoError, DataError naming the tensor.
void read_back(const fs::path& path, const std::vector<SafetensorsSource>& sources, const SafetensorsSummary& written) {
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < sources.size(); ++i) digests[sources[i].name] = written.digests[i];
  if (SafetensorsFile(path).digest(digests) != written.digest) throw DataError(concat(path.string(), ": header differs from what was written"));
  struct Opened {
    ~Opened() { ::close(file); }
    int file;
  } const opened{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  std::vector<std::byte> piece(128 << 10);  // fits in the cache
  for (size_t i = 0; i < sources.size(); ++i) {
    Digest digest;
    for (int64_t at = written.entries[i].begin; at < written.entries[i].end;) {
      const auto wanted = std::min(static_cast<int64_t>(piece.size()), written.entries[i].end - at);
      const ssize_t count = ::pread(opened.file, piece.data(), static_cast<size_t>(wanted), at);
      if (count <= 0) throw IoError(concat("cannot read back ", path.string(), ": ", count == 0 ? "file was truncated" : std::strerror(errno)));
      digest.update(piece.data(), static_cast<size_t>(count));
      at += count;
    }
    if (digest.str() != written.digests[i])
      throw DataError(concat(path.string(), ": tensor \"", sources[i].name, "\" differs from what was written"));
  }
}

/// Those that StateSnapshot copies.
size_t bytes_to_copy(const StateTensor& tensor) {
  return tensor.storage.defined() ? size_t{0} : static_cast<size_t>(tensor.box.numel() * size_of(tensor.dtype));
}

}  // namespace

std::string part_name(int rank) { return "rank-" + padded(rank, 5); }

int64_t bytes_of(const std::vector<StateTensor>& tensors) {
  int64_t total = 0;
  for (const StateTensor& tensor : tensors) total += tensor.box.numel() * size_of(tensor.dtype);
  return total;
}

bool StateSnapshot::take(std::vector<StateTensor>& tensors) {
  size_t total = 0;
  for (const StateTensor& tensor : tensors) total += bytes_to_copy(tensor);
  if (bytes_ < total) {
    memory_.reset();
    bytes_ = 0;
    memory_.reset(new (std::nothrow) std::byte[total]);
    if (!memory_) return false;
    bytes_ = total;
  }
  std::byte* next = memory_.get();
  for (StateTensor& tensor : tensors) {
    const size_t bytes = bytes_to_copy(tensor);
    if (bytes == 0) continue;
    std::memcpy(next, tensor.data, bytes);
    tensor.data = next;
    next += bytes;
  }
  return true;
}

int64_t write_part(const fs::path& directory, int rank, const std::vector<StateTensor>& tensors, const PartChecks& checks) {
  const std::string name = part_name(rank);
  const std::string file = name + ".safetensors";
  make_directories(directory.parent_path());
  make_directories_in(directory.parent_path(), directory.filename());
  std::vector<SafetensorsSource> sources;
  for (const StateTensor& tensor : tensors) {
    std::vector<int64_t> shape(tensor.box.extent.begin(), tensor.box.extent.begin() + tensor.dims);
    sources.push_back({entry_name(tensor.name, tensor.box), tensor.dtype, std::move(shape), tensor.data});
  }
  SafetensorsSummary written;
  Contents contents;
  if (!sources.empty()) {  // a rank that saves no box writes no safetensors file
    written = write_safetensors(directory / file, sources, {{"format", "trireme"}});
    if (checks.read_back) read_back(directory / file, sources, written);
    contents.files[file] = {written.bytes, written.digest, checks.sha256 ? sha256_of_file(directory / file) : ""};
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StateTensor& tensor = tensors[i];
    StoredTensor& stored = contents.tensors[tensor.name];
    stored.dtype = tensor.dtype;
    stored.dims = tensor.dims;
    stored.shape = tensor.global_shape;
    const int64_t non_finite = count_non_finite(tensor.dtype, tensor.data, tensor.box.numel());
    stored.boxes.push_back({tensor.box, file, written.entries[i].begin, written.entries[i].end, written.digests[i], non_finite});
  }
  sync_directory(directory);
  write_durably(directory / (name + ".json"), contents_text(contents));
  return written.bytes;
}

}  // namespace trireme
