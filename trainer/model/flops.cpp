#include "trainer/model/flops.h"

#include "parallel/comm/self.h"
#include "trainer/model/declare.h"

namespace trireme {
namespace {

/// Every parameter of the model as one rank would hold it.
std::vector<ParamSpec> whole_model(const ModelConfig& model) {
  SelfCommunicator one("tensor");
  const Region region(one, false);
  const Declaration declare(model, region);
  Unit unit("model");
  declare.embedding(unit);
  if (declare.dims().gpt2) declare.positions(unit);
  for (int64_t b = 0; b < model.layers; ++b) declare.block(unit, b, Tensor());
  declare.final_norm(unit);
  if (!model.tied_embeddings) declare.head(unit);
  std::vector<ParamSpec> specs;
  for (const auto& param : unit.params()) specs.insert(specs.end(), param->specs.begin(), param->specs.end());
  return specs;
}

}  // namespace

double training_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  double weights = static_cast<double>(*model.vocab_size * model.hidden_size);  // the head's product
  for (const ParamSpec& spec : whole_model(model))
    if (spec.name.starts_with("blocks.") && spec.dims == 2) weights += static_cast<double>(spec.shape[0] * spec.shape[1]);
  const double attention = static_cast<double>(model.layers * model.heads * *model.head_size * sequence_length);  // scores and values, causal half
  return 6 * weights + 6 * attention;
}

int64_t parameter_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : whole_model(model)) count += spec.shape[0] * spec.shape[1];
  return count;
}

}  // namespace trireme
