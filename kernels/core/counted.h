#pragma once
#include <string>

#include "kernels/core/check.h"

namespace trireme {

/// "1 rank", "2 ranks". `singular`: a noun whose plural has an s more; another plural is given explicitly.
template <class Integer>
std::string counted(Integer count, const std::string& singular, const std::string& plural = "") {
  return concat(count, " ", count == 1 ? singular : plural.empty() ? singular + "s" : plural);
}

}  // namespace trireme
