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

}  // namespace

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
