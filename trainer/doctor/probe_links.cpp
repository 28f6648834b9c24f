#include "trainer/doctor/probe_links.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/doctor/reach.h"
#include "trainer/files/strict_json.h"

namespace trireme::doctor {
namespace {

using Kind = PointToPoint::Kind;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostOnOneHost = 16;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Messages in host memory between this rank and another one.
class Messenger {
 public:
  Messenger(Communicator& world, int peer) : world_(world), peer_(peer) {}

  void send(const Tensor& buffer) { move(Kind::kSend, buffer); }
  void receive(const Tensor& buffer) { move(Kind::kRecv, buffer); }
  void send(double value) {
    const Tensor buffer = make(1);
    *buffer.data<double>() = value;
    send(buffer);
  }
  double receive() {
    const Tensor buffer = make(1);
    receive(buffer);
    return *buffer.data<double>();
  }
  Tensor make(int64_t numbers) { return Tensor::zeros(host_, {numbers}, DType::kF64, MemoryCategory::kCommunication); }

 private:
  void move(Kind kind, const Tensor& buffer) {
    const std::array<PointToPoint, 1> message{PointToPoint{kind, buffer, peer_}};
    world_.exchange(host_, message).wait(host_);
  }

  Communicator& world_;
  int peer_;
  Arena arena_{Device::kReference};
  Context host_{Device::kReference, &arena_, 1};
};

constexpr int64_t kFirstBytes = 64 << 10, kMostBytes = 8 << 20;

/// The side of a pair that measures. The other side learns from each message what comes next.
Link measure(Messenger& peer) {
  constexpr double kLatencyTime = 0.02, kLongTime = 0.5, kTransferTime = 0.05;
  constexpr int kFewestTrips = 5, kMostTrips = 20;
  const auto trip = [&] {
    const auto begin = Clock::now();
    peer.send(1.0);  // answer at once
    peer.receive();
    return seconds_since(begin);
  };
  Link link;
  const double first = trip();
  double shortest = first, spent = first;
  for (int i = 1; i < kMostTrips && spent < (i < kFewestTrips ? kLongTime : kLatencyTime); ++i) {
    const double seconds = trip();
    shortest = std::min(shortest, seconds);
    spent += seconds;
  }
  link.latency = shortest / 2;
  const auto transfer = [&](int64_t bytes) {
    peer.send(static_cast<double>(bytes));  // a message of that size follows
    const Tensor buffer = peer.make(bytes / size_of(DType::kF64));
    const auto begin = Clock::now();
    peer.send(buffer);
    peer.receive();
    const double seconds = seconds_since(begin);
    return std::max(seconds / 2, seconds - 2 * link.latency);  // the latency varies on a busy machine
  };
  transfer(kFirstBytes);  // opens the connection, and maps memory
  const double once = transfer(kFirstBytes);
  const auto fitting = static_cast<int64_t>(static_cast<double>(kFirstBytes) * kTransferTime / once);
  const int64_t bytes = std::clamp(fitting, kFirstBytes, kMostBytes) / 8 * 8;
  link.bandwidth = static_cast<double>(kFirstBytes) / once;
  if (bytes > 2 * kFirstBytes)
    for (int i = 0; i < 2; ++i) link.bandwidth = std::max(link.bandwidth, static_cast<double>(bytes) / transfer(bytes));
  peer.send(0.0);  // the end
  return link;
}

void answer(Messenger& peer) {
  for (double next = peer.receive(); next != 0; next = peer.receive()) {
    if (next > 1) peer.receive(peer.make(static_cast<int64_t>(next) / size_of(DType::kF64)));
    peer.send(1.0);
  }
}

/// The rounds of a tournament in which every two of `ranks` meet once (circle method).
std::vector<std::vector<std::pair<int, int>>> tournament(std::vector<int> ranks) {
  if (ranks.size() < 2) return {};
  constexpr int kNobody = -1;
  if (ranks.size() % 2 != 0) ranks.push_back(kNobody);
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (size_t round = 0; round + 1 < ranks.size(); ++round) {
    auto& pairs = rounds.emplace_back();
    for (size_t i = 0; i < ranks.size() / 2; ++i) {
      const auto [low, high] = std::minmax(ranks[i], ranks[ranks.size() - 1 - i]);
      if (low != kNobody) pairs.emplace_back(low, high);
    }
    std::rotate(ranks.begin() + 1, ranks.end() - 1, ranks.end());
  }
  return rounds;
}

/// The first rank of each host, by rank.
std::vector<int> first_ranks(const std::vector<std::string>& hosts) {
  std::map<std::string, int> first;
  for (size_t rank = 0; rank < hosts.size(); ++rank) first.emplace(hosts[rank], static_cast<int>(rank));
  std::vector<int> ranks;
  for (const auto& [host, rank] : first) ranks.push_back(rank);
  std::ranges::sort(ranks);
  return ranks;
}

double wall_clock() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Pairs pairs_of(const std::vector<std::string>& hosts) {
  std::vector<int> met = first_ranks(hosts);
  Pairs pairs;
  if (met.size() == 1) {
    met.clear();
    for (size_t rank = 0; rank < std::min(hosts.size(), kMostOnOneHost); ++rank) met.push_back(static_cast<int>(rank));
  } else {
    std::vector<std::pair<int, int>> within;  // a pair on each host that has two ranks
    for (const int first : met) {
      const std::string& host = hosts[static_cast<size_t>(first)];
      const auto second = std::find(hosts.begin() + first + 1, hosts.end(), host);
      if (second != hosts.end()) within.emplace_back(first, static_cast<int>(second - hosts.begin()));
    }
    if (!within.empty()) pairs.rounds.push_back(std::move(within));
  }
  for (auto& round : tournament(met)) pairs.rounds.push_back(std::move(round));
  for (const auto& round : pairs.rounds) pairs.count += static_cast<int64_t>(round.size());
  return pairs;
}

std::vector<Link> probe_links(Communicator& world, const std::vector<std::string>& hosts, const Pairs& pairs, double seconds,
                              const std::vector<std::pair<int, int>>& skip) {
  const auto begin = Clock::now();
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& round : pairs.rounds) {
    for (const auto& pair : round) {
      const auto [low, high] = pair;
      const bool one_host = hosts[static_cast<size_t>(low)] == hosts[static_cast<size_t>(high)];
      const bool skipped = std::ranges::any_of(skip, [&](const auto& other) { return other == pair || other == std::pair(pair.second, pair.first); });
      if (skipped || (world.rank() != low && world.rank() != high)) continue;
      Messenger peer(world, world.rank() == low ? high : low);
      if (world.rank() == high) {
        answer(peer);
        continue;
      }
      Link link = measure(peer);
      link.from = low;
      link.to = high;
      link.one_host = one_host;
      mine.push_back(link);
    }
    if (all_reduce_scalar(world, seconds_since(begin), ReduceOp::kMax) > seconds) break;
  }
  std::vector<Link> links;
  for (const std::string& text : all_gather_strings(world, mine.dump()))
    for (const auto& link : parse_value(text, "report of a rank")) links.push_back(link.get<Link>());
  std::ranges::sort(links, {}, [](const Link& link) { return std::pair(link.from, link.to); });
  return links;
}

std::vector<std::string> gather_in_order(Communicator& world, const std::string& mine, const std::function<void(int)>& waiting) {
  std::vector<std::string> all{mine};
  const auto packed = [](double bytes) { return (static_cast<int64_t>(bytes) + 7) / 8; };
  for (int rank = 1; rank < world.size(); ++rank) {
    if (world.rank() != 0 && world.rank() != rank) continue;
    Messenger peer(world, world.rank() == 0 ? rank : 0);
    if (world.rank() != 0) {
      const Tensor text = peer.make(packed(static_cast<double>(mine.size())));
      std::memcpy(text.raw(), mine.data(), mine.size());
      peer.send(static_cast<double>(mine.size()));
      peer.send(text);
    } else {
      waiting(rank);
      const double bytes = peer.receive();
      const Tensor text = peer.make(packed(bytes));
      peer.receive(text);
      all.emplace_back(static_cast<const char*>(text.raw()), static_cast<size_t>(bytes));
    }
  }
  return world.rank() == 0 ? all : std::vector<std::string>{};
}

ClockOffset offset_of(const std::vector<ClockSample>& samples) {
  ClockOffset best{0, std::numeric_limits<double>::infinity()};
  for (const ClockSample& sample : samples) {
    const double error = (sample.received - sample.sent) / 2;
    if (error < best.error) best = {sample.answered - (sample.sent + sample.received) / 2, error};
  }
  return samples.empty() ? ClockOffset{} : best;
}

ClockOffset probe_clock(Communicator& world, const std::vector<std::string>& hosts) {
  constexpr int kTrips = 8;
  std::vector<ClockSample> samples;
  for (const int other : first_ranks(hosts)) {
    if (other == 0 || (world.rank() != 0 && world.rank() != other)) continue;
    Messenger peer(world, world.rank() == 0 ? other : 0);
    for (int trip = 0; trip < kTrips; ++trip) {
      if (world.rank() == 0) {
        peer.send(wall_clock());
        peer.receive();
        peer.send(wall_clock());
      } else {
        ClockSample sample;
        sample.sent = peer.receive();
        sample.answered = wall_clock();
        peer.send(0.0);
        sample.received = peer.receive();
        samples.push_back(sample);
      }
    }
  }
  const ClockOffset mine = offset_of(samples);
  const std::vector<std::string> all = all_gather_strings(world, nlohmann::json{mine.ahead, mine.error}.dump());
  const std::string& host = hosts[static_cast<size_t>(world.rank())];
  const auto first = static_cast<size_t>(std::ranges::find(hosts, host) - hosts.begin());
  const nlohmann::json known = parse_value(all[first], "report of a rank");
  return {known[0].get<double>(), known[1].get<double>()};
}

std::vector<std::pair<int, int>> probe_reach(Communicator& world, const std::vector<std::string>& hosts, double seconds) {
  const std::vector<int> first = first_ranks(hosts);
  if (first.size() < 2) return {};
  std::optional<Door> door;
  if (std::ranges::find(first, world.rank()) != first.end()) door.emplace();
  const std::vector<std::string> doors = all_gather_strings(world, door ? door->address() : "");
  nlohmann::json mine = nlohmann::json::array();
  std::vector<std::string> others;
  for (const int rank : first) others.push_back(rank == world.rank() ? "" : doors[static_cast<size_t>(rank)]);
  if (door) {
    const std::vector<bool> opened = reaches(others, seconds);
    for (size_t i = 0; i < first.size(); ++i)
      if (!others[i].empty() && !opened[i]) mine.push_back(first[i]);
  }
  return pairs_without_connection(all_gather_strings(world, mine.dump()));  // every door stays open until all have tried
}

std::vector<std::pair<int, int>> pairs_without_connection(const std::vector<std::string>& reports) {
  std::vector<std::pair<int, int>> unreachable;
  for (size_t from = 0; from < reports.size(); ++from)
    for (const auto& to : parse_value(reports[from], "report of a rank")) unreachable.emplace_back(static_cast<int>(from), to.get<int>());
  return unreachable;
}

}  // namespace trireme::doctor
