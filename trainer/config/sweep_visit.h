#pragma once
// Declares every key of a sweep file once, as visit.h does for a configuration.
#include "trainer/config/field.h"
#include "trainer/config/sweep.h"

namespace trireme {

inline constexpr double kMostSweepPoints = 10000;

template <class V>
void visit(V& v, SweepObjective& c) {
  v(Field{.key = "metric",
          .doc = "What points are ranked by: validation_loss of evaluations, or loss, tokens_per_second or step_seconds of training steps."},
    c.metric);
  v(Field{.key = "goal", .doc = "Whether a smaller or a larger value is better."}, c.goal);
  v(Field{.key = "take", .doc = "last: the value at the end of a point's training. best: the best one on the way."}, c.take);
  v(Field{.key = "average",
          .doc = "Number of consecutive values whose mean counts as one: a single training step is noisy.",
          .min = 1,
          .max = kMaxExtent},
    c.average);
}

template <class V>
void visit(V& v, SweepBudget& c) {
  v(Field{.key = "points",
          .doc = "Largest number of points that are started, from the first one. null: all.",
          .min = 1,
          .max = kMostSweepPoints,
          .or_null = true},
    c.points);
  v(Field{.key = "steps",
          .doc = "Largest number of training steps of all points together: a point, or the next rung of one, is started only if its steps still fit. "
                 "null: no limit.",
          .min = 1,
          .max = 1e15,
          .or_null = true},
    c.steps);
  v(Field{.key = "hours",
          .doc = "Hours after which the sweep stops its points with checkpoints, over all its jobs. null: no limit.",
          .min = 0,
          .max = 1e6,
          .above_min = true,
          .or_null = true},
    c.hours);
}

template <class V>
void visit(V& v, SweepWhere& c) {
  v(Field{.key = "place",
          .doc =
              "local: this command runs the points on this host. slurm: it writes a batch script for an array job, whose tasks run one point each."},
    c.place);
  v(Field{.key = "at_once",
          .doc = "Number of points that run at a time.",
          .min = 1,
          .max = 4096,
          .auto_rule = "usable cores / ranks of the largest point, at least 1; 1 where points use GPUs, which they would share"},
    c.at_once);
  v(Field{.key = "cores",
          .doc = "Number of cores of each point that is run: OMP_NUM_THREADS of its ranks is their share of them.",
          .min = 1,
          .max = 1 << 16,
          .auto_rule = "usable cores / at_once, at least 1; an OMP_NUM_THREADS that is set counts instead"},
    c.cores);
}

template <class V>
void visit(V& v, SweepHalving& c) {
  v(Field{.key = "first_steps",
          .doc =
              "Successive halving: all points train this number of steps, the best 1/eta of them eta times as many, and so forth up to the steps of "
              "their configuration. They resume in their run directories, on the learning-rate schedule of the complete run. null: all points train "
              "to their end.",
          .min = 1,
          .max = 1e12,
          .or_null = true},
    c.first_steps);
  v(Field{.key = "eta",
          .doc = "Factor between the steps of two rungs, and between their numbers of points.",
          .min = 2,
          .max = 1000,
          .without_effect = c.first_steps ? nullptr : "halving.first_steps is not set"},
    c.eta);
}

template <class V>
void visit(V& v, SweepRangeTest& c) {
  v(Field{.key = "from",
          .doc = "Learning rate at the beginning of a range test: one run whose rate grows by the same factor in each step.",
          .min = 0,
          .above_min = true,
          .or_null = true},
    c.from);
  v(Field{.key = "to", .doc = "Learning rate of its last step.", .min = 0, .above_min = true, .or_null = true}, c.to);
  v(Field{.key = "steps", .doc = "Number of its steps.", .min = 10, .max = 1e9, .or_null = true}, c.steps);
}

/// Their keys are read by trainer/sweep.
template <class V>
void visit(V&, SweepKeys&) {}

template <class V>
void visit(V& v, SweepConfig& c) {
  v(Field{.key = "base", .doc = "Path of the run configuration that all points start from, relative to the sweep file.", .required = true}, c.base);
  v(Field{.key = "directory", .doc = "Directory of the sweep.", .auto_rule = "runs/<name of the sweep file>"}, c.directory);
  v.section("set", "Keys of the run configuration with a value that all points have.", c.set);
  v.section(
      "axes",
      "Keys of the run configuration with the values of an axis: a list; or {grid: linspace | logspace, from, to, count}; or {random: uniform | "
      "log_uniform, from, to}; or {random: choice, values}. Points are all combinations of the values.",
      c.axes);
  v(Field{.key = "zip", .doc = "Keys of axes that advance together instead of being combined. They have equally many values.", .items = "key"},
    c.zip);
  v(Field{.key = "samples", .doc = "Number of draws of all random axes together.", .min = 1, .max = kMostSweepPoints, .or_null = true}, c.samples);
  v(Field{.key = "seed", .doc = "Random seed of the draws: sample i of an axis is a function of the seed, i and the key.", .min = 0}, c.seed);
  v.section("objective", "What points are ranked by.", c.objective);
  v.section("budget", "Limits after which nothing more is started.", c.budget);
  v.section("where", "Where and how points run.", c.where);
  v.section("halving", "Successive halving.", c.halving);
  v.section("range_test", "Learning-rate range test, in place of axes.", c.range_test);
  v(Field{.key = "retries",
          .doc = "How many times a point that a signal has killed is started again within one job of the sweep.",
          .min = 0,
          .max = 1000},
    c.retries);
  v(Field{.key = "stop_after_failures",
          .doc = "Number of failed points after which no further point is started. null: no limit.",
          .min = 1,
          .max = kMostSweepPoints,
          .or_null = true},
    c.stop_after_failures);
}

}  // namespace trireme
