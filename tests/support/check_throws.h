#pragma once
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace trireme::test {

/// Runs `body`, which must throw `Failure` with every one of `parts` in its message.
template <class Failure, class Body>
void check_throws(Body&& body, const std::vector<std::string>& parts) {
  try {
    body();
  } catch (const Failure& error) {
    for (const std::string& part : parts) {
      CAPTURE(error.what(), part);
      CHECK(std::string(error.what()).find(part) != std::string::npos);
    }
    return;
  }
  FAIL("nothing was thrown");
}

}  // namespace trireme::test
