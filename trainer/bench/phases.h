#pragma once
#include <nlohmann/json.hpp>

#include "trainer/loop/trainer.h"

namespace trireme::bench {

/// Times the phases of three more forward and backward passes of `trainer`, without update: [{"phase", "seconds", "share"}]. seconds: median over
/// passes, mean over ranks; share: of `step_seconds`. The last phase is the rest of step_seconds. On a GPU the times are those of the compute stream,
/// also where steps are captured in a CUDA graph: these passes are queued.
/// Collective.
nlohmann::ordered_json phases_of(Context& ctx, Trainer& trainer, const Config& config, double step_seconds);

/// Runs the whole action list on random tokens, without norm and update. Waits for the device at the end. Collective.
Timeline run_forward_backward(Context& ctx, Trainer& trainer, const Config& config);

}  // namespace trireme::bench
