#pragma once
#include "parallel/comm/black_box.h"
#include "trainer/resilience/stacks.h"

namespace trireme {

/// While an object of this class exists, a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) first writes a line and the stacks of all threads
/// to the log, and its name as the end of the black box. It then acts as it would without this object. A SIGBUS in the black box itself, whose file
/// has been truncated or cannot be read any more, only ends the record: the run continues. One object at a time.
class FatalSignals {
 public:
  /// `log`: a descriptor. `box` may be null. All must outlive this object.
  FatalSignals(int log, BlackBox* box, const StackWriter& writer);
  ~FatalSignals();
  FatalSignals(const FatalSignals&) = delete;
  FatalSignals& operator=(const FatalSignals&) = delete;
};

}  // namespace trireme
