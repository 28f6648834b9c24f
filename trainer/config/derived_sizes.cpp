#include "trainer/config/derived_sizes.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "parallel/pipeline/schedule.h"

namespace trireme {

Config with_derived_sizes(Config config) {
  ModelConfig& m = config.model;
  if (config.run.directory.empty()) config.run.directory = "runs/" + config.run.name;
  if (!m.kv_heads) m.kv_heads = m.heads;
  if (!m.head_size) m.head_size = m.hidden_size / m.heads;
  if (!m.ffn_size) m.ffn_size = m.preset().gated ? ((8 * m.hidden_size + 2) / 3 + 63) / 64 * 64 : 4 * m.hidden_size;
  // Reset to the default after use, so that the written configuration, which gives model.vocab_size, loads as an equal one.
  if (!m.vocab_size) m.vocab_size = std::exchange(config.data.tokenizer_vocab_size, DataConfig().tokenizer_vocab_size);
  if (!m.max_positions) m.max_positions = config.training.sequence_length;
  if (m.preset().biases) m.qkv_bias = true;
  if (m.preset().head_norms) m.qk_norm = true;
  if (m.attention_scale == 1 / std::sqrt(static_cast<double>(*m.head_size))) m.attention_scale.reset();
  if (m.residual == ResidualKind::kAuto) m.residual = m.block_residual();
  if (m.activation == Activation::kAuto) m.activation = m.mlp_activation();
  if (m.preset().positions == PositionKind::kRope) m.rope_share = m.rotated_share();
  if (m.window_layers && static_cast<int64_t>(m.window_layers->size()) == m.layers) {
    std::vector<int64_t> every(m.window_layers->size());
    std::iota(every.begin(), every.end(), 0);
    if (*m.window_layers == every) m.window_layers.reset();
  }
  if (ParallelConfig& p = config.parallel; !p.virtual_stages) {
    p.virtual_stages = 1;
    for (const ScheduleKind kind : kScheduleKinds)
      if (p.schedule == name_of(kind)) p.virtual_stages = default_virtual_stages(kind);
  }
  return config;
}

}  // namespace trireme
