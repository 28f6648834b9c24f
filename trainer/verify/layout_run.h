#pragma once
// Runs a layout on threads of this process under a watchdog: a run that deadlocks, throws or hangs still returns a result.
#include "trainer/verify/record.h"

namespace trireme {

struct LayoutRun {
  enum class End : uint8_t { kDone, kHung, kFailed } end = End::kDone;
  RunRecord record;               ///< for kDone
  std::string message;            ///< error of a run that hung or failed
  std::vector<int> ranks;         ///< ranks that failed, or that waited
  std::vector<std::string> acts;  ///< what each rank was doing when it ended: "step 1, forward of micro-batch 3, blocks.2"
  bool stuck = false;             ///< some threads could not be stopped: the process must exit by _Exit
};

struct LayoutRunOptions {
  RecordOptions record;
  double timeout = 20;  ///< seconds without progress on any rank
};

/// Trains `config` (resolved) in fp64 on the reference kernels. Buffers are poisoned while their communication is in flight.
LayoutRun run_layout(const Config& config, std::shared_ptr<const Dataset> data, std::shared_ptr<const Dataset> validation,
                     const LayoutRunOptions& options);

}  // namespace trireme
