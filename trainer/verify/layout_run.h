#pragma once
// A layout on threads of this process, watched: a run that deadlocks, throws or stands still ends with an answer.
#include "trainer/verify/record.h"

namespace trireme {

struct LayoutRun {
  enum class End : uint8_t { kDone, kHung, kFailed } end = End::kDone;
  RunRecord record;               ///< of kDone
  std::string message;            ///< what went wrong
  std::vector<int> ranks;         ///< that failed, or that waited
  std::vector<std::string> acts;  ///< what each rank was doing when it ended: "step 1, forward of micro-batch 3, blocks.2"
  bool stuck = false;             ///< threads of it live on and cannot be stopped: the process must leave by _Exit
};

struct LayoutRunOptions {
  RecordOptions record;
  double timeout = 20;  ///< seconds without any rank doing anything
};

/// Trains `config` (resolved) in double on the reference kernels. What is in flight is poisoned until it is waited for.
LayoutRun run_layout(const Config& config, std::shared_ptr<const Dataset> data, std::shared_ptr<const Dataset> validation,
                     const LayoutRunOptions& options);

}  // namespace trireme
