#pragma once
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// What each block of the model computes again, as training.recompute says; `config` is resolved. A function of the configuration alone, so every
/// rank comes to the same policy by itself.
/// `budget`: for each pipeline rank the cheapest choice, by the FLOPs of the forward done again, with which its forecast (forecast_memory) stays
/// within training.recompute_budget. The first blocks of a rank recompute everything, those behind them the attention, the last nothing: activations
/// of the first live longest, and when their backward needs a block's working set, the others' are gone. What is forecast is the first of the ranks
/// that hold the same blocks: the others differ from it only in what they pack to sum the gradients of norms, when the activations are gone. A rank
/// of n blocks needs about 2 log2(n) forecasts.
/// Errors: ConfigError where nothing fits, with the rank that needs most at the least and its bytes.
std::vector<Recompute> recompute_policy(const Config& config);

/// A line for each pipeline rank: "recompute: rank 0 keeps 3 of 8 blocks, 2 selective, 3 full".
std::string recompute_text(const Config& config, const std::vector<int>& stage_rank, const std::vector<Recompute>& policy);

}  // namespace trireme
