#include "trainer/model/flops.h"

#include "trainer/model/declare.h"

namespace trireme {

double training_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  ModelConfig one = model;  // all blocks are alike, and a search asks for thousands of forecasts
  one.layers = 1;
  double block = 0;
  for (const ParamSpec& spec : whole_model(one))
    if (spec.name.starts_with("blocks.") && spec.dims == 2) block += static_cast<double>(spec.shape[0] * spec.shape[1]);
  const double weights = static_cast<double>(*model.vocab_size * model.hidden_size) + static_cast<double>(model.layers) * block;  // the head's product first
  const double attention = static_cast<double>(model.layers * model.heads * *model.head_size * sequence_length);  // scores and values, causal half
  return 6 * weights + 6 * attention;
}

int64_t parameter_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : whole_model(model)) count += spec.shape[0] * spec.shape[1];
  return count;
}

}  // namespace trireme
