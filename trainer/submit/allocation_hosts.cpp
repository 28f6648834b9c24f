#include "trainer/submit/allocation_hosts.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/submit/cluster.h"
#include "trainer/submit/run_program.h"

namespace trireme::submit {
namespace {

std::string output_of(const std::vector<std::string>& command) {
  constexpr std::chrono::seconds kTimeout{5};  // the launcher waits for it
  const std::optional<ProgramResult> result = run_program(command, kTimeout);
  if (!result) throw IoError(concat(command[0], ": not found in PATH, although this process runs in a Slurm allocation"));
  if (result->code != 0) throw IoError(concat(command[0], ": ended with exit code ", result->code, ": ", printable(result->err)));
  return result->out;
}

/// Reads a number at `at` and moves behind it.
int number_at(const std::string& text, size_t& at) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error != std::errc() || value < 1) throw DataError(concat("Slurm's numbers of tasks cannot be read: \"", printable(text), "\""));
  at = static_cast<size_t>(end - text.data());
  return value;
}

}  // namespace

std::vector<int> counts_of_nodes(const std::string& text) {
  std::vector<int> counts;
  for (size_t at = 0;;) {
    const int count = number_at(text, at);
    int times = 1;
    if (text.compare(at, 2, "(x") == 0) {
      at += 2;
      times = number_at(text, at);
      if (at == text.size() || text[at++] != ')') throw DataError(concat("Slurm's numbers of tasks cannot be read: \"", printable(text), "\""));
    }
    counts.insert(counts.end(), static_cast<size_t>(times), count);
    if (at == text.size()) return counts;
    if (text[at++] != ',') throw DataError(concat("Slurm's numbers of tasks cannot be read: \"", printable(text), "\""));
  }
}

std::string hosts_of_allocation(const std::vector<std::string>& nodes, const std::vector<int>& counts, const std::set<std::string>& in_service) {
  if (nodes.size() != counts.size())
    throw DataError(concat("Slurm names ", nodes.size(), " nodes of the allocation, and numbers of tasks for ", counts.size()));
  std::string hosts;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (in_service.contains(nodes[i])) hosts += concat(nodes[i], " slots=", counts[i], "\n");
  return hosts;
}

std::string allocation_hosts(const LaunchEnvironment& environment) {
  const std::string list = environment.slurm_nodes.value_or("");
  std::vector<std::string> nodes;
  std::istringstream names(output_of({"scontrol", "show", "hostnames", list}));
  for (std::string name; names >> name;) nodes.push_back(name);
  std::set<std::string> in_service;
  std::istringstream states(output_of({"sinfo", "--noheader", "--Node", "--nodes=" + list, "--format=%N %t"}));
  for (std::string name, state; states >> name >> state;)
    if (NodeGroup{.state = state}.in_service()) in_service.insert(name);
  return hosts_of_allocation(nodes, counts_of_nodes(environment.slurm_slots.value_or("")), in_service);
}

std::string hosts_of_node_file(const std::string& text) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  std::vector<std::pair<std::string, int>> hosts;
  std::istringstream lines(text);
  for (std::string name; std::getline(lines, name);) {
    if (name.ends_with('\r')) name.pop_back();
    if (name.empty()) continue;
    if (name.starts_with('-') || name.find_first_not_of(kLetters) != name.npos)
      throw DataError(concat("PBS_NODEFILE: \"", printable(name), "\" is not the name of a host"));
    const auto same = std::ranges::find(hosts, name, &std::pair<std::string, int>::first);
    same == hosts.end() ? static_cast<void>(hosts.emplace_back(name, 1)) : static_cast<void>(++same->second);
  }
  std::string hostfile;
  for (const auto& [name, slots] : hosts) hostfile += concat(name, " slots=", slots, "\n");
  return hostfile;
}

std::optional<std::string> pbs_hosts(const LaunchEnvironment& environment) {
  constexpr int64_t kMostBytes = 16 << 20;
  if (!environment.pbs_node_file || environment.slurm_job) return std::nullopt;
  std::string text;
  try {
    text = read_text(*environment.pbs_node_file, kMostBytes);
  } catch (const Error& error) {
    throw Error(error.code(), concat("PBS_NODEFILE ", error.what()));
  }
  std::string hosts = hosts_of_node_file(text);
  return std::ranges::count(hosts, '\n') > 1 ? std::optional(hosts) : std::nullopt;
}

}  // namespace trireme::submit
