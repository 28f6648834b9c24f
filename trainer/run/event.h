#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/clock_text.h"

namespace trireme {

struct Histogram;  // trainer/loop/histograms.h

/// An event reported by a run. Measurements have kind "step" (loss, grad_norm, learning_rate, tokens, step_seconds, tokens_per_second, model_tflops,
/// mfu or null, with dynamic loss scaling loss_scale, with weights of data sets data_tokens or data_sequences, with packing padding, with balance
/// cost_imbalance, with rebalance imbalance, with a robust rule suspects by data rank, with privacy epsilon or null, if recorded activation_max by
/// layer), "evaluation" (validation_loss, and validation: the loss of each set that has a name), "ranks" (RankFigures) and "exposed" (Tracer).
struct Event {
  std::string kind;                    ///< empty if the event is only a text
  std::optional<int64_t> step = {};    ///< the last completed step; nullopt if the event is not tied to a step
  nlohmann::ordered_json fields = {};  ///< an object whose key order is that of the file; null: no fields
  std::string text = {};               ///< human-readable; empty if there are only fields
  std::optional<WallClock::time_point> time = {};
};

/// A number of a measurement, for sinks that know only numbers.
struct Figure {
  std::string name;  ///< the key; of kinds other than step and evaluation behind the kind and a slash: "ranks/imbalance"
  std::string part;  ///< of an object, the key within it; of a list, one value for each rank, "min", "mean" or "max"; else empty
  double value;      ///< may be NaN or infinite
};
/// The numbers of a measurement that belongs to a step; none of another event.
std::vector<Figure> figures_of(const Event& event);

/// A destination of the events of a run, such as a file or a terminal.
class EventSink {
 public:
  EventSink() = default;
  virtual ~EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;

  virtual void write(const Event& event) = 0;
  /// Called before each batch of an evaluation: `done` of `batches` have taken `seconds`. Not a measurement; only a console shows it.
  virtual void evaluating(int64_t /*step*/, int64_t /*done*/, int64_t /*batches*/, double /*seconds*/) {}
  /// Histograms of weights and gradients after `step`. Not an event: only TensorBoard shows them.
  virtual void histograms(int64_t /*step*/, const std::vector<Histogram>& /*histograms*/) {}
  /// Called once, before the last texts of a run that has ended as planned; only a console uses it.
  virtual void finish() {}
  /// The error that keeps events from being written; empty if none are pending.
  virtual std::string write_error() const { return ""; }
  /// Flushes written events to stable storage. Thread-safe.
  virtual void sync() const {}
};

}  // namespace trireme
