#pragma once
#include <memory>

#include "parallel/crypto/aead.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// Reads security.key_file; with security.encryption required only. Errors: ConfigError if this build has no libsodium, and those of
/// crypto::read_shared_key().
crypto::Key read_link_key(const SecurityConfig& security);

/// Wraps the host communicator of a world, with ranks on several hosts and security.encryption required, as sealed() does; its sums are those of
/// parallel.collectives, and of auto between hosts for library. Collective.
/// Errors, on all ranks: AgreedError (usage) if the ranks differ in security.encryption, if a rank cannot read the key, or if keys differ.
std::unique_ptr<Communicator> with_encryption(std::unique_ptr<Communicator> world, const RankPlace& place, const Config& config);

}  // namespace trireme
