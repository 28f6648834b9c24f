// `config diff`: the keys that differ between two resolved configurations.
#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/command_output.h"
#include "tests/support/scratch.h"

namespace trireme {
namespace {

const std::string kA = R"(
model: {layers: 4, hidden_size: 96, heads: 6}
training: {steps: 100, sequence_length: 32, global_batch_size: 8, optimizer: {learning_rate: 1.0e-5}}
data: {train: [a]}
)";

std::pair<int, std::string> diff(const std::string& a, const std::string& b) { return test::config_output("config diff " + a + " " + b); }

}  // namespace

TEST_CASE("config diff prints each key that differs between two resolved configurations") {
  const test::Scratch scratch;
  const std::string a = scratch.write("a.yaml", kA);
  // The same values, some of which the first file leaves to their defaults.
  const std::string same = scratch.write("same.yaml", R"(
data: {train: ["a"], tokenizer: bytes}
model: {architecture: llama, layers: 4, hidden_size: 96, heads: 6, kv_heads: 6, ffn_size: auto}
training: {sequence_length: 32, global_batch_size: 8, steps: 100, optimizer: {learning_rate: 0.00001}}
)");
  const std::string other = scratch.write("other.yaml", R"(
model: {layers: 4, hidden_size: 192, heads: 6, window: 8}
training: {steps: 100, sequence_length: 32, global_batch_size: 8, precision: fp16, optimizer: {learning_rate: 2.0e-5}}
data: {train: [a, "b c"]}
)");
  CHECK(diff(a, a) == std::pair<int, std::string>(0, ""));
  CHECK(diff(a, same) == std::pair<int, std::string>(0, ""));
  const auto [code, text] = diff(a, other);
  CAPTURE(text);
  CHECK(code == 1);
  for (const char* line : {"model.hidden_size: 96 -> 192\n", "model.head_size: 16 -> 32\n", "model.window: not set -> 8\n",
                           "training.loss_scale.initial: not set -> 65536\n", "training.optimizer.learning_rate: 1.0e-05 -> 2.0e-05\n",
                           "data.train: [a] -> [a, \"b c\"]\n"})
    CHECK(text.find(line) != text.npos);
  CHECK(text.find("model.layers") == text.npos);
  CHECK(text.starts_with("model.hidden_size: "));  // in file order
  CHECK(diff(other, a).second.find("model.window: 8 -> not set\n") != std::string::npos);

  test::check_throws<ConfigError>([&] { diff(a, scratch / "none.yaml"); }, {"none.yaml"});
  test::check_throws<ConfigError>([&] { diff(scratch / "none.yaml", a); }, {"none.yaml"});
  const std::string bad = scratch.write("bad.yaml", "model: {layers: 0}\n");
  test::check_throws<ConfigError>([&] { diff(a, bad); }, {"bad.yaml:1:17 model.layers=0: out of range"});
}

}  // namespace trireme
