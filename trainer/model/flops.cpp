#include "trainer/model/flops.h"

#include "trainer/model/declare.h"
#include "trainer/model/part_profile.h"

namespace trireme {

namespace {

constexpr double kPasses = 3;  // a backward costs two forwards

/// FLOPs of one sequence's forward through one part.
struct ForwardFlops {
  double causal = 0;          ///< attention counted with the causal mask
  double full = 0;            ///< attention counted without the causal mask
  double full_attention = 0;  ///< share of attention in `full`
};

ForwardFlops forward_flops(PartProfiles& profiles, const Part& part, int64_t vocabulary, int64_t sequence_length) {
  ForwardFlops sum;
  for (OperationRecord operation : profiles.of(part, {.length = sequence_length, .logits_chunk = sequence_length}).evaluation.operations) {
    if (part.kind == PartKind::kHead && operation.kind == OperationKind::kProduct) operation.n = vocabulary;  // without the padding
    const double causal = operation.flops();
    sum.causal += causal;
    if (operation.kind != OperationKind::kAttention) {
      sum.full += causal;
      continue;
    }
    const double all = causal * operation.attention.all_scores() / operation.attention.scores();
    sum.full += all;
    sum.full_attention += all;
  }
  return sum;
}

/// FLOPs per token of the weight gradients that frozen matrices do not need: a forward's product each.
double frozen_product_flops(const ModelConfig& model) {
  double flops = 0;
  for (const ParamSpec& spec : whole_model(model)) {
    const bool looked_up = (spec.name == kEmbeddingWeight && !model.tied_embeddings) || spec.name == kPositionsWeight;
    if (!spec.trainable && spec.dims == 2 && !looked_up) flops += 2 * static_cast<double>(spec.shape[0] * spec.shape[1]);
  }
  return flops;
}

/// Training FLOPs per token.
double flops_per_token(const ModelConfig& model, int64_t sequence_length, double ForwardFlops::*kind) {
  PartProfiles profiles(model);
  double flops = 0;
  for (const Part& part : profiles.parts()) flops += forward_flops(profiles, part, *model.vocab_size, sequence_length).*kind;
  return kPasses * flops / static_cast<double>(sequence_length) - frozen_product_flops(model);
}

}  // namespace

double training_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  return flops_per_token(model, sequence_length, &ForwardFlops::causal);
}

double full_attention_flops_per_token(const ModelConfig& model, int64_t sequence_length) {
  return flops_per_token(model, sequence_length, &ForwardFlops::full);
}

double recomputation_factor(const ModelConfig& model, int64_t sequence_length, const std::vector<Recompute>& recompute) {
  PartProfiles profiles(model);
  double all = 0, again = 0;
  for (const Part& part : profiles.parts()) {
    const ForwardFlops forward = forward_flops(profiles, part, *model.vocab_size, sequence_length);
    const Recompute how = recompute_of(part, recompute);
    all += forward.full;
    again += how == Recompute::kFull ? forward.full : how == Recompute::kSelective ? forward.full_attention : 0;
  }
  return 1 + again / (kPasses * all - frozen_product_flops(model) * static_cast<double>(sequence_length));
}

int64_t parameter_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : whole_model(model)) count += spec.shape[0] * spec.shape[1];
  return count;
}

int64_t trainable_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : whole_model(model)) count += spec.trainable ? spec.shape[0] * spec.shape[1] : 0;
  return count;
}

}  // namespace trireme
