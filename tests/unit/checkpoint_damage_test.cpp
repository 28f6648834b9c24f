// Accidentally damaged checkpoints: no damaged data are loaded, and errors name the damaged part.
#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "tests/support/small_checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;
using namespace trireme;
using namespace trireme::test;
using Catch::Matchers::Contains;

namespace {

/// A byte of a checkpoint, and what the error about its damage must name.
struct Place {
  fs::path file;
  int64_t byte = 0;
  std::string tensor;  ///< tensor that contains it; empty outside tensor data
};

/// Every byte of a checkpoint, and separately the padding bytes after the headers.
struct Places {
  explicit Places(const fs::path& checkpoint) {
    const CheckpointReader reader(checkpoint);
    append(checkpoint / kManifestName, {});
    for (const auto& [name, file] : reader.files()) {
      std::vector<std::string> owners(static_cast<size_t>(file.bytes));
      int64_t data = file.bytes;
      for (const auto& [tensor, stored] : reader.tensors())
        for (const StoredBox& box : stored.boxes) {
          if (box.file != name) continue;
          std::fill(owners.begin() + box.begin, owners.begin() + box.end, tensor);
          data = std::min(data, box.begin);
        }
      const std::string bytes = read_text(checkpoint / name);
      for (int64_t at = data - 1; bytes[static_cast<size_t>(at)] == ' '; --at) padding.push_back({checkpoint / name, at, {}});
      append(checkpoint / name, owners);
    }
  }
  void append(const fs::path& file, const std::vector<std::string>& owners) {
    for (int64_t at = 0; at < static_cast<int64_t>(fs::file_size(file)); ++at)
      all.push_back({file, at, owners.empty() ? "" : owners[static_cast<size_t>(at)]});
  }
  std::vector<Place> all, padding;
};

void require_found(const fs::path& checkpoint, const Place& place, int bit) {
  std::fstream file(place.file, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](char byte) {
    file.seekp(place.byte);
    file.put(byte);
    file.flush();
  };
  file.seekg(place.byte);
  const auto byte = static_cast<char>(file.get());
  put(static_cast<char>(byte ^ (1 << bit)));
  for (const std::string& error : errors_of(checkpoint)) {
    INFO(place.file << " byte " << place.byte << " bit " << bit << (place.tensor.empty() ? "" : " in " + place.tensor));
    REQUIRE_THAT(error, Contains(place.file.string()));
    if (!place.tensor.empty()) REQUIRE_THAT(error, Contains("tensor \"" + place.tensor + "\""));
  }
  put(byte);
  REQUIRE(file.good());
}

void flip_bits(int flips, uint64_t seed) {
  const TemporaryDirectory directory;
  const fs::path checkpoint = save_small_checkpoint(directory.path);
  load_whole(checkpoint);
  CheckpointReader(checkpoint).verify_digests();
  const Places places(checkpoint);
  REQUIRE(!places.padding.empty());
  std::mt19937_64 random(seed);
  std::map<fs::path, int> of_file;
  int in_data = 0;
  for (int i = 0; i < flips; ++i) {
    const Place& place = places.all[random() % places.all.size()];
    require_found(checkpoint, place, static_cast<int>(random() % 8));
    ++of_file[place.file];
    in_data += place.tensor.empty() ? 0 : 1;
  }
  for (const Place& place : places.padding)
    for (int bit = 0; bit < 8; ++bit) require_found(checkpoint, place, bit);
  REQUIRE(of_file.size() == 6);
  REQUIRE(in_data > flips / 20);
  load_whole(checkpoint);  // every flip was reverted
  CheckpointReader(checkpoint).verify_digests();
}

}  // namespace

TEST_CASE("checkpoint damage: every flipped bit is detected and named", "[checkpoint]") { flip_bits(400, 1); }

TEST_CASE("checkpoint damage: each of 5,000 flipped bits is detected and named", "[checkpoint][slow]") { flip_bits(5000, 2); }

TEST_CASE("checkpoint damage: a linked directory is followed once, and ordinary reads follow links", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoint = save_small_checkpoint(directory.path), latest = directory.path / "checkpoints/latest";
  for (const fs::path& path : {latest, latest / ""}) {
    CheckpointReader reader(path);
    REQUIRE(reader.directory() == checkpoint);
    REQUIRE(reader.description().seed == 99);
    REQUIRE(reader.description().samples == 224);
    REQUIRE(reader.description().training_data == "0123456789abcdef");
    fs::remove(latest);  // replaced during the read
    fs::create_directory_symlink("elsewhere", latest);
    REQUIRE_NOTHROW(reader.verify_digests());
    fs::remove(latest);
    fs::create_directory_symlink(checkpoint.filename(), latest);
  }
  const fs::path link = directory.path / "link";
  fs::create_symlink(checkpoint / kManifestName, link);
  REQUIRE(read_text(link) == read_text(checkpoint / kManifestName));
}

TEST_CASE("checkpoint damage: a file truncated during a read is an error, not a signal", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "a.safetensors";
  const std::vector<double> values(1 << 16, 1.5);
  write_safetensors(path, std::vector<SafetensorsSource>{{"a", DType::kF64, {1 << 16}, values.data()}}, {});
  const SafetensorsFile file(path);
  REQUIRE(file.digest(file.entry("a")).size() == 41);
  fs::resize_file(path, 8192);
  REQUIRE_THROWS_AS(file.digest(file.entry("a")), IoError);
}
