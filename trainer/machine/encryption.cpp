#include "trainer/machine/encryption.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "parallel/comm/sealed.h"
#include "parallel/crypto/key_file.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/collectives.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

/// Ranks that expect clear text and ranks that expect frames would wait for each other. Collective.
void refuse_mixed_encryption(Communicator& world, const Config& config) {
  const std::vector<std::string> seen = all_gather_strings(world, concat(config.security.encryption, " on host ", host_name()));
  const auto is_required = [](const std::string& text) { return text.starts_with("required"); };
  const auto other = std::ranges::find_if(seen, [&](const std::string& text) { return is_required(text) != is_required(seen.front()); });
  if (other == seen.end()) return;
  throw AgreedError(ExitCode::kUsage,
                    concat("security.encryption: rank 0 has ", seen.front(), ", and rank ", other - seen.begin(), " has ", *other,
                           "; allowed the same on all hosts"),
                    world.rank() == 0);
}

/// Hosts as the ranks see them, each its own from what its own kernel says. Collective.
SealOptions seal_options(Communicator& world, const RankPlace& place) {
  SealOptions options;
  for (const std::string& host : all_gather_strings(world, std::to_string(place.host_ranks.front())))
    options.hosts.push_back(std::atoi(host.c_str()));
  options.names = all_gather_strings(world, host_name());
  // What others say arrives in clear: it must not make this rank take a rank of another host for one of its own.
  for (int rank = 0; rank < world.size(); ++rank) {
    const bool here = options.hosts[static_cast<size_t>(rank)] == place.host_ranks.front();
    TRIREME_CHECK(here == std::ranges::binary_search(place.host_ranks, rank), "rank ", world.rank(), " and rank ", rank,
                  " disagree on whether they are on one host");
  }
  return options;
}

/// What decides on the order of sums, as text.
std::string text_of(const StepwiseOptions& options) {
  std::ostringstream text;
  text << std::hexfloat << (options.algorithm ? static_cast<int>(*options.algorithm) : -1);
  for (const MessageCosts* const costs : {&options.within, &options.between}) {
    text << " costs " << costs->start;
    for (const auto* const ranges : {&costs->ranges, &costs->sums})
      for (const MessageCosts::Range& range : *ranges) text << " from " << range.from << " " << range.latency << " " << range.bandwidth;
  }
  return text.str();
}

}  // namespace

crypto::Key read_link_key(const SecurityConfig& security) {
  crypto::require_sodium("security.encryption=required");
  return crypto::read_shared_key(security.key_file.value(), "security.key_file");
}

std::unique_ptr<Communicator> with_encryption(std::unique_ptr<Communicator> world, const RankPlace& place, const Config& config) {
  if (!place.has_other_hosts(world->size())) return world;
  refuse_mixed_encryption(*world, config);
  if (!is_encrypted(config.security)) return world;
  std::optional<crypto::Key> key;
  collectively(*world, [&] { key = read_link_key(config.security); });
  SealOptions hosts = seal_options(*world, place);
  StepwiseOptions sums = agreed_stepwise_options(*world, config);
  hosts.agreed = text_of(sums);
  sums.hosts = hosts.hosts;
  sums.only_between_hosts = config.parallel.collectives == Collectives::kLibrary;
  std::shared_ptr<SealKeys> keys;
  collectively(*world, [&] { keys = agree_on_keys(*world, *key, hosts); });
  return stepwise(sealed(std::move(world), std::move(keys)), sums);
}

}  // namespace trireme
