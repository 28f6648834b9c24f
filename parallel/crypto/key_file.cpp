#include "parallel/crypto/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"

namespace fs = std::filesystem;

namespace trireme::crypto {
namespace {

constexpr std::string_view kSecretName = "ed25519-secret:";
constexpr std::string_view kPublicName = "ed25519-public:";
constexpr size_t kDigits = 2 * kSeedBytes;  ///< of both kinds of keys
constexpr size_t kLineBytes = kSecretName.size() + kDigits + 1;
static_assert(kSecretName.size() == kPublicName.size());

class OpenFile {
 public:
  OpenFile(const fs::path& path, int flags) : file_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  /// A new file to be written.
  static OpenFile make(const fs::path& path, mode_t mode) { return OpenFile(open_writable(path, Existing::kRefused, mode)); }
  ~OpenFile() {
    if (file_ >= 0) ::close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  operator int() const { return file_; }

 private:
  explicit OpenFile(int file) : file_(file) {}
  int file_;
};

std::string octal(mode_t mode) {
  std::string text = "0000";
  for (size_t i = 4; i-- > 0; mode >>= 3) text[i] = static_cast<char>('0' + (mode & 7));
  return text;
}

/// `at`: the message's beginning with the file's name. O_NONBLOCK keeps a pipe from blocking; it has no effect on a regular file.
void refuse_unopened(int file, const std::string& at, int error) {
  if (file >= 0) return;
  if (error == ENOENT) throw MissingFileError(at + " does not exist");
  if (error == ELOOP) throw ConfigError(at + " is a symbolic link; allowed the key file itself");
  throw IoError(concat(at, " cannot be read: ", std::strerror(error)));
}

/// Reads until `bytes` are full or the file ends; returns how many bytes were read. Errors: IoError.
size_t read_some(int file, std::span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError(concat("a key file cannot be read: ", std::strerror(errno)));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

/// Reads a line of kLineBytes into `line`. False if the file is longer or shorter.
bool read_line(int file, std::span<uint8_t> line) {
  return read_some(file, line) == kLineBytes && line[kLineBytes - 1] == '\n';  // `line` has room for one byte more
}

/// Reads the key that follows `name` in `line`; false if the line does not have this form.
bool parse_line(std::span<const uint8_t> line, std::string_view name, std::span<uint8_t> key) {
  return std::equal(name.begin(), name.end(), line.begin()) && from_hex({reinterpret_cast<const char*>(line.data()) + name.size(), kDigits}, key);
}

void write_line(int file, std::string_view name, std::span<const uint8_t> digits, const fs::path& path) {
  SecretBytes line(kLineBytes);
  std::copy(name.begin(), name.end(), line.data());
  std::copy(digits.begin(), digits.end(), line.data() + name.size());
  line.data()[kLineBytes - 1] = '\n';
  if (::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size()) || ::fsync(file) != 0)
    throw IoError(concat("cannot write ", path.string(), ": ", std::strerror(errno)));
}

enum class CharacterKind : uint8_t { kLower, kUpper, kDigit, kSpace, kOther };

CharacterKind kind_of(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return CharacterKind::kLower;
  if (byte >= 'A' && byte <= 'Z') return CharacterKind::kUpper;
  if (byte >= '0' && byte <= '9') return CharacterKind::kDigit;
  return byte == ' ' || byte == '\t' ? CharacterKind::kSpace : CharacterKind::kOther;
}

/// True if every byte differs from the one before by the same amount: 0, 0, 0 or 1, 2, 3.
bool is_sequence(std::span<const uint8_t> text) {
  for (size_t i = 2; i < text.size(); ++i)
    if (static_cast<uint8_t>(text[i] - text[i - 1]) != static_cast<uint8_t>(text[1] - text[0])) return false;
  return true;
}

/// True if the second half repeats what came before it.
bool is_repetition(std::span<const uint8_t> text) {
  for (size_t period = 1; period <= text.size() / 2; ++period)
    if (std::equal(text.begin() + static_cast<ptrdiff_t>(period), text.end(), text.begin())) return true;
  return false;
}

/// Why somebody could guess a key; nullptr for one that looks random. A key that is drawn at random and written as hexadecimal digits, base64 or bytes is
/// refused with a probability below 1e-4: in 32 random hexadecimal digits fewer than 7 different ones, or at most 3 changes between digit and letter, in 43
/// characters of base64 fewer than 13 changes between kinds.
const char* weakness_of(std::span<const uint8_t> text) {
  std::array<bool, 256> seen{};
  size_t different = 0, changes = 0, printable = 0, of_hex = 0, spaces = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    different += std::exchange(seen[text[i]], true) ? 0 : 1;
    changes += i > 0 && kind_of(text[i]) != kind_of(text[i - 1]) ? 1 : 0;
    printable += (text[i] >= 0x20 && text[i] < 0x7f) || text[i] == '\n' || text[i] == '\r' ? 1 : 0;
    of_hex += std::string_view("0123456789abcdefABCDEF\r\n").find(static_cast<char>(text[i])) != std::string_view::npos ? 1 : 0;
    spaces += kind_of(text[i]) == CharacterKind::kSpace ? 1 : 0;
  }
  if (is_sequence(text)) return "one byte repeated, or a sequence";
  if (is_repetition(text)) return "a repetition";
  if (printable < text.size()) return different < 16 ? "made of few different bytes" : nullptr;
  if (of_hex == text.size()) return different < 7 ? "made of few different digits" : changes * 8 < text.size() ? "made of words or numbers" : nullptr;
  if (spaces > 0) return "text with spaces";
  return different < 12 ? "made of few different characters" : changes * 10 < text.size() * 3 ? "made of words" : nullptr;
}

/// Flags for a file of secrets, which refuse_public() then checks.
constexpr int kSecretFile = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;

void refuse_public(int file, const fs::path& path, const std::string& at) {
  refuse_unopened(file, at, errno);
  struct stat status {};
  if (::fstat(file, &status) != 0) throw IoError(concat(at, " cannot be read: ", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) throw ConfigError(at + " is not a regular file");
  if (status.st_uid != ::geteuid())
    throw ConfigError(concat(at, " belongs to user ", status.st_uid, ", and this process runs as user ", ::geteuid(), "; allowed a file of its own"));
  const mode_t mode = status.st_mode & 07777;
  if (mode != 0600 && mode != 0400)
    throw ConfigError(concat(at, " has mode ", octal(mode), ", so others may read or change the key; allowed 0600: chmod 600 ", path.string()));
}

}  // namespace

SigningKey read_signing_key(const fs::path& path, const std::string& what) {
  const std::string at = concat(what, ": ", path.string());
  const OpenFile file(path, kSecretFile);
  refuse_public(file, path, at);
  SecretBytes line(kLineBytes + 1), seed(kSeedBytes);
  if (!read_line(file, line.span()) || !parse_line(line.span(), kSecretName, seed.span()))
    throw DataError(at + " does not contain a secret key as trireme audit keygen writes it");
  if (is_sequence(seed.span()) || is_repetition(seed.span()))
    throw ConfigError(at + " contains a key that can be guessed: its bytes repeat; allowed one that trireme audit keygen has drawn");
  return SigningKey::from_seed(seed.span());
}

Key read_shared_key(const fs::path& path, const std::string& what) {
  constexpr size_t kShortest = 32, kLongest = 4096;
  const std::string at = concat(what, ": ", path.string());
  const OpenFile file(path, kSecretFile);
  refuse_public(file, path, at);
  SecretBytes text(kLongest + 1);
  size_t length = read_some(file, text.span());
  const bool whole = length <= kLongest;
  while (length > 0 && std::string_view(" \t\r\n").find(static_cast<char>(text.data()[length - 1])) != std::string_view::npos) --length;
  if (!whole || length < kShortest)
    throw ConfigError(concat(at, " contains ", whole ? concat(length, " bytes") : "more", "; allowed ", kShortest, " to ", kLongest,
                             " bytes drawn at random: head -c 32 /dev/urandom | base64 > ", path.string()));
  if (const char* const weakness = weakness_of(text.span().first(length)))
    throw ConfigError(concat(at, " contains a key that can be guessed: it is ", weakness,
                             "; allowed bytes drawn at random: head -c 32 /dev/urandom | base64 > ", path.string()));
  Key whole_text;
  digest(text.span().first(length), whole_text);
  return whole_text;
}

PublicKey read_public_key(const fs::path& path, const std::string& what) {
  const std::string at = concat(what, ": ", path.string());
  const OpenFile file(path, O_RDONLY | O_NONBLOCK);
  refuse_unopened(file, at, errno);
  std::array<uint8_t, kLineBytes + 1> line{};
  PublicKey key;
  if (!read_line(file, line) || !parse_line(line, kPublicName, key))
    throw DataError(at + " does not contain a public key as trireme audit keygen writes it");
  return key;
}

PublicKey write_new_key_pair(const fs::path& path) {
  const fs::path public_path = path.string() + ".pub";
  for (const fs::path& name : {path, public_path})
    if (fs::exists(fs::symlink_status(name)))
      throw ConfigError(concat(name.string(), " exists, and keys are never overwritten; choose another name"));
  const OpenFile secret_file = OpenFile::make(path, 0600);
  const SigningKey key = SigningKey::generate();
  try {
    const SecretBytes seed = key.seed();
    SecretBytes digits(kDigits + 1);
    hex({seed.data(), seed.size()}, digits.span());
    if (::fchmod(secret_file, 0600) != 0) throw IoError(concat("cannot write ", path.string(), ": ", std::strerror(errno)));
    write_line(secret_file, kSecretName, digits.span().first(kDigits), path);
    const OpenFile public_file = OpenFile::make(public_path, 0644);
    try {
      const std::string public_digits = hex(key.public_key());
      write_line(public_file, kPublicName, {reinterpret_cast<const uint8_t*>(public_digits.data()), public_digits.size()}, public_path);
    } catch (...) {
      ::unlink(public_path.c_str());
      throw;
    }
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return key.public_key();
}

}  // namespace trireme::crypto
