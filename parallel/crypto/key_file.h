#pragma once
// Files of keys. An Ed25519 key is one line, "ed25519-secret:" or "ed25519-public:" and 64 hexadecimal digits. A pre-shared key is any text.
#include <filesystem>
#include <string>

#include "parallel/crypto/aead.h"
#include "parallel/crypto/sodium.h"

namespace trireme::crypto {

/// Reads a secret key. The file must be a regular file of this user, with mode 0600 or 0400, and not a link: all of that is checked on the open file,
/// so that it cannot be exchanged in between. `what`: the beginning of messages, which never quote the contents.
/// Errors: MissingFileError; ConfigError for a link, another owner or another mode; DataError if it does not contain a secret key; IoError.
SigningKey read_signing_key(const std::filesystem::path& path, const std::string& what);

/// Reads a pre-shared key: BLAKE2b-256 of the contents, 32 to 4096 bytes without white space at the end. The file must be one that read_signing_key()
/// would open. Errors: the same; ConfigError for another length.
Key read_shared_key(const std::filesystem::path& path, const std::string& what);

/// Errors: MissingFileError, DataError, IoError.
PublicKey read_public_key(const std::filesystem::path& path, const std::string& what);

/// Writes a new key pair: the secret key to `path` with mode 0600, the public key to `path`.pub. Returns the public key.
/// Errors: ConfigError if one of the files exists; IoError.
PublicKey write_new_key_pair(const std::filesystem::path& path);

}  // namespace trireme::crypto
