#include "trainer/loop/collectively.h"

#include <array>
#include <fstream>

#include "trainer/files/digest.h"
#include "trainer/files/printable.h"

namespace trireme {

void collectively(Communicator& world, const std::function<void()>& body) {
  std::string mine;
  try {
    body();
  } catch (const Error& error) {
    mine = std::to_string(static_cast<int>(error.code())) + " " + error.what();
  } catch (const std::exception& error) {
    mine = std::to_string(static_cast<int>(ExitCode::kInternal)) + " " + printable(error);
  }
  std::string first, ranks;
  int failed = 0;
  const std::vector<std::string> all = all_gather_strings(world, mine);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (first.empty()) first = all[r];
    ranks += (failed++ > 0 ? ", " : "") + std::to_string(r);
  }
  if (first.empty()) return;
  const size_t space = first.find(' ');
  const auto code = static_cast<ExitCode>(std::stoi(first.substr(0, space)));
  const std::string message = first.substr(space + 1) + (failed < world.size() ? " (on rank " + ranks + ")" : "");
  throw AgreedError(code, message, world.rank() == 0);
}

void check_same_everywhere(Communicator& world, const std::map<std::string, std::string>& facts) {
  std::string differing;
  for (const auto& [name, value] : facts) {
    const std::vector<std::string> all = all_gather_strings(world, value);
    std::string ranks;
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    if (!ranks.empty()) differing += (differing.empty() ? "" : "; ") + name + " differs between rank 0 and rank " + ranks;
  }
  if (!differing.empty()) throw AgreedError(ExitCode::kUsage, "the ranks of this job disagree: " + differing, world.rank() == 0);
}

std::string binary_digest() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Digest digest;
  std::array<char, 1 << 16> bytes;
  while (file.read(bytes.data(), bytes.size()), file.gcount() > 0) digest.update(bytes.data(), static_cast<size_t>(file.gcount()));
  return digest.str();
}

}  // namespace trireme
