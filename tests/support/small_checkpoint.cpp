#include "tests/support/small_checkpoint.h"

#include <cstring>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

constexpr int64_t kStep = 7;

/// One box of one rank; element i of it is first + i.
struct OwnedBox {
  int rank;
  const char* name;
  DType dtype;
  std::array<int64_t, 2> shape;
  int dims;
  Box box;
};

/// A matrix in boxes of three ranks, another cut by columns, a vector.
const std::vector<OwnedBox> kBoxes{
    {0, "weight/w", DType::kF32, {7, 5}, 2, {{0, 0}, {2, 5}}},  {1, "weight/w", DType::kF32, {7, 5}, 2, {{2, 0}, {1, 5}}},
    {2, "weight/w", DType::kF32, {7, 5}, 2, {{3, 0}, {4, 5}}},  {0, "exp_avg/w", DType::kF64, {7, 5}, 2, {{0, 0}, {7, 2}}},
    {2, "exp_avg/w", DType::kF64, {7, 5}, 2, {{0, 2}, {7, 3}}}, {0, "weight/b", DType::kF32, {11, 1}, 1, {{0, 0}, {4, 1}}},
    {2, "weight/b", DType::kF32, {11, 1}, 1, {{4, 0}, {7, 1}}}, {1, "exp_avg_sq/w", DType::kF32, {3, 2}, 2, {{0, 0}, {3, 2}}},
};

}  // namespace

fs::path save_small_checkpoint(const fs::path& directory) {
  constexpr int kRanks = 3;
  CheckpointDescription about;
  about.step = kStep;
  about.tokens = 3584;
  about.samples = 224;
  about.optimizer_steps = 6;
  about.seed = 99;
  about.config = "run: {name: test}\n";
  about.model = {{"architecture", "llama"}, {"layers", 2}};
  about.tokenizer = {"bpe", "xxh3-128:0123456789abcdef0123456789abcdef", {"tokenizer.json", "tokenizer_config.json"}};
  about.training_data = "0123456789abcdef";
  about.layout = {{"tensor", 3}};
  for (int rank = kRanks - 1; rank >= 0; --rank) {  // rank 0, which waits for the others, last
    std::vector<StateTensor> tensors;
    std::vector<std::vector<double>> memory;
    for (const OwnedBox& owned : kBoxes) {
      if (owned.rank != rank) continue;
      auto& values = memory.emplace_back(static_cast<size_t>(owned.box.numel()));
      for (size_t i = 0; i < values.size(); ++i) {
        const auto value = static_cast<double>(100 * memory.size() + i);
        const auto narrow = static_cast<float>(value);
        if (owned.dtype == DType::kF64) values[i] = value;
        if (owned.dtype == DType::kF32) std::memcpy(reinterpret_cast<std::byte*>(values.data()) + 4 * i, &narrow, 4);
      }
      tensors.push_back({owned.name, owned.dtype, owned.shape, owned.dims, owned.box, values.data()});
    }
    CheckpointOptions options{directory / "checkpoints", "s1", rank, kRanks, 3, false, std::chrono::seconds(20)};
    options.tokenizer = {{"tokenizer.json", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}\n"},
                         {"tokenizer_config.json", "{\"eos_token\": \"b\"}\n"}};
    Checkpointer checkpointer(options);
    checkpointer.save(about, tensors);
    const auto report = checkpointer.finish();
    TRIREME_CHECK(report && !report->error, report ? report->error.value_or("") : "no report");
  }
  return directory / "checkpoints" / checkpoint_name(kStep);
}

void load_whole(const fs::path& checkpoint) {
  CheckpointReader reader(checkpoint);
  TRIREME_CHECK(reader.tokenizer_spec() == (reader.directory() / "tokenizer.json").string(), reader.tokenizer_spec());
  for (const auto& [name, tensor] : reader.tensors()) {
    const Box all{{0, 0}, tensor.shape};
    std::vector<double> values(static_cast<size_t>(all.numel()));
    reader.read(name, all, tensor.dtype, values.data());
  }
}

namespace {

void verify(const fs::path& checkpoint) { CheckpointReader(checkpoint).verify_digests(); }

}  // namespace

std::vector<std::string> errors_of(const fs::path& checkpoint) {
  std::vector<std::string> errors;
  for (const auto use : {&load_whole, &verify}) {
    try {
      use(checkpoint);
      errors.push_back("no error");
    } catch (const DataError& error) {
      errors.push_back(error.what());
    } catch (const std::exception& error) {
      errors.push_back(std::string("not a DataError: ") + error.what());
    }
  }
  return errors;
}

}  // namespace trireme::test
