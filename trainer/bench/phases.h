#pragma once
#include <nlohmann/json.hpp>

#include "trainer/loop/trainer.h"

namespace trireme::bench {

/// Runs the forward and backward of three more steps of `trainer` under the executor's clock, without an update: [{"phase", "seconds", "share"}],
/// medians, means over ranks, share of `step_seconds`. The last phase is what they leave of step_seconds. On a device that computes when it is told
/// to, not on a GPU. Collective.
nlohmann::ordered_json phases_of(Context& ctx, Trainer& trainer, const Config& config, double step_seconds);

/// One forward and backward of the whole list on random tokens, without norm and update; on a GPU the times are those of queueing. Collective.
Timeline run_forward_backward(Context& ctx, Trainer& trainer, const Config& config);

}  // namespace trireme::bench
