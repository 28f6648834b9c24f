#include "tests/support/run_files.h"

#include <unistd.h>

#include <fstream>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "trainer/data/token_writer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme::test {

namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "trireme-run-XXXXXX").string();
  TRIREME_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
  path = pattern;
}

void write_tokens(const fs::path& directory, int64_t count, uint64_t values) {
  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = Tokenizer::open("bytes").digest();
  index.vocab_size = Tokenizer::open("bytes").vocab_size();
  TokenWriter writer(directory.string(), index);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_bits(3, static_cast<uint64_t>(i)) % values));
  writer.append(tokens);
  writer.end_document();
  writer.commit();
}

namespace {

std::vector<nlohmann::json> lines_with(const fs::path& run_directory, const std::string& key) {
  std::vector<nlohmann::json> lines;
  std::ifstream stream(run_directory / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);)
    if (nlohmann::json json = nlohmann::json::parse(line); json.contains(key)) lines.push_back(std::move(json));
  return lines;
}

}  // namespace

std::vector<nlohmann::json> steps_of(const fs::path& run_directory) {
  std::vector<nlohmann::json> steps;
  for (const nlohmann::json& line : lines_with(run_directory, "loss")) steps.push_back({line["step"], line["loss"], line["grad_norm"]});
  return steps;
}

std::vector<double> validation_losses_of(const fs::path& run_directory) {
  std::vector<double> losses;
  for (const nlohmann::json& line : lines_with(run_directory, "validation_loss")) losses.push_back(line["validation_loss"]);
  return losses;
}

}  // namespace trireme::test
