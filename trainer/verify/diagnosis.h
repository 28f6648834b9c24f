#pragma once
// Guesses the cause of a wrong run from its symptoms, in terms of known mistakes of trainers (traps).
#include <set>
#include <string>
#include <vector>

#include "trainer/layout/layout.h"
#include "trainer/verify/difference.h"
#include "trainer/verify/layout_run.h"
#include "trainer/verify/oracle.h"

namespace trireme {

/// Features of the clone that can be switched off, to see whether the difference disappears. The comments describe the clone without the feature.
enum class Feature : uint8_t {
  kDropout,
  kBiases,            ///< initial biases are 0
  kTied,              ///< embedding and head are two matrices
  kSharedKv,          ///< every query head has its own kv head
  kRaggedVocabulary,  ///< no tensor rank stores rows of padding beyond its vocabulary
  kMasks,             ///< no target is masked
  kMicrobatches,      ///< one micro-batch per data rank, with its loss in one chunk
  kWeightDecay,
  kClip,
  kHeadNorms,
  kWindow,     ///< every query attends to all preceding tokens
  kFrozen,     ///< every parameter is trained
  kAdapters,   ///< there are none, so the layers themselves are trained
  kDocuments,  ///< one document in each sequence
  kAttention,  ///< its output projections are 0
  kMlp,        ///< its down projections are 0
};
constexpr int kFeatures = 16;

struct Evidence {
  /// The layout, reduced to the fewest options that still show the difference. A plain one: every layout shows it.
  Layout smallest;
  bool recomputes = false;  ///< `smallest` recomputes, by its own option or the configuration
  LayoutRun::End end = LayoutRun::End::kDone;
  std::string message;  ///< error of a run that hung or failed
  RunRecord record;     ///< of the smallest run; only disagreement, unheld, outside and rejected are read
  std::vector<Difference> differences;
  std::set<Feature> cures;               ///< features without which the first difference disappears
  KnownFault fault = KnownFault::kNone;  ///< the fault with which the Oracle reproduces the run's loss
  int64_t microbatches = 1;              ///< per data rank
  int64_t kv_heads = 1;
};

struct Diagnosis {
  std::string axis;   ///< recompute, schedule, zero, sequence, tensor, pipeline, data, micro_batch, several joined by '+', or none (every layout)
  std::string layer;  ///< kind_of, attention, dropout, loss, grad_norm, optimizer, evaluation, or all
  std::string trap;
};

Diagnosis diagnose(const Evidence& evidence);

/// embedding, positions, head, norm, head_norm, query, kv, attention, bias (of a row-split product), mlp.
std::string kind_of(const std::string& parameter);

/// The common kind of several parameters: their kind; attention, embedding (with head or positions), vectors (norms and biases); else all.
std::string kind_of(const std::set<std::string>& parameters);

}  // namespace trireme
