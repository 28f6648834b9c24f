#pragma once
#include <cstdint>

#include "trainer/config/config.h"

namespace trireme {

/// The learning rate of `step`, counted from 1, of `total_steps`: a pure function, so a resumed run needs no state.
///   warmup    peak * step / warmup_steps, up to and including step warmup_steps
///   constant  peak
///   linear    linear decay from peak to final_learning_rate at the last step; with auto to 0, which the last step does not reach
///   cosine    half-cosine decay between the same values             Source: Loshchilov & Hutter 2016, arXiv:1608.03983
///   wsd       peak, then linear decay over the last decay_steps     Source: Hu et al. 2024, arXiv:2404.06395
///   exponential  peak * (final_learning_rate / peak)^progress, with the progress of linear: also upwards, as in a range test
///                                                                 Source: Smith 2017, arXiv:1506.01186
/// learning_rate_scaling multiplies the whole curve by global_batch / reference_batch_size (linear) or its square root: it depends on the
/// global batch, never on the data-parallel degree.   Sources: Goyal et al. 2017, arXiv:1706.02677; Malladi et al. 2022, arXiv:2205.10287.
double learning_rate(const ScheduleConfig& schedule, const OptimizerConfig& optimizer, int64_t global_batch, int64_t step, int64_t total_steps);

}  // namespace trireme
