#pragma once
#include <iostream>

#include "kernels/core/check.h"

namespace trireme {

/// Flushes standard output at the end of a command. Errors: IoError, e.g. if it is a file on a full disk.
inline void finish_output() {
  if (!std::cout.flush()) throw IoError("cannot write to standard output");
}

}  // namespace trireme
