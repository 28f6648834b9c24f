#include "trainer/submit/cluster.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"
#include "trainer/submit/run_program.h"

namespace trireme::submit {
namespace {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) c == separator ? parts.emplace_back() : parts.back() += c, void();
  return parts;
}

std::optional<int64_t> count_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty() && text[0] != '-';
  return whole && value <= int64_t{1} << 40 ? std::optional(value) : std::nullopt;
}

/// "4000+" means at least 4000, where nodes differ.
std::optional<int64_t> least_of(std::string text) {
  if (text.ends_with('+')) text.pop_back();
  return count_of(text);
}

/// Splits at commas that are not within parentheses, as in "gpu:a100:4(S:0,2),nic:1".
std::vector<std::string> resources_in(const std::string& gres) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : gres) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    c == ',' && depth == 0 ? parts.emplace_back() : parts.back() += c, void();
  }
  return parts;
}

std::map<std::string, std::string> assignments_in(const std::string& line) {
  std::map<std::string, std::string> found;
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (const size_t equals = word.find('='); equals != word.npos) found.emplace(word.substr(0, equals), word.substr(equals + 1));
  return found;
}

std::string answer_of(const std::vector<std::string>& command) {
  const std::optional<ProgramResult> result = run_program(command);
  if (!result)
    throw MissingFileError(concat(command[0],
                                  ": not found in PATH, so this host is no login node of a Slurm cluster; run the same command on one, or ",
                                  "load its Slurm module; without Slurm: trireme train CONFIG, with --hosts FILE for several hosts"));
  if (result->code != 0)
    throw IoError(concat(command[0], ": ended with exit code ", result->code, ": ", printable(result->err.empty() ? result->out : result->err)));
  return result->out + result->err;  // srun lists its MPI types on standard error
}

/// Adds the numbers of "7", "3-9" or "3-9:2" to `indices`. False if it is none of these.
bool add_range(const std::string& text, std::vector<int64_t>& indices, int64_t max_size) {
  const std::vector<std::string> by_step = parts_of(text, ':'), ends = parts_of(by_step[0], '-');
  if (by_step.size() > 2 || ends.size() > 2 || (by_step.size() == 2 && ends.size() == 1)) return false;
  const std::optional<int64_t> first = count_of(ends.front()), last = count_of(ends.back());
  const std::optional<int64_t> step = by_step.size() == 2 ? count_of(by_step[1]) : 1;
  if (!first || !last || !step || *step < 1 || *first > *last) return false;
  if (*last >= max_size)
    throw ConfigError(concat("--array: ", *last, " is too large; allowed on this cluster: numbers from 0 to ", max_size - 1, " (MaxArraySize)"));
  for (int64_t i = *first; i <= *last; i += *step) indices.push_back(i);
  return true;
}

}  // namespace

bool NodeGroup::in_service() const {
  static const std::set<std::string> good{"idle", "mix", "alloc", "comp", "resv", "plnd", "allocated", "mixed"};
  return good.contains(state);
}

int NodeGroup::gpus_of(const std::string& type) const {
  int sum = 0;
  for (const GpuCount& one : gpus)
    if (type.empty() || one.type == type) sum += one.count;
  return sum;
}

int Partition::nodes() const {
  int sum = 0;
  for (const NodeGroup& group : groups) sum += group.nodes;
  return sum;
}

std::vector<GpuCount> gpus_in(const std::string& gres) {
  std::vector<GpuCount> found;
  for (const std::string& resource : resources_in(gres)) {
    const std::vector<std::string> words = parts_of(resource.substr(0, resource.find('(')), ':');
    if (words[0] != "gpu" || words.size() < 2 || words.size() > 3) continue;
    const std::optional<int64_t> count = count_of(words.back());
    if (count && *count > 0) found.push_back({words.size() == 3 ? words[1] : "", static_cast<int>(*count)});
  }
  return found;
}

std::optional<int64_t> seconds_of(const std::string& text) {
  const size_t dash = text.find('-');
  const std::optional<int64_t> days = dash == text.npos ? 0 : count_of(std::string_view(text).substr(0, dash));
  std::vector<int64_t> fields;
  for (const std::string& part : parts_of(text.substr(dash == text.npos ? 0 : dash + 1), ':')) {
    const std::optional<int64_t> value = count_of(part);
    if (!value || *value > 1 << 24) return std::nullopt;
    fields.push_back(*value);
  }
  if (!days || *days > 1 << 20 || fields.size() > 3) return std::nullopt;
  // With days the first field is of hours; else one field is of minutes, two are of minutes and seconds.
  if (dash == text.npos && fields.size() < 3) fields.insert(fields.begin(), 0);
  fields.resize(3);
  return ((*days * 24 + fields[0]) * 60 + fields[1]) * 60 + fields[2];
}

std::string slurm_time(int64_t seconds) {
  const auto two = [](int64_t number) { return concat(number < 10 ? "0" : "", number); };
  const int64_t days = seconds / 86400;
  return concat(days > 0 ? concat(days, "-") : "", two(seconds / 3600 % 24), ":", two(seconds / 60 % 60), ":", two(seconds % 60));
}

std::vector<int64_t> array_indices(const std::string& text, int64_t max_size) {
  const std::vector<std::string> by_limit = parts_of(text, '%');
  const std::optional<int64_t> most = by_limit.size() == 2 ? count_of(by_limit[1]) : 1;
  std::vector<int64_t> indices;
  bool good = by_limit.size() <= 2 && most && *most >= 1;
  for (const std::string& part : parts_of(by_limit[0], ',')) good = good && add_range(part, indices, max_size);
  if (!good)
    throw ConfigError(
        concat("--array: \"", printable(text), "\" is not a list of numbers; allowed, for example: 0-5 | 1,3,7 | 0-9:3 | 0-99%4 (four at a time)"));
  std::ranges::sort(indices);
  if (const auto twice = std::ranges::adjacent_find(indices); twice != indices.end())
    throw ConfigError(concat("--array: ", *twice, " occurs twice in \"", printable(text), "\"; allowed once"));
  return indices;
}

std::vector<Partition> partitions_in(const std::string& text) {
  std::vector<Partition> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::map<std::string, std::string> values = assignments_in(line);
    const auto value = [&](const char* key) { return values.contains(key) ? values.at(key) : std::string(); };
    if (value("PartitionName").empty()) throw DataError(concat("scontrol show partition: no partition in the line \"", printable(line), "\""));
    Partition one{.name = value("PartitionName"), .is_default = value("Default") == "YES", .state = value("State")};
    one.max_seconds = seconds_of(value("MaxTime"));          // none of "UNLIMITED"
    one.default_seconds = seconds_of(value("DefaultTime"));  // nor of "NONE"
    if (const auto nodes = count_of(value("MaxNodes"))) one.max_nodes = static_cast<int>(std::min<int64_t>(*nodes, 1 << 30));
    if (!value("PreemptMode").empty()) one.preempt_mode = value("PreemptMode");
    one.grace_seconds = count_of(value("GraceTime")).value_or(0);
    found.push_back(std::move(one));
  }
  return found;
}

void add_nodes(std::vector<Partition>& partitions, const std::string& text) {
  constexpr size_t kFields = 6;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::vector<std::string> fields = parts_of(line, '|');
    const auto nodes = fields.size() == kFields ? count_of(fields[1]) : std::nullopt;
    const auto cpus = fields.size() == kFields ? least_of(fields[2]) : std::nullopt;
    const auto memory = fields.size() == kFields ? least_of(fields[3]) : std::nullopt;
    if (!nodes || !cpus || !memory) throw DataError(concat("sinfo: cannot read the line \"", printable(line), "\"; expected ", kNodeFormat));
    const auto partition = std::ranges::find(partitions, fields[0], &Partition::name);
    if (partition == partitions.end()) continue;  // made after scontrol was asked
    partition->groups.push_back({static_cast<int>(*nodes), static_cast<int>(std::max<int64_t>(*cpus, 1)), *memory, gpus_in(fields[4]), fields[5]});
  }
}

std::vector<std::string> mpi_plugins_in(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "srun: pmix" of old versions, an indented name a line, or "specific pmix plugin versions available: pmix_v3,pmix_v4"
    const size_t colon = line.rfind(':');
    for (std::string word : parts_of(colon == line.npos ? line : line.substr(colon + 1), ',')) {
      word.erase(0, word.find_first_not_of(" \t"));
      word.erase(word.find_last_not_of(" \t\r") + 1);
      if (!word.empty() && word.find_first_of(" .") == word.npos) found.push_back(word);
    }
  }
  return found;
}

std::optional<int64_t> max_array_size_in(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("MaxArraySize")) continue;
    const size_t value = line.find_first_not_of(" =", std::string_view("MaxArraySize").size());
    return value == line.npos ? std::nullopt : count_of(std::string_view(line).substr(value));
  }
  return std::nullopt;
}

Cluster find_cluster() {
  Cluster cluster;
  cluster.partitions = partitions_in(answer_of({"scontrol", "show", "partition", "--oneliner"}));
  add_nodes(cluster.partitions, answer_of({"sinfo", "--noheader", "--exact", concat("--format=", kNodeFormat)}));
  cluster.mpi = mpi_plugins_in(answer_of({"srun", "--mpi=list"}));
  cluster.max_array_size = max_array_size_in(answer_of({"scontrol", "show", "config"})).value_or(cluster.max_array_size);
  return cluster;
}

}  // namespace trireme::submit
