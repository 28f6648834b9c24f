#pragma once
// All legal layouts of a model on a cluster, ranked by forecast.
#include <functional>
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

struct RankedLayout {
  Config config;   ///< resolved: the user's with this layout in it
  Config written;  ///< the same as a file would have it: what was `auto` still is, unless the layout says it
  std::string
      layout;         ///< as `verify --layouts` reads it, with micro-batch size and recomputation: "tp8pp16vpp2dp8z1mb2sp-selective-interleaved_1f1b"
  Forecast forecast;  ///< with the memory of each pipeline rank, by formulas where it was not counted
  std::string reason;  ///< of a loser: what it loses most by against the best, or why it does not fit
};

/// A change with which the model fits, tried.
struct Remedy {
  std::string text;  ///< "on 4 nodes"
  Config config;     ///< to search with
  ClusterConfig cluster;
};

struct SearchResult {
  /// That fit, best first; equal times: what needs less memory first. Of layouts that differ in virtual stages, replicas and sequence parallelism
  /// alone the best: of all the best of these, and the best of each tensor x pipeline that is not among them.
  std::vector<RankedLayout> layouts;
  std::vector<RankedLayout>
      too_large;                 ///< of each tensor x pipeline where nothing fits what comes nearest, nearest first; and what counting threw out
  int64_t legal = 0;             ///< layouts that the rules allow
  int64_t tried = 0;             ///< of these forecast; of the others a bound on time or memory said enough
  std::vector<Remedy> remedies;  ///< where nothing fits
  std::string advice;            ///< the same in a sentence; where no layout is legal, why
};

struct SearchOptions {
  size_t keep = 10;    ///< of the best of all
  bool prune = true;   ///< false: forecasts everything, to prove that pruning loses nothing
  bool advise = true;  ///< look for remedies where nothing fits
};

/// The world is cluster.devices(). Free: tensor (within a node), pipeline, data, zero stage, replicate, virtual stages and schedule, sequence
/// parallelism, micro-batch size, recompute, and layers_per_stage by the forecast cost of blocks, embedding and head. Kept: the model, sequence
/// length, global batch size, precision, optimizer. `cluster` is resolved. Memory is reckoned by formulas, and counted for the best: what then does
/// not fit is passed over. `progress` is told the share done, up to 1.   Errors: those of resolve() where no layout makes the configuration legal.
SearchResult search_layouts(const Config& config, const ClusterConfig& cluster, const std::function<void(double)>& progress = {},
                            const SearchOptions& options = {});

/// The YAML of a run with that layout: what was given and is no default, and the layout; its forecast in a comment at the top. It loads again, and
/// resolves to `layout.config`.
std::string proposed_yaml(const RankedLayout& layout, const ClusterConfig& cluster);

/// What would make a model fit on a cluster where no layout does: more nodes (the fewest), a built-in device with more memory (the least), shorter
/// sequences. Empty where nothing helps.
std::vector<Remedy> find_remedies(const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
