#pragma once
// Keys of the section `training`; see visit.h.
#include "trainer/config/config.h"
#include "trainer/config/field.h"

namespace trireme {

template <class V>
void visit(V& v, OptimizerConfig& c) {
  const char* const without_state = c.name == Optimizer::kSgd ? "sgd has no momentum" : nullptr;
  const char* const not_muon = c.name == Optimizer::kMuon ? nullptr : "training.optimizer.name is not muon";
  v(Field{.key = "name",
          .doc =
              "Optimizer. Lion needs a third to a tenth of AdamW's learning rate, and three to ten times its weight decay. sgd is gradient descent "
              "without momentum. muon makes the update of each weight matrix of a block orthogonal, and trains everything else by adamw."},
    c.name);
  v(Field{.key = "learning_rate", .doc = "Peak learning rate, before learning_rate_scaling.", .min = 0, .above_min = true}, c.learning_rate);
  v(Field{.key = "beta1",
          .doc = "AdamW, also that of muon: decay rate of the first moment. Lion: weight of the momentum in the update.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .without_effect = without_state},
    c.beta1);
  v(Field{.key = "beta2",
          .doc = "AdamW, also that of muon: decay rate of the second moment. Lion: decay rate of the momentum.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .auto_rule = "0.95 for adamw and muon, 0.99 for lion",
          .without_effect = without_state},
    c.beta2);
  v(Field{.key = "epsilon",
          .doc = "AdamW, also that of muon: constant added to the square root of the second moment.",
          .min = 0,
          .above_min = true,
          .without_effect = c.name == Optimizer::kLion  ? "lion has no epsilon"
                            : c.name == Optimizer::kSgd ? "sgd has no epsilon"
                                                        : nullptr},
    c.epsilon);
  v(Field{.key = "momentum",
          .doc = "Muon: decay rate of the sum of gradients (Nesterov's form).",
          .min = 0,
          .max = 1,
          .below_max = true,
          .without_effect = not_muon},
    c.momentum);
  v(Field{.key = "update_scale",
          .doc = "Muon: length of the update of a matrix. rms: as long as AdamW's, whose learning_rate and weight_decay then fit. spectral: "
                 "sqrt(max(1, rows / columns)), for a learning_rate near 0.02.",
          .without_effect = not_muon},
    c.update_scale);
  v(Field{.key = "weight_decay", .doc = "Decoupled weight decay of matrices. Norms and biases are not decayed.", .min = 0}, c.weight_decay);
  v(Field{.key = "learning_rate_scaling",
          .doc = "Scale the learning rate by global_batch_size / reference_batch_size (linear) or by its square root (sqrt)."},
    c.learning_rate_scaling);
  v(Field{.key = "reference_batch_size",
          .doc = "Global batch size, in sequences, that learning_rate was tuned for.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = c.learning_rate_scaling == BatchScaling::kNone ? "learning_rate_scaling is none" : nullptr},
    c.reference_batch_size);
}

template <class V>
void visit(V& v, ScheduleConfig& c) {
  v(Field{.key = "name",
          .doc = "Shape of the learning rate after the warmup. wsd: constant, then a linear decay over decay_steps. exponential: each step "
                 "multiplies it "
                 "by the same factor, down or up to final_learning_rate, as in a learning-rate range test."},
    c.name);
  v(Field{.key = "warmup_steps", .doc = "Number of steps in which the learning rate grows linearly from zero to its peak.", .min = 0},
    c.warmup_steps);
  v(Field{.key = "final_learning_rate",
          .doc = "Learning rate of the last step. 0: the last step changes nothing.",
          .min = 0,
          .auto_rule = "a decay to 0 that the last step does not reach: its rate is that of a decay that ends one step later",
          .without_effect = c.name == LearningRateSchedule::kConstant ? "a constant schedule does not decay" : nullptr},
    c.final_learning_rate);
  v(Field{.key = "decay_steps",
          .doc = "wsd: number of steps of the final decay.",
          .min = 1,
          .auto_rule = "a tenth of the steps",
          .without_effect = c.name == LearningRateSchedule::kWsd ? nullptr : "schedule.name is not wsd"},
    c.decay_steps);
}

/// A resumed run may change the decay, because the trained weights do not depend on it.
template <class V>
void visit(V& v, EmaConfig& c) {
  v(execution_key({.key = "decay",
                   .doc =
                       "Decay of an exponential moving average (EMA) of the weights; null: no average is kept. After t accepted steps, the next one "
                       "uses the decay min(decay, (1 + t) / (10 + t)). eval, generate and checkpoint export read the average with --weights "
                       "ema; evaluation during training uses the trained weights.",
                   .min = 0,
                   .max = 1,
                   .above_min = true,
                   .below_max = true,
                   .or_null = true}),
    c.decay);
}

template <class V>
void visit(V& v, EvaluateConfig& c) {
  v(operation_key({.key = "every", .doc = "Steps between evaluations. 0: only at the end, if a validation set is given.", .min = 0}), c.every);
  v(operation_key({.key = "batches",
                   .doc = "Number of batches of global_batch_size sequences per evaluation. 0: the whole set; a run reports how much that is.",
                   .min = 0}),
    c.batches);
}

/// Operation keys, because the steps that are trained do not depend on them.
template <class V>
void visit(V& v, StopConfig& c) {
  v(operation_key({.key = "patience",
                   .doc = "End the run after this many evaluations in a row without improvement, as finished: with a checkpoint of the last step and "
                          "exit code 0. An evaluation improves if its validation loss is lower than that of the last one that improved, by at least "
                          "minimum. A loss that is not finite never improves. null: train all steps.",
                   .min = 1,
                   .max = kMaxExtent,
                   .or_null = true}),
    c.patience);
  v(operation_key({.key = "minimum",
                   .doc = "Smallest decrease of the validation loss, in nats, that counts as an improvement.",
                   .min = 0,
                   .without_effect = c.patience ? nullptr : "stop.patience is not set"}),
    c.minimum);
}

/// The section loss_scale; it has an effect only with precision fp16.
struct LossScaleSection {
  LossScaleConfig& values;
  const OneOf<Arithmetic>& precision;
};

template <class V>
void visit(V& v, LossScaleSection& c) {
  constexpr double kLargest = 1 << 30;
  // An invalid precision is reported at its own key.
  const bool other = c.precision == Arithmetic::kFp64 || c.precision == Arithmetic::kFp32 || c.precision == Arithmetic::kBf16;
  const char* const without_effect = other ? "only precision fp16 scales the loss" : nullptr;
  const auto power_of_two = [&](const char* key, const char* doc, int64_t& value) {
    v(Field{.key = key, .doc = doc, .min = 1, .max = kLargest, .without_effect = without_effect}, value);
  };
  power_of_two("initial",
               "Loss scale of the first step, a power of two. The loss is a mean over the step's tokens: start higher with millions of tokens.",
               c.values.initial);
  power_of_two("minimum", "Smallest loss scale, a power of two. An overflow halves the scale down to this value.", c.values.minimum);
  power_of_two("maximum", "Largest loss scale, a power of two. Steps without overflow double the scale up to this value.", c.values.maximum);
  v(Field{.key = "growth_interval",
          .doc = "Number of consecutive steps without overflow after which the loss scale doubles.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = without_effect},
    c.values.growth_interval);
}

template <class V>
void visit(V& v, CompressionConfig& c) {
  const bool none = c.method == CompressionMethod::kNone, sparse = c.method == CompressionMethod::kTopK || c.method == CompressionMethod::kRandomK;
  const bool factors = c.method == CompressionMethod::kPowerSgd;
  const bool parameters = c.parameters != ParameterEncoding::kNone;
  const char* const off = none ? "method is none" : nullptr;
  v(Field{.key = "method",
          .doc =
              "Lossy compression of the gradients that data ranks exchange; vectors are sent as they are. int8, int4: blocks with a scale each; "
              "sign: blocks of one bit and a scale; top_k: the largest elements; random_k: randomly drawn ones; power_sgd: two factors of low rank; "
              "one_bit_adam: sign, with AdamW's second moment fixed after warmup_steps."},
    c.method);
  v(Field{.key = "error_feedback",
          .doc = "Add to the next gradient what the last messages lacked. Without it training may not converge.",
          .without_effect = off},
    c.error_feedback);
  v(Field{.key = "scope",
          .doc = "Which sums are compressed: data, those over all data ranks; replicate, only those over parallel.replicate, for slow links between "
                 "replicas.",
          .without_effect = off},
    c.scope);
  v(Field{.key = "warmup_steps", .doc = "Number of first steps that are not compressed.", .min = 0, .max = kMaxExtent, .without_effect = off},
    c.warmup_steps);
  v(Field{.key = "block",
          .doc = "int8, int4, sign and one_bit_adam, and parameters: number of elements that share a scale, a multiple of 8.",
          .min = 8,
          .max = kMaxExtent,
          .without_effect = parameters ? nullptr
                            : none     ? off
                            : sparse   ? "top_k and random_k have no blocks"
                            : factors  ? "power_sgd has no blocks"
                                       : nullptr},
    c.block);
  v(Field{.key = "ratio",
          .doc = "top_k and random_k: share of the elements that is sent.",
          .min = 0,
          .max = 1,
          .above_min = true,
          .without_effect = none     ? off
                            : sparse ? nullptr
                                     : "only top_k and random_k choose elements"},
    c.ratio);
  v(Field{.key = "rank",
          .doc = "power_sgd: number of columns of the two factors. Matrices of which they have at least half as many elements are sent as they are.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = none      ? off
                            : factors ? nullptr
                                      : "only power_sgd has factors"},
    c.rank);
  v(Field{.key = "parameters",
          .doc = "Lossy compression of the parameters that data ranks gather from the shards of ZeRO 1-3; vectors are sent as they are. int8: blocks "
                 "with a scale each. The shards themselves, and checkpoints, stay exact."},
    c.parameters);
}

template <class V>
void visit(V& v, LocalConfig& c) {
  const char* const off = c.steps ? nullptr : "local.steps is not set";
  v(Field{.key = "steps",
          .doc =
              "Number of steps of a round: after it, and after the last step, the islands synchronise by an outer step on their mean weights. 1 to "
              "100 steps of local SGD, about 500 of DiLoCo. null: no local updates.",
          .min = 1,
          .max = kMaxExtent,
          .or_null = true},
    c.steps);
  v(Field{.key = "outer_learning_rate",
          .doc =
              "Learning rate of the outer step, SGD with Nesterov momentum, on the mean change of the weights in a round. 1 with outer_momentum 0 is "
              "local SGD, which averages the weights.",
          .min = 0,
          .above_min = true,
          .without_effect = off},
    c.outer_learning_rate);
  v(Field{.key = "outer_momentum", .doc = "Momentum of the outer step.", .min = 0, .max = 1, .below_max = true, .without_effect = off},
    c.outer_momentum);
  v(Field{.key = "fragments",
          .doc = "Number of parts of the model that synchronise in turn, each once in a round: block b is in part b modulo fragments. Must divide "
                 "local.steps. 1: all at the end of the round.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = off},
    c.fragments);
  v(Field{.key = "delay",
          .doc = "Steps that the sum over the islands may take beside training. An outer step uses weights from that many steps before. Must be less "
                 "than local.steps / local.fragments.",
          .min = 0,
          .max = kMaxExtent,
          .without_effect = off},
    c.delay);
  v(Field{.key = "blend",
          .doc = "Part of the shared weights in the new weights of an island; the rest are its own. 1: an island takes the shared weights, and loses "
                 "what it has learned during local.delay.",
          .min = 0,
          .max = 1,
          .above_min = true,
          .without_effect = off},
    c.blend);
}

template <class V>
void visit(V& v, AsynchronousConfig& c) {
  const char* const off = c.mode == AsynchronousMode::kNone ? "asynchronous.mode is none" : nullptr;
  const char* const other = c.mode == AsynchronousMode::kNone               ? off
                            : c.mode == AsynchronousMode::kParameterServer  ? "asynchronous.mode is parameter_server"
                            : c.mode == AsynchronousMode::kElasticAveraging ? "asynchronous.mode is elastic_averaging"
                                                                            : "asynchronous.mode is hogwild";
  const char* const without_servers = c.mode == AsynchronousMode::kParameterServer ? nullptr : other;
  const char* const without_centre = c.mode == AsynchronousMode::kElasticAveraging ? nullptr : other;
  const char* const without_order = c.mode == AsynchronousMode::kHogwild ? other : off;
  v(Field{.key = "mode",
          .doc =
              "How islands train together without waiting for each other. parameter_server: each island computes gradients of different batches, "
              "sends each to the ranks that own the weights, which apply it as it arrives, and gets the newest weights. elastic_averaging: each "
              "island takes its own steps, and now and then its weights and a centre, which the ranks share, move towards each other. "
              "Evaluations, checkpoints and exports are of the centre. hogwild: islands of one rank each, on one host, take steps of sgd on the same "
              "weights without a lock; results are not repeatable."},
    c.mode);
  v(Field{.key = "steps",
          .doc = "Number of steps (updates) of a round. After it, and after the last step, no gradient is on its way and all islands have the same "
                 "weights, or know the same centre, so that the run can be saved and evaluated.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = off},
    c.steps);
  v(Field{.key = "apply_after",
          .doc =
              "Number of gradients, each of global_batch_size / apply_after sequences, that make an update: the first that arrive, of any islands. "
              "With parallel.islands gradients and asynchronous.staleness 0 training is synchronous.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = without_servers},
    c.apply_after);
  v(Field{.key = "staleness",
          .doc = "Number of gradients that an island may have sent more than the slowest one; then it waits. 0: all islands compute the same number.",
          .min = 0,
          .max = kMaxExtent,
          .without_effect = without_servers},
    c.staleness);
  v(Field{.key = "compensation",
          .doc =
              "What is done about a gradient g of weights v that is applied to newer weights w, after s updates. learning_rate: divides the learning "
              "rate by max(1, s). delay: g + delay_weight g g (w - v), the gradient at w to first order.",
          .without_effect = without_servers},
    c.compensation);
  v(Field{.key = "delay_weight",
          .doc = "Factor of the correction of compensation: delay.",
          .min = 0,
          .above_min = true,
          .without_effect = without_servers != nullptr || c.compensation == StalenessCompensation::kDelay ? without_servers
                                                                                                          : "asynchronous.compensation is not delay"},
    c.delay_weight);
  v(Field{.key = "every",
          .doc = "Number of steps of an island between two exchanges with the centre of elastic averaging. Must divide asynchronous.steps.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = without_centre},
    c.every);
  v(Field{.key = "moving_rate",
          .doc = "Part a of the difference of an island's weights x and the centre c by which both move towards each other in an exchange: "
                 "d = a (x - c), x - d, c + d. 0: the islands train independently, and the centre stays.",
          .min = 0,
          .max = 1,
          .auto_rule = "0.9 / islands",
          .without_effect = without_centre},
    c.moving_rate);
  v(operation_key({.key = "replay",
                   .doc =
                       "Directory of a run of the same configuration whose logged order of arrivals is repeated, so that this run has the same bits. "
                       "Steps that it has not logged are in the order of their own arrivals. none: of all steps.",
                   .without_effect = without_order}),
    c.replay);
}

template <class V>
void visit(V& v, TrainingConfig& c) {
  // A constant schedule does not depend on the end of training: training longer does not change earlier steps, unless the last one ended a round of
  // local or asynchronous updates.
  const bool open_ended = c.schedule.name == LearningRateSchedule::kConstant && !c.local.steps && c.asynchronous.mode == AsynchronousMode::kNone;
  const Aspect length = open_ended ? Aspect::kOperation : Aspect::kMathematics;
  v(Field{.key = "steps",
          .doc = "Number of optimizer steps of the run. Give either steps or epochs.",
          .min = 1,
          .max = kMaxExtent,
          .decides = length},
    c.steps);
  v(Field{.key = "epochs",
          .doc = "Number of passes over the training set. Give either steps or epochs.",
          .min = 1,
          .max = kMaxExtent,
          .decides = length},
    c.epochs);
  v(Field{.key = "initial_weights", .doc = "Initial weights of a new run: none (random), or a checkpoint or Hugging Face folder of the same model."},
    c.initial_weights);
  v(Field{.key = "sequence_length", .doc = "Tokens per sequence.", .min = 1, .max = kMaxExtent}, c.sequence_length);
  v(layout_key({.key = "micro_batch_size", .doc = "Sequences per forward and backward pass of one data rank.", .min = 1, .max = kMaxExtent}),
    c.micro_batch_size);
  v(Field{.key = "global_batch_size", .doc = "Sequences per step, over all ranks.", .min = 1, .max = kMaxExtent}, c.global_batch_size);
  v(Field{.key = "precision",
          .doc = "Arithmetic precision. bf16 and fp16 keep sums, master weights, moments and gradients in fp32; fp64 runs on the CPU's reference "
                 "kernels."},
    c.precision);
  v(Field{.key = "reduce_dtype",
          .doc = "Data type of gradients in transfers between data ranks. bf16 halves the bytes and rounds every partial sum.",
          .auto_rule = "fp32, or fp64 with precision fp64"},
    c.reduce_dtype);
  v(execution_key(
        {.key = "recompute",
         .doc = "Activations that blocks recompute in the backward pass instead of storing them. selective: attention; full: everything but the "
                "block's input; budget: chosen for each block to stay within recompute_budget."}),
    c.recompute);
  v(execution_key({.key = "recompute_every",
                   .doc = "Recompute only in the first of every recompute_every blocks. 1: in every block.",
                   .min = 1,
                   .max = kMaxExtent,
                   .without_effect = c.recompute == RecomputeMode::kSelective || c.recompute == RecomputeMode::kFull
                                         ? nullptr
                                         : "recompute is neither selective nor full"}),
    c.recompute_every);
  v(execution_key(
        {.key = "recompute_elementwise",
         .doc = "Compute norms and activation functions again in the backward pass. false: keep their results, which takes more memory and less "
                "time."}),
    c.recompute_elementwise);
  v(execution_key({.key = "recompute_budget",
                   .doc = "For recompute: budget. Maximum bytes allocated on a rank at any time, not counting memory of libraries and allocator "
                          "overhead.",
                   .min = 1,
                   .auto_rule = "no budget",
                   .without_effect = c.recompute == RecomputeMode::kBudget ? nullptr : "recompute is not budget"}),
    c.recompute_budget);
  v(execution_key({.key = "logits_chunk",
                   .doc = "Number of rows (tokens) of logits, with their gradient, that are in memory at a time.",
                   .min = 1,
                   .max = kMaxExtent,
                   .auto_rule = "the largest power of two whose logits fit in 64 MiB, on a GPU at least 4,096"}),
    c.logits_chunk);
  v(Field{.key = "gradient_clip", .doc = "Maximum global gradient norm; larger gradients are scaled down to it. 0: off.", .min = 0}, c.gradient_clip);
  v(operation_key(
        {.key = "max_rejected_steps",
         .doc = "Number of consecutive rejected steps after which the run counts as diverged and exits with code 70. Overflows of the loss scale do "
                "not count. 0: no limit.",
         .min = 0,
         .max = kMaxExtent}),
    c.max_rejected_steps);
  LossScaleSection loss_scale{c.loss_scale, c.precision};
  v.section("loss_scale", "Dynamic loss scaling, which keeps small gradients from underflowing in fp16.", loss_scale);
  v.section("optimizer", "Optimizer and its parameters.", c.optimizer);
  v.section("schedule", "Learning rate schedule.", c.schedule);
  v.section("ema", "Exponential moving average of the weights.", c.ema);
  v.section("compression", "Compression of what data ranks send each other.", c.compression);
  v.section("local", "Local updates: islands take steps alone and synchronise at the end of each round.", c.local);
  v.section("asynchronous", "Asynchronous updates: islands compute gradients and apply them without waiting for each other.", c.asynchronous);
  v.section("evaluate", "Validation loss during training.", c.evaluate);
  v.section("stop", "Early stopping by the validation loss.", c.stop);
}

}  // namespace trireme
