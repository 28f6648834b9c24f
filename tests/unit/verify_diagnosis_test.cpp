// Components of `trireme verify`: clone, comparison, diagnosis.
#include <cmath>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "trainer/layout/resolve.h"
#include "trainer/verify/clone.h"
#include "trainer/verify/diagnosis.h"
#include "trainer/verify/verify.h"

namespace trireme::test {
namespace {

const std::vector<std::string> kOrder = {"embedding.weight", "blocks.0.attention_norm.weight", "blocks.0.attention.key.weight",
                                         "blocks.0.mlp.up.weight", "final_norm.weight"};

GlobalTensor tensor(int64_t rows, double first) {
  GlobalTensor t;
  t.shape = {rows, 2};
  for (int64_t i = 0; i < 2 * rows; ++i) t.values.push_back(first + 0.25 * static_cast<double>(i));
  t.holders = {{0, {{0, 0}, {1, 2}}}, {1, {{1, 0}, {rows - 1, 2}}}};
  return t;
}

RunRecord record() {
  RunRecord r;
  r.loss = {3.5, 3.25};
  r.grad_norm = {1.5, 1.25};
  r.validation_loss = 3;
  for (const std::string& name : kOrder) {
    r.initial_weight[name] = r.first_weight[name] = r.weight[name] = tensor(4, 1);
    r.first_gradient[name] = r.second_gradient[name] = tensor(4, 2);
  }
  return r;
}

/// Diagnosis of a run of `layout` that `spoil` has corrupted, compared with a correct one.
Diagnosis seen(const std::string& layout, const std::function<void(RunRecord&)>& spoil, const std::set<Feature>& cures = {}) {
  RunRecord wrong = record();
  spoil(wrong);
  Evidence evidence;
  evidence.smallest = parse_layout(layout);
  evidence.record.disagreement = wrong.disagreement;
  evidence.differences = compare(record(), wrong, kOrder).differences;
  evidence.cures = cures;
  evidence.microbatches = 6;
  evidence.kv_heads = 2;
  return diagnose(evidence);
}

void scale(GlobalTensor& t, double factor) {
  for (double& v : t.values) v *= factor;
}

void check_diagnosis(const Diagnosis& d, const std::string& axis, const std::string& layer, const std::string& trap) {
  CAPTURE(d.trap);
  CHECK(d.axis == axis);
  CHECK(d.layer == layer);
  CHECK(d.trap.find(trap) != std::string::npos);
}

ModelConfig odd_model() {
  ModelConfig m;
  m.layers = 12;
  m.hidden_size = 96;
  m.heads = 30;
  m.kv_heads = 6;
  m.head_size = 6;
  m.ffn_size = 240;
  m.vocab_size = 1001;
  return m;
}

Config odd_config() {
  Config c;
  c.model = odd_model();
  c.training.steps = 5;
  c.data.tokenizer = "none";
  return resolve(c);
}

}  // namespace

TEST_CASE("a vocabulary without padding is divisible into whole stored rows on one rank and on the ranks of every layout") {
  const auto unpadded = [](int64_t vocabulary, const std::string& layouts) { return unpadded_vocabulary(vocabulary, parse_layouts(layouts)); };
  CHECK(unpadded(53, "tp1") == 56);
  CHECK(unpadded(56, "tp1 pp2") == 56);
  CHECK(unpadded(56, "tp2") == 64);
  CHECK(unpadded(53, "tp2 tp3 dp2") == 96);
  CHECK(unpadded(1025, "tp1") == 1152);
  CHECK(unpadded(1018, "tp2") == 1024);
  CHECK(unpadded(1025, "tp4") == 1152);  // 288 rows on each of four ranks, 1152 on one
}

TEST_CASE("a clone keeps irregular sizes of a model, and is only as large as the layouts need") {
  const std::vector<Layout> layouts = parse_layouts("tp2 tp3 pp2vpp2-interleaved_1f1b dp3z1 tp2dp2z3mb2sp");
  const Clone clone = make_clone(odd_config(), layouts, 5);
  const ModelConfig& m = clone.config.model;
  CHECK(m.heads == 5 * *m.kv_heads);
  CHECK(*m.kv_heads == 6);  // 3 is divisible by 3 but not by 2
  CHECK(m.layers == 5);
  CHECK(m.hidden_size == 24);
  CHECK(*m.ffn_size == 60);
  CHECK(*m.head_size == 4);
  CHECK((*m.vocab_size % 2 == 1 && *m.vocab_size % 3 != 0 && *m.vocab_size < 100));
  for (const Layout& layout : layouts) {
    INFO(layout.text);
    const Config config = clone.in(layout);
    CHECK_NOTHROW(resolve(config));
    CHECK(config.training.global_batch_size >= 2 * layout.data * layout.micro_batch);
    CHECK(config.training.global_batch_size == clone.config.training.global_batch_size);
    CHECK(static_cast<int64_t>(config.parallel.layers_per_stage->size()) == layout.stages());
  }
  CHECK(*clone.in(parse_layout("pp2vpp2-interleaved_1f1b")).parallel.layers_per_stage == std::vector<int64_t>{1, 1, 1, 2});
  // Fewer kv heads than tensor ranks stay fewer.
  Config grouped = odd_config();
  grouped.model.heads = 32;
  grouped.model.kv_heads = 4;
  grouped.model.ffn_size = 256;
  CHECK(*make_clone(grouped, parse_layouts("tp8 tp4"), 5).config.model.kv_heads == 4);
  CHECK(*make_clone(grouped, parse_layouts("tp2"), 5).config.model.kv_heads == 2);
}

TEST_CASE("a clone has no layers in the first and the last stage where the configuration has none") {
  using Split = std::vector<int64_t>;
  const auto split = [](int64_t layers, const Split& user, const std::string& spec) {
    Config config = odd_config();
    config.model.layers = layers;
    config.parallel.pipeline = static_cast<int64_t>(user.size());
    config.parallel.layers_per_stage = user;
    const Clone clone = make_clone(resolve(config), {parse_layout(spec)}, 5);
    const Config of_clone = clone.in(parse_layout(spec));
    CHECK_NOTHROW(resolve(of_clone));
    return *of_clone.parallel.layers_per_stage;
  };
  CHECK(split(12, {0, 6, 6, 0}, "pp4") == Split{0, 2, 3, 0});
  CHECK(split(12, {0, 5, 7, 0}, "pp4") == Split{0, 1, 4, 0});
  CHECK(split(12, {0, 6, 6, 0}, "pp2vpp2-interleaved_1f1b") == Split{0, 2, 3, 0});
  CHECK(split(12, {0, 6, 6, 0}, "pp2") == Split{0, 3});
  CHECK(split(12, {0, 6, 6, 0}, "pp3-zb_h1") == Split{0, 4, 0});
  CHECK(split(12, {6, 6, 0}, "pp2") == Split{3, 0});
  CHECK(split(12, {0, 6, 6, 0}, "tp2") == Split{2});
  CHECK(split(2, {0, 1, 1, 0}, "pp4") == Split{0, 1, 1, 0});
  CHECK(split(2, {1, 1, 0}, "pp3") == Split{1, 1, 0});
}

TEST_CASE("a tensor belongs to the stage that has its layer, embedding and head to the ends") {
  for (const auto& [tensor, stage] : {std::pair("embedding.weight", 0),
                                      {"positions.weight", 0},
                                      {"blocks.0.mlp.up.weight", 1},
                                      {"blocks.1.mlp.up.weight", 1},
                                      {"blocks.2.mlp.up.weight", 2},
                                      {"final_norm.weight", 3},
                                      {"head.weight", 3}}) {
    INFO(tensor);
    CHECK(stage_of(tensor, {0, 2, 1, 0}) == stage);
  }
  CHECK(stage_of("blocks.0.mlp.up.weight", {1, 2, 0}) == 0);
  CHECK(stage_of("blocks.2.mlp.up.weight", {1, 2, 0}) == 1);
}

TEST_CASE("a layout that is invalid for the model is refused with the broken rule") {
  const auto refused = [](const std::string& layouts, const std::vector<std::string>& parts) {
    INFO(layouts);
    check_throws<ConfigError>([&] { make_clone(odd_config(), parse_layouts(layouts), 1); }, parts);
  };
  refused("tp2 tp4", {"'tp4'", "parallel.tensor", "does not divide model.heads 30"});
  refused("pp13", {"'pp13'", "more stages than model.layers 12"});
  refused("dp3rep2z1", {"parallel.replicate", "does not divide"});
  refused("dp2z1-sharded_grads", {"keeps full gradients"});
  refused("pp2vpp2-gpipe", {"parallel.virtual_stages"});
  refused("tp2dp64", {"128 ranks", "up to dp32"});
}

TEST_CASE("a comparison names the elements that differ, their owners and their common factor") {
  RunRecord wrong = record();
  CHECK(compare(record(), wrong, kOrder).differences.empty());
  CHECK(compare(record(), wrong, kOrder).largest == 0);
  wrong.first_gradient["blocks.0.mlp.up.weight"].values[5] *= 1 + 1e-8;
  wrong.first_gradient["embedding.weight"].values[0] = NAN;
  const std::vector<Difference> found = compare(record(), wrong, kOrder).differences;
  REQUIRE(found.size() == 2);
  CHECK(found[0].tensor == "blocks.0.mlp.up.weight");  // closer to the head: the backward was wrong there first
  CHECK(found[0].place == 5);
  CHECK(found[0].differing == 1);
  CHECK(found[0].ranks == std::vector{1});
  CHECK_FALSE(found[0].ratio);
  CHECK(found[1].ranks == std::vector{0});
  CHECK(std::isinf(found[1].relative));
  wrong = record();
  scale(wrong.first_gradient["embedding.weight"], 3);
  CHECK(compare(record(), wrong, kOrder).differences.front().ratio.value() == Approx(3));
  wrong = record();
  wrong.weight["final_norm.weight"].values[0] += 1e-13;  // rounding
  CHECK(compare(record(), wrong, kOrder).differences.empty());
  wrong = record();
  wrong.first_gradient.erase("embedding.weight");
  CHECK(compare(record(), wrong, kOrder).differences.size() == 1);
}

TEST_CASE("a tensor is compared relative to its own size, down to a thousandth of the largest") {
  const auto differences = [](double size, double error) {
    RunRecord right = record();
    scale(right.first_gradient["blocks.0.attention_norm.weight"], size);  // the others are as large as it was
    RunRecord wrong = right;
    scale(wrong.first_gradient["blocks.0.attention_norm.weight"], 1 + error);
    return compare(right, wrong, kOrder).differences.size();
  };
  CHECK(differences(1, 1e-9) == 1);
  CHECK(differences(1.1e-3, 0.01) == 1);
  CHECK(differences(1.1e-3, 1e-9) == 1);
  CHECK(differences(1.1e-3, 1e-11) == 0);
  CHECK(differences(1e-6, 1e-9) == 0);  // as small as the rounding errors in a tensor of zeros
}

TEST_CASE("a cause is named by what differs, where, and which features it depends on") {
  const auto gradient = [](const char* name, double factor) { return [name, factor](RunRecord& r) { scale(r.first_gradient[name], factor); }; };
  check_diagnosis(seen("tp2sp", gradient("final_norm.weight", 0.4)), "sequence", "norm", "replicated parameters are partial");
  check_diagnosis(seen("tp4", gradient("blocks.0.attention.key.weight", 0.4)), "tensor", "kv", "share a head");
  check_diagnosis(seen("pp2", gradient("embedding.weight", 0.4), {Feature::kTied}), "pipeline", "embedding", "tied embedding");
  const auto all = [](double factor) {
    return [factor](RunRecord& r) {
      for (auto& [name, t] : r.first_gradient) scale(t, factor);
    };
  };
  check_diagnosis(seen("dp3", all(3)), "data", "all", "3 times too large, which is the number of data ranks");
  check_diagnosis(seen("dp2", all(1.0 / 6)), "data", "all", "6 times too small, which is the number of micro-batches");
  check_diagnosis(seen("dp2z2", all(0.3)), "zero", "all", "shards");
  check_diagnosis(seen("dp2", all(0.3), {Feature::kMicrobatches}), "data", "all", "micro-batches are lost");
  const auto figure = [](std::vector<double> RunRecord::*which, double factor) { return [which, factor](RunRecord& r) { (r.*which)[0] *= factor; }; };
  check_diagnosis(seen("tp4", figure(&RunRecord::grad_norm, 1.1), {Feature::kSharedKv}), "tensor", "grad_norm", "every copy of a shared kv head");
  check_diagnosis(seen("pp2", figure(&RunRecord::grad_norm, 0.7)), "pipeline", "grad_norm", "not taken over all ranks");
  check_diagnosis(seen("tp2", figure(&RunRecord::loss, 1.01), {Feature::kBiases}), "tensor", "bias", "added by several tensor ranks");
  check_diagnosis(seen("tp2", figure(&RunRecord::loss, 1.01), {Feature::kRaggedVocabulary}), "tensor", "head", "padding of the vocabulary");
  check_diagnosis(seen("dp2", figure(&RunRecord::loss, 1.01), {Feature::kMasks}), "data", "loss", "mean of means");
  check_diagnosis(seen("dp2", figure(&RunRecord::loss, 1.01)), "data", "batch", "samples of the global batch");
  check_diagnosis(seen("dp2", figure(&RunRecord::loss, 1.01), {Feature::kDropout}), "data", "dropout", "depend on the layout");
  check_diagnosis(seen("tp2", figure(&RunRecord::loss, 1.01), {Feature::kAttention}), "tensor", "attention", "attention");
  check_diagnosis(seen("pp2", [](RunRecord& r) { r.disagreement = Disagreement{"embedding.weight", 3, 0, 1, 1.0, 1.5}; }), "pipeline", "embedding",
                  "drift apart");
  check_diagnosis(seen("dp2z1", [](RunRecord& r) { r.loss[1] = 4; }), "zero", "all", "stale");
  check_diagnosis(seen("tp2", [](RunRecord& r) { r.validation_loss = 4; }), "tensor", "evaluation", "evaluation");
  check_diagnosis(seen("pp2-zb_v", gradient("blocks.0.mlp.up.weight", 0.3)), "schedule", "mlp", "backward is lost, doubled");
}

TEST_CASE("runs that end early are diagnosed by their messages") {
  Evidence evidence;
  evidence.smallest = parse_layout("pp2");
  evidence.end = LayoutRun::End::kHung;
  evidence.message = "deadlock; rank 0 waits in exchange of group 'pipeline'";
  check_diagnosis(diagnose(evidence), "pipeline", "all", "wait for each other");
  evidence.end = LayoutRun::End::kFailed;
  evidence.message = "a buffer was written while it was in flight in all_reduce of group 'tensor', rank 1";
  check_diagnosis(diagnose(evidence), "pipeline", "all", "missing wait");
  evidence.message = "unit 0 of stage 0 is never reduced over the tied embeddings";
  check_diagnosis(diagnose(evidence), "pipeline", "embedding", "tied embedding");
  evidence.message = "trainer/loop/lowered_schedule.cpp:92: problems.empty() does not hold: rank 0 and rank 1 wait for each other";
  check_diagnosis(diagnose(evidence), "pipeline", "all", "refused before the first step");
  evidence.message = "ranks disagree in group 'data'";
  check_diagnosis(diagnose(evidence), "pipeline", "all", "different collectives");
}

}  // namespace trireme::test
