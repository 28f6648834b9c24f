#pragma once
#include "parallel/crypto/private_random.h"

namespace trireme::test {

/// Samples and noise of private runs in tests.
inline crypto::PrivateRandom test_random() { return crypto::PrivateRandom(crypto::Key()); }

}  // namespace trireme::test
