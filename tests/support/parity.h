#pragma once
// Trains a small, deliberately awkward model under any layout and records everything that must not depend on the layout.
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/layout/layout.h"
#include "trainer/verify/ragged_dataset.h"
#include "trainer/verify/record.h"

namespace trireme::test {

/// How the blocks of a case differ from those of its model.
enum class ParityBlock : uint8_t {
  kOwn,
  kOtherResidual,  ///< parallel branches instead of sequential ones, or the reverse
  kOtherValues,    ///< RoPE on half of what the model rotates, and the other GELU
};

/// A layout, which by default recomputes nothing, and the other parameters of the test cases.
struct ParityLayout : Layout {
  int prefetch = 1;
  std::vector<int64_t> layers_per_stage = {};  ///< empty: as even as possible
  int recompute_every = 1;
  bool recompute_elementwise = true;
  int bucket_blocks = 1;  ///< blocks whose parameters are gathered together
  int layers = 5;         ///< of the model; 13 in cases with more stages
  Optimizer optimizer = Optimizer::kAdamW;
  double ema = 0;             ///< training.ema.decay; 0: none
  int window = 0;             ///< model.window; 0: none
  bool window_on_all = true;  ///< false: on two layers of three
  Collectives collectives = Collectives::kLibrary;
  int islands = 1;         ///< several: training.local with rounds of three steps
  int fragments = 1;       ///< of the rounds; several: half of the weights are the islands' own
  bool documents = false;  ///< two in each sequence, kept apart
  bool balance = false;    ///< data.balance: cost; only with documents and without dropout
  bool rebalance = false;  ///< resilience.rebalance: micro_batches; train() gives data ranks different numbers of micro-batches
  bool elastic = false;    ///< resilience.elastic: replicas, with a batch that the data ranks do not divide
  ParityBlock block = ParityBlock::kOwn;
  bool frozen = false;   ///< model.frozen: the embedding, whole blocks, parts of blocks, and single norms
  bool adapter = false;  ///< adapters of some layers, which differ between blocks; not frozen: everything else is

  int world() const { return islands * static_cast<int>(Layout::world()); }
  ParityLayout with_layers(int all, std::vector<int64_t> of_stages = {}) const;  ///< the same for a model of `all` layers
  ParityLayout on_one_rank() const;  ///< one rank for each island, with the same updates of the same model
  std::string str() const;           ///< "tp2pp2dp2z3 sp gpipe mb2"
};

/// Prime vocabulary 61, hidden size 24 or 23, sequences of 12, global batch 12, ragged target masks.
enum class ParityModel {
  kLlamaGrouped,  ///< 12 heads, 2 kv heads, tied, dropout 0, qk_norm, scaled RoPE
  kLlama,         ///< 6 heads, 6 kv heads, untied, qkv_bias
  kGpt2,          ///< 6 heads, tied, non-zero biases
  kGpt2Dropout,   ///< the same with dropout 0.1
  kGptNeoX,       ///< 6 heads, untied, RoPE on half of each head, parallel branches, exact GELU
  kGemma3,        ///< 6 heads, tied, norms on both sides of branches, a scale of its own; windows with a RoPE base of their own
};
const char* name_of(ParityModel model);
bool is_legal(ParityModel model, const ParityLayout& layout);
Config parity_config(ParityModel model, const ParityLayout& layout, const std::string& precision);

/// This rank's part of a run; collective. The record is complete on every rank. Throws if a replicated or tied copy differs by a bit from the primary
/// copy.
RunRecord train(Communicator& world, const Config& config, int steps, Device device, int threads = 1);

RunRecord train(Context& ctx, Communicator& world, const Config& config, int steps);

/// The same on rank threads. `poison`: in-flight buffers hold NaN until waited for.
RunRecord train_on_threads(const Config& config, int steps, Device device, bool poison = false);

/// What record_run() records on rank threads, with every state; nothing is checked.
RunRecord record_on_threads(const Config& config, const Dataset& data, Device device);

/// Empty if `actual` is `expected` up to `tolerance`: losses and norms relatively, tensors by max|a-b| <= tolerance * max(max|tensor|, 1e-3 of the
/// largest tensor); otherwise a description of the first difference.
std::string difference(const RunRecord& expected, const RunRecord& actual, double tolerance);

/// Errors of the first step's gradients, each the norm of a parameter's error relative to the norm of its gradient, or to 1 % of the largest norm if
/// that is more, because the gradient of a key bias is zero. The worst parameter of a hundred is noisy; the mean is not.
struct GradientErrors {
  double worst = 0;
  double mean = 0;  ///< root mean square over the parameters
};
GradientErrors gradient_errors(const RunRecord& expected, const RunRecord& actual);
inline double gradient_error(const RunRecord& expected, const RunRecord& actual) { return gradient_errors(expected, actual).worst; }

}  // namespace trireme::test
