#pragma once
// Every key of the configuration, declared once: visit(v, section) calls v(Field, value) for each field and v.section(key, doc, part) for each part,
// in the order of the file. A visitor takes any of the field types: bool, int64_t, double, std::string, Auto<int64_t>, Auto<double>,
// Auto<std::vector<int64_t>>, Auto<std::vector<double>>, std::vector<std::string>.
#include <limits>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();
inline constexpr double kMaxExtent = 2147483647;  ///< a size that must fit 32 bits

struct Field {
  const char* key;
  const char* doc;
  double min = -kUnbounded;
  double max = kUnbounded;
  bool above_min = false;                 ///< min itself is not allowed
  bool below_max = false;                 ///< max itself is not allowed
  std::vector<const char*> choices = {};  ///< of a string; empty = any
  const char* auto_rule = nullptr;        ///< what `auto` resolves to; nullptr = `auto` is not a value. A string is auto when it is empty
  const char* without_effect = nullptr;   ///< why the key does nothing beside the other values of its section; then it may not be given
  const char* note = nullptr;             ///< added to the refusal of a value that is not one of the choices
  bool required = false;                  ///< a file must give it
};

template <class V>
void visit(V& v, RunConfig& c) {
  v(Field{.key = "name", .doc = "Name of the run; the default directory carries it."}, c.name);
  v(Field{.key = "directory", .doc = "Where the run leaves everything it writes.", .auto_rule = "runs/<run.name>"}, c.directory);
  v(Field{.key = "seed", .doc = "Seed of initial weights, sample order and dropout.", .min = 0}, c.seed);
  v(Field{.key = "device",
          .doc = "Where the arithmetic runs.",
          .choices = {"auto", "cpu", "cuda"},
          .auto_rule = "cuda where every rank has a GPU, else cpu"},
    c.device);
  v(Field{.key = "ranks_per_gpu",
          .doc = "Ranks that share one GPU; more than 1 talk through host memory: slow, for tests of a layout on few GPUs.",
          .min = 1,
          .max = 64},
    c.ranks_per_gpu);
}

/// A section that only RoPE reads.
struct RopeScalingSection {
  RopeScalingConfig& values;
  bool rope;
};

template <class V>
void visit(V& v, RopeScalingSection& c) {
  RopeScalingConfig& s = c.values;
  const char* const no_rope = c.rope ? nullptr : "architecture gpt2 learns its positions";
  const char* const unscaled = no_rope ? no_rope : s.type == "none" ? "rope_scaling.type is none" : nullptr;
  const char* const other = unscaled ? unscaled : s.type == "linear" ? "rope_scaling.type linear scales all frequencies alike" : nullptr;
  v(Field{.key = "type",
          .doc = "Stretches RoPE for sequences longer than a model was trained for: linear divides every frequency by factor, llama3 the low ones.",
          .choices = {"none", "linear", "llama3"},
          .without_effect = no_rope},
    s.type);
  v(Field{.key = "factor", .doc = "Divides the frequencies.", .min = 1, .without_effect = unscaled}, s.factor);
  v(Field{.key = "low_frequency_factor",
          .doc = "llama3: wavelengths above original_max_positions / this are scaled in full.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.low_frequency_factor);
  v(Field{.key = "high_frequency_factor",
          .doc = "llama3: wavelengths below original_max_positions / this are left alone; those between are interpolated.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.high_frequency_factor);
  v(Field{.key = "original_max_positions", .doc = "llama3: positions the model was first trained for.", .min = 1, .max = kMaxExtent, .without_effect = other},
    s.original_max_positions);
}

template <class V>
void visit(V& v, ModelConfig& c) {
  const bool llama = c.architecture == "llama";
  v(Field{.key = "architecture",
          .doc = "llama: RMSNorm, RoPE, SwiGLU, grouped-query attention. gpt2: LayerNorm, learned positions, GELU, biases.",
          .choices = {"llama", "gpt2"}},
    c.architecture);
  v(Field{.key = "layers", .doc = "Transformer blocks.", .min = 1, .max = 1024}, c.layers);
  v(Field{.key = "hidden_size", .doc = "Width of the residual stream.", .min = 1, .max = 1 << 20}, c.hidden_size);
  v(Field{.key = "heads", .doc = "Query heads.", .min = 1, .max = 1 << 16}, c.heads);
  v(Field{.key = "kv_heads", .doc = "Key and value heads; heads / kv_heads query heads share one.", .min = 1, .max = 1 << 16, .auto_rule = "heads"},
    c.kv_heads);
  v(Field{.key = "head_size", .doc = "Width of one head.", .min = 1, .max = 1 << 16, .auto_rule = "hidden_size / heads"}, c.head_size);
  v(Field{.key = "ffn_size",
          .doc = "Inner width of the feed-forward block.",
          .min = 1,
          .max = 1 << 22,
          .auto_rule = llama ? "8/3 hidden_size, rounded up to a multiple of 64" : "4 hidden_size"},
    c.ffn_size);
  v(Field{.key = "vocab_size",
          .doc = "Rows of the embedding; more than the tokenizer has is padding that is never a target.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "the tokenizer's"},
    c.vocab_size);
  v(Field{.key = "max_positions",
          .doc = "Longest sequence the model can read.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "training.sequence_length"},
    c.max_positions);
  v(Field{.key = "tied_embeddings", .doc = "The output head shares the weights of the embedding."}, c.tied_embeddings);
  v(Field{.key = "dropout", .doc = "Dropped share of the embedding and of each residual branch.", .min = 0, .max = 1, .below_max = true}, c.dropout);
  v(Field{.key = "qkv_bias", .doc = "Biases on the query, key and value projections; gpt2 always has them."}, c.qkv_bias);
  v(Field{.key = "qk_norm",
          .doc = "RMSNorm over each query and key head, before RoPE.",
          .without_effect = llama ? nullptr : "architecture gpt2 has none"},
    c.qk_norm);
  v(Field{.key = "rope_theta",
          .doc = "Base of the rotary position frequencies.",
          .min = 0,
          .above_min = true,
          .without_effect = llama ? nullptr : "architecture gpt2 learns its positions"},
    c.rope_theta);
  RopeScalingSection rope_scaling{c.rope_scaling, llama};
  v.section("rope_scaling", "RoPE for sequences longer than those of a model's first training.", rope_scaling);
  v(Field{.key = "norm_epsilon", .doc = "Added to the variance inside each norm.", .min = 0, .above_min = true}, c.norm_epsilon);
  v(Field{.key = "init_std", .doc = "Standard deviation of the initial weights.", .min = 0, .above_min = true}, c.init_std);
}

template <class V>
void visit(V& v, ParallelConfig& c) {
  v(Field{.key = "tensor", .doc = "Ranks that split every matrix (tensor parallelism).", .min = 1, .max = kMaxExtent}, c.tensor);
  v(Field{.key = "pipeline", .doc = "Ranks that split the layers (pipeline parallelism).", .min = 1, .max = kMaxExtent}, c.pipeline);
  v(Field{.key = "data",
          .doc = "Ranks that split the batch: replicas x shards.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "what the world leaves, 1 outside mpirun and srun"},
    c.data);
  v(Field{.key = "zero_stage",
          .doc = "Sharded over the data ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.",
          .min = 0,
          .max = 3},
    c.zero_stage);
  v(Field{.key = "replicate", .doc = "Copies of the sharded state (hybrid sharding); divides data.", .min = 1, .max = kMaxExtent}, c.replicate);
  v(Field{.key = "sequence_parallel", .doc = "Split norms and residuals by token over the tensor ranks."}, c.sequence_parallel);
  v(Field{.key = "schedule",
          .doc = "Order of forwards and backwards in the pipeline; file: as schedule_file says.",
          .choices = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "file"}},
    c.schedule);
  v(Field{.key = "schedule_file",
          .doc = "For schedule file: a line of actions for each pipeline rank, as `config actions` prints it.",
          .without_effect = c.schedule == "file" ? nullptr : "schedule is not file"},
    c.schedule_file);
  v(Field{.key = "virtual_stages",
          .doc = "Stages of each pipeline rank; gpipe, 1f1b, zb_h1 and zb_h2 have one, zb_v has two, a file as many as it says.",
          .min = 1,
          .max = 1024,
          .auto_rule = "2 for interleaved_1f1b and zb_v, else 1"},
    c.virtual_stages);
  v(Field{.key = "layers_per_stage",
          .doc = "Layers of each of the pipeline x virtual_stages stages.",
          .min = 1,
          .max = 1024,
          .auto_rule = "balanced by parameter count"},
    c.layers_per_stage);
  v(Field{.key = "gradient_accumulation",
          .doc = "full: reduce gradients once a step. sharded: after every micro-batch, into the owned shard.",
          .choices = {"auto", "full", "sharded"},
          .auto_rule = "full for ZeRO 0-1, sharded for 2-3"},
    c.gradient_accumulation);
  v(Field{.key = "reshard", .doc = "ZeRO-3: drop gathered parameters after each use, or once a step.", .choices = {"after_use", "after_step"}},
    c.reshard);
  v(Field{.key = "prefetch", .doc = "Parts of the model (embedding, blocks, head) ahead of whose use parameters are gathered.", .min = 0, .max = 1024}, c.prefetch);
  v(Field{.key = "bucket_size",
          .doc = "About how many bytes of block parameters on one rank are gathered, and their gradients reduced, together: whole blocks, at least one.",
          .min = 1,
          .auto_rule = "one block"},
    c.bucket_size);
  v(Field{.key = "overlap", .doc = "Let communication run behind computation; false waits for each where it begins, to see what overlap gains."},
    c.overlap);
}

template <class V>
void visit(V& v, OptimizerConfig& c) {
  v(Field{.key = "name", .doc = "The optimizer.", .choices = {"adamw"}}, c.name);
  v(Field{.key = "learning_rate", .doc = "Peak learning rate.", .min = 0, .above_min = true}, c.learning_rate);
  v(Field{.key = "beta1", .doc = "Decay of the first moment.", .min = 0, .max = 1, .below_max = true}, c.beta1);
  v(Field{.key = "beta2", .doc = "Decay of the second moment.", .min = 0, .max = 1, .below_max = true}, c.beta2);
  v(Field{.key = "epsilon", .doc = "Added to the root of the second moment.", .min = 0, .above_min = true}, c.epsilon);
  v(Field{.key = "weight_decay", .doc = "Decoupled decay of matrices; norms and biases have none.", .min = 0}, c.weight_decay);
  v(Field{.key = "learning_rate_scaling",
          .doc = "Scale the learning rate by global_batch_size / reference_batch_size, or by its square root.",
          .choices = {"none", "linear", "sqrt"}},
    c.learning_rate_scaling);
  v(Field{.key = "reference_batch_size",
          .doc = "Global batch size for which learning_rate was chosen.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = c.learning_rate_scaling == "none" ? "learning_rate_scaling is none" : nullptr},
    c.reference_batch_size);
}

template <class V>
void visit(V& v, ScheduleConfig& c) {
  v(Field{.key = "name", .doc = "Shape of the learning rate over the steps, after warm-up.", .choices = {"constant", "linear", "cosine", "wsd"}},
    c.name);
  v(Field{.key = "warmup_steps", .doc = "Steps of linear growth from zero.", .min = 0}, c.warmup_steps);
  v(Field{.key = "final_learning_rate",
          .doc = "Learning rate of the last step.",
          .min = 0,
          .without_effect = c.name == "constant" ? "a constant schedule ends where it began" : nullptr},
    c.final_learning_rate);
  v(Field{.key = "decay_steps",
          .doc = "wsd: steps of the final decay.",
          .min = 1,
          .auto_rule = "a tenth of the steps",
          .without_effect = c.name == "wsd" ? nullptr : "only the wsd schedule reads it"},
    c.decay_steps);
}

template <class V>
void visit(V& v, EvaluateConfig& c) {
  v(Field{.key = "every", .doc = "Steps between evaluations; 0 = only at the end, where a validation set is given.", .min = 0}, c.every);
  v(Field{.key = "batches", .doc = "Batches of global_batch_size sequences in one evaluation; 0 = the whole set.", .min = 0}, c.batches);
}

/// A section that only fp16 reads.
struct LossScaleSection {
  LossScaleConfig& values;
  const std::string& precision;
};

template <class V>
void visit(V& v, LossScaleSection& c) {
  constexpr double kLargest = 1 << 30;
  // A precision that does not exist is told of by its own key.
  const bool other = c.precision == "fp64" || c.precision == "fp32" || c.precision == "bf16";
  const char* const without_effect = other ? "only precision fp16 scales the loss" : nullptr;
  const auto power_of_two = [&](const char* key, const char* doc, int64_t& value) {
    v(Field{.key = key, .doc = doc, .min = 1, .max = kLargest, .without_effect = without_effect}, value);
  };
  power_of_two("initial",
               "Loss scale of the first step, a power of two. The loss is a mean over the step's tokens: with millions of them begin higher.",
               c.values.initial);
  power_of_two("minimum", "An overflow halves the loss scale, down to this power of two.", c.values.minimum);
  power_of_two("maximum", "Steps without overflow double the loss scale, up to this power of two.", c.values.maximum);
  v(Field{.key = "growth_interval",
          .doc = "Steps without overflow, in a row, after which the loss scale doubles.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = without_effect},
    c.values.growth_interval);
}

template <class V>
void visit(V& v, TrainingConfig& c) {
  v(Field{.key = "steps", .doc = "Optimizer steps of the run; exactly one of steps and epochs.", .min = 1, .max = kMaxExtent}, c.steps);
  v(Field{.key = "epochs", .doc = "Passes over the training set; exactly one of steps and epochs.", .min = 1, .max = kMaxExtent}, c.epochs);
  v(Field{.key = "initial_weights",
          .doc = "Where a new run takes its weights from: none, or a checkpoint or Hugging Face folder of the same model."},
    c.initial_weights);
  v(Field{.key = "sequence_length", .doc = "Tokens of one sequence.", .min = 1, .max = kMaxExtent}, c.sequence_length);
  v(Field{.key = "micro_batch_size", .doc = "Sequences of one forward and backward.", .min = 1, .max = kMaxExtent}, c.micro_batch_size);
  v(Field{.key = "global_batch_size", .doc = "Sequences of one step, over all ranks.", .min = 1, .max = kMaxExtent}, c.global_batch_size);
  v(Field{.key = "precision",
          .doc = "Arithmetic: fp32; bf16 or fp16 with fp32 sums, master weights, moments and gradients; fp64 on the reference kernels of the "
                 "CPU.",
          .choices = {"fp64", "fp32", "bf16", "fp16"}},
    c.precision);
  v(Field{.key = "reduce_dtype",
          .doc = "Gradients on the wire between data ranks. bf16 halves the bytes and rounds every partial sum.",
          .choices = {"auto", "fp32", "bf16"},
          .auto_rule = "fp32, or fp64 with precision fp64"},
    c.reduce_dtype);
  v(Field{.key = "recompute",
          .doc = "What blocks compute again in the backward instead of keeping it: selective the attention, full everything but their input; budget "
                 "chooses for each block so that recompute_budget is kept.",
          .choices = {"none", "selective", "full", "budget"}},
    c.recompute);
  v(Field{.key = "recompute_every",
          .doc = "Only the first of every so many blocks computes again.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = c.recompute == "selective" || c.recompute == "full" ? nullptr : "recompute is neither selective nor full"},
    c.recompute_every);
  v(Field{.key = "recompute_budget",
          .doc = "For recompute budget: the most bytes that a rank may have allocated at a time; what libraries and allocators take beside is not counted.",
          .min = 1,
          .auto_rule = "none",
          .without_effect = c.recompute == "budget" ? nullptr : "recompute is not budget"},
    c.recompute_budget);
  v(Field{.key = "logits_chunk",
          .doc = "Rows of logits that exist at a time, with their gradient.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "the power of two that fits in 64 MiB"},
    c.logits_chunk);
  v(Field{.key = "gradient_clip", .doc = "Largest global gradient norm; 0 = off.", .min = 0}, c.gradient_clip);
  LossScaleSection loss_scale{c.loss_scale, c.precision};
  v.section("loss_scale", "The factor on the loss that keeps small gradients from vanishing in fp16.", loss_scale);
  v.section("optimizer", "How weights follow gradients.", c.optimizer);
  v.section("schedule", "The learning rate over the steps.", c.schedule);
  v.section("evaluate", "Validation loss during training.", c.evaluate);
}

template <class V>
void visit(V& v, DataConfig& c) {
  v(Field{.key = "tokenizer",
          .doc = "bytes (256 tokens, one for each byte), a SentencePiece *.model, a Hugging Face tokenizer.json, or a directory that holds one of them."},
    c.tokenizer);
  v(Field{.key = "train",
          .doc = "What to train on: token directories made by `trireme data build`, or token files of nanoGPT, llm.c or Megatron.",
          .required = true},
    c.train);
  v(Field{.key = "weights",
          .doc = "Share of each entry of train in the samples; they are scaled to a sum of 1.",
          .min = 0,
          .above_min = true,
          .auto_rule = "all as one stream, each token once an epoch"},
    c.weights);
  v(Field{.key = "validation", .doc = "As train, for the validation loss; name=PATH makes a set that is evaluated apart."}, c.validation);
  v(Field{.key = "document_mask",
          .doc = "Documents packed into one sequence do not attend to each other, and positions begin anew in each."},
    c.document_mask);
}

template <class V>
void visit(V& v, CheckpointConfig& c) {
  v(Field{.key = "every", .doc = "Steps between checkpoints; 0 = only at the end and on request.", .min = 0}, c.every);
  v(Field{.key = "keep", .doc = "Newest checkpoints that stay.", .min = 1}, c.keep);
  v(Field{.key = "asynchronous", .doc = "Write while training goes on."}, c.asynchronous);
}

template <class V>
void visit(V& v, ResilienceConfig& c) {
  v(Field{.key = "restarts",
          .doc = "Times the launcher starts a job again from its newest whole checkpoint after ranks have died or hung.",
          .min = 0},
    c.restarts);
  v(Field{.key = "hang_seconds", .doc = "A rank that does nothing for this long, and for five median steps, counts as hung.", .min = 1, .max = 86400},
    c.hang_seconds);
  v(Field{.key = "replica_check_every",
          .doc = "Steps between comparisons of what several ranks hold alike, made before each save too; 0 = off.",
          .min = 0},
    c.replica_check_every);
}

template <class V>
void visit(V& v, KernelsConfig& c) {
  v(Field{.key = "attention",
          .doc = "Attention on the GPU.",
          .choices = {"auto", "builtin"},
          .auto_rule = "builtin",
          .note = "this version has no cuDNN attention"},
    c.attention);
  v(Field{.key = "cpu_isa",
          .doc = "Instructions of the kernels on CPUs; two of them may round differently.",
          .choices = {"auto", "portable", "avx2", "avx512", "avx512_bf16", "amx"},
          .auto_rule = "the best that the CPU of every rank has"},
    c.cpu_isa);
  v(Field{.key = "tf32", .doc = "fp32 products on the GPU with 10 bits of mantissa."}, c.tf32);
  v(Field{.key = "cuda_graph", .doc = "On the GPU, launch a step as one captured graph from the third step on."}, c.cuda_graph);
}

template <class V>
void visit(V& v, PlanConfig& c) {
  v(Field{.key = "cluster",
          .doc = "A cluster file, as `trireme bench machine` writes one: what the forecast of `train` reckons with; none: built-in figures."},
    c.cluster);
  v(Field{.key = "must_fit", .doc = "Refuse to start ranks that by forecast need more memory than their machine has; false: start them, and see."}, c.must_fit);
}

template <class V>
void visit(V& v, Config& c) {
  v.section("run", "The run: its name, place, seed and device.", c.run);
  v.section("model", "The model.", c.model);
  v.section("parallel", "The layout: world = tensor x pipeline x data.", c.parallel);
  v.section("training", "What one step is, and how many there are.", c.training);
  v.section("data", "Token files.", c.data);
  v.section("checkpoint", "Saved states of the run.", c.checkpoint);
  v.section("resilience", "What happens when ranks die, hang or disagree.", c.resilience);
  v.section("kernels", "Which kernels compute.", c.kernels);
  v.section("plan", "What is forecast before the first step.", c.plan);
}

}  // namespace trireme
