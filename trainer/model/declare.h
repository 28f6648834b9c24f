#pragma once
// The parameter table: every parameter of a model is declared here, once.
#include "parallel/sharding/unit.h"
#include "parallel/tensor/vocab.h"
#include "trainer/model/dims.h"
#include "trainer/model/parts.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// Declares parameters in units and returns the layers that use them. One per stage.
class Declaration {
 public:
  Declaration(const ModelConfig& model, const Region& region);

  /// embedding.weight [V,D].
  VocabParallelEmbedding embedding(Unit& unit) const;
  /// positions.weight [P,D] of learned positions.
  Param* positions(Unit& unit) const;
  /// The copy of a tied embedding that the head reads on a stage other than the first: same values, not a primary copy.
  Param* tied_embedding(Unit& unit) const;
  /// `rope`: the table of part.block_spec.attention.rope; undefined without RoPE.
  TransformerBlock block(Unit& unit, const Part& part, const Tensor& rope) const;
  Norm final_norm(Unit& unit) const;
  /// head.weight [V,D] of untied embeddings.
  Param* head(Unit& unit) const;

 private:
  ParamSpec vocabulary(const std::string& name) const;
  Norm norm(Unit& unit, const std::string& name, const NormSpec& spec) const;
  /// RMSNorm over `weight`, which begins as what multiplies by 1.
  Norm rms_norm(Unit& unit, ParamSpec weight, const NormSpec& spec) const;
  Partial residual_partial() const { return region_->gradients_partial() ? Partial::kTensor : Partial::kNone; }
  ParamSpec matrix(ParamSpec spec, double standard_deviation) const;
  ParamSpec hidden_matrix(ParamSpec spec, double standard_deviation) const;
  Param* vector(Unit& unit, ParamSpec spec, Init::Kind kind) const;
  HeadNorm head_norm(Unit& unit, const std::string& name, const NormSpec& spec, int64_t first_column, int64_t heads, int64_t head_size) const;
  Linear query_key_value(Unit& unit, const std::string& name, const AttentionSpec& spec) const;
  Linear row_linear(Unit& unit, const std::string& name, const char* layer_name, int64_t inputs, bool bias) const;
  Linear mlp_up(Unit& unit, const std::string& name, const MlpSpec& spec) const;

  ModelConfig model_;
  Dims dims_;
  const Region* region_;
  TensorRank at_;
};

/// All parameters of a resolved model as a tensor rank has them.
std::vector<ParamSpec> parameters_of(const ModelConfig& model, const TensorRank& at, bool sequence_parallel);
/// All parameters of a resolved model, unsplit. The local shape of a vocabulary has rows of padding; `shape` and `box` have not.
std::vector<ParamSpec> whole_model(const ModelConfig& model);
/// Elements of the largest block of a resolved model, unsplit.
int64_t largest_block(const ModelConfig& model);
/// The group of a parameter in figures by layer: its block, or what stands before the first dot: "blocks.3", "embedding".
std::string layer_group(const std::string& parameter);
/// The groups of a resolved model, each once, in the order of the model.
std::vector<std::string> layer_groups(const ModelConfig& model);

}  // namespace trireme
