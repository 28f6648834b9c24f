#include "trainer/verify/diagnosis.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

/// The first wrong step or quantity says more than its consequences.
struct First {
  const Difference* difference;
  std::set<std::string> tensors;  ///< tensors that differ in the same quantity of the same step
  std::optional<double> ratio;    ///< common to all of those
};

First first_of(const std::vector<Difference>& differences) {
  First first{&differences.front(), {}, differences.front().ratio};
  for (const Difference& d : differences) {
    if (d.quantity != first.difference->quantity || d.step != first.difference->step) break;
    if (!d.tensor.empty()) first.tensors.insert(d.tensor);
    if (!first.ratio || !d.ratio || std::abs(*d.ratio - *first.ratio) > 1e-6 * std::abs(*first.ratio)) first.ratio.reset();
  }
  return first;
}

std::string axis_of(const Evidence& e) {
  const Layout& s = e.smallest;
  std::string axes;
  const auto add = [&](bool there, const char* name) {
    if (there) axes += (axes.empty() ? "" : "+") + std::string(name);
    return there;
  };
  add(e.recomputes, "recompute");
  const bool schedule = add(s.schedule != ScheduleKind::k1F1B || s.virtual_stages, "schedule");
  const bool zero = add(
      s.zero > 0 || s.replicate > 1 || s.gradient_accumulation != GradientAccumulation::kAuto || s.reshard != Reshard::kAfterUse || s.secondary > 0,
      "zero");
  const bool sequence = add(s.sequence_parallel, "sequence");
  add(s.tensor > 1 && !sequence, "tensor");
  add(s.pipeline > 1 && !schedule, "pipeline");
  add(s.data > 1 && !zero, "data");
  if (axes.empty()) add(s.micro_batch > 1, "micro_batch");
  return axes.empty() ? "none" : axes;
}

/// "3 times too large, which is the number of data ranks" if the factor is known, else empty.
std::string factor_in_words(const Evidence& e, double ratio) {
  const Layout& s = e.smallest;
  const std::pair<double, const char*> known[] = {{static_cast<double>(e.microbatches), "micro-batches"},
                                                  {static_cast<double>(s.data), "data ranks"},
                                                  {static_cast<double>(s.tensor), "tensor ranks"},
                                                  {static_cast<double>(s.pipeline), "pipeline ranks"},
                                                  {static_cast<double>(s.data / s.replicate), "shards"},
                                                  {static_cast<double>(s.replicate), "replicas"},
                                                  {static_cast<double>(s.tensor) / static_cast<double>(e.kv_heads), "copies of a kv head"}};
  for (const auto& [count, name] : known) {
    if (count <= 1) continue;
    if (std::abs(ratio - count) < 1e-6 * count) return concat(count, " times too large, which is the number of ", name);
    if (std::abs(ratio * count - 1) < 1e-6) return concat(count, " times too small, which is the number of ", name);
  }
  return "";
}

bool cured_by(const Evidence& e, Feature feature) { return e.cures.contains(feature); }

/// For a wrong loss: the forward is wrong.
Diagnosis of_loss(const Evidence& e, const First& first, const std::string& axis) {
  if (e.fault != KnownFault::kNone) return {axis, text_of(e.fault).layer, text_of(e.fault).trap};
  if (first.ratio && first.difference->step == 1)
    if (const std::string factor = factor_in_words(e, *first.ratio); !factor.empty()) return {axis, "loss", "the loss is " + factor};
  if (cured_by(e, Feature::kDropout)) return {axis, "dropout", "random numbers depend on the layout: different elements are dropped"};
  if (cured_by(e, Feature::kBiases)) return {axis, "bias", "a bias is added by several tensor ranks, or by none"};
  if (cured_by(e, Feature::kRaggedVocabulary)) return {axis, "head", "the padding of the vocabulary reaches the softmax or a lookup"};
  if (cured_by(e, Feature::kMasks)) return {axis, "loss", "a mean of means: the loss is not divided by the valid tokens of the whole global batch"};
  if (cured_by(e, Feature::kDocuments)) return {axis, "attention", "documents of one sequence are not separated"};
  if (cured_by(e, Feature::kHeadNorms)) return {axis, "head_norm", "queries or keys are normalised differently"};
  if (cured_by(e, Feature::kWindow)) return {axis, "attention", "the window is applied to the wrong layers, or ends at the wrong token"};
  if (cured_by(e, Feature::kAdapters)) return {axis, "adapter", "an adapter reads another part of its layer's input, or adds to other outputs"};
  if (cured_by(e, Feature::kMicrobatches)) return {axis, "loss", "the losses of several micro-batches, or of their chunks, are not summed"};
  const bool attention = cured_by(e, Feature::kAttention), mlp = cured_by(e, Feature::kMlp);
  if (attention && !mlp) return {axis, "attention", "the forward of attention computes something different"};
  if (mlp && !attention) return {axis, "mlp", "the forward of the MLP computes something different"};
  if (cured_by(e, Feature::kTied)) return {axis, "embedding", "a tied embedding differs between the first and the last stage"};
  if (axis == "sequence") return {axis, "all", "partial sums under sequence parallelism: rows are sliced where they must be summed"};
  if (axis == "tensor") return {axis, "all", "partial sums of a split product are lost, or rows of the vocabulary are mixed up"};
  if (axis == "data") return {axis, "batch", "data ranks do not read their own samples of the global batch"};
  return {axis, "all", "the forward computes something different"};
}

Diagnosis of_gradients(const Evidence& e, const First& first, const std::string& axis) {
  const std::string kind = kind_of(first.tensors);
  const bool later = first.difference->step > 1;
  if (later) return {axis, kind, "gradients of the previous step are added, or a random mask is redrawn"};
  if (kind == "kv" && e.smallest.tensor > 1)
    return {axis, "kv", "gradients of replicated key and value heads are not summed exactly once over the ranks that share a head"};
  if (kind == "norm" || kind == "head_norm" || kind == "positions" || kind == "vectors")
    return {axis, kind, "gradients of replicated parameters are partial: each tensor rank saw only its own rows or heads, and they are not summed"};
  if (kind == "adapter")
    return {axis, kind, "gradients of adapters are wrong: those of the matrix that every tensor rank has whole are partial, and must be summed"};
  if (kind == "bias") return {axis, kind, "the gradient of a row-parallel bias is complete on every tensor rank, but summed again"};
  if (first.ratio)
    if (const std::string factor = factor_in_words(e, *first.ratio); !factor.empty()) return {axis, kind, "gradients are " + factor};
  if (cured_by(e, Feature::kTied)) return {axis, "embedding", "tied embedding: the gradients of first and last stage are not summed exactly once"};
  if (cured_by(e, Feature::kAdapters)) return {axis, kind, "the backward of a layer with an adapter loses what flows through the adapter"};
  if (cured_by(e, Feature::kFrozen)) return {axis, kind, "the backward passes a frozen parameter by, or loses the gradient of one that is trained"};
  if (cured_by(e, Feature::kMicrobatches)) return {axis, kind, "gradients of micro-batches are lost, or reduced before the last micro-batch"};
  if (cured_by(e, Feature::kDropout)) return {axis, kind == "all" ? "dropout" : kind, "the dropout mask of the backward is not that of the forward"};
  if (cured_by(e, Feature::kDocuments)) return {axis, "attention", "the backward does not separate documents"};
  if (cured_by(e, Feature::kHeadNorms)) return {axis, "attention", "the backward reads queries and keys on the wrong side of their norms"};
  if (cured_by(e, Feature::kWindow)) return {axis, "attention", "the backward attends to tokens outside the window"};
  if (cured_by(e, Feature::kRaggedVocabulary)) return {axis, kind, "the padding of the vocabulary leaks into a gradient"};
  if (axis.find("zero") != std::string::npos)
    return {axis, kind, "shards: a part of a flat buffer is lost, or a reduction over shards or replicas is missing"};
  if (axis == "data") return {axis, kind, "gradients of the data ranks are not summed"};
  if (axis == "schedule" || axis == "pipeline") return {axis, kind, "a backward is lost, doubled or reads the wrong micro-batch"};
  if (axis == "recompute") return {axis, kind, "recomputation does not reproduce the forward"};
  return {axis, kind, "a partial sum of the backward is lost or counted twice"};
}

Diagnosis of_norm(const Evidence& e, const First& first, const std::string& axis) {
  const bool more = first.difference->actual > first.difference->expected;
  if (cured_by(e, Feature::kTied)) return {axis, "grad_norm", "the gradient norm counts the copy of a tied embedding"};
  if (cured_by(e, Feature::kSharedKv)) return {axis, "grad_norm", "the gradient norm counts every copy of a shared kv head"};
  if (cured_by(e, Feature::kFrozen)) return {axis, "grad_norm", "the gradient norm counts frozen parameters"};
  if (cured_by(e, Feature::kAdapters))
    return {axis, "grad_norm", "the gradient norm counts a matrix of an adapter that tensor ranks share more than once"};
  if (!more) return {axis, "grad_norm", "the gradient norm, and with it clipping, is not taken over all ranks"};
  return {axis, "grad_norm", "the gradient norm counts replicated parameters more than once"};
}

Diagnosis of_weights(const Evidence& e, const First& first, const std::string& axis) {
  const std::string kind = kind_of(first.tensors);
  if (first.difference->quantity == Quantity::kInitialWeight) return {axis, kind, "initial values are not a function of seed, name and global index"};
  if (cured_by(e, Feature::kTied) || (kind == "embedding" && e.smallest.pipeline > 1))
    return {axis, "embedding", "a tied parameter is updated or decayed twice, or on one stage only"};
  if (cured_by(e, Feature::kFrozen)) return {axis, kind, "a frozen parameter is updated or decayed, or a trained one is not"};
  if (cured_by(e, Feature::kWeightDecay))
    return {axis, kind, kind == "all" ? "weight decay is wrong" : "weight decay is applied to the wrong parameters"};
  if (cured_by(e, Feature::kClip)) return {axis, "optimizer", "the gradient is not clipped by its norm"};
  return {axis, kind == "all" ? "optimizer" : kind, "the update is not the optimizer's, or not applied to everything a rank owns"};
}

Diagnosis of_disagreement(const Evidence& e, const std::string& axis) {
  const std::string kind = kind_of(e.record.disagreement->tensor);
  if (kind == "embedding" && e.smallest.pipeline > 1)
    return {axis, kind, "tied embedding: its two copies drift apart, because gradient, decay or update differ"};
  if (kind == "kv")
    return {axis, kind, "replicated key and value heads drift apart: their gradients are not summed over the ranks that share a head"};
  if (kind == "norm" || kind == "head_norm" || kind == "positions")
    return {axis, kind, "gradients of replicated parameters are partial: each tensor rank saw only its own rows or heads, and they are not summed"};
  if (kind == "bias") return {axis, kind, "copies of a row-parallel bias drift apart"};
  return {axis, "all", "replicas drift apart: gradients are not reduced over all ranks that have a copy"};
}

bool says(const std::string& message, const char* word) { return message.find(word) != std::string::npos; }

Diagnosis of_failure(const Evidence& e, const std::string& axis) {
  if (says(e.message, "while it was in flight") || says(e.message, " dropped ") || says(e.message, "while a unit is gathered"))
    return {axis, "all", "missing wait: a buffer is used before its communication has finished"};
  if (says(e.message, "tied")) return {axis, "embedding", "tied embedding: its gradients are not summed over first and last stage"};
  if (says(e.message, "lowered_schedule"))
    return {axis, "all", "the list of actions is incomplete or could deadlock, and was refused before the first step"};
  if (says(e.message, "ranks disagree")) return {axis, "all", "ranks call different collectives: control flow depends on the rank"};
  if (e.end == LayoutRun::End::kHung)
    return {axis, "all", "ranks wait for each other: one skipped a collective, or transfers are issued in incompatible orders"};
  return {axis, "all", "a rank failed"};
}

}  // namespace

std::string kind_of(const std::string& name) {
  const auto ends = [&](const char* end) { return name.ends_with(end); };
  if (name == "embedding.weight") return "embedding";
  if (name == "positions.weight") return "positions";
  if (name == "head.weight") return "head";
  if (is_adapter(name)) return "adapter";
  if (ends("query_norm.weight") || ends("key_norm.weight")) return "head_norm";
  if (ends("norm.weight") || ends("norm.bias")) return "norm";
  if (ends(".key.weight") || ends(".key.bias") || ends(".value.weight") || ends(".value.bias")) return "kv";
  if (ends(".query.weight") || ends(".query.bias")) return "query";
  if (ends(".output.bias") || ends(".down.bias")) return "bias";
  return ends(".output.weight") ? "attention" : "mlp";
}

std::string kind_of(const std::set<std::string>& parameters) {
  std::set<std::string> kinds;
  bool vectors = true;
  for (const std::string& name : parameters) {
    kinds.insert(kind_of(name));
    vectors = vectors && (name.ends_with(".bias") || name.ends_with("norm.weight"));
  }
  const auto within = [&](const std::set<std::string>& some) { return std::ranges::includes(some, kinds); };
  if (kinds.empty()) return "all";
  if (kinds.size() == 1) return *kinds.begin();
  if (within({"norm", "positions"}) || within({"head_norm", "norm", "positions"})) return "norm";
  if (vectors) return "vectors";
  if (within({"attention", "head_norm", "kv", "query"})) return "attention";
  if (within({"embedding", "head", "positions"})) return "embedding";
  return "all";
}

Diagnosis diagnose(const Evidence& e) {
  const std::string axis = axis_of(e);
  if (e.end != LayoutRun::End::kDone) return of_failure(e, axis);
  if (!e.record.unheld.empty()) return {axis, "all", "flat buffers: no rank owns some of the elements"};
  if (!e.record.outside.empty()) return {axis, kind_of(e.record.outside), "padding: a rank owns rows beyond the end of a tensor"};
  // NaN comes from memory that was read before it was written: fresh memory is poisoned.
  if (!e.record.rejected.empty()) return {axis, "all", "missing wait, or memory read before it is written: " + e.record.rejected};
  if (e.differences.empty()) {
    if (e.record.disagreement) return of_disagreement(e, axis);
    return {axis, "all", "the difference could not be reproduced"};
  }
  const First first = first_of(e.differences);
  switch (first.difference->quantity) {
    case Quantity::kLoss: {
      if (first.difference->step == 1 || e.record.disagreement == std::nullopt) break;
      return of_disagreement(e, axis);
    }
    case Quantity::kGradient:
      if (e.record.disagreement && kind_of(first.tensors) == "all") return of_disagreement(e, axis);
      return of_gradients(e, first, axis);
    case Quantity::kGradNorm: return first.difference->step == 1 ? of_norm(e, first, axis) : of_gradients(e, first, axis);
    case Quantity::kInitialWeight:
    case Quantity::kWeight: return e.record.disagreement ? of_disagreement(e, axis) : of_weights(e, first, axis);
    case Quantity::kAverage:
      if (e.record.disagreement) return of_disagreement(e, axis);
      return {axis, "optimizer", "the moving average is not that of the updated master weights, or not of everything a rank owns"};
    case Quantity::kValidationLoss:
      return {axis, "evaluation",
              cured_by(e, Feature::kDropout) ? "dropout in evaluation" : "a mean of means in evaluation, or a model other than the trained one"};
  }
  if (first.difference->step == 1 || e.fault != KnownFault::kNone) return of_loss(e, first, axis);
  if (axis == "none") return {axis, "batch", "a later step reads the wrong samples of the global batch"};
  return {axis, "all", "stale parameters: a step reads the weights from before the last update"};
}

}  // namespace trireme
