// Reader of safetensors files, on the input as file.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trainer/checkpoint/safetensors.h"

namespace trireme::fuzz {
namespace {

int64_t byte_sum(std::span<const std::byte> bytes) {
  int64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<int64_t>(byte);
  return sum;
}

/// The tensors are contiguous up to the end of the file, and each has the size of its shape.
void check_cover(const SafetensorsFile& file, int64_t bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : file.entries()) {
    int64_t size = size_of(entry.dtype);
    for (const int64_t extent : entry.shape) size *= extent;
    require(size == entry.end - entry.begin, "a tensor's bytes fit its shape");
    require(file.entry(name).begin == entry.begin, "a tensor is found by its name");
    const std::span<const std::byte> data = file.data(entry);
    require(static_cast<int64_t>(data.size()) == size && byte_sum(data) >= 0, "a tensor's data can be read");
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = ranges.empty() ? bytes : ranges.front().first;
  require(covered >= 8, "data begin after the header");
  for (const auto& [begin, end] : ranges) {
    require(begin == covered, "tensors neither overlap nor leave a gap");
    covered = end;
  }
  require(covered == bytes, "the last tensor ends with the file");
}

/// Reading, writing and reading again gives the same data, and the digests of the writer equal those of the reader.
void check_round_trip(const SafetensorsFile& file, const std::filesystem::path& path) {
  std::vector<SafetensorsSource> sources;
  for (const auto& [name, entry] : file.entries()) sources.push_back({name, entry.dtype, entry.shape, file.data(entry).data()});
  const SafetensorsSummary summary = write_safetensors(path, sources, file.metadata());
  const SafetensorsFile again(path);
  require(again.metadata() == file.metadata() && again.entries().size() == file.entries().size(), "a written file can be read back");
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < sources.size(); ++i) {
    const SafetensorsEntry &entry = file.entry(sources[i].name), &other = again.entry(sources[i].name);
    require(other.dtype == entry.dtype && other.shape == entry.shape, "dtype and shape are preserved");
    const auto data = file.data(entry), copy = again.data(other);
    require(std::equal(data.begin(), data.end(), copy.begin(), copy.end()), "data are preserved");
    require(again.digest(other) == summary.digests[i] && file.digest(entry) == summary.digests[i], "equal data have equal digests");
    digests[sources[i].name] = summary.digests[i];
  }
  require(again.digest(digests) == summary.digest, "the digest of the file equals that of the writer");
}

}  // namespace

bool accepts(std::string_view input) {
  static const Scratch scratch;
  const std::filesystem::path path = scratch.put("input.safetensors", input);
  std::optional<SafetensorsFile> file;
  if (!taken([&] { file.emplace(path); })) return false;
  check_cover(*file, static_cast<int64_t>(input.size()));
  check_round_trip(*file, scratch.path() / "copy.safetensors");
  return true;
}

}  // namespace trireme::fuzz
