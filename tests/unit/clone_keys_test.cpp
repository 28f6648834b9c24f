// Tests which configuration keys the clone of `trireme verify` keeps, by changing every key, one at a time.
#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/key_change.h"
#include "trainer/config/fields.h"
#include "trainer/layout/resolve.h"
#include "trainer/verify/clone.h"

using namespace trireme;
using namespace trireme::test;

namespace {

/// Keys of kMathematics and kExecution whose values the clone replaces, because it is smaller than the model and has its own data. A new key that the
/// clone drops fails the test until make_clone keeps it or it is listed here.
const std::set<std::string> kReplaced = {"run.seed",
                                         "model.layers",
                                         "model.ffn_size",
                                         "model.init_std",
                                         "parallel.islands",      // the clone is one of them
                                         "parallel.bucket_size",  // kept as a number of blocks
                                         "training.steps",
                                         "training.initial_weights",
                                         "training.global_batch_size",
                                         "training.precision",
                                         "training.reduce_dtype",
                                         "training.logits_chunk",
                                         "training.gradient_clip",
                                         "training.compression.method",
                                         "training.compression.parameters",
                                         "training.local.steps",
                                         "training.asynchronous.mode",
                                         "training.optimizer.learning_rate",
                                         "training.schedule.warmup_steps",
                                         "training.schedule.final_learning_rate",
                                         "security.aggregation.rule",
                                         "security.federation.members",
                                         "security.privacy.clip",
                                         "data.train"};

Config users_config() {
  Config c;
  c.training.steps = 5;
  c.training.recompute = RecomputeMode::kSelective;
  c.parallel.zero_stage = 3;
  c.data.tokenizer = "none";
  c.model.vocab_size = 300;
  return resolve(c);
}

Aspect aspect_of(const std::string& path) { return table_of(users_config()).at(path).field.decides; }

}  // namespace

TEST_CASE("verify: the clone keeps exactly the keys of mathematics and execution") {
  const std::vector<Layout> layouts = parse_layouts("tp1 dp2z3");
  const Config config = users_config();
  const Config clone = make_clone(config, layouts, 3).config;
  std::set<std::string> lost;
  for (size_t i = 0;; ++i) {
    Config changed = config;
    Change change(i);
    visit(change, changed);
    if (change.path.empty()) break;
    INFO(change.path);
    bool same = false;
    try {
      same = make_clone(changed, layouts, 3).config == clone;
    } catch (const ConfigError&) {  // the value invented by the test is not valid for the key
      continue;
    }
    const Aspect aspect = aspect_of(change.path);
    if (aspect == Aspect::kLayout || aspect == Aspect::kOperation)
      CHECK(same);
    else if (same && change.seen_by_writer)
      lost.insert(change.path);
  }
  CHECK(lost == kReplaced);
}

TEST_CASE("verify: the clone's weight decay never flips the sign of weights") {
  Config config = users_config();
  config.training.optimizer.weight_decay = 100;
  const auto clone = [&] { return make_clone(config, parse_layouts("tp1 dp2z3"), 3).config.training.optimizer; };
  CHECK(clone().weight_decay == 100);
  config.training.optimizer.weight_decay = 1e12;
  CHECK(clone().weight_decay > 100);
  CHECK(clone().weight_decay * clone().learning_rate <= 0.5);
}

TEST_CASE("verify: windows of the clone are shorter than its sequences, on some or all layers as in the model") {
  Config config = users_config();
  config.model.layers = 12;
  config.parallel.layers_per_stage.reset();
  config.model.window = 64;
  config.training.sequence_length = 256;
  const auto clone = [&](const std::vector<int64_t>& layers, const char* layout) {
    if (!layers.empty()) config.model.window_layers = layers;
    return make_clone(resolve(config), parse_layouts(layout), 3).config;
  };
  const Config all = clone({}, "pp4");
  CHECK(*all.model.window < all.training.sequence_length);
  CHECK_FALSE(all.model.window_layers);
  for (const char* layout : {"tp1", "pp2", "pp4"})
    for (const std::vector<int64_t>& layers : {std::vector<int64_t>{5}, {0, 2, 4, 6, 8, 10}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}) {
      CAPTURE(layout, layers);
      const ModelConfig model = clone(layers, layout).model;
      REQUIRE(model.window_layers);
      CHECK(!model.window_layers->empty());
      CHECK(static_cast<int64_t>(model.window_layers->size()) < model.layers);
      CHECK(model.window_layers->back() < model.layers);
    }
  config.training.sequence_length = 64;  // a window without effect has no effect in the clone
  CHECK(*clone({5}, "tp1").model.window >= clone({5}, "tp1").training.sequence_length);
}
