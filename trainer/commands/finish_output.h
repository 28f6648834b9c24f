#pragma once
#include <iostream>

#include "kernels/core/check.h"

namespace trireme {

/// The end of a command that prints: standard output may be a file on a full disk. Errors: IoError.
inline void finish_output() {
  if (!std::cout.flush()) throw IoError("cannot write to standard output");
}

}  // namespace trireme
