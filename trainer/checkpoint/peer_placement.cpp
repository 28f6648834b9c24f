#include "trainer/checkpoint/peer_placement.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "kernels/core/check.h"

namespace trireme {
namespace {

struct Group {
  size_t first, size;  ///< domains
};

/// The group of a domain.
Group group_of(size_t domain, size_t domains, size_t copies) {
  const size_t wanted = copies + 1, groups = domains / wanted, index = std::min(domain / wanted, groups - 1);
  return {index * wanted, index + 1 < groups ? wanted : domains - index * wanted};
}

size_t number_of_ranks(const std::vector<std::vector<int>>& domains) {
  size_t ranks = 0;
  for (const std::vector<int>& domain : domains) ranks += domain.size();
  return ranks;
}

void check_copies(const std::vector<std::vector<int>>& domains, int copies) {
  TRIREME_CHECK(copies >= 0 && static_cast<size_t>(copies) < domains.size(), copies, " peer copies over ", domains.size(), " failure domains");
}

}  // namespace

std::vector<std::vector<int>> failure_domains(const std::vector<std::string>& host_of_rank) {
  std::map<std::string, size_t> known;
  std::vector<std::vector<int>> domains;
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const size_t domain = known.try_emplace(host_of_rank[rank], domains.size()).first->second;
    if (domain == domains.size()) domains.emplace_back();
    domains[domain].push_back(static_cast<int>(rank));
  }
  if (domains.size() > 1) return domains;
  domains.clear();
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) domains.push_back({static_cast<int>(rank)});
  return domains;
}

std::vector<std::vector<int>> peer_holders(const std::vector<std::vector<int>>& domains, int copies) {
  check_copies(domains, copies);
  std::vector<std::vector<int>> holders(number_of_ranks(domains));
  for (size_t domain = 0; domain < domains.size(); ++domain) {
    const Group group = group_of(domain, domains.size(), static_cast<size_t>(copies));
    for (size_t place = 0; place < domains[domain].size(); ++place)
      for (size_t next = 1; next <= static_cast<size_t>(copies); ++next) {
        const std::vector<int>& other = domains[group.first + (domain - group.first + next) % group.size];
        holders[static_cast<size_t>(domains[domain][place])].push_back(other[place % other.size()]);
      }
  }
  return holders;
}

std::vector<int> peer_groups(const std::vector<std::vector<int>>& domains, int copies) {
  check_copies(domains, copies);
  std::vector<int> groups(number_of_ranks(domains));
  for (size_t domain = 0; domain < domains.size(); ++domain)
    for (const int rank : domains[domain])
      groups[static_cast<size_t>(rank)] = static_cast<int>(group_of(domain, domains.size(), static_cast<size_t>(copies)).first);
  return groups;
}

}  // namespace trireme
