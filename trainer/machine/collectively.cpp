#include "trainer/machine/collectively.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "trainer/files/digest.h"
#include "trainer/files/list_ranks.h"
#include "trainer/files/printable.h"
#include "trainer/machine/environment.h"

namespace trireme {

void collectively(Communicator& world, const std::function<void()>& body) {
  std::string mine;
  try {
    body();
  } catch (const Error& error) {
    mine = concat(static_cast<int>(error.code()), " ", error.what());
  } catch (const std::exception& error) {
    mine = concat(static_cast<int>(exit_code_of(error)), " ", printable(error));
  }
  std::string first;
  std::vector<int> failed;
  const std::vector<std::string> all = all_gather_strings(world, mine);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (first.empty()) first = all[r];
    failed.push_back(static_cast<int>(r));
  }
  if (first.empty()) return;
  const size_t space = first.find(' ');
  // Only codes of failures: what other ranks say may arrive in clear text, and must not make this rank end as if all was well.
  auto code = static_cast<ExitCode>(std::atoi(first.substr(0, space).c_str()));
  const auto failures = {ExitCode::kUsage, ExitCode::kData, ExitCode::kMissingFile, ExitCode::kInternal, ExitCode::kIo};
  if (std::ranges::find(failures, code) == failures.end()) code = ExitCode::kInternal;
  const std::string message = first.substr(space + 1) + (std::ssize(failed) < world.size() ? " (on " + list_ranks(failed) + ")" : "");
  throw AgreedError(code, message, world.rank() == 0);
}

void check_same_everywhere(Communicator& world, const std::map<std::string, std::string>& facts) {
  std::string differing;
  for (const auto& [name, value] : facts) {
    const std::vector<std::string> all = all_gather_strings(world, value);
    std::vector<int> ranks;
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0]) ranks.push_back(static_cast<int>(r));
    if (!ranks.empty()) differing += concat(differing.empty() ? "" : "; ", name, " differs between rank 0 and ", list_ranks(ranks));
  }
  if (!differing.empty()) throw AgreedError(ExitCode::kUsage, "the ranks of this job disagree: " + differing, world.rank() == 0);
}

namespace {

uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value); }

/// "rank 1 on host a": the ranks whose text is not the most frequent one; all ranks if no text is more frequent than every other.
std::string minority(const std::vector<std::string>& texts, const std::vector<std::string>& hosts) {
  const auto count = [&](const std::string& text) { return std::ranges::count(texts, text); };
  const std::string& common = *std::ranges::max_element(texts, {}, count);
  const bool tie = std::ranges::any_of(texts, [&](const std::string& text) { return text != common && count(text) == count(common); });
  std::string ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (tie || texts[rank] != common) ranks += concat(ranks.empty() ? "" : ", ", "rank ", rank, " on ", hosts[rank]);
  return ranks;
}

}  // namespace

std::set<std::string> union_of_names(Communicator& world, const std::set<std::string>& names) {
  std::string mine;
  for (const std::string& name : names) mine += name + "\n";
  std::set<std::string> all;
  for (const std::string& of_rank : all_gather_strings(world, mine)) {
    std::istringstream lines(of_rank);
    for (std::string name; std::getline(lines, name);) all.insert(name);
  }
  return all;
}

void check_same_result(Communicator& comm, const std::string& what, std::span<const double> values) {
  // The maximum of a number and of its negative tell whether it is the same everywhere. Halves of the bits are exact in double.
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const auto count = static_cast<int64_t>(4 * values.size());
  const Tensor halves = Tensor::zeros(host, {count}, DType::kF64, MemoryCategory::kCommunication);
  double* const half = halves.data<double>();
  std::string own;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = bits_of(values[i]);
    own += concat(bits, " ");
    half[4 * i] = static_cast<double>(bits >> 32);
    half[4 * i + 2] = static_cast<double>(bits & 0xFFFFFFFF);
    for (const size_t negative : {4 * i + 1, 4 * i + 3}) half[negative] = -half[negative - 1];
  }
  comm.all_reduce(host, halves, ReduceOp::kMax).wait(host);
  bool same = true;
  for (int64_t i = 0; i < count; i += 2) same = same && half[i] == -half[i + 1];
  if (same) return;
  const std::vector<std::string> texts = all_gather_strings(comm, own);
  throw AgreedError(
      ExitCode::kInternal,
      concat("the ranks have different copies of the results of ", what, ": ", minority(texts, all_gather_strings(comm, host_name())),
             " may be at fault. A memory, a link or a processor has failed, and the weights may differ between ranks from this step on; "
             "resume from the last checkpoint"),
      comm.rank() == 0);
}

std::string binary_digest() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Digest digest;
  std::array<char, 1 << 16> bytes;
  while (file.read(bytes.data(), bytes.size()), file.gcount() > 0) digest.update(bytes.data(), static_cast<size_t>(file.gcount()));
  return digest.str();
}

}  // namespace trireme
