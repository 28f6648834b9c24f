#pragma once
// From what was seen of a wrong run to a guess at its cause, in the words of the traps that trainers fall into.
#include <set>
#include <string>
#include <vector>

#include "trainer/layout/layout.h"
#include "trainer/verify/difference.h"
#include "trainer/verify/layout_run.h"
#include "trainer/verify/oracle.h"

namespace trireme {

/// Parts of the clone that can be left out, to see whether the difference goes with them.
enum class Feature : uint8_t {
  kDropout,
  kBiases,            ///< initial biases are 0
  kTied,              ///< embedding and head are two matrices
  kSharedKv,          ///< every query head has a kv head of its own
  kRaggedVocabulary,  ///< the vocabulary divides by every tensor degree
  kMasks,             ///< every target counts
  kMicrobatches,      ///< one micro-batch on each data rank, and its loss in one piece
  kWeightDecay,
  kClip,
  kHeadNorms,
  kWindow,     ///< every query sees all before it
  kDocuments,  ///< one document in each sequence
  kAttention,  ///< its output projections are 0
  kMlp,        ///< its down projections are 0
};
constexpr int kFeatures = 14;

struct Evidence {
  /// The fewest of its layout's options with which the difference is still there; a plain one: it is there in every layout.
  Layout smallest;
  bool recomputes = false;  ///< `smallest` recomputes, named or by the configuration
  LayoutRun::End end = LayoutRun::End::kDone;
  std::string message;  ///< of a run that hung or failed
  RunRecord record;     ///< of the smallest run: disagreement, unheld and rejected are read
  std::vector<Difference> differences;
  std::set<Feature> cures;               ///< without which the first of the differences is not there
  KnownFault fault = KnownFault::kNone;  ///< the oracle that computes what the run computes
  int64_t microbatches = 1;              ///< of a data rank
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

/// One word for several parameters: their kind; attention, embedding (with head or positions), vectors (norms and biases); else all.
std::string kind_of(const std::set<std::string>& parameters);

}  // namespace trireme
