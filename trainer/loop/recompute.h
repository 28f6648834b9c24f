#pragma once
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// The recompute policy by training.recompute: one entry per block of the model. `config` is resolved. A function of the configuration alone, so all
/// ranks compute the same policy without communication.
/// `budget`: for each pipeline rank the choice that recomputes the fewest FLOPs among those whose forecast (forecast_memory) stays within
/// training.recompute_budget. The first blocks of a rank recompute everything, the next ones attention, the last ones nothing: activations of the
/// first blocks live longest, and when their backward needs a block's working set, the others' activations are freed. The forecast is made for the
/// first of the ranks that have the same blocks: the others differ only in the buffer that packs gradients of norms, which is allocated after the
/// activations are freed. A rank of n blocks needs about 2 log2(n) forecasts.
/// Errors: ConfigError if nothing fits, with the rank that needs most and its bytes.
std::vector<Recompute> recompute_policy(const Config& config);

/// One line per pipeline rank: "recompute: rank 0 keeps 3 of 8 blocks, 2 selective, 3 full".
std::string recompute_text(const Config& config, const std::vector<int>& stage_rank, const std::vector<Recompute>& policy);

}  // namespace trireme
