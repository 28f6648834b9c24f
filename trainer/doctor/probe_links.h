#pragma once
// Probes between the ranks of a job. All are collective.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/doctor/facts.h"

namespace trireme::doctor {

/// The ranks' texts on rank 0, in order; empty on the others. `waiting(r)`: called on rank 0 before it waits for rank r.
std::vector<std::string> gather_in_order(Communicator& world, const std::string& mine, const std::function<void(int)>& waiting);

/// The ranks whose pairs are probed: the first of each host, and the second of each host with the first; on one host, all of at most 16 ranks.
struct Pairs {
  std::vector<std::vector<std::pair<int, int>>> rounds;  ///< in a round each rank is in at most one pair
  int64_t count = 0;                                     ///< pairs in all rounds
};
/// `hosts[r]`: host of rank r.
Pairs pairs_of(const std::vector<std::string>& hosts);

/// Measures pairs round by round, until all are done or `seconds` have passed. The result is complete on every rank. `skip`: pairs, in any
/// order, that cannot communicate.
std::vector<Link> probe_links(Communicator& world, const std::vector<std::string>& hosts, const Pairs& pairs, double seconds,
                              const std::vector<std::pair<int, int>>& skip);

/// How far this rank's clock is ahead of rank 0's, by the exchange with the shortest round trip: its error is half of that.
/// Source: Cristian 1989, Distributed Computing 3(3).
struct ClockOffset {
  double ahead = 0, error = 0;  ///< seconds
};
/// One exchange: rank 0 sent at `sent` and received the answer at `received`, by its clock; this rank answered at `answered`, by its own.
struct ClockSample {
  double sent = 0, answered = 0, received = 0;
};
ClockOffset offset_of(const std::vector<ClockSample>& samples);
/// Measures the first rank of each host; other ranks get its offset.
ClockOffset probe_clock(Communicator& world, const std::vector<std::string>& hosts);

/// Whether the first rank of each host can open a TCP connection to that of each other one, within `seconds`. Listens on every interface for that long,
/// with a random token. Returns the pairs (from, to) of which `from` cannot, on every rank.
std::vector<std::pair<int, int>> probe_reach(Communicator& world, const std::vector<std::string>& hosts, double seconds);
/// The same from what each rank has to say, in order: "[2,4]" are the ranks that it could not reach.
std::vector<std::pair<int, int>> pairs_without_connection(const std::vector<std::string>& reports);

}  // namespace trireme::doctor
