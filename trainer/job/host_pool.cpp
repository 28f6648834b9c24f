#include "trainer/job/host_pool.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"

namespace trireme {
namespace {

constexpr const char* kSpace = " \t\r";

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

/// The number behind `slots`, with or without spaces around the equals sign.
std::optional<int> slots_in(const std::string& options) {
  const size_t key = options.find("slots");
  const bool is_word = key != options.npos && (key == 0 || options[key - 1] == ' ' || options[key - 1] == '\t');  // not max_slots
  if (!is_word) return key == options.npos ? std::nullopt : slots_in(options.substr(key + 5));
  const size_t value = options.find_first_not_of(" \t=", key + 5);
  return value == options.npos ? std::nullopt : number(std::string_view(options).substr(value));
}

Host parse_host(const std::string& line) {
  std::istringstream words(line);
  Host host;
  host.lines = line + "\n";
  words >> host.name;
  std::string options;
  std::getline(words, options);
  host.slots = slots_in(options);
  const size_t colon = host.name.rfind(':');
  if (colon == host.name.npos || colon == 0 || host.name.find(':') != colon) return host;  // several colons: an IPv6 address
  if (!host.slots) host.slots = number(std::string_view(host.name).substr(colon + 1));
  host.name.resize(colon);
  return host;
}

/// A word `name=value` or `name = value` of a line for Open MPI, whose names count cores, or limit them.
std::string problem_in_option(const std::string& name, const std::optional<std::string>& value) {
  static const std::vector<std::string> kCounts = {"slots",   "cpu",     "cpus",   "count", "max_slots", "max-slots", "slots_max",       "slots-max",
                                                   "cpu_max", "cpu-max", "boards", "board", "sockets",   "socket",    "cores_per_socket"};
  static const std::vector<std::string> kTexts = {"username", "user_name", "user-name", "user"};
  const bool counts = std::ranges::count(kCounts, name) > 0, texts = std::ranges::count(kTexts, name) > 0;
  if (!counts && !texts) return concat(name, value ? "=" + *value : "", ": unknown option of a host; allowed slots=N");
  if (!value) return concat(name, ": has no value; allowed ", name, "=N");
  const std::optional<int> number_of_it = number(*value);
  if (counts && (!number_of_it || std::to_string(*number_of_it) != *value))
    return concat(name, "=", *value, ": is not a number of ranks; allowed an integer from 1, or no slots for as many ranks as the host has cores");
  return "";
}

/// Splits "a slots = 2  max_slots=3" into words, with the spaces around equals signs removed.
std::vector<std::string> words_of(const std::string& line) {
  std::string tight;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool space = line[i] == ' ' || line[i] == '\t';
    if (space && !tight.empty() && tight.back() == '=') continue;
    if (line[i] == '=')
      while (!tight.empty() && (tight.back() == ' ' || tight.back() == '\t')) tight.pop_back();
    tight += line[i];
  }
  std::istringstream stream(tight);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string problem_in_line(const std::string& line, HostfileForm form) {
  if (line.find('\r') != line.npos)
    return "the line ends in a carriage return, which mpirun takes for a part of it; convert the file with dos2unix, or sed -i 's/\\r$//'";
  const std::vector<std::string> words = words_of(line);
  const std::string& host = words.front();
  const size_t colon = host.rfind(':');
  const bool counted_host = colon != host.npos && colon > 0 && host.find(':') == colon;
  if (host.find('=') != host.npos) return concat(host, ": the line does not begin with a host; allowed HOST slots=N");
  if (form == HostfileForm::kHydra) {
    if (words.size() > 1 && words[1].starts_with("slots")) return concat(line, ": is the form of Open MPI; MPICH's is ", host, ":N");
    if (counted_host && !number(std::string_view(host).substr(colon + 1)))
      return concat(host, ": has no number of ranks behind the colon; allowed HOST:N");
    return "";
  }
  if (counted_host) return concat(host, ": is the form of MPICH; Open MPI's is ", host.substr(0, colon), " slots=", host.substr(colon + 1));
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    std::optional<std::string> value;
    if (equals != words[i].npos) value = words[i].substr(equals + 1);
    if (std::string problem = problem_in_option(words[i].substr(0, equals), value); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace

std::string problem_in_hosts(const std::string& text, HostfileForm form) {
  if (text.starts_with("\xef\xbb\xbf"))
    return "1: the file begins with a byte order mark, which mpirun takes for a part of the host; save it as UTF-8 without";
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(kSpace) == line.npos) continue;
    if (const std::string problem = problem_in_line(line, form); !problem.empty()) return concat(number, ": ", problem);
  }
  return "";
}

int line_of_host(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::vector<Host> hosts = parse_hosts(line);
    if (!hosts.empty() && hosts.front().name == name) return number;
  }
  return 0;
}

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find('#'), line.size()));
    const size_t first = line.find_first_not_of(kSpace);
    if (first == line.npos) continue;
    Host host = parse_host(line.substr(first, line.find_last_not_of(kSpace) + 1 - first));
    const auto same = std::ranges::find(hosts, host.name, &Host::name);
    if (same == hosts.end()) {
      hosts.push_back(std::move(host));
      continue;
    }
    same->lines += host.lines;
    same->slots.reset();
  }
  return hosts;
}

const std::string& Placement::host_of(int rank) const {
  TRIREME_CHECK(!hosts.empty() && rank >= 0 && rank < ranks, "rank ", rank, " of ", ranks);
  for (const Host& host : hosts) {
    if (rank < host.slots.value()) return host.name;
    rank -= *host.slots;
  }
  return hosts.back().name;
}

HostPool::HostPool(std::vector<Host> hosts, int64_t strikes) : strikes_(strikes) {
  for (Host& host : hosts) {
    TRIREME_CHECK(host.slots, host.name);
    members_.push_back({std::move(host)});
  }
}

void HostPool::strike(const std::set<std::string>& hosts) {
  for (Member& member : members_) member.strikes += hosts.contains(member.host.name) ? 1 : 0;
}

void HostPool::set_reachable(const std::string& host, bool reachable) {
  for (Member& member : members_)
    if (member.host.name == host) member.reachable = reachable;
}

std::optional<Placement> HostPool::place(const std::vector<int>& worlds, int64_t strikes) const {
  Placement placement;
  int64_t slots = 0;
  for (const Member& member : members_) {
    if (!member.reachable || member.strikes >= strikes || member.host.slots == 0) continue;
    placement.hosts.push_back(member.host);
    slots += *member.host.slots;
  }
  const auto fits = std::ranges::find_if(worlds, [&](int ranks) { return ranks <= slots; });
  if (fits == worlds.end()) return std::nullopt;
  placement.ranks = *fits;
  // Hosts behind the last rank are spare.
  int64_t left = placement.ranks;
  const auto spare = std::ranges::find_if(placement.hosts, [&](const Host& host) { return std::exchange(left, left - *host.slots) <= 0; });
  placement.hosts.erase(spare, placement.hosts.end());
  return placement;
}

std::optional<Placement> HostPool::place(const std::vector<int>& worlds) const {
  std::set<int64_t> limits{strikes_};
  for (const Member& member : members_) limits.insert(member.strikes + 1);
  for (const int64_t limit : limits)
    if (limit >= strikes_)
      if (std::optional<Placement> placement = place(worlds, limit)) return placement;
  return std::nullopt;
}

bool HostPool::can_keep(const Placement& placement) const {
  return std::ranges::all_of(placement.hosts, [&](const Host& host) {
    const auto member = std::ranges::find(members_, host.name, [](const Member& each) { return each.host.name; });
    return member != members_.end() && member->host.slots == host.slots && member->reachable && member->strikes < strikes_;
  });
}

std::vector<std::string> HostPool::reasons_against(const Placement& placement) const {
  std::vector<std::string> reasons;
  for (const Member& member : members_) {
    if (std::ranges::count(placement.hosts, member.host.name, &Host::name) > 0) continue;
    if (!member.reachable)
      reasons.push_back(concat(member.host.name, " (not reachable)"));
    else if (member.strikes >= strikes_)
      reasons.push_back(concat(member.host.name, " (", counted(member.strikes, "failure"), ")"));
  }
  return reasons;
}

std::vector<Host> HostPool::unreachable_hosts() const {
  std::vector<Host> hosts;
  for (const Member& member : members_)
    if (!member.reachable) hosts.push_back(member.host);
  return hosts;
}

std::vector<Host> HostPool::hosts() const {
  std::vector<Host> hosts;
  for (const Member& member : members_) hosts.push_back(member.host);
  return hosts;
}

}  // namespace trireme
