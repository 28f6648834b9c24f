// Gradient norms of layers that several ranks share.
#include "trainer/loop/layer_gradients.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/resolve.h"

namespace trireme::test {

TEST_CASE("layer gradients: parts of a layer on two ranks add up without the loss scale, and each layer has its own last step") {
  ModelConfig model;
  model.layers = 2;
  model.hidden_size = 8;
  model.heads = 2;
  model.vocab_size = 256;
  Config config;
  config.model = model;
  config.training.steps = 1;
  model = resolve(config).model;
  run_ranks(2, [&](Communicator& world) {
    LayerGradients layers(model);
    const bool first = world.rank() == 0;
    const auto set = [&](double up, double norm, double of_second) {
      if (first)
        layers.set({{"blocks.0.mlp.up.weight", up}, {"blocks.0.mlp_norm.weight", norm}, {"embedding.weight", 0.0}});
      else
        layers.set({{"blocks.0.attention.query.weight", up / 2}, {"blocks.1.mlp.up.weight", of_second}});
      layers.count_step();
    };
    set(1, 0, 64);
    set(0, 4, 0);
    set(256, 16, 0);
    std::string text;
    for (const auto& [layer, norm, zero_steps] : layers.gather(world, 4)) text += concat(layer, " ", norm, " ", zero_steps, "; ");
    // sqrt(256 + 16 + 128) / 4 = 5.
    TRIREME_CHECK(text.starts_with("embedding 0 3; blocks.0 5 0; blocks.1 0 2; "), text);
  });
}

}  // namespace trireme::test
