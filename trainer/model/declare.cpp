#include "trainer/model/declare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "kernels/core/check.h"
#include "parallel/comm/null.h"

namespace trireme {

Declaration::Declaration(const ModelConfig& model, const Region& region)
    : model_(model), dims_(model, region.tensor().size()), region_(&region), at_{region.tensor().rank(), region.tensor().size()} {}

Unit& PartUnits::of(const ParamSpec& spec) const {
  Unit* const unit = is_adapter(spec.name) ? adapters_ : spec.trainable ? trainable_ : frozen_;
  TRIREME_CHECK(unit != nullptr, spec.name, ": its part has no unit for it");
  return *unit;
}

Param* Declaration::add(const PartUnits& units, std::vector<ParamSpec> specs) const {
  for (ParamSpec& spec : specs) spec.trainable = !is_frozen(model_, spec.name);
  const bool trainable = specs.front().trainable;
  for (const ParamSpec& spec : specs)
    TRIREME_CHECK(spec.trainable == trainable, spec.name, " and ", specs.front().name, " are one matrix, of which a part is frozen");
  Unit& unit = units.of(specs.front());
  return unit.add(std::move(specs));
}

ParamSpec Declaration::matrix(ParamSpec spec, double standard_deviation) const {
  spec.init = {Init::Kind::kNormal, standard_deviation};
  spec.decay = true;
  return spec;
}

ParamSpec Declaration::hidden_matrix(ParamSpec spec, double standard_deviation) const {
  ParamSpec hidden = matrix(std::move(spec), standard_deviation);
  hidden.is_hidden_matrix = true;
  return hidden;
}

Param* Declaration::vector(const PartUnits& units, ParamSpec spec, Init::Kind kind) const {
  spec.init = {kind, 0};
  return add(units, {std::move(spec)});
}

ParamSpec Declaration::vocabulary(const std::string& name) const {
  ParamSpec spec = split_rows(name, {dims_.V, dims_.D}, 2, at_, at_.size);
  spec.local[0] = stored_tokens(spec.local[0]);
  return matrix(std::move(spec), model_.init_std);
}

VocabParallelEmbedding Declaration::embedding(const PartUnits& units) const { return {add(units, {vocabulary(kEmbeddingWeight)}), region_}; }

Param* Declaration::positions(const PartUnits& units) const {
  return add(units, {matrix(replicated(kPositionsWeight, {dims_.P, dims_.D}, 2, at_, residual_partial()), model_.init_std)});
}

Param* Declaration::tied_embedding(const PartUnits& units) const {
  ParamSpec spec = vocabulary(kEmbeddingWeight);
  spec.is_primary_copy = false;
  return add(units, {std::move(spec)});
}

Param* Declaration::head(const PartUnits& units) const { return add(units, {vocabulary("head.weight")}); }

Norm Declaration::rms_norm(const PartUnits& units, ParamSpec weight, const NormSpec& spec) const {
  const bool plus_one = spec.kind == NormKind::kRmsPlusOne;
  Norm layer{.epsilon = spec.epsilon, .offset = plus_one ? 1.0 : 0.0};
  layer.weight = vector(units, std::move(weight), plus_one ? Init::Kind::kZeros : Init::Kind::kOnes);
  return layer;
}

Norm Declaration::norm(const PartUnits& units, const std::string& name, const NormSpec& spec) const {
  Norm layer = rms_norm(units, replicated(name + ".weight", {dims_.D, 1}, 1, at_, residual_partial()), spec);
  if (spec.kind == NormKind::kLayer)
    layer.bias = vector(units, replicated(name + ".bias", {dims_.D, 1}, 1, at_, residual_partial()), Init::Kind::kZeros);
  return layer;
}

Norm Declaration::final_norm(const PartUnits& units) const { return norm(units, "final_norm", final_norm_spec(model_)); }

HeadNorm Declaration::head_norm(const PartUnits& units, const std::string& name, const NormSpec& spec, int64_t first_column, int64_t heads,
                                int64_t head_size) const {
  // All heads share this weight and a tensor rank has only some of them, so its gradient is partial with and without sequence parallelism.
  return {rms_norm(units, replicated(name + ".weight", {head_size, 1}, 1, at_, Partial::kTensor), spec), first_column, heads, head_size};
}

Linear Declaration::column_linear(const PartUnits& units, const Part& block, const std::vector<ColumnLayer>& layers, const char* log_name,
                                  bool bias) const {
  std::vector<ParamSpec> weights, biases;
  for (const auto& [layer, rows, pieces] : layers) {
    const std::string prefix = block.name + "." + layer;
    weights.push_back(hidden_matrix(split_rows(prefix + ".weight", {rows, dims_.D}, 2, at_, pieces), model_.init_std));
    biases.push_back(split_rows(prefix + ".bias", {rows, 1}, 1, at_, pieces));
  }
  Linear linear{add(units, std::move(weights)), nullptr, LinearSplit::kOutputs, region_, log_name};
  if (bias) linear.bias = add(units, std::move(biases));
  const AdapterSpec& adapter = block.block_spec.adapter;
  int64_t first_output = 0;
  for (const auto& [layer, rows, pieces] : layers) {
    const std::string name = block.name + "." + layer;
    ParamSpec b = split_rows(adapter_b(name), {rows, adapter.rank}, 2, at_, pieces);
    const int64_t outputs = b.box.extent[0];
    // A rank's gradient of A is that of its own rows of B, or of its own query heads.
    if (adapter.has(layer))
      linear.adapters.push_back(
          low_rank(units, replicated(adapter_a(name), {adapter.rank, dims_.D}, 2, at_, shared_partial()), std::move(b), adapter, first_output));
    first_output += outputs;
  }
  return linear;
}

Adapter Declaration::low_rank(const PartUnits& units, ParamSpec a, ParamSpec b, const AdapterSpec& spec, int64_t first_output) const {
  // The variance of PEFT's initial values, which are uniform in +-1/sqrt(inputs).
  a = matrix(std::move(a), 1 / std::sqrt(3 * static_cast<double>(a.shape[1])));
  b.decay = true;
  return {add(units, {std::move(a)}), add(units, {std::move(b)}), spec.scale, first_output};
}

Linear Declaration::query_key_value(const PartUnits& units, const Part& block) const {
  const AttentionSpec& spec = block.block_spec.attention;
  const int64_t rows = spec.heads * spec.head_size, kv_rows = spec.kv_heads * spec.head_size;
  const int kv_pieces = static_cast<int>(std::min<int64_t>(spec.kv_heads, at_.size));
  return column_linear(units, block,
                       {{"attention.query", rows, at_.size}, {"attention.key", kv_rows, kv_pieces}, {"attention.value", kv_rows, kv_pieces}}, "qkv",
                       spec.qkv_bias);
}

Linear Declaration::mlp_up(const PartUnits& units, const Part& block) const {
  const MlpSpec& spec = block.block_spec.mlp;
  std::vector<ColumnLayer> layers;
  if (spec.gated) layers.push_back({"mlp.gate", spec.size, at_.size});
  layers.push_back({"mlp.up", spec.size, at_.size});
  return column_linear(units, block, layers, "up", spec.bias);
}

Linear Declaration::row_linear(const PartUnits& units, const Part& block, const std::string& layer, const char* log_name, int64_t inputs,
                               bool bias) const {
  const std::string name = block.name + "." + layer;
  Linear linear{add(units, {hidden_matrix(split_columns(name + ".weight", {dims_.D, inputs}, at_), residual_init_std(model_))}), nullptr,
                LinearSplit::kInputs, region_, log_name};
  // The bias gradient sums dy over all rows, so it is complete on each tensor rank.
  if (bias) linear.bias = vector(units, replicated(name + ".bias", {dims_.D, 1}, 1, at_, Partial::kNone), Init::Kind::kZeros);
  const AdapterSpec& adapter = block.block_spec.adapter;
  // A rank's gradient of B is that of its own columns of A.
  if (adapter.has(layer))
    linear.adapters.push_back(low_rank(units, split_columns(adapter_a(name), {adapter.rank, inputs}, at_),
                                       replicated(adapter_b(name), {dims_.D, adapter.rank}, 2, at_, shared_partial()), adapter, 0));
  return linear;
}

TransformerBlock Declaration::block(const PartUnits& units, const Part& part, const Tensor& rope) const {
  const std::string& name = part.name;
  const auto& [norm_spec, norms, residual, attention, mlp, unused_adapter] = part.block_spec;
  TRIREME_CHECK(mlp.gated || mlp.activation != Activation::kSilu, name, ": SiLU without a gate");
  TransformerBlock block;
  block.name = name;
  block.attention_norm = norm(units, name + ".attention_norm", norm_spec);
  block.attention.qkv = query_key_value(units, part);
  block.attention.heads = attention.heads / at_.size;
  block.attention.kv_heads = std::max<int64_t>(1, attention.kv_heads / at_.size);
  block.attention.head_size = attention.head_size;
  if (attention.head_norms) {
    const int64_t queries = block.attention.heads * attention.head_size;
    block.attention.query_norm = head_norm(units, name + ".attention.query_norm", norm_spec, 0, block.attention.heads, attention.head_size);
    block.attention.key_norm = head_norm(units, name + ".attention.key_norm", norm_spec, queries, block.attention.kv_heads, attention.head_size);
  }
  block.attention.output = row_linear(units, part, "attention.output", "out", attention.heads * attention.head_size, attention.output_bias);
  block.attention.window = attention.window;
  block.attention.score_scale = attention.score_scale;
  block.attention.rope = rope;
  block.residual = residual;
  if (norms == NormPlacement::kBoth) block.attention_post_norm.norm = norm(units, name + ".attention_post_norm", norm_spec);
  block.mlp_norm = norm(units, name + ".mlp_norm", norm_spec);
  block.mlp.up = mlp_up(units, part);
  block.mlp.down = row_linear(units, part, "mlp.down", "down", mlp.size, mlp.bias);
  block.mlp.activation = mlp.activation;
  block.mlp.gated = mlp.gated;
  block.mlp.ffn = mlp.size / at_.size;
  if (norms == NormPlacement::kBoth) block.mlp_post_norm.norm = norm(units, name + ".mlp_post_norm", norm_spec);
  return block;
}

namespace {

void declare_own(const Declaration& declare, const ModelConfig& model, const Part& part, Unit& unit) {
  switch (part.kind) {
    case PartKind::kEmbedding:
      declare.embedding(unit);
      if (has_learned_positions(model)) declare.positions(unit);
      break;
    case PartKind::kBlock: declare.block(unit, part, Tensor()); break;
    case PartKind::kHead:
      declare.final_norm(unit);
      if (!model.tied_embeddings) declare.head(unit);
  }
}

/// Declares all parts of the model in one unit.
Unit table_of(const ModelConfig& model, const TensorRank& at, bool sequence_parallel) {
  NullCommunicator tensor(at.rank, at.size, "tensor");
  const Region region(tensor, sequence_parallel);
  const Declaration declare(model, region);
  Unit unit("model");
  for (const Part& part : parts_of(model, whole_range(model))) declare_own(declare, model, part, unit);
  return unit;
}

/// The same model with all parameters trainable.
ModelConfig without_frozen(ModelConfig model) {
  model.frozen.clear();
  return model;
}

}  // namespace

std::vector<ParamSpec> parameters_of(const ModelConfig& model, const TensorRank& at, bool sequence_parallel) {
  std::vector<ParamSpec> specs;
  const Unit table = table_of(model, at, sequence_parallel);
  for (const auto& param : table.params()) specs.insert(specs.end(), param->specs.begin(), param->specs.end());
  return specs;
}

std::vector<std::string> parameter_names(const ModelConfig& model, const Part& part) {
  const ModelConfig all = without_frozen(model);  // the names are asked for to know what model.frozen names
  NullCommunicator tensor(0, 1, "tensor");
  const Region region(tensor, false);
  Unit unit("part");
  declare_own(Declaration(all, region), all, part, unit);
  std::vector<std::string> names;
  for (const auto& param : unit.params())
    for (const ParamSpec& spec : param->specs) names.push_back(spec.name.substr(part.kind == PartKind::kBlock ? part.name.size() + 1 : 0));
  return names;
}

std::vector<std::vector<std::string>> stacked_names(const ModelConfig& model) {
  std::vector<std::vector<std::string>> all;
  const Unit table = table_of(without_frozen(model), {}, false);
  for (const auto& param : table.params()) {
    std::vector<std::string>& names = all.emplace_back();
    for (const ParamSpec& spec : param->specs) names.push_back(spec.name);
  }
  return all;
}

std::vector<ParamSpec> whole_model(const ModelConfig& model) { return parameters_of(model, TensorRank{}, false); }

int64_t largest_block(const ModelConfig& model) {
  std::map<int64_t, int64_t> elements;
  for (const ParamSpec& spec : whole_model(model))
    if (const auto inside = in_block(spec.name)) elements[inside->block] += spec.shape[0] * spec.shape[1];
  int64_t largest = 0;
  for (const auto& [block, count] : elements) largest = std::max(largest, count);
  return largest;
}

std::string layer_group(const std::string& parameter) {
  const auto inside = in_block(parameter);
  return inside ? block_name(inside->block) : parameter.substr(0, parameter.find('.'));
}

namespace {

std::vector<std::string> groups_of(const ModelConfig& model, bool frozen_too) {
  std::vector<std::string> groups;
  for (const ParamSpec& spec : whole_model(model))
    if (std::string group = layer_group(spec.name); (frozen_too || spec.trainable) && std::ranges::find(groups, group) == groups.end())
      groups.push_back(std::move(group));
  return groups;
}

}  // namespace

std::vector<std::string> layer_groups(const ModelConfig& model) { return groups_of(model, true); }
std::vector<std::string> trainable_layer_groups(const ModelConfig& model) { return groups_of(model, false); }

}  // namespace trireme
