#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace trireme {

/// Something that a run reports. The measurements have kind "step" (loss, grad_norm, learning_rate, tokens, step_seconds, tokens_per_second, model_tflops,
/// mfu or null, with dynamic loss scaling loss_scale) and "evaluation" (validation_loss, and validation: the loss of each set that has a name).
struct Event {
  std::string kind;                    ///< empty where there is nothing but a text
  std::optional<int64_t> step = {};    ///< the last step that was done; none where the event belongs to no step
  nlohmann::ordered_json fields = {};  ///< an object, in the order in which a file has its keys; null: no fields
  std::string text = {};               ///< for people; empty where the fields say all
};

/// A place where the events of a run go, such as a file or a terminal.
class EventSink {
 public:
  EventSink() = default;
  virtual ~EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;

  virtual void write(const Event& event) = 0;
  /// Why events are waiting to be written; empty where none are.
  virtual std::string write_error() const { return ""; }
  /// What was written outlives a power cut from here. From any thread.
  virtual void sync() const {}
};

}  // namespace trireme
