#include "trainer/verify/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "trainer/model/declare.h"

namespace trireme {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double sum_of(const Row& a, const double* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Forward of one sequence.
class Sequence {
 public:
  Sequence(const Config& config, KnownFault fault, const GlobalTensors& weights, int64_t place, int64_t step, bool training)
      : m_(config.model), config_(config), fault_(fault), weights_(weights), place_(place), step_(step), training_(training) {}

  /// Loss summed over the valid targets, in nats.
  double nats(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, const std::vector<int64_t>& segments);

 private:
  const std::vector<double>& weight(const std::string& name) const { return weights_.at(name).values; }
  Row linear(const std::string& name, const Row& x) const;
  Row norm(const std::string& name, const Row& x) const;
  void drop(const std::string& purpose, Rows& x) const;
  bool windowed(int64_t block) const { return m_.window && (!m_.window_layers || std::ranges::count(*m_.window_layers, block) > 0); }
  int64_t window_of(int64_t block) const;
  Rows attention(const std::string& name, const Rows& x, int64_t block) const;
  Row mlp(const std::string& name, const Row& x) const;
  double frequency(size_t pair, int64_t block) const;
  double rotated_share() const { return fault_ == KnownFault::kRopeWhole ? 1 : m_.rotated_share(); }
  void turn(Row& x, int64_t heads, int64_t position, int64_t block) const;
  void norm_heads(const std::string& name, Row& x) const;
  void prepare(const std::string& name, Row& x, int64_t heads, int64_t position, int64_t block) const;
  Rows behind(const std::string& branch, Rows x) const;

  const ModelConfig& m_;
  const Config& config_;
  KnownFault fault_;
  const GlobalTensors& weights_;
  int64_t place_, step_;
  bool training_;
  std::vector<int64_t> first_;     ///< by token: the first token it may attend to
  std::vector<int64_t> position_;  ///< by token
};

Row Sequence::linear(const std::string& name, const Row& x) const {
  const GlobalTensor& w = weights_.at(name + ".weight");
  const auto bias = weights_.find(name + ".bias");
  Row y(static_cast<size_t>(w.shape[0]));
  for (size_t r = 0; r < y.size(); ++r) y[r] = sum_of(x, w.values.data() + r * x.size()) + (bias == weights_.end() ? 0 : bias->second.values[r]);
  const auto a = weights_.find(name + ".lora_a.weight");
  if (a == weights_.end() || fault_ == KnownFault::kNoAdapters) return y;
  const AdapterConfig& adapter = m_.adapter;
  const auto rank = static_cast<size_t>(adapter.rank);
  const bool root = (adapter.scale == AdapterScale::kAlphaOverRootRank) != (fault_ == KnownFault::kOtherAdapterScale);
  const double scale = adapter.alpha / (root ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  Row z;
  for (size_t k = 0; k < rank; ++k) z.push_back(scale * sum_of(x, a->second.values.data() + k * x.size()));
  for (size_t r = 0; r < y.size(); ++r) y[r] += sum_of(z, weight(name + ".lora_b.weight").data() + r * rank);
  return y;
}

Row Sequence::norm(const std::string& name, const Row& x) const {
  const bool centred = m_.preset().norm == NormKind::kLayer;
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (const double v : x) mean += v / n;
  if (!centred) mean = 0;
  for (const double v : x) square += (v - mean) * (v - mean) / n;
  const std::vector<double>& w = weight(name + ".weight");
  const double one = m_.preset().norm == NormKind::kRmsPlusOne ? 1 : 0;
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = (x[i] - mean) / std::sqrt(square + m_.norm_epsilon) * (one + w[i]) + (centred ? weight(name + ".bias")[i] : 0);
  return y;
}

void Sequence::drop(const std::string& purpose, Rows& x) const {
  if (!training_ || m_.dropout == 0) return;
  const uint64_t key = random_key(static_cast<uint64_t>(config_.run.seed), "dropout:" + purpose);
  const auto step = static_cast<uint64_t>(fault_ == KnownFault::kDropoutOfStepOne ? 0 : step_);
  auto index = static_cast<uint64_t>(place_ * static_cast<int64_t>(x.size() * x.front().size()));
  for (Row& row : x)
    for (double& v : row) v = random_uniform32(key, index++, step) >= m_.dropout ? v / (1 - m_.dropout) : 0;
}

double Sequence::frequency(size_t pair, int64_t block) const {
  const bool own = windowed(block) && m_.window_rope_theta && fault_ != KnownFault::kOneRopeBase;
  const RopeScalingConfig s = own ? RopeScalingConfig() : m_.rope_scaling;
  const double base = own ? *m_.window_rope_theta : m_.rope_theta;
  const double plain = std::pow(base, -2 * static_cast<double>(pair) / (rotated_share() * static_cast<double>(*m_.head_size)));
  if (s.type == RopeScaling::kNone || fault_ == KnownFault::kRopeUnscaled) return plain;
  if (s.type == RopeScaling::kLinear) return plain / s.factor;
  const double wavelength = 2 * std::numbers::pi / plain, length = static_cast<double>(s.original_max_positions);
  if (wavelength > length / s.low_frequency_factor) return plain / s.factor;
  if (wavelength < length / s.high_frequency_factor) return plain;
  const double smooth = (length / wavelength - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
  return (1 - smooth) * plain / s.factor + smooth * plain;
}

void Sequence::turn(Row& x, int64_t heads, int64_t position, int64_t block) const {
  if (m_.preset().positions != PositionKind::kRope) return;
  const auto size = static_cast<size_t>(*m_.head_size), half = static_cast<size_t>(std::llround(rotated_share() * static_cast<double>(size))) / 2;
  for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
    for (size_t i = 0; i < half; ++i) {
      const bool pairs = fault_ == KnownFault::kRopePairs;
      double& a = x[h * size + (pairs ? 2 * i : i)];
      double& b = x[h * size + (pairs ? 2 * i + 1 : i + half)];
      const double angle = static_cast<double>(position) * frequency(i, block), c = std::cos(angle), s = std::sin(angle), old = a;
      a = old * c - b * s;
      b = b * c + old * s;
    }
  }
}

void Sequence::norm_heads(const std::string& name, Row& x) const {
  if (!m_.qk_norm && !m_.preset().head_norms) return;
  const auto size = static_cast<size_t>(*m_.head_size);
  for (size_t h = 0; h * size < x.size(); ++h) {
    const Row y = norm(name + "_norm", Row(x.begin() + static_cast<int64_t>(h * size), x.begin() + static_cast<int64_t>((h + 1) * size)));
    std::ranges::copy(y, x.begin() + static_cast<int64_t>(h * size));
  }
}

void Sequence::prepare(const std::string& name, Row& x, int64_t heads, int64_t position, int64_t block) const {
  if (fault_ != KnownFault::kNormAfterRope) norm_heads(name, x);
  turn(x, heads, position, block);
  if (fault_ == KnownFault::kNormAfterRope) norm_heads(name, x);
}

/// Number of tokens that a query attends to in a block, itself included.
int64_t Sequence::window_of(int64_t block) const {
  if (!windowed(block) || fault_ == KnownFault::kWindowIgnored) return std::numeric_limits<int64_t>::max();
  return *m_.window + (fault_ == KnownFault::kWindowWide ? 1 : 0);
}

Rows Sequence::attention(const std::string& name, const Rows& x, int64_t block) const {
  const int64_t heads = m_.heads, kv_heads = *m_.kv_heads, size = *m_.head_size, length = static_cast<int64_t>(x.size());
  const int64_t window = window_of(block);
  const bool own_scale = m_.attention_scale && fault_ != KnownFault::kScaleOfHeadSize;
  const double scale = own_scale ? *m_.attention_scale : 1 / std::sqrt(static_cast<double>(size));
  Rows q, k, v, y;
  for (size_t t = 0; t < x.size(); ++t) {
    q.push_back(linear(name + ".query", x[t]));
    k.push_back(linear(name + ".key", x[t]));
    v.push_back(linear(name + ".value", x[t]));
    prepare(name + ".query", q.back(), heads, position_[t], block);
    prepare(name + ".key", k.back(), kv_heads, position_[t], block);
  }
  for (int64_t t = 0; t < length; ++t) {
    Row out(static_cast<size_t>(heads * size), 0.0);
    const int64_t begin = std::max(first_[static_cast<size_t>(t)], t + 1 - window);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = fault_ == KnownFault::kHeadsInTurn ? h % kv_heads : h / (heads / kv_heads);
      const int64_t end = fault_ == KnownFault::kSeesNext ? std::min(t + 2, length) : t + 1;
      Row score;
      for (int64_t s = begin; s < end; ++s) {
        double dot = 0;
        for (int64_t i = 0; i < size; ++i)
          dot += q[static_cast<size_t>(t)][static_cast<size_t>(h * size + i)] * k[static_cast<size_t>(s)][static_cast<size_t>(kv * size + i)];
        score.push_back(dot * scale);
      }
      const double top = *std::ranges::max_element(score);
      double sum = 0;
      for (double& one : score) sum += one = std::exp(one - top);
      for (size_t s = 0; s < score.size(); ++s)
        for (int64_t i = 0; i < size; ++i)
          out[static_cast<size_t>(h * size + i)] += score[s] / sum * v[static_cast<size_t>(begin) + s][static_cast<size_t>(kv * size + i)];
    }
    y.push_back(linear(name + ".output", out));
  }
  return y;
}

Row Sequence::mlp(const std::string& name, const Row& x) const {
  const bool gated = m_.preset().gated;
  const Row up = linear(name + ".up", x);
  Row y = gated ? linear(name + ".gate", x) : up;
  const Activation activation = m_.mlp_activation();
  const bool other = fault_ == KnownFault::kOtherGelu;
  for (double& u : y) {
    if (activation == Activation::kSilu)
      u /= 1 + std::exp(-u);
    else if (activation == (other ? Activation::kGeluTanh : Activation::kGelu))
      u *= 0.5 * (1 + std::erf(u / std::numbers::sqrt2));
    else
      u *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (u + 0.044715 * u * u * u)));
  }
  if (gated)
    for (size_t i = 0; i < y.size(); ++i) y[i] *= up[i];
  return linear(name + ".down", y);
}

/// The result of a branch as the residual stream gets it.
Rows Sequence::behind(const std::string& branch, Rows x) const {
  if (m_.preset().norms == NormPlacement::kBoth && fault_ != KnownFault::kNoPostNorms)
    for (Row& row : x) row = norm(branch + "_post_norm", row);
  return x;
}

void add_to(Rows& x, const Rows& branch) {
  for (size_t t = 0; t < x.size(); ++t)
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += branch[t][i];
}

double Sequence::nats(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, const std::vector<int64_t>& segments) {
  int64_t begin = 0;
  for (const int64_t segment : segments) {
    for (int64_t t = 0; t < segment; ++t) {
      first_.push_back(fault_ == KnownFault::kDocumentsMixed ? 0 : begin);
      position_.push_back(fault_ == KnownFault::kDocumentsMixed || fault_ == KnownFault::kPositionsRunOn ? begin + t : t);
    }
    begin += segment;
  }
  const auto width = static_cast<size_t>(m_.hidden_size);
  Rows x;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const double* const row = weight("embedding.weight").data() + static_cast<size_t>(tokens[t]) * width;
    x.emplace_back(row, row + width);
    if (m_.preset().scaled_embedding && fault_ != KnownFault::kPlainEmbedding)
      for (double& v : x[t]) v *= std::sqrt(static_cast<double>(width));
    if (m_.preset().positions == PositionKind::kLearned)
      for (size_t i = 0; i < width; ++i) x[t][i] += weight("positions.weight")[static_cast<size_t>(position_[t]) * width + i];
  }
  drop("embedding", x);
  const auto each = [&](const auto& layer) {
    Rows y;
    for (const Row& row : x) y.push_back(layer(row));
    return y;
  };
  for (int64_t b = 0; b < m_.layers; ++b) {
    const std::string name = concat("blocks.", b);
    const std::string of_attention = name + ".attention", of_mlp = name + ".mlp";
    Rows branch = behind(of_attention, attention(of_attention, each([&](const Row& row) { return norm(of_attention + "_norm", row); }), b));
    drop(of_attention, branch);
    Rows attended = x;
    add_to(attended, branch);
    if ((m_.block_residual() == ResidualKind::kSequential) != (fault_ == KnownFault::kOtherResidual)) x = attended;
    branch = behind(of_mlp, each([&](const Row& row) { return mlp(of_mlp, norm(of_mlp + "_norm", row)); }));
    drop(of_mlp, branch);
    add_to(attended, branch);
    x = std::move(attended);
  }
  double nats = 0;
  const std::vector<double>& head = weight(m_.tied_embeddings ? "embedding.weight" : "head.weight");
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (targets[t] < 0) continue;
    const Row last = norm("final_norm", x[t]);
    Row logits;
    for (int64_t v = 0; v < *m_.vocab_size; ++v) logits.push_back(sum_of(last, head.data() + static_cast<size_t>(v) * width));
    const double top = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double one : logits) sum += std::exp(one - top);
    nats += std::log(sum) + top - logits[static_cast<size_t>(targets[t])];
  }
  return nats;
}

struct Mean {
  double nats = 0;
  int64_t count = 0;
  double value() const { return nats / static_cast<double>(std::max<int64_t>(count, 1)); }
};

void add_sequence(const Config& config, KnownFault fault, const Dataset& data, int64_t sample, Sequence sequence, Mean& mean) {
  const auto length = static_cast<size_t>(config.training.sequence_length);
  std::vector<int32_t> tokens(length), targets(length);
  std::vector<int64_t> segments;
  data.read(sample, tokens.data(), targets.data(), segments);
  mean.nats += sequence.nats(tokens, targets, segments);
  mean.count += fault == KnownFault::kMaskedCount ? static_cast<int64_t>(length) : std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
}

}  // namespace

KnownFaultText text_of(KnownFault fault) {
  switch (fault) {
    case KnownFault::kNone: return {"all", ""};
    case KnownFault::kRopePairs: return {"attention", "RoPE rotates neighbouring pairs instead of halves"};
    case KnownFault::kSeesNext: return {"attention", "the causal mask is off by one: a query attends to the token after it"};
    case KnownFault::kNormAfterRope: return {"attention", "queries and keys are normalised after RoPE instead of before it"};
    case KnownFault::kRopeUnscaled: return {"attention", "model.rope_scaling has no effect"};
    case KnownFault::kDropoutOfStepOne: return {"dropout", "dropout masks do not depend on the step"};
    case KnownFault::kMaskedCount: return {"loss", "the loss is divided by a count that includes masked targets"};
    case KnownFault::kDocumentsMixed: return {"attention", "documents of one sequence attend to each other"};
    case KnownFault::kPositionsRunOn: return {"positions", "positions do not restart in each document"};
    case KnownFault::kHeadsInTurn: return {"attention", "query heads read the wrong kv heads"};
    case KnownFault::kWindowIgnored: return {"attention", "model.window has no effect"};
    case KnownFault::kWindowWide: return {"attention", "the window is off by one: a query attends to the token just before the window"};
    case KnownFault::kOtherResidual: return {"all", "model.residual has no effect: the MLP reads the wrong stream"};
    case KnownFault::kRopeWhole: return {"attention", "model.rope_share has no effect: RoPE rotates whole heads"};
    case KnownFault::kOtherGelu: return {"mlp", "GELU is computed in its other form"};
    case KnownFault::kOneRopeBase: return {"attention", "model.window_rope_theta has no effect"};
    case KnownFault::kScaleOfHeadSize: return {"attention", "model.attention_scale has no effect"};
    case KnownFault::kPlainEmbedding: return {"embedding", "the embedding is not multiplied by the root of its width"};
    case KnownFault::kNoPostNorms: return {"all", "results of attention and MLP are not normalised"};
    case KnownFault::kNoAdapters: return {"all", "adapters add nothing"};
    case KnownFault::kOtherAdapterScale: return {"all", "adapter.scale has no effect"};
    case KnownFault::kStaleWeights: return {"all", "stale parameters: a step reads the weights from before the last update"};
  }
  return {"all", ""};
}

double Oracle::training_loss(const GlobalTensors& weights, const Dataset& data, int64_t step) const {
  // An independent definition of the sample order: epoch e is permutation e, and sample p of training has p = step * batch + index.
  const int64_t batch = config_.training.global_batch_size, all = data.sequences();
  Mean mean;
  for (int64_t index = 0; index < batch; ++index) {
    const int64_t place = step * batch + index;
    const uint64_t key = random_key(static_cast<uint64_t>(config_.run.seed), concat("shuffle:epoch:", place / all));
    const auto sample = static_cast<int64_t>(random_permutation(key, static_cast<uint64_t>(place % all), static_cast<uint64_t>(all)));
    add_sequence(config_, fault_, data, sample, {config_, fault_, weights, index, step, true}, mean);
  }
  return mean.value();
}

double Oracle::evaluation_loss(const GlobalTensors& weights, const Dataset& data) const {
  Mean mean;
  for (int64_t s = 0; s < data.sequences(); ++s) add_sequence(config_, fault_, data, s, {config_, fault_, weights, 0, 0, false}, mean);
  return mean.value();
}

GlobalTensors Oracle::initial_weights(double bias_scale, double norm_scale) const {
  const ModelConfig& m = config_.model;
  GlobalTensors weights;
  for (const ParamSpec& spec : whole_model(m)) {
    GlobalTensor& tensor = weights[spec.name];
    tensor.shape = spec.shape;
    tensor.values.assign(static_cast<size_t>(spec.shape[0] * spec.shape[1]), 1.0);
    const bool bias = spec.name.ends_with(".bias"), residual = spec.name.ends_with(".output.weight") || spec.name.ends_with(".down.weight");
    const bool norm = spec.name.ends_with("norm.weight");
    const double scale = m.preset().scaled_residual_init && residual ? 1 / std::sqrt(2.0 * static_cast<double>(m.layers)) : 1;
    const uint64_t key = random_key(static_cast<uint64_t>(config_.run.seed), "init:" + spec.name);
    const double mean = norm && m.preset().norm != NormKind::kRmsPlusOne ? 1 : 0;
    // A of an adapter has the variance of numbers uniform in +-1/sqrt(inputs); B is zero, as biases are.
    const bool a = spec.name.ends_with(".lora_a.weight"), b = spec.name.ends_with(".lora_b.weight");
    const double deviation = norm        ? norm_scale
                             : bias || b ? bias_scale
                             : a         ? 1 / std::sqrt(3.0 * static_cast<double>(spec.shape[1]))
                                         : m.init_std * scale;
    for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = mean + deviation * random_normal(key, i);
  }
  return weights;
}

}  // namespace trireme
