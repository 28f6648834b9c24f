#pragma once
// Who belongs to a federation: the public keys of its coordinator and members, in a file that all of them have. A line is a name and a key:
//
//   coordinator ed25519-public:5d3c...
//   clinic-a    ed25519-public:91ab...
//
// A name has letters, digits, '.', '_' and '-'. Empty lines and those that begin with '#' are skipped.
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/crypto/sodium.h"

namespace trireme::federation {

/// Index of the coordinator, beside those of members from 0.
inline constexpr int kCoordinator = -1;

struct Roster {
  struct Entry {
    std::string name;
    crypto::PublicKey key;
  };
  std::vector<Entry> members;  ///< ordered by name, so that the order of lines is of no importance
  crypto::PublicKey coordinator{};
  crypto::Hash digest{};  ///< SHA-256 of all names and keys

  /// "coordinator" or the name of a member.
  std::string name_of(int index) const;
  const crypto::PublicKey& key_of(int index) const;
  std::vector<crypto::PublicKey> member_keys() const;
};

/// `what`: beginning of messages. Errors: DataError with the line.
Roster parse_roster(const std::string& text, const std::string& what);
/// Errors: those of parse_roster; MissingFileError; ConfigError if there are not `members` members.
Roster read_roster(const std::filesystem::path& path, int64_t members);

/// A process of a federation.
struct Identity {
  Roster roster;
  crypto::SigningKey key;
  int index;  ///< kCoordinator or that of a member
};
/// Finds the key among those of the roster. Errors: those of read_roster and crypto::read_signing_key; ConfigError if the key is not that of the
/// coordinator (`coordinates`) or of a member.
Identity read_identity(const std::filesystem::path& roster, int64_t members, const std::filesystem::path& key_file, bool coordinates);

}  // namespace trireme::federation
