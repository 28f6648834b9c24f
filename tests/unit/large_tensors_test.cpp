// Files with tensors larger than the chunks in which the product reads, writes and converts them.
#include <cstring>

#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/checkpoint/safetensors.h"

namespace trireme::test {
namespace {

/// Any two chunks of a power-of-two size differ.
std::vector<uint8_t> bytes_of(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((i * 0x9E3779B97F4A7C15U) >> 56);
  return bytes;
}

SafetensorsSummary write(const std::string& path, const std::vector<uint8_t>& bytes) {
  return write_safetensors(path, std::vector<SafetensorsSource>{{"w", DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes.data()}}, {});
}

}  // namespace

TEST_CASE("safetensors: a tensor of several chunks is written completely, and its digest covers the last byte") {
  const Scratch scratch;
  std::vector<uint8_t> bytes = bytes_of((size_t{17} << 20) + 5);  // a digest reads 16 MiB at a time, and a write takes 1 MiB
  const std::string path = scratch / "large.safetensors";
  const SafetensorsSummary written = write(path, bytes);
  {
    const SafetensorsFile file(path);
    const std::span<const std::byte> stored = file.data(file.entry("w"));
    REQUIRE(stored.size() == bytes.size());
    CHECK(std::memcmp(stored.data(), bytes.data(), bytes.size()) == 0);
    CHECK(file.digest(file.entry("w")) == written.digests[0]);
  }
  bytes.back() ^= 1;
  CHECK(write(scratch / "other.safetensors", bytes).digests[0] != written.digests[0]);
  const SafetensorsFile other(scratch / "other.safetensors");
  CHECK(other.digest(other.entry("w")) != written.digests[0]);
}

TEST_CASE("a box of a matrix that is stored transposed contains its own rows, for any number of rows") {
  constexpr int64_t kRows = 200, kColumns = 3;
  std::vector<float> stored(kRows * kColumns);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
  const StoredMatrix matrix{reinterpret_cast<const std::byte*>(stored.data()), DType::kF32, 1, kRows};
  for (const Box& box : {Box{{0, 0}, {kRows, kColumns}}, Box{{3, 1}, {130, 2}}, Box{{70, 0}, {64, 3}}}) {
    std::vector<double> values(static_cast<size_t>(box.numel()));
    copy_box(matrix, box, box, DType::kF64, reinterpret_cast<std::byte*>(values.data()));
    int64_t wrong = 0;
    for (int64_t row = 0; row < box.extent[0]; ++row)
      for (int64_t column = 0; column < box.extent[1]; ++column)
        wrong +=
            values[static_cast<size_t>(row * box.extent[1] + column)] != static_cast<double>((box.start[1] + column) * kRows + box.start[0] + row);
    CHECK(wrong == 0);
  }
}

}  // namespace trireme::test
