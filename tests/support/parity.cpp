#include "tests/support/parity.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <sstream>

#include "tests/support/private_random.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/product_tuning.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectives.h"

namespace trireme::test {

ParityLayout ParityLayout::on_one_rank() const {
  ParityLayout one;
  one.layers = layers;
  one.optimizer = optimizer;
  one.ema = ema;
  one.window = window;
  one.window_on_all = window_on_all;
  one.islands = islands;
  one.fragments = fragments;
  one.documents = documents;
  one.block = block;
  one.frozen = frozen;
  one.adapter = adapter;
  return one;
}

ParityLayout ParityLayout::with_layers(int all, std::vector<int64_t> of_stages) const {
  ParityLayout other = *this;
  other.layers = all;
  other.layers_per_stage = std::move(of_stages);
  return other;
}

std::string ParityLayout::str() const {
  std::ostringstream out;
  out << "tp" << tensor << "pp" << pipeline << "dp" << data << "z" << zero << (replicate > 1 ? " rep" + std::to_string(replicate) : "")
      << (sequence_parallel ? " sp" : "") << " " << name_of(schedule) << " accumulation=" << name_of(gradient_accumulation)
      << " reshard=" << name_of(reshard) << " prefetch=" << prefetch << " mb" << micro_batch;
  if (stages_per_rank() > 1) out << " v" << stages_per_rank();
  if (recompute.value_or(RecomputeMode::kNone) != RecomputeMode::kNone) out << " recompute=" << name_of(*recompute) << "/" << recompute_every;
  if (!recompute_elementwise) out << " keeps elementwise";
  if (bucket_blocks > 1) out << " bucket=" << bucket_blocks;
  if (layers != 5) out << " layers=" << layers;
  if (optimizer != Optimizer::kAdamW) out << " " << name_of(optimizer);
  if (ema > 0) out << " ema=" << ema;
  if (window > 0) out << " window=" << window << (window_on_all ? "" : " on some layers");
  if (collectives != Collectives::kLibrary) out << " " << trireme::name_of(collectives);
  if (islands > 1) out << " islands=" << islands;
  if (fragments > 1) out << " fragments=" << fragments;
  if (documents) out << (balance ? " documents balanced" : " documents");
  if (rebalance) out << " rebalanced";
  if (elastic) out << " elastic";
  if (block == ParityBlock::kOtherResidual) out << " other residual";
  if (block == ParityBlock::kOtherValues) out << " other values";
  if (frozen) out << " frozen";
  if (adapter) out << " adapter";
  for (size_t s = 0; s < layers_per_stage.size(); ++s) out << (s == 0 ? " " : "+") << layers_per_stage[s];
  return out.str();
}

const char* name_of(ParityModel model) {
  switch (model) {
    case ParityModel::kLlamaGrouped: return "llama-12-heads-2-kv";
    case ParityModel::kLlama: return "llama-6-heads";
    case ParityModel::kGpt2: return "gpt2";
    case ParityModel::kGpt2Dropout: return "gpt2-dropout";
    case ParityModel::kGptNeoX: return "gpt-neox";
    case ParityModel::kGemma3: return "gemma3";
  }
  return "?";
}

bool is_legal(ParityModel model, const ParityLayout& layout) {
  const int heads = model == ParityModel::kLlamaGrouped ? 12 : 6;
  const int kv_heads = model == ParityModel::kLlamaGrouped ? 2 : 6;
  if (heads % layout.tensor != 0 || (kv_heads % layout.tensor != 0 && layout.tensor % kv_heads != 0)) return false;
  if (layout.adapter && !layout.frozen && layout.optimizer == Optimizer::kMuon) return false;
  if (layout.islands > 1 && (layout.ema > 0 || layout.balance)) return false;
  if (layout.balance && (!layout.documents || model == ParityModel::kGpt2Dropout)) return false;
  if (layout.rebalance && (layout.islands > 1 || layout.balance || layout.data == 1 || 12 / (layout.data * layout.micro_batch) <= layout.pipeline))
    return false;
  const int64_t microbatches = 12 / layout.micro_batch;
  if (layout.elastic) {
    if (layout.islands > 1 || layout.balance || layout.rebalance || microbatches < layout.data || microbatches % layout.data == 0) return false;
  } else if (12 % (layout.islands * layout.data * layout.micro_batch) != 0) {
    return false;
  }
  if (12 % layout.micro_batch != 0 || layout.data % layout.replicate != 0) return false;
  if (!allows_virtual_stages(layout.schedule, static_cast<int>(layout.stages_per_rank()))) return false;
  return (layout.micro_batch * 12) % layout.tensor == 0 && layout.stages() <= layout.layers;
}

Config parity_config(ParityModel model, const ParityLayout& layout, const std::string& precision) {
  Config config;
  config.run.seed = 20240229;
  ModelConfig& m = config.model;
  const bool gpt2 = model == ParityModel::kGpt2 || model == ParityModel::kGpt2Dropout;
  const bool neox = model == ParityModel::kGptNeoX;
  const bool gemma = model == ParityModel::kGemma3;
  m.architecture = gpt2 ? Architecture::kGpt2 : neox ? Architecture::kGptNeoX : gemma ? Architecture::kGemma3 : Architecture::kLlama;
  m.layers = layout.layers;
  // Prime where possible, so that no unit divides by a shard count: heads need not fill the hidden size.
  m.hidden_size = model == ParityModel::kLlamaGrouped ? 24 : 23;
  m.heads = model == ParityModel::kLlamaGrouped ? 12 : 6;
  m.kv_heads = model == ParityModel::kLlamaGrouped ? 2 : 6;
  m.head_size = 4;
  if (neox) m.rope_share = 0.5;
  if (layout.block == ParityBlock::kOtherResidual) m.residual = neox ? ResidualKind::kSequential : ResidualKind::kParallel;
  if (layout.block == ParityBlock::kOtherValues) {
    if (neox) m.head_size = 8;  // 2 of 8 elements
    if (!gpt2) m.rope_share = neox ? 0.25 : 0.5;
    if (gpt2) m.activation = Activation::kGelu;
    if (neox) m.activation = Activation::kGeluTanh;
    if (gemma) m.activation = Activation::kGelu;
  }
  m.ffn_size = 36;
  m.vocab_size = 61;
  m.max_positions = 13;
  m.tied_embeddings = model != ParityModel::kLlama && !neox;
  m.qkv_bias = model == ParityModel::kLlama;
  m.qk_norm = model == ParityModel::kLlamaGrouped;
  if (model == ParityModel::kLlamaGrouped)
    m.rope_scaling = {.type = RopeScaling::kLlama3, .factor = 4, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_positions = 12};
  m.dropout = model == ParityModel::kGpt2Dropout ? 0.1 : 0;
  if (gemma) m.attention_scale = 0.4;
  if (layout.window > 0) m.window = layout.window;
  if (layout.window > 0 && gemma) m.window_rope_theta = 100;
  if (layout.window > 0 && !layout.window_on_all) {
    m.window_layers.emplace();
    for (int64_t b = 0; b < m.layers; ++b)
      if (b % 3 != 1) m.window_layers->push_back(b);
  }
  if (layout.frozen) m.frozen = {"embedding.weight", "blocks.0.*", "blocks.2.attention.*", "*.mlp_norm.*", "blocks.?.mlp.down.weight"};
  if (layout.adapter) m.adapter = {.rank = 2, .alpha = 3, .targets = {"query", "value", "blocks.?.mlp.*", "blocks.*1.attention.*"}};
  m.init_std = 0.2;  // so that logits, and with them gradients, are not nearly uniform
  ParallelConfig& p = config.parallel;
  p = layout.parallel();
  p.prefetch = layout.prefetch;
  p.collectives = layout.collectives;
  p.islands = layout.islands;
  p.virtual_stages = layout.stages_per_rank();
  std::vector<int64_t> layers = layout.layers_per_stage;
  const int64_t stages = layout.stages();
  for (int64_t s = 0; layers.size() < static_cast<size_t>(stages); ++s) layers.push_back((layout.layers + s) / stages);
  p.layers_per_stage = layers;
  config.data.document_mask = layout.documents;
  if (layout.balance) config.data.balance = Balance::kCost;
  if (layout.rebalance) config.resilience.rebalance = Rebalance::kMicroBatches;
  if (layout.elastic) config.resilience.elastic = Elastic::kReplicas;
  TrainingConfig& t = config.training;
  t.steps = 10;
  t.sequence_length = 12;
  t.micro_batch_size = layout.micro_batch;
  t.global_batch_size = 12;
  t.precision = OneOf<Arithmetic>(precision);
  t.logits_chunk = 5;  // divides no micro-batch
  t.recompute = layout.recompute.value_or(RecomputeMode::kNone);
  t.recompute_every = layout.recompute_every;
  t.recompute_elementwise = layout.recompute_elementwise;
  t.optimizer.name = layout.optimizer;
  if (layout.ema > 0) t.ema.decay = layout.ema;
  if (layout.islands > 1) t.local.steps = 3;
  if (layout.fragments > 1) t.local.fragments = layout.fragments, t.local.blend = 0.5;
  t.optimizer.beta2 = traits_of(layout.optimizer).default_beta2;
  t.optimizer.learning_rate = layout.optimizer == Optimizer::kLion ? 5e-4 : 3e-3;
  // The gradient of a key bias is zero in exact arithmetic. AdamW divides its rounding noise by its own size, so in fp32 the bias would move at the
  // full learning rate in a direction that depends on the order of sums; an epsilon above the noise prevents that.
  if (precision != "fp64") t.optimizer.epsilon = 1e-5;
  if (layout.bucket_blocks > 1) {
    constexpr int64_t kAll = int64_t{1} << 62;
    p.bucket_size = kAll;
    p.bucket_size = layout.bucket_blocks * (kAll / blocks_per_unit(config));  // kAll / (kAll / bytes) is the bytes of a block
  }
  return config;
}

RunRecord train(Communicator& world, const Config& config, int steps, Device device, int threads) {
  Arena arena(device, true);
  Context ctx{device, &arena, threads, nullptr};
  return train(ctx, world, config, steps);
}

RunRecord train(Context& ctx, Communicator& world, const Config& config, int steps) {
  Trainer trainer(ctx, world, config, true);
  if (is_private(config.security)) trainer.set_privacy(test_random(), *config.security.privacy.noise);
  const bool documents = config.data.document_mask;
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size, true, documents);
  tune_products(trainer, data, 0);
  // The last batch of the validation is short.
  const RaggedDataset validation(17, config.training.sequence_length, *config.model.vocab_size, true, documents);
  RunRecord record = record_run(trainer, data, validation, {.steps = steps});
  if (!record.rejected.empty()) throw InternalError(record.rejected);
  if (record.disagreement) throw InternalError(record.disagreement->str());
  if (!record.unheld.empty()) throw InternalError(record.unheld + ": no rank owns some of its elements");
  if (!record.outside.empty()) throw InternalError(record.outside + ": a rank holds elements outside the tensor");
  return record;
}

RunRecord train_on_threads(const Config& config, int steps, Device device, bool poison) {
  RunRecord record;
  std::mutex mutex;
  RankOptions options;
  options.poison = poison;
  if (config.parallel.collectives != Collectives::kLibrary) {
    ClusterConfig cluster;
    cluster.device.type = "cpu";
    options.collectives = stepwise_options(config.parallel.collectives.value(), resolve_cluster(cluster));
  }
  run_ranks(
      mesh_shape(config.parallel).world(),
      [&](Communicator& world) {
        RunRecord mine = train(world, config, steps, device);
        if (world.rank() != 0) return;
        const std::lock_guard lock(mutex);
        record = std::move(mine);
      },
      options);
  return record;
}

RunRecord record_on_threads(const Config& config, const Dataset& data, Device device) {
  RunRecord record;
  RecordOptions options;
  options.every_state = true;
  run_ranks(mesh_shape(config.parallel).world(), [&](Communicator& world) {
    Arena arena(device, true);
    Context ctx{device, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    RunRecord of_rank = record_run(trainer, data, data, options);
    if (world.rank() == 0) record = std::move(of_rank);
  });
  return record;
}

std::string difference(const RunRecord& expected, const RunRecord& actual, double tolerance) {
  const auto relative = [&](const std::string& what, double a, double b) -> std::string {
    if (std::abs(a - b) <= tolerance * std::abs(a)) return "";
    std::ostringstream out;
    out.precision(17);
    out << what << ": " << a << " expected, got " << b;
    return out.str();
  };
  for (size_t i = 0; i < expected.loss.size(); ++i) {
    const std::string step = " of step " + std::to_string(i + 1);
    if (std::string d = relative("loss" + step, expected.loss[i], actual.loss[i]); !d.empty()) return d;
    if (std::string d = relative("grad_norm" + step, expected.grad_norm[i], actual.grad_norm[i]); !d.empty()) return d;
  }
  if (std::string d = relative("validation loss", expected.validation_loss, actual.validation_loss); !d.empty()) return d;
  const auto max_abs = [](const GlobalTensor& tensor) {
    double largest = 0;
    for (const double v : tensor.values) largest = std::max(largest, std::abs(v));
    return largest;
  };
  const auto tensors = [&](const std::string& what, const auto& a, const auto& b) -> std::string {
    if (a.size() != b.size()) return what + ": different parameters";
    double largest = 0;
    for (const auto& [name, tensor] : a) largest = std::max(largest, max_abs(tensor));
    for (const auto& [name, tensor] : a) {
      if (what != "gradient" && expected.undetermined.contains(name)) continue;
      const auto other = b.find(name);
      if (other == b.end()) return what + " of " + name + " is missing";
      const bool is_norm = what != "gradient" && name.ends_with("norm.weight");  // its size is that of what it multiplies by
      const double size = is_norm ? std::max(expected.norm_offset, max_abs(tensor)) : max_abs(tensor);
      const double bound = tolerance * std::max(size, 1e-3 * largest);
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        if (!(std::abs(tensor.values[i] - other->second.values[i]) <= bound)) {
          std::ostringstream out;
          out.precision(17);
          out << what << " of " << name << "[" << i << "]: " << tensor.values[i] << " expected, got " << other->second.values[i];
          return out.str();
        }
      }
    }
    return "";
  };
  if (std::string d = tensors("gradient", expected.first_gradient, actual.first_gradient); !d.empty()) return d;
  if (std::string d = tensors("weight", expected.weight, actual.weight); !d.empty()) return d;
  return tensors("average", expected.average, actual.average);
}

GradientErrors gradient_errors(const RunRecord& expected, const RunRecord& actual) {
  const auto norm = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += v * v;
    return std::sqrt(sum);
  };
  double largest = 0, squares = 0;
  for (const auto& [name, tensor] : expected.first_gradient) largest = std::max(largest, norm(tensor.values));
  GradientErrors errors;
  for (const auto& [name, tensor] : expected.first_gradient) {
    std::vector<double> difference = actual.first_gradient.at(name).values;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= tensor.values[i];
    const double error = norm(difference) / std::max(norm(tensor.values), 1e-2 * largest);
    errors.worst = std::max(errors.worst, error);
    squares += error * error;
  }
  errors.mean = std::sqrt(squares / static_cast<double>(expected.first_gradient.size()));
  return errors;
}

}  // namespace trireme::test
