#pragma once
// Fits the figures of a cluster file to timings of this machine, such that the forecast's own functions return the measured times on average.
#include <string>
#include <vector>

#include "trainer/config/cluster.h"

namespace trireme {

/// Timing of one matrix product x[m,k] w[k,n]. `accumulates`: a weight gradient, added to an fp32 accumulator.
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

/// Timing of one memory-bound kernel.
struct TrafficSample {
  std::string name;
  double bytes = 0, seconds = 0;  ///< bytes: as counted by traffic_bytes()
};

enum class LinkOperation : uint8_t { kAllReduce, kAllGather, kSend };  ///< a reduce-scatter is timed as an all-gather

/// Timing of one collective or send between `ranks` ranks that share the machine. `bytes`: size of the full array.
struct LinkSample {
  LinkOperation operation = LinkOperation::kAllReduce;
  int64_t ranks = 2;
  double bytes = 0, seconds = 0;
};

struct MachineSamples {
  std::string name = {};
  double cores = 1;
  double memory = 0;          ///< bytes
  double kernel_seconds = 0;  ///< duration of the smallest operation
  // Measured on one core while the other cores do the same kind of work:
  std::vector<ProductSample> products = {};
  std::vector<AttentionSample> attention = {};
  std::vector<TrafficSample> elementwise = {};  ///< run one after the other, as in a block
  std::vector<TrafficSample> memory_traffic = {};
  std::vector<ProductSample> shared_products = {};  ///< all cores on one product; empty on a single-core machine
  std::vector<LinkSample> links = {};
};

struct Residual {
  std::string sample;
  double measured = 0, model = 0;  ///< seconds
};

struct FittedMachine {
  ClusterConfig cluster;  ///< type cpu: one node, one device per core, every figure set
  std::vector<Residual> residuals;
};

/// Errors: ConfigError if a kind of sample is missing.
FittedMachine fit_machine(const MachineSamples& samples);

/// Time of a sample according to the forecast's functions, in seconds. Each rank has the whole of `cluster` to itself.
double model_seconds(const ProductSample& sample, const ClusterConfig& cluster);
AttentionSample model_seconds(const AttentionSample& sample, const ClusterConfig& cluster);
double model_seconds(const LinkSample& sample, const ClusterConfig& cluster);

/// Table of measured and modelled times, one line per sample.
std::string residual_text(const std::vector<Residual>& residuals);

}  // namespace trireme
