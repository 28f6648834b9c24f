#include "trainer/federation/roster.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "parallel/crypto/key_file.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"

namespace trireme::federation {
namespace {

constexpr const char* kCoordinatorName = "coordinator";
constexpr std::string_view kPublicKeyMark = "ed25519-public:";
constexpr size_t kLongestName = 64;

bool is_member_name(const std::string& name) {
  return name.size() <= kLongestName &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; });
}

Roster::Entry parse_entry(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  Roster::Entry entry;
  std::string key, more;
  if (!(words >> entry.name >> key) || words >> more || !is_member_name(entry.name))
    throw DataError(concat(where, "expected a name and a public key; a name has at most ", kLongestName, " letters, digits, '.', '_' and '-'"));
  if (!key.starts_with(kPublicKeyMark) || !crypto::from_hex(key.substr(kPublicKeyMark.size()), entry.key))
    throw DataError(concat(where, "the key of ", entry.name, " is not a line as `trireme audit keygen` writes to FILE.pub"));
  return entry;
}

crypto::Hash digest_of(const Roster& roster) {
  std::string text = concat("trireme roster 1\n", crypto::hex(roster.coordinator), "\n");
  for (const Roster::Entry& one : roster.members) text += concat(one.name, " ", crypto::hex(one.key), "\n");
  return crypto::sha256(text);
}

}  // namespace

std::string Roster::name_of(int index) const { return index == kCoordinator ? kCoordinatorName : members[static_cast<size_t>(index)].name; }
const crypto::PublicKey& Roster::key_of(int index) const { return index == kCoordinator ? coordinator : members[static_cast<size_t>(index)].key; }

std::vector<crypto::PublicKey> Roster::member_keys() const {
  std::vector<crypto::PublicKey> keys;
  for (const Entry& one : members) keys.push_back(one.key);
  return keys;
}

Roster parse_roster(const std::string& text, const std::string& what) {
  Roster roster;
  std::set<std::string> names, keys;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = concat(what, ", line ", ++number, ": ");
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == line.npos || line[first] == '#') continue;
    Roster::Entry entry = parse_entry(line, where);
    if (!names.insert(entry.name).second) throw DataError(concat(where, "the name ", entry.name, " is there twice"));
    if (!keys.insert(crypto::hex(entry.key)).second) throw DataError(concat(where, "the key of ", entry.name, " is there twice"));
    if (entry.name == kCoordinatorName)
      roster.coordinator = entry.key;
    else
      roster.members.push_back(std::move(entry));
  }
  if (!names.contains(kCoordinatorName)) throw DataError(concat(what, ": no line for the name ", kCoordinatorName));
  std::ranges::sort(roster.members, {}, &Roster::Entry::name);
  roster.digest = digest_of(roster);
  return roster;
}

Roster read_roster(const std::filesystem::path& path, int64_t members) {
  constexpr int64_t kLongest = 1 << 16;
  const std::string what = concat("security.federation.roster=", path.string());
  if (!std::filesystem::exists(path)) throw MissingFileError(concat(what, ": no such file"));
  Roster roster = parse_roster(read_text(path, kLongest), what);
  if (std::ssize(roster.members) != members)
    throw ConfigError(concat(what, ": has ", counted(std::ssize(roster.members), "member"), ", and security.federation.members is ", members,
                             "; allowed equal numbers"));
  return roster;
}

Identity read_identity(const std::filesystem::path& roster_file, int64_t members, const std::filesystem::path& key_file, bool coordinates) {
  crypto::require_sodium("security.federation.members");
  const std::string what = concat("security.federation.identity_key_file=", key_file.string());
  Identity identity{read_roster(roster_file, members), crypto::read_signing_key(key_file, "security.federation.identity_key_file"), kCoordinator};
  const crypto::PublicKey& own = identity.key.public_key();
  if (coordinates) {
    if (own == identity.roster.coordinator) return identity;
    throw ConfigError(concat(what, ": is not the key of the coordinator in ", roster_file.string(),
                             "; `trireme train` starts the coordinator, and `trireme join ADDRESS` a member"));
  }
  const auto found = std::ranges::find(identity.roster.members, own, &Roster::Entry::key);
  if (found == identity.roster.members.end())
    throw ConfigError(concat(what, ": is not the key of a member in ", roster_file.string(), "; allowed the key of one of them"));
  identity.index = static_cast<int>(found - identity.roster.members.begin());
  return identity;
}

}  // namespace trireme::federation
