#pragma once
// What `trireme plan` prints.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/compression_gain.h"
#include "trainer/plan/elastic_cost.h"
#include "trainer/plan/federation_cost.h"
#include "trainer/plan/node_search.h"
#include "trainer/plan/peer_cost.h"
#include "trainer/plan/place.h"
#include "trainer/plan/privacy_cost.h"
#include "trainer/plan/reroute_cost.h"
#include "trainer/plan/world_costs.h"

namespace trireme {

/// What data.packing makes of the training data.
struct PackedData {
  int64_t sequences = 0;
  double padding = 0;        ///< share of the positions
  std::string unknown = {};  ///< the data that are missing; empty: none
};

/// Results to print and write.
struct PlanResults {
  std::optional<RankedLayout> plan;
  std::vector<CompressedStep> compressed;  ///< what compression would gain for `plan`
  std::optional<SearchResult> found;
  std::optional<NodeSearch> nodes;  ///< with --nodes auto --search; `found` is the search of the cheapest number
  std::optional<SimulatedWorld> world;
  std::optional<Analysis> analysis;
  std::optional<PackedData> packed;          ///< with data.packing
  std::optional<PrivacyCost> privacy;        ///< with security.privacy
  std::vector<ElasticStep> elastic;          ///< with resilience.elastic
  std::optional<RerouteCost> reroute;        ///< with resilience.reroute
  std::optional<PeerCost> peers;             ///< with resilience.peer_copies
  std::optional<FederationCost> federation;  ///< with security.federation; the rest is about the steps of a member
  std::string proposal, trace, svg;          ///< contents of the output files
};

/// `tokens`: of the whole run, if they are known.
std::string plan_results_json(const PlanResults& answer, const Place& place, const std::optional<double>& tokens);
/// `proposed`: a configuration file is written, so the text need not tell how.
std::string plan_results_text(const PlanResults& answer, const Place& place, const std::optional<double>& tokens, bool proposed);

}  // namespace trireme
