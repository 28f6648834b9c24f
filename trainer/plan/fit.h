#pragma once
// From timings of this machine to the figures of a cluster file: through the forecast's own functions, whose times are to be the measured ones on average.
#include <string>
#include <vector>

#include "trainer/config/cluster.h"

namespace trireme {

/// x[m,k] w[k,n], or the gradient of a weight that is added to an fp32 sum.
struct ProductSample {
  double m = 0, n = 0, k = 0;
  int64_t element_bytes = 4;
  bool accumulates = false;
  double seconds = 0;
};

struct AttentionSample {
  double sequences = 0, length = 0, heads = 0, head_size = 0;
  int64_t element_bytes = 4;
  double forward = 0, backward = 0;  ///< seconds
};

/// A kernel that moves bytes.
struct TrafficSample {
  std::string name;
  double bytes = 0, seconds = 0;  ///< bytes as traffic_bytes counts them
};

enum class LinkOperation : uint8_t { kAllReduce, kAllGather, kSend };  ///< a reduce-scatter is a gather the other way

/// `bytes` of the whole array, between `ranks` ranks that share the machine.
struct LinkSample {
  LinkOperation operation = LinkOperation::kAllReduce;
  int64_t ranks = 2;
  double bytes = 0, seconds = 0;
};

struct MachineSamples {
  std::string name = {};
  double cores = 1;
  double memory = 0;          ///< bytes
  double kernel_seconds = 0;  ///< of the smallest operation
  // On one core, the others at the like of it:
  std::vector<ProductSample> products = {};
  std::vector<AttentionSample> attention = {};
  std::vector<TrafficSample> elementwise = {};  ///< one after the other, as a block runs them
  std::vector<TrafficSample> memory_traffic = {};
  std::vector<ProductSample> shared_products = {};  ///< all cores on one product; none on a machine of one core
  std::vector<LinkSample> links = {};
};

struct Residual {
  std::string sample;
  double measured = 0, model = 0;  ///< seconds
};

struct FittedMachine {
  ClusterConfig cluster;  ///< of type cpu: one node, a device a core, every figure given
  std::vector<Residual> residuals;
};

/// Errors: ConfigError where a kind of samples is missing, or nothing was measured in it.
FittedMachine fit_machine(const MachineSamples& samples);

/// The seconds of a sample by the forecast's functions, for a machine whose ranks each have all of what `cluster` says.
double model_seconds(const ProductSample& sample, const ClusterConfig& cluster);
AttentionSample model_seconds(const AttentionSample& sample, const ClusterConfig& cluster);
double model_seconds(const LinkSample& sample, const ClusterConfig& cluster);

/// One line for each sample, as lines of a table.
std::string residual_text(const std::vector<Residual>& residuals);

}  // namespace trireme
