// model.frozen: what is refused, and with which message; which parameters the clone of `trireme verify` freezes.
#include <algorithm>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/declare.h"
#include "trainer/verify/clone.h"

namespace trireme {
namespace {

const std::string kFrozenText = R"(model: {layers: 12, hidden_size: 96, heads: 12, kv_heads: 2, ffn_size: 256, vocab_size: 300}
training: {steps: 100, sequence_length: 32, micro_batch_size: 1, global_batch_size: 12}
data: {tokenizer: none, train: [data/a]}
)";

Config frozen_config(const std::string& patterns) {
  return resolve(parse_config(kFrozenText, "run.yaml", {concat("model.frozen=", patterns)}), std::nullopt);
}

/// The refusal; empty if it is accepted.
std::string frozen_refusal(const std::string& patterns) {
  try {
    frozen_config(patterns);
    return "";
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.code()) == 64);
    return error.what();
  }
}

std::vector<std::string> frozen_names(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const ParamSpec& spec : whole_model(model))
    if (!spec.trainable) names.push_back(spec.name);
  return names;
}

ModelConfig frozen_clone(const std::string& patterns) { return make_clone(frozen_config(patterns), parse_layouts("pp4 tp2"), 3).config.model; }

}  // namespace

TEST_CASE("frozen: patterns name parameters, all of a matrix, and not all of the model") {
  CHECK(frozen_refusal("[]").empty());
  CHECK(frozen_refusal("[embedding.weight, 'blocks.1?.*', '*.mlp_norm.weight']") == "");
  CHECK_THAT(frozen_refusal("[embeddings.weight]"),
             Catch::Contains("model.frozen=embeddings.weight: names no parameter of the model") && Catch::Contains("nearest valid embedding.weight"));
  CHECK_THAT(frozen_refusal("[blocks.0.*, blocks.12.*]"),
             Catch::Contains("blocks.12.*: names no parameter") && Catch::Contains("blocks.0.mlp.up.weight"));
  CHECK_THAT(frozen_refusal("['[e]mbedding.weight']"), Catch::Contains("names no parameter of the model"));
  CHECK_THAT(
      frozen_refusal("[blocks.3.attention.query.weight]"),
      Catch::Contains("names some of blocks.3.attention.query.weight, blocks.3.attention.key.weight, blocks.3.attention.value.weight, which are "
                      "one matrix"));
  CHECK_THAT(frozen_refusal("['*']"), Catch::Contains("names every parameter"));
}

TEST_CASE("frozen: the clone of verify freezes in each block what its block of the model has, and never nothing or everything") {
  const auto is_of = [](const std::string& start) { return [start](const std::string& name) { return name.starts_with(start); }; };
  const std::vector<std::string> first = frozen_names(frozen_clone("[embedding.weight, blocks.0.*]"));
  CHECK(std::ranges::count_if(first, is_of("blocks.0.")) > 0);
  CHECK(std::ranges::count_if(first, is_of("embedding.")) == 1);
  CHECK(std::ranges::count_if(first, is_of("blocks.1.")) == 0);
  const ModelConfig last = frozen_clone("[blocks.11.*]");
  const std::vector<std::string> of_last = frozen_names(last);
  CHECK(!of_last.empty());
  CHECK(std::ranges::all_of(of_last, is_of(concat("blocks.", last.layers - 1, "."))));
  CHECK(last.layers < 12);
  CHECK(!frozen_names(frozen_clone("[blocks.7.*]")).empty());  // a block that the clone skips
  std::string others = "[embedding.weight, final_norm.weight";
  for (int block = 0; block < 12; ++block)
    if (block != 7) others += concat(", blocks.", block, ".*");
  const ModelConfig one_trained = frozen_clone(others + "]");
  CHECK(frozen_names(one_trained).size() < whole_model(one_trained).size());
}

}  // namespace trireme
