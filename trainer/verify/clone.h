#pragma once
#include <cstdint>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/layout/layout.h"

namespace trireme {

/// A small model of the same kind as a configuration's, and the runs in which layouts of it are compared.
struct Clone {
  Config config;  ///< of one rank, resolved but for data and layers_per_stage; fp64
  bool documents = false;
  std::vector<int64_t> user_layers_per_stage;  ///< of the configuration, where it was given

  /// The same model, trained in `layout`.
  Config in(const Layout& layout) const;
};

/// Keeps architecture, options, the ratios of heads to kv heads and of ffn to hidden size, and what is awkward about the sizes: an odd one stays odd, a
/// vocabulary that a tensor degree does not divide is not divided by it, kv heads that are fewer than tensor ranks stay fewer. As few layers as give every
/// stage of every layout one, and one stage another number; a global batch that every layout can cut into at least two micro-batches.
/// `config` is resolved. Errors: ConfigError where a layout is against the rules for `config` itself, naming the layout and the rule.
Clone make_clone(const Config& config, const std::vector<Layout>& layouts, int64_t seed);

}  // namespace trireme
