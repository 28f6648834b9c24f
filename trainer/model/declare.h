#pragma once
// The parameter table: every parameter of a model is declared here, once.
#include "parallel/sharding/unit.h"
#include "parallel/tensor/vocab.h"
#include "trainer/model/dims.h"
#include "trainer/model/parts.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

inline constexpr const char* kEmbeddingWeight = "embedding.weight";
inline constexpr const char* kPositionsWeight = "positions.weight";

/// The units in which a part declares its parameters: the trainable ones, adapters, and the frozen ones; or all in one.
class PartUnits {
 public:
  PartUnits(Unit& all) : trainable_(&all), adapters_(&all), frozen_(&all) {}
  /// Each may be null if the part has no parameters for it, and `frozen` if `trainable` has them all.
  PartUnits(Unit* trainable, Unit* adapters, Unit* frozen)
      : trainable_(trainable), adapters_(adapters), frozen_(frozen != nullptr ? frozen : trainable) {}
  Unit& of(const ParamSpec& spec) const;

 private:
  Unit *trainable_, *adapters_, *frozen_;
};

/// Declares parameters in units and returns the layers that use them. One per stage.
class Declaration {
 public:
  Declaration(const ModelConfig& model, const Region& region);

  /// embedding.weight [V,D].
  VocabParallelEmbedding embedding(const PartUnits& units) const;
  /// positions.weight [P,D] of learned positions.
  Param* positions(const PartUnits& units) const;
  /// The copy of a tied embedding that the head reads on a stage other than the first: same values, not a primary copy.
  Param* tied_embedding(const PartUnits& units) const;
  /// `rope`: the table of part.block_spec.attention.rope; undefined without RoPE.
  TransformerBlock block(const PartUnits& units, const Part& part, const Tensor& rope) const;
  Norm final_norm(const PartUnits& units) const;
  /// head.weight [V,D] of untied embeddings.
  Param* head(const PartUnits& units) const;

 private:
  /// One of the layers of a block with the same input: its name without the block's, the rows of its weight, and in how many pieces ranks have them.
  struct ColumnLayer {
    const char* layer;
    int64_t rows;
    int pieces;
  };

  ParamSpec vocabulary(const std::string& name) const;
  Norm norm(const PartUnits& units, const std::string& name, const NormSpec& spec) const;
  /// RMSNorm over `weight`, which begins as what multiplies by 1.
  Norm rms_norm(const PartUnits& units, ParamSpec weight, const NormSpec& spec) const;
  Partial residual_partial() const { return region_->gradients_partial() ? Partial::kTensor : Partial::kNone; }
  /// Each tensor rank computes a part of the gradient of the matrix of an adapter that all of them hold.
  Partial shared_partial() const { return at_.size > 1 ? Partial::kTensor : Partial::kNone; }
  ParamSpec matrix(ParamSpec spec, double standard_deviation) const;
  ParamSpec hidden_matrix(ParamSpec spec, double standard_deviation) const;
  /// Adds parameters that one layer reads as one matrix. Errors: InternalError if model.frozen has some of them only.
  Param* add(const PartUnits& units, std::vector<ParamSpec> specs) const;
  Param* vector(const PartUnits& units, ParamSpec spec, Init::Kind kind) const;
  HeadNorm head_norm(const PartUnits& units, const std::string& name, const NormSpec& spec, int64_t first_column, int64_t heads,
                     int64_t head_size) const;
  Linear query_key_value(const PartUnits& units, const Part& block) const;
  Linear row_linear(const PartUnits& units, const Part& block, const std::string& layer, const char* log_name, int64_t inputs, bool bias) const;
  Linear mlp_up(const PartUnits& units, const Part& block) const;
  /// Adds weight and bias of the layers of a block that are one linear layer, with outputs split, and their adapters.
  Linear column_linear(const PartUnits& units, const Part& block, const std::vector<ColumnLayer>& layers, const char* log_name, bool bias) const;
  /// Adds the matrices of an adapter, which adds to the outputs of its layer from `first_output` on.
  Adapter low_rank(const PartUnits& units, ParamSpec a, ParamSpec b, const AdapterSpec& spec, int64_t first_output) const;

  ModelConfig model_;
  Dims dims_;
  const Region* region_;
  TensorRank at_;
};

/// Names of a part's own parameters, those of a block without the block's name.
std::vector<std::string> parameter_names(const ModelConfig& model, const Part& part);
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
/// Those with a trainable parameter.
std::vector<std::string> trainable_layer_groups(const ModelConfig& model);
/// The names of the parameters of a model that are one matrix or vector of its layers: query, key and value; gate and up; or a parameter alone.
std::vector<std::vector<std::string>> stacked_names(const ModelConfig& model);

}  // namespace trireme
