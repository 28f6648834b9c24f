#include "trainer/model/flops.h"

#include "trainer/model/declare.h"
#include "trainer/model/part_profile.h"

namespace trireme {

namespace {

/// Of operations that `counts`, in forward and backward: a backward takes twice its forward.
template <class Counts>
double flops_per_token(const ModelConfig& model, int64_t sequence_length, const Counts& counts) {
  PartProfiles profiles(model);
  double flops = 0;
  for (const Part& part : profiles.parts())
    for (const OperationRecord& operation : profiles.of(part, {.length = sequence_length, .logits_chunk = sequence_length}).evaluation.operations)
      if (counts(operation)) flops += 3 * operation.flops();
  return flops / static_cast<double>(sequence_length);
}

}  // namespace

double training_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  return flops_per_token(model, sequence_length, [](const OperationRecord&) { return true; });
}

double attention_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  return flops_per_token(model, sequence_length, [](const OperationRecord& operation) { return operation.kind == OperationKind::kAttention; });
}

int64_t parameter_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : whole_model(model)) count += spec.shape[0] * spec.shape[1];
  return count;
}

}  // namespace trireme
