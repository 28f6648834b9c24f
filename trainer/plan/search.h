#pragma once
// Search over the legal layouts of a model on a cluster, ranked by forecast step time.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

struct RankedLayout {
  Config config;       ///< resolved: the user's configuration with this layout
  Config written;      ///< the same as written to a file: `auto` values stay `auto` unless the layout sets them
  std::string layout;  ///< layout specification, e.g. "tp8pp16vpp2dp8z1mb2sp-selective-interleaved_1f1b"
  Forecast forecast;   ///< with memory of each pipeline rank, by formula unless counted
  std::string reason;  ///< why it is slower than the best layout, or does not fit; empty for the best
};

/// A change with which the model fits, verified by a forecast.
struct Remedy {
  std::string text;  ///< "on 4 nodes"
  Config config;     ///< to repeat the search with
  ClusterConfig cluster;
};

/// A global batch size near the configured one with more throughput, verified by a search.
struct BetterBatch {
  int64_t batch = 0;
  std::string layout;  ///< the fastest one
  double tokens_per_second_per_device = 0;
};

struct SearchResult {
  /// Layouts that fit, fastest first, but tight ones behind roomy ones that are at most 2 % slower (ranking_seconds); ties by lower memory. Layouts
  /// that differ only in virtual stages, replicas and sequence parallelism form a family, represented by its best. Contains the best families, and
  /// the best layout of each (tensor, pipeline) that is not among them.
  std::vector<RankedLayout> layouts;
  std::vector<RankedLayout>
      too_large;                 ///< smallest first: for each (tensor, pipeline) without a fit the closest one, and those that counted memory rejects
  int64_t legal = 0;             ///< layouts that the rules allow
  int64_t tried = 0;             ///< of these, layouts forecast; the others were pruned by a bound on time or memory
  std::vector<Remedy> remedies;  ///< filled if nothing fits
  std::string advice;            ///< the remedies as a sentence; if no layout is legal, the reason
  std::string why;               ///< winning_reason: why the best layout is the best
  std::vector<BetterBatch> batches;  ///< nearest first, at most one smaller and one larger; filled if ranks idle because of the batch
};

struct SearchOptions {
  size_t keep = 10;    ///< number of best families to keep
  bool prune = true;   ///< false: forecast every layout (for the test that pruning is exact)
  size_t threads = 0;  ///< 0: usable_cores(); the result does not depend on it
  bool advise = true;  ///< look for remedies if nothing fits, and for better batches if ranks idle
};

/// Searches layouts of cluster.devices() ranks. Varied: tensor (within a node), pipeline, data, zero stage, replicate, virtual stages and schedule,
/// sequence parallelism, micro-batch size, recompute. layers_per_stage follows from the forecast cost of blocks, embedding and head. Fixed: model,
/// sequence length, global batch size, precision, optimizer. `cluster` is resolved. Memory is computed by formula, then counted for the best layout;
/// a layout that then does not fit is skipped. `progress` receives the share done, up to 1.
/// Errors: those of resolve() if no layout makes the configuration legal.
SearchResult search_layouts(const Config& config, const ClusterConfig& cluster, const std::function<void(double)>& progress = {},
                            const SearchOptions& options = {});

/// YAML of a configuration with that layout: the layout and all given values that differ from their defaults, with the forecast in a comment at the
/// top. It loads and resolves to `layout.config`.
std::string proposed_yaml(const RankedLayout& layout, const ClusterConfig& cluster);

/// Changes that make a model fit on a cluster where no layout fits: more nodes (the fewest), a built-in device with more memory (the smallest),
/// shorter sequences. Empty if nothing helps.
std::vector<Remedy> find_remedies(const Config& config, const ClusterConfig& cluster);

/// The smallest number of nodes like the cluster's on which the model is known to fit; nullopt if there is none.
std::optional<int64_t> fewest_nodes(const Config& config, const ClusterConfig& cluster);

/// The nearest smaller and the nearest larger global batch size with which the fastest layout processes at least 2 % more than `rate` tokens per second
/// and device. Tried are multiples of divisors of the number of devices, within a factor of two, or for a rate of 0 (no legal layout) all next ones, as
/// far as the configuration is legal with them and its own layout.
std::vector<BetterBatch> better_batches(const Config& config, const ClusterConfig& cluster, double rate);

/// better_batches() if ranks idle for 5 % of the best layout's step or more, and the batch is not a multiple of the devices; otherwise none.
std::vector<BetterBatch> batches_without_idle_ranks(const Config& config, const ClusterConfig& cluster, const Forecast& best);

}  // namespace trireme
