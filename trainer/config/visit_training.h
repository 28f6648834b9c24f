#pragma once
// The keys of `training`, as visit.h has them.
#include "trainer/config/config.h"
#include "trainer/config/field.h"

namespace trireme {

template <class V>
void visit(V& v, OptimizerConfig& c) {
  v(Field{.key = "name", .doc = "The optimizer. Lion wants a third to a tenth of AdamW's learning rate, and three to ten times its decay."}, c.name);
  v(Field{.key = "learning_rate", .doc = "Peak learning rate.", .min = 0, .above_min = true}, c.learning_rate);
  v(Field{.key = "beta1", .doc = "AdamW: decay of the first moment. Lion: weight of the momentum in a step.", .min = 0, .max = 1, .below_max = true},
    c.beta1);
  v(Field{.key = "beta2",
          .doc = "AdamW: decay of the second moment. Lion: of the momentum.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .auto_rule = "0.95 for adamw, 0.99 for lion"},
    c.beta2);
  v(Field{.key = "epsilon",
          .doc = "AdamW: added to the root of the second moment.",
          .min = 0,
          .above_min = true,
          .without_effect = c.name == Optimizer::kLion ? "lion divides by nothing" : nullptr},
    c.epsilon);
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
  v(Field{.key = "name", .doc = "Shape of the learning rate over the steps, after warm-up."}, c.name);
  v(Field{.key = "warmup_steps", .doc = "Steps of linear growth from zero.", .min = 0}, c.warmup_steps);
  v(Field{.key = "final_learning_rate",
          .doc = "Learning rate of the last step.",
          .min = 0,
          .without_effect = c.name == LearningRateSchedule::kConstant ? "a constant schedule ends where it began" : nullptr},
    c.final_learning_rate);
  v(Field{.key = "decay_steps",
          .doc = "wsd: steps of the final decay.",
          .min = 1,
          .auto_rule = "a tenth of the steps",
          .without_effect = c.name == LearningRateSchedule::kWsd ? nullptr : "only the wsd schedule reads it"},
    c.decay_steps);
}

/// A resumed run may change it, for the trained weights do not depend on it.
template <class V>
void visit(V& v, EmaConfig& c) {
  v(execution_key({.key = "decay",
                   .doc = "Decay of an exponential moving average of the weights, kept beside them: after each accepted step it moves by 1 - "
                          "min(decay, (1 + t) / (10 + t)) of its distance to them, t = accepted steps before. --weights ema of eval, generate and "
                          "checkpoint export reads it; evaluation during training stays on the trained weights. null: none is kept.",
                   .min = 0,
                   .max = 1,
                   .above_min = true,
                   .below_max = true,
                   .or_null = true}),
    c.decay);
}

template <class V>
void visit(V& v, EvaluateConfig& c) {
  v(operation_key({.key = "every", .doc = "Steps between evaluations; 0 = only at the end, where a validation set is given.", .min = 0}), c.every);
  v(operation_key({.key = "batches", .doc = "Batches of global_batch_size sequences in one evaluation; 0 = the whole set.", .min = 0}), c.batches);
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
  // A constant schedule does not look at the end of training: to train longer changes no step that was done.
  const Aspect length = c.schedule.name == LearningRateSchedule::kConstant ? Aspect::kOperation : Aspect::kMathematics;
  v(Field{.key = "steps", .doc = "Optimizer steps of the run; exactly one of steps and epochs.", .min = 1, .max = kMaxExtent, .decides = length},
    c.steps);
  v(Field{.key = "epochs", .doc = "Passes over the training set; exactly one of steps and epochs.", .min = 1, .max = kMaxExtent, .decides = length},
    c.epochs);
  v(Field{.key = "initial_weights", .doc = "Where a new run takes its weights from: none, or a checkpoint or Hugging Face folder of the same model."},
    c.initial_weights);
  v(Field{.key = "sequence_length", .doc = "Tokens of one sequence.", .min = 1, .max = kMaxExtent}, c.sequence_length);
  v(layout_key({.key = "micro_batch_size", .doc = "Sequences of one forward and backward.", .min = 1, .max = kMaxExtent}), c.micro_batch_size);
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
  v(execution_key({.key = "recompute",
                   .doc =
                       "What blocks compute again in the backward instead of keeping it: selective the attention, full everything but their input; "
                       "budget chooses for each block so that recompute_budget is kept."}),
    c.recompute);
  v(execution_key({.key = "recompute_every",
                   .doc = "Only the first of every so many blocks computes again.",
                   .min = 1,
                   .max = kMaxExtent,
                   .without_effect = c.recompute == RecomputeMode::kSelective || c.recompute == RecomputeMode::kFull
                                         ? nullptr
                                         : "recompute is neither selective nor full"}),
    c.recompute_every);
  v(execution_key({.key = "recompute_budget",
                   .doc = "For recompute budget: the most bytes that a rank may have allocated at a time; what libraries and allocators take beside "
                          "is not counted.",
                   .min = 1,
                   .auto_rule = "none",
                   .without_effect = c.recompute == RecomputeMode::kBudget ? nullptr : "recompute is not budget"}),
    c.recompute_budget);
  v(execution_key({.key = "logits_chunk",
                   .doc = "Rows of logits that exist at a time, with their gradient.",
                   .min = 1,
                   .max = kMaxExtent,
                   .auto_rule = "the power of two that fits in 64 MiB"}),
    c.logits_chunk);
  v(Field{.key = "gradient_clip", .doc = "Largest global gradient norm; 0 = off.", .min = 0}, c.gradient_clip);
  v(operation_key(
        {.key = "max_rejected_steps",
         .doc =
             "Rejected steps in a row after which the run has diverged and ends with exit code 70; overflows of the loss scale do not count. 0 = no "
             "limit.",
         .min = 0,
         .max = kMaxExtent}),
    c.max_rejected_steps);
  LossScaleSection loss_scale{c.loss_scale, c.precision};
  v.section("loss_scale", "The factor on the loss that keeps small gradients from vanishing in fp16.", loss_scale);
  v.section("optimizer", "How weights follow gradients.", c.optimizer);
  v.section("schedule", "The learning rate over the steps.", c.schedule);
  v.section("ema", "A moving average of the weights.", c.ema);
  v.section("evaluate", "Validation loss during training.", c.evaluate);
}

}  // namespace trireme
