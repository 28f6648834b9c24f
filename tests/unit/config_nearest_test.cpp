// The nearest valid value that a message about an invalid value proposes.
#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"

namespace trireme {
namespace {

const std::string kSmallRun = R"(
model: {layers: 4, hidden_size: 96, heads: 6}
training: {steps: 100, sequence_length: 32, global_batch_size: 8}
data: {train: [a]}
)";

/// The message about one invalid --set.
std::string message_of(const std::string& set) {
  try {
    parse_config(kSmallRun, "run.yaml", {set});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("config: another program's word for a choice leads to the choice") {
  const std::pair<const char*, const char*> cases[] = {{"run.device=gpu", "cuda"},
                                                       {"run.device=GPU", "cuda"},
                                                       {"training.precision=fp8", "bf16"},
                                                       {"training.precision=float32", "fp32"},
                                                       {"training.precision=bfloat16", "bf16"},
                                                       {"training.precision=half", "fp16"},
                                                       {"training.precision=Float16", "fp16"},
                                                       {"training.precision=double", "fp64"},
                                                       {"training.precision=fp31", "fp32"},
                                                       {"model.architecture=gpt", "gpt2"},
                                                       {"model.architecture=mistral", "llama"}};
  for (const auto& [set, nearest] : cases) {
    const std::string message = message_of(set);
    CAPTURE(set, message);
    CHECK(message.ends_with(std::string("; nearest valid ") + nearest));
  }
}

TEST_CASE("config: one value for a list leads to a list of it, if it is a valid item") {
  const auto check = [](const std::string& set, const std::string& end) {
    const std::string message = message_of(set);
    CAPTURE(set, message);
    CHECK(message.find("where a list is expected") != message.npos);
    CHECK(message.ends_with(end));
  };
  check("model.window_layers=0", "; nearest valid [0]");
  check("parallel.layers_per_stage=4", "; nearest valid [4]");
  check("data.weights=0.5", "; nearest valid [0.5]");
  check("data.train=data/a", "; nearest valid [data/a]");
  check("data.train=0", "; nearest valid [\"0\"]");  // a path; another YAML reader would take 0 for a number
  for (const char* set : {"parallel.layers_per_stage=-1", "parallel.layers_per_stage=four", "data.weights=0", "model.window_layers=0.5"}) {
    CAPTURE(set, message_of(set));
    CHECK(message_of(set).find("nearest") == std::string::npos);
  }
}

}  // namespace trireme
