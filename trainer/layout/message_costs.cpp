#include "trainer/layout/message_costs.h"

namespace trireme {

MessageCosts message_costs(const LinkConfig& link, const ClusterConfig& cluster) {
  constexpr double kTraffic = 3;  // bytes of memory traffic per byte that is added
  MessageCosts costs{.ranges = {}, .sums = {{0, 0, *cluster.device.memory_bandwidth / kTraffic}}};
  if (!link.send.from) {
    costs.ranges.push_back({0, *link.latency, *link.bandwidth});
    return costs;
  }
  for (size_t i = 0; i < link.send.from->size(); ++i)
    costs.ranges.push_back({static_cast<double>((*link.send.from)[i]), (*link.send.latency)[i], (*link.send.bandwidth)[i]});
  return costs;
}

std::optional<CollectiveAlgorithm> algorithm_of(Collectives collectives) {
  switch (collectives) {
    case Collectives::kLibrary:
    case Collectives::kAuto: return std::nullopt;
    case Collectives::kRing: return CollectiveAlgorithm::kRing;
    case Collectives::kRecursiveDoubling: return CollectiveAlgorithm::kRecursiveDoubling;
    case Collectives::kRabenseifner: return CollectiveAlgorithm::kRabenseifner;
    case Collectives::kBinomial: return CollectiveAlgorithm::kBinomial;
    case Collectives::kDoubleBinaryTree: return CollectiveAlgorithm::kDoubleBinaryTree;
  }
  return std::nullopt;
}

}  // namespace trireme
