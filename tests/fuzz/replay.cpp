// Replays a corpus without libFuzzer: every file as it is, then mutations of it from a fixed seed.
//   test_fuzz_replay_NAME DIRECTORY [MUTATIONS]
// Files named ok-* must be accepted, and files named bad-* rejected; on other files the reader only must not fail.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/core/hash.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;
using trireme::concat;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// One to four changes.
  std::string operator()(std::string text) {
    for (size_t changes = below(4) + 1; changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random_() % limit); }

  void change(std::string& text) {
    static const std::vector<std::string> kPieces = {
        "0", "-1",  "9223372036854775807",  "18446744073709551615", "1e308", "null", "[]", "{}", "\"\"", ",", "\\u0000", "\"", "{", "}", "[",
        "]", "../", std::string(8, '\xFF'), std::string(1, '\0'),   "\x80"};
    const size_t at = below(text.size());
    const size_t length = below(std::min<size_t>(text.size() - at, 32) + 1);
    switch (below(7)) {
      case 0: return flip(text, at);
      case 1: return void(text.empty() ? 0 : text[at] = static_cast<char>(below(256)));
      case 2: return void(text.erase(at, length));
      case 3: return void(text.insert(at, kPieces[below(kPieces.size())]));
      case 4: return void(text.insert(below(text.size() + 1), text.substr(at, length)));
      case 5: return void(text.replace(at, length, kPieces[below(kPieces.size())]));
      default: return digit(text, at);
    }
  }

  void flip(std::string& text, size_t at) {
    if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
  }

  /// Changes a digit of the next number: sizes, offsets and extents stay well formed.
  void digit(std::string& text, size_t at) {
    const size_t found = text.find_first_of("0123456789", at);
    if (found != text.npos) text[found] = static_cast<char>('0' + below(10));
  }

  std::mt19937_64 random_;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Saves an input that broke a reader, so that it can be added to the corpus.
[[noreturn]] void fail(const std::string& input, const std::string& what) {
  std::ofstream("fuzz-finding.bin", std::ios::binary) << input;
  std::cerr << what << "\ninput saved to " << fs::absolute("fuzz-finding.bin").string() << '\n';
  std::exit(1);
}

bool accepts(const std::string& input, const std::string& name) {
  try {
    return trireme::fuzz::accepts(input);
  } catch (const std::exception& error) {
    fail(input, name + ": " + error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: " << argv[0] << " DIRECTORY [MUTATIONS]\n";
    return 64;
  }
  const int mutations = argc > 2 ? std::atoi(argv[2]) : 2000;
  std::vector<fs::path> paths;
  for (const auto& item : fs::directory_iterator(argv[1])) paths.push_back(item.path());
  std::sort(paths.begin(), paths.end());
  int accepted = 0, accepted_mutations = 0;
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string(), input = read(path);
    std::cerr << "replay: " << name << '\n';
    const bool taken = accepts(input, name);
    if ((name.starts_with("ok-") && !taken) || (name.starts_with("bad-") && taken))
      fail(input, name + (taken ? ": accepted, but must be rejected" : ": rejected, but must be accepted"));
    accepted += taken;
    Mutator mutate(trireme::fnv1a(name));
    for (int i = 0; i < mutations; ++i) accepted_mutations += accepts(mutate(input), concat(name, ", mutation ", i));
  }
  std::cout << paths.size() << " files, " << accepted << " accepted; " << paths.size() * static_cast<size_t>(mutations) << " mutations, "
            << accepted_mutations << " accepted\n";
  return accepted > 0 && accepted < static_cast<int>(paths.size()) ? 0 : 1;  // a corpus without both accepted and rejected files proves nothing
}
