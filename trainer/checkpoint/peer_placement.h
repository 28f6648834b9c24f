#pragma once
// Which ranks keep a copy of another rank's state in memory (resilience.peer_copies). Pure functions.
// Source: Wang et al. 2023 (Gemini, SOSP): placement in groups.
#include <string>
#include <vector>

namespace trireme {

/// The failure domains of a job: its hosts, each with its ranks, in the order of their first rank. A job on one host has one domain for each rank.
std::vector<std::vector<int>> failure_domains(const std::vector<std::string>& host_of_rank);

/// By rank, the ranks that hold a copy of its state: `copies` ranks of other failure domains. Domains form groups of copies + 1 that hold each other's
/// copies, so that a loss of several domains hits fewer states than if each domain's copies were on the next ones: with n domains and groups of m, the
/// state survives k lost domains, m <= k < 2m, with probability 1 - (n/m) C(n-m, k-m) / C(n, k). Domains that are left over join the last group, in
/// which copies are on the next domains. Ranks of a domain are matched with those of the other by their place.
/// Precondition: copies is less than the number of domains.
std::vector<std::vector<int>> peer_holders(const std::vector<std::vector<int>>& domains, int copies);

/// By rank, the number of its group of domains: only ranks of one group hold each other's copies.
std::vector<int> peer_groups(const std::vector<std::vector<int>>& domains, int copies);

}  // namespace trireme
