#pragma once
#include <cstdint>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/layout/layout.h"

namespace trireme {

/// A small clone of a configuration's model, whose training runs are compared between layouts.
struct Clone {
  Config config;                               ///< of one rank, fp64; resolved except data, of which it keeps document_mask, and layers_per_stage
  std::vector<int64_t> user_layers_per_stage;  ///< layers_per_stage of the user's configuration, if given
  int64_t even_batch = 0;                      ///< global_batch_size, or with resilience.elastic one that the data ranks of every layout divide

  /// The configuration that trains the clone under `layout`.
  Config in(const Layout& layout) const;
};

/// Keeps architecture, options, the ratios of heads to kv heads and of FFN to hidden size, and irregular sizes: odd sizes stay odd, a vocabulary that
/// a tensor degree does not divide stays so, and fewer kv heads than tensor ranks stay fewer. The clone has the fewest layers that give every stage
/// of every layout at least one and one stage a different number, and a global batch that every layout can split into at least two micro-batches, with
/// resilience.elastic unevenly.
/// `config` is resolved. Errors: ConfigError if a layout breaks a rule for `config` itself, naming the layout and the rule.
Clone make_clone(const Config& config, const std::vector<Layout>& layouts, int64_t seed);

/// The smallest vocabulary, not below `vocabulary`, for which neither one rank nor the tensor ranks of any layout store rows of padding.
int64_t unpadded_vocabulary(int64_t vocabulary, const std::vector<Layout>& layouts);

}  // namespace trireme
