#include "trainer/plan/memory/block_bytes.h"

#include <algorithm>

#include "trainer/loop/rank_plan.h"
#include "trainer/loop/trainer.h"
#include "trainer/model/dims.h"

namespace trireme {
namespace {

/// Bytes of the tensors that appear in a pass, in the letters of trainer/model.
struct Sizes {
  explicit Sizes(const Config& config);
  bool gelu, head_norms;
  double row;       ///< the residual stream [M',D]
  double all;       ///< [M,D]
  double gathered;  ///< [M,D] that an all-gather makes; 0 without sequence parallelism
  double reduced;   ///< [M',D] that a reduce-scatter makes; 0 without
  double dropped;   ///< the copy of a gradient that dropout takes
  double q, o, f, F, lse, statistics;
  double head_heads;  ///< queries and keys apart, for their norms
};

Sizes::Sizes(const Config& config) : gelu(config.model.architecture == "gpt2"), head_norms(config.model.qk_norm) {
  const Dims dims(config.model, static_cast<int>(config.parallel.tensor));
  const DType compute = precision_of(config.training).compute;
  const auto element = static_cast<double>(size_of(compute)), wide = static_cast<double>(size_of(accumulator_of(compute)));
  const auto rows = static_cast<double>(config.training.micro_batch_size * config.training.sequence_length);
  const bool split = config.parallel.sequence_parallel && config.parallel.tensor > 1;
  all = rows * static_cast<double>(dims.D) * element;
  row = split ? all / static_cast<double>(config.parallel.tensor) : all;
  gathered = split ? all : 0;
  reduced = split ? row : 0;
  dropped = config.model.dropout > 0 ? row : 0;
  q = rows * static_cast<double>((dims.local_N + 2 * dims.local_K) * dims.H) * element;
  o = rows * static_cast<double>(dims.local_N * dims.H) * element;
  F = rows * static_cast<double>(dims.local_F) * element;
  f = gelu ? F : 2 * F;
  lse = rows * static_cast<double>(dims.local_N) * wide;
  statistics = row / element / static_cast<double>(dims.D) * wide * (gelu ? 2 : 1);
  head_heads = head_norms ? rows * static_cast<double>((dims.local_N + dims.local_K) * dims.H) * element : 0;
}

/// Of a forward up to the MLP's activation; `kept` of the attention's results, which selective recomputation lets go.
double forward_peak(const Sizes& s, bool keeps_attention, bool with_last_product) {
  const double attention = s.row + s.statistics + s.q + s.o + s.lse;
  const double before_mlp = attention - (keeps_attention ? 0 : s.o + s.lse) + s.row + s.statistics;  // middle and its statistics
  const double copied = s.head_norms ? s.q + s.head_heads : 0;
  double peak = std::max(s.row + s.statistics + s.row + s.gathered + s.q,  // queries, keys and values, from the normalised input
                         attention + s.row + copied + s.all + s.reduced);  // the output projection
  peak = std::max(peak, before_mlp + s.row + s.row);                       // the attention's branch and the normalised sum
  peak = std::max(peak, before_mlp + s.row + s.gathered + s.f + (s.gelu ? s.F : 0));
  if (with_last_product) peak = std::max(peak, before_mlp + s.row + s.f + s.F + s.all + s.reduced);
  return std::max(peak, before_mlp + s.f + (with_last_product ? 2 * s.row : 0));
}

}  // namespace

PartBytes block_bytes(const Config& config, Recompute recompute) {
  const Sizes s(config);
  const bool again = recompute == Recompute::kFull, selective = recompute == Recompute::kSelective;
  const double everything = 2 * s.row + 2 * s.statistics + s.q + s.o + s.lse + s.f;
  const double at_backward = everything - (selective ? s.o + s.lse : 0);  // when the recomputed forward is there
  PartBytes bytes;
  bytes.saved = again ? s.row : at_backward;
  bytes.forward = forward_peak(s, !selective, true);

  const double copies = s.head_norms ? s.q + 2 * s.head_heads : 0;
  const double attention_again = selective ? s.o + s.lse : 0;
  // Gradients of the MLP's activations beside the activations; then the product that leaves the MLP.
  const double in_mlp = at_backward + s.row + s.dropped + s.gathered + s.F + (s.gelu ? 0 : s.F);
  const double out_of_mlp = at_backward + s.row + s.dropped + s.gathered + s.F + s.gathered + s.all + s.reduced;
  // Of the whole block the attention is left, with the gradients of both residual branches.
  const double attention = s.row + s.statistics + s.q + attention_again + (selective ? 0 : s.o + s.lse) + 2 * s.row;
  const double in_attention = attention + s.row + s.dropped + s.gathered + s.o + s.q + copies;
  const double out_of_attention = attention - s.lse + s.row + s.dropped + 2 * s.gathered + s.all + s.reduced + copies - (s.head_norms ? s.q : 0);
  bytes.backward = std::max({in_mlp + s.row, out_of_mlp + s.row, at_backward - s.f + 3 * s.row, in_attention, out_of_attention});
  if (again) bytes.backward = std::max(bytes.backward, forward_peak(s, true, false) + s.row);

  // I alone keeps what W will read: inputs, outputs' gradients, and the gradients of both norms.
  const double dy_all = s.gathered > 0 ? s.gathered : s.dropped;
  const double after_mlp = at_backward + s.F + dy_all + 4 * s.row;
  bytes.input_gradient = std::max(
      {in_mlp, at_backward + s.row + s.F + dy_all + s.all + s.reduced, after_mlp + dy_all + attention_again + s.o + s.q + copies,
       after_mlp + dy_all + attention_again - s.lse + s.all + s.reduced + copies, after_mlp + dy_all + attention_again - s.lse + 3 * s.row + copies});
  if (again) bytes.input_gradient = std::max(bytes.input_gradient, forward_peak(s, true, false) + s.row);
  bytes.kept = 6 * s.row + 2 * s.statistics + s.q + s.o + s.f + s.F + 2 * (s.gathered > 0 ? s.gathered : s.row) + s.head_heads;
  bytes.weight_gradient = bytes.kept + s.gathered;
  return bytes;
}

PartBytes embedding_bytes(const Config& config) {
  const Sizes s(config);
  PartBytes bytes;
  bytes.forward = s.all + s.reduced;
  bytes.backward = bytes.input_gradient = bytes.weight_gradient = s.row + s.gathered;
  bytes.kept = s.row;
  return bytes;
}

PartBytes head_bytes(const Config& config) {
  const Sizes s(config);
  const DType compute = precision_of(config.training).compute;
  const auto rows = config.training.micro_batch_size * config.training.sequence_length, chunk = std::min(rows, logits_chunk(config));
  const int64_t columns = (*config.model.vocab_size + config.parallel.tensor - 1) / config.parallel.tensor;
  PartBytes bytes;
  bytes.saved = bytes.forward = s.row;
  bytes.backward = s.row + s.statistics + s.row + s.gathered + s.all + s.reduced + static_cast<double>(chunk * columns * size_of(compute)) +
                   static_cast<double>(3 * chunk * size_of(accumulator_of(compute)));
  bytes.input_gradient = bytes.backward;
  return bytes;
}

double boundary_bytes(const Config& config) { return Sizes(config).row; }

}  // namespace trireme
