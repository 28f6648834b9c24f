#include "tests/e2e/fingerprint.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error(otherwise);
}

std::string state_of(const fs::path& run_directory, int64_t steps) {
  for (const auto& item : fs::directory_iterator(run_directory / "checkpoints"))
    require(item.path().extension() != ".partial", item.path().string() + " is a leftover");
  CheckpointReader reader(run_directory / "checkpoints/latest");
  const CheckpointDescription& about = reader.description();
  require(about.step == steps, "the newest checkpoint is of step " + std::to_string(about.step) + ", not of " + std::to_string(steps));
  std::string all = concat("seed ", about.seed, " step ", about.step, " samples ", about.samples, " optimizer steps ", about.optimizer_steps, "\n");
  for (const auto& [name, tensor] : reader.tensors()) {
    const Box whole{{0, 0}, tensor.shape};
    std::string bytes(static_cast<size_t>(whole.numel() * size_of(tensor.dtype)), '\0');
    reader.read(name, whole, tensor.dtype, bytes.data());
    all += concat(name, " ", name_of(tensor.dtype), " ", tensor.shape[0], " ", tensor.shape[1], "\n");
    all += bytes;
  }
  return all;
}

std::string steps_of(const fs::path& run_directory, int64_t steps) {
  std::ifstream file(run_directory / "metrics.jsonl");
  std::string all;
  int64_t step = 0;
  for (std::string line; std::getline(file, line);) {
    const json object = json::parse(line);
    if (object.contains("loss")) {
      require(object["step"] == ++step, concat("metrics.jsonl: step ", step, " expected, found the line ", line));
      all +=
          json{object["step"], object["loss"], object["grad_norm"], object["learning_rate"]}.dump() + "\n";  // doubles as their shortest exact text
    } else if (object.contains("validation_loss")) {
      all += json{"validation", object["step"], object["validation_loss"]}.dump() + "\n";
    }
  }
  require(step == steps, concat("metrics.jsonl has ", step, " steps, not ", steps));
  return all;
}

}  // namespace

Fingerprint fingerprint_of(const fs::path& run_directory, int64_t steps) {
  return {sha256(state_of(run_directory, steps)), sha256(steps_of(run_directory, steps))};
}

std::string sha256(const std::string& bytes) {
  std::string name = (fs::temp_directory_path() / "trireme-sha256-XXXXXX").string();
  const int made = ::mkstemp(name.data());
  require(made >= 0, "no temporary file");
  ::close(made);
  std::FILE* pipe = ::popen(("sha256sum > '" + name + "'").c_str(), "w");
  require(pipe != nullptr, "sha256sum cannot be started");
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), pipe);
  const int status = ::pclose(pipe);
  std::string digest;
  std::ifstream(name) >> digest;
  fs::remove(name);
  require(written == bytes.size() && status == 0 && digest.size() == 64, "sha256sum failed");
  return digest;
}

}  // namespace trireme::test
