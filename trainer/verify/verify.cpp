#include "trainer/verify/verify.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/declare.h"
#include "trainer/verify/ragged_dataset.h"

namespace trireme {
namespace {

constexpr double kNormScale = 0.1;
constexpr int64_t kValidationSequences = 17;  // the last batch is short

bool is_sooner(const Difference& a, const Difference& b) {
  // Order of computation: initial weights, then step by step, validation last.
  const auto time = [](const Difference& d) {
    return std::pair(d.quantity == Quantity::kValidationLoss ? 1 << 30 : d.step, static_cast<int>(d.quantity));
  };
  return time(a) < time(b);
}

int64_t block_of(const std::string& tensor) { return in_block(tensor).value_or(InBlock{-1, ""}).block; }

}  // namespace

int stage_of(const std::string& tensor, const std::vector<int64_t>& layers_per_stage) {
  if (tensor == "embedding.weight" || tensor == "positions.weight") return 0;
  int stage = 0;
  int64_t block = block_of(tensor);
  if (block < 0) return static_cast<int>(layers_per_stage.size()) - 1;
  while (block >= layers_per_stage[static_cast<size_t>(stage)]) block -= layers_per_stage[static_cast<size_t>(stage++)];
  return stage;
}

const char* name_of(LayoutVerdict::Kind kind) {
  switch (kind) {
    case LayoutVerdict::Kind::kSame: return "same";
    case LayoutVerdict::Kind::kDiffers: return "differs";
    case LayoutVerdict::Kind::kHangs: return "hangs";
    case LayoutVerdict::Kind::kFails: return "fails";
  }
  return "?";
}

Verifier::Verifier(const Config& config, const std::vector<Layout>& layouts, VerifyOptions options)
    : options_(std::move(options)), layouts_(layouts), clone_(make_clone(config, layouts, options_.seed)) {
  TRIREME_CHECK(options_.steps >= 2, options_.steps, " steps");
  plain_.text = "tp1";
  if (clone_.config.training.recompute != RecomputeMode::kNone) plain_.recompute = RecomputeMode::kNone;
}

/// nullopt if there is nothing to switch off.
std::optional<Verifier::Setting> Verifier::setting(const Layout& spec, const Features& without) const {
  Setting s{clone_.in(spec), {.steps = options_.steps, .every_state = true, .norm_scale = kNormScale}, nullptr, nullptr};
  ModelConfig& m = s.config.model;
  TrainingConfig& t = s.config.training;
  bool masks = true, changed = without.empty();
  const auto set = [&](auto& value, auto to) { changed = std::exchange(value, to) != to || changed; };
  for (const Feature feature : without) {
    switch (feature) {
      case Feature::kDropout: set(m.dropout, 0.0); break;
      case Feature::kBiases:
        if (m.preset().biases || m.qkv_bias) set(s.record.bias_scale, 0.0);
        break;
      case Feature::kTied: set(m.tied_embeddings, false); break;
      case Feature::kSharedKv: set(*m.kv_heads, m.heads); break;
      case Feature::kRaggedVocabulary: set(*m.vocab_size, unpadded_vocabulary(*m.vocab_size, layouts_)); break;
      case Feature::kMasks: set(masks, false); break;
      case Feature::kMicrobatches:
        set(t.global_batch_size, clone_.even_batch);
        if (microbatches_of(s.config) > 1) set(t.micro_batch_size, t.global_batch_size / *s.config.parallel.data);
        set(*t.logits_chunk, t.global_batch_size * t.sequence_length);  // the head processes a micro-batch in chunks
        break;
      case Feature::kWeightDecay: set(t.optimizer.weight_decay, 0.0); break;
      case Feature::kClip: set(t.gradient_clip, 0.0); break;
      case Feature::kHeadNorms:
        if (!m.preset().head_norms) set(m.qk_norm, false);
        break;
      case Feature::kWindow: set(m.window, std::optional<int64_t>()); break;
      case Feature::kFrozen:
        if (!m.frozen.empty()) set(m.frozen, m.adapter.rank > 0 ? std::vector<std::string>{"no parameter"} : std::vector<std::string>());
        break;
      case Feature::kAdapters: set(m.adapter.rank, int64_t{0}); break;
      case Feature::kDocuments: set(s.config.data.document_mask, false); break;
      case Feature::kAttention: set(s.record.zeroed, std::string("attention.output.weight")); break;
      case Feature::kMlp: set(s.record.zeroed, std::string("mlp.down.weight")); break;
    }
  }
  if (!changed) return std::nullopt;
  const int64_t length = t.sequence_length, sequences = t.global_batch_size + 5;  // step 2 starts a new epoch in the middle of its batch
  const bool documents = s.config.data.document_mask;
  s.data = std::make_shared<RaggedDataset>(sequences, length, *m.vocab_size, masks, documents);
  s.validation = std::make_shared<RaggedDataset>(kValidationSequences, length, *m.vocab_size, masks, documents);
  return s;
}

const LayoutRun& Verifier::run(const Layout& spec, const Features& without) {
  std::string key = spec.str();
  for (const Feature feature : without) key += concat(" without ", static_cast<int>(feature));
  const auto found = runs_.find(key);
  if (found != runs_.end()) return found->second;
  options_.progress(spec.str());
  const Setting s = setting(spec, without).value();
  LayoutRun& run = runs_[key] = run_layout(s.config, s.data, s.validation, {s.record, options_.timeout});
  stuck_ = stuck_ || run.stuck;
  return run;
}

/// Differences between a completed run and one rank, or the Oracle if `spec` is the plain layout.
std::vector<Difference> Verifier::differences(const Layout& spec, const Features& without, KnownFault* fault, double* largest) {
  const RunRecord& record = run(spec, without).record;
  Comparison comparison;
  if (spec == plain_) {
    const Setting s = setting(spec, without).value();
    BaselineCheck check = check_baseline(s.config, record, *s.data, *s.validation, s.record);
    comparison = std::move(check.comparison);
    if (fault != nullptr) *fault = check.fault;
  } else {
    comparison = compare(run(plain_, without).record, record, parameter_order(setting(spec, without).value().config.model));
  }
  if (largest != nullptr) *largest = comparison.largest;
  return std::move(comparison.differences);
}

bool Verifier::differs(const Layout& spec) {
  const LayoutRun& one = run(spec, {});
  const RunRecord& r = one.record;
  if (one.end != LayoutRun::End::kDone || !r.rejected.empty() || !r.unheld.empty() || !r.outside.empty() || r.disagreement) return true;
  return !differences(spec, {}, nullptr, nullptr).empty();
}

/// Removes options one by one, the finer ones first, as long as the difference remains.
Layout Verifier::smallest(const Layout& spec) {
  Layout small = spec;
  const auto attempt = [&](auto&& drop) {
    Layout fewer = small;
    drop(fewer);
    if (!(fewer == small) && !(fewer == plain_) && differs(fewer)) small = fewer;
  };
  if (spec.recompute || plain_.recompute) attempt([](Layout& s) { s.recompute = RecomputeMode::kNone; });
  attempt([](Layout& s) { s.schedule = ScheduleKind::k1F1B, s.virtual_stages.reset(); });
  const auto shard_plainly = [](Layout& s) {
    s.gradient_accumulation = GradientAccumulation::kAuto, s.reshard = Reshard::kAfterUse, s.secondary = 0;
  };
  attempt([](Layout& s) { s.secondary = 0; });
  attempt(shard_plainly);
  attempt([](Layout& s) { s.replicate = 1; });
  attempt([&](Layout& s) { s.zero = 0, s.replicate = 1, shard_plainly(s); });
  attempt([](Layout& s) { s.sequence_parallel = false; });
  attempt([](Layout& s) { s.pipeline = 1, s.schedule = ScheduleKind::k1F1B, s.virtual_stages.reset(); });
  attempt([&](Layout& s) { s.data = 1, s.zero = 0, s.replicate = 1, shard_plainly(s); });
  attempt([](Layout& s) { s.tensor = 1, s.sequence_parallel = false; });
  attempt([](Layout& s) { s.micro_batch = 1; });
  return small;
}

std::set<Feature> Verifier::cures(const Layout& spec, const Difference& first) {
  std::set<Feature> cures;
  for (int f = 0; f < kFeatures; ++f) {
    const auto feature = static_cast<Feature>(f);
    const bool forward_only = feature == Feature::kAttention || feature == Feature::kMlp;
    if (forward_only && (first.quantity != Quantity::kLoss || first.step != 1)) continue;
    if (!setting(spec, {feature}) && !setting(plain_, {feature})) continue;
    const Features without = setting(spec, {feature}) ? Features{feature} : Features{};
    if (without.empty()) continue;
    const auto trains = [&](const Layout& layout) {
      const LayoutRun& one = run(layout, without);
      return one.end == LayoutRun::End::kDone && one.record.rejected.empty();
    };
    if (!trains(spec)) continue;
    if (!(spec == plain_) && (!setting(plain_, without) || !trains(plain_))) continue;
    const std::vector<Difference> left = differences(spec, without, nullptr, nullptr);
    if (left.empty() || is_sooner(first, left.front())) cures.insert(feature);
  }
  return cures;
}

void Verifier::describe(const Layout& spec, const std::vector<Difference>& all, LayoutVerdict& verdict) const {
  const Difference& first = all.front();
  verdict.what = first.str();
  verdict.step = first.step;
  verdict.expected = first.expected;
  verdict.actual = first.actual;
  // A loss belongs to no tensor: name the first wrong tensor instead.
  const auto of_tensor = std::ranges::find_if(all, [](const Difference& d) { return !d.tensor.empty(); });
  if (of_tensor == all.end()) return;
  verdict.tensor = of_tensor->tensor;
  verdict.ranks = of_tensor->ranks;
  verdict.layer = block_of(of_tensor->tensor);
  verdict.stage = stage_of(of_tensor->tensor, *clone_.in(spec).parallel.layers_per_stage);
}

/// The verdict on a layout that is not the same; `small` is its reduced layout.
LayoutVerdict Verifier::conclude(const Layout& spec, const Layout& small) {
  LayoutVerdict verdict;
  verdict.layout = spec.text;
  verdict.smallest = small == plain_ ? plain_.text : small.str();
  verdict.kind = LayoutVerdict::Kind::kDiffers;
  const LayoutRun& whole = run(spec, {});
  const LayoutRun& part = run(small, {});
  Evidence evidence{.smallest = small,
                    .recomputes = small.recompute.value_or(clone_.config.training.recompute.value()) != RecomputeMode::kNone,
                    .end = part.end,
                    .message = part.message,
                    .record = {},
                    .differences = {},
                    .cures = {}};
  const Config config = clone_.in(small);
  evidence.microbatches = microbatches_of(config);
  evidence.kv_heads = *config.model.kv_heads;
  evidence.record.disagreement = part.record.disagreement;
  evidence.record.unheld = part.record.unheld;
  evidence.record.outside = part.record.outside;
  evidence.record.rejected = part.record.rejected;
  if (part.end == LayoutRun::End::kDone && part.record.rejected.empty()) {
    evidence.differences = differences(small, {}, &evidence.fault, nullptr);
    if (!evidence.differences.empty()) evidence.cures = cures(small, evidence.differences.front());
  }
  verdict.diagnosis = diagnose(evidence);
  if (whole.end != LayoutRun::End::kDone) {
    verdict.kind = whole.end == LayoutRun::End::kHung ? LayoutVerdict::Kind::kHangs : LayoutVerdict::Kind::kFails;
    verdict.what = whole.message;
    verdict.ranks = whole.ranks;
    verdict.acts = whole.acts;
    if (verdict.ranks.empty()) {
      verdict.ranks.resize(whole.acts.size());
      std::iota(verdict.ranks.begin(), verdict.ranks.end(), 0);
    }
    return verdict;
  }
  const std::vector<Difference> all =
      whole.record.rejected.empty() ? differences(spec, {}, nullptr, &verdict.max_difference) : std::vector<Difference>{};
  if (!all.empty()) describe(spec, all, verdict);
  if (const auto& disagreement = whole.record.disagreement; disagreement && verdict.tensor.empty()) {
    verdict.tensor = disagreement->tensor;
    verdict.layer = block_of(disagreement->tensor);
    verdict.stage = stage_of(disagreement->tensor, *clone_.in(spec).parallel.layers_per_stage);
    verdict.ranks = {disagreement->first_rank, disagreement->second_rank};
    if (verdict.what.empty()) verdict.what = disagreement->str();
  }
  if (!verdict.what.empty()) return verdict;
  const RunRecord& r = whole.record;
  verdict.tensor = !r.unheld.empty() ? r.unheld : r.outside;
  verdict.what = !r.rejected.empty() ? r.rejected
                 : !r.unheld.empty() ? r.unheld + ": no rank owns some of its elements"
                                     : r.outside + ": a rank owns rows beyond the end of the tensor";
  return verdict;
}

LayoutVerdict Verifier::layout(const Layout& spec) {
  if (const LayoutRun& plain = run(plain_, {}); plain.end != LayoutRun::End::kDone || !plain.record.rejected.empty()) {
    LayoutVerdict verdict;
    verdict.layout = spec.text;
    verdict.kind = LayoutVerdict::Kind::kFails;
    verdict.what = "no reference: training on one rank fails";
    verdict.diagnosis = {"none", "all", "see the baseline"};
    return verdict;
  }
  if (!differs(spec)) {
    LayoutVerdict verdict;
    verdict.layout = spec.text;
    differences(spec, {}, nullptr, &verdict.max_difference);
    return verdict;
  }
  return conclude(spec, smallest(spec));
}

LayoutVerdict Verifier::baseline() {
  if (differs(plain_)) return conclude(plain_, plain_);
  LayoutVerdict verdict;
  verdict.layout = plain_.text;
  differences(plain_, {}, nullptr, &verdict.max_difference);
  return verdict;
}

}  // namespace trireme
