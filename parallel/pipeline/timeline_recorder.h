#pragma once
#include <utility>
#include <vector>

#include "kernels/core/device_clock.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

/// Records when actions begin and end on a device clock, without waiting for the device.
class TimelineRecorder {
 public:
  /// `clock` must outlive the recorder.
  explicit TimelineRecorder(DeviceClock& clock) : clock_(clock) {}

  /// Returns the index of the event, for end().
  size_t begin(const Context& ctx, const Action& action) {
    events_.push_back({action, clock_.mark(ctx), {}});
    return events_.size() - 1;
  }
  void end(const Context& ctx, size_t event) { events_[event].end = clock_.mark(ctx); }
  /// Returns the events in the order of begin(), in seconds since the clock's origin, and clears the recorder. On a GPU it waits for the last one.
  Timeline take() {
    Timeline timeline;
    for (const Event& event : std::exchange(events_, {})) timeline.push_back({event.action, clock_.seconds(event.begin), clock_.seconds(event.end)});
    return timeline;
  }

 private:
  struct Event {
    Action action;
    DeviceClock::Moment begin, end;
  };
  DeviceClock& clock_;
  std::vector<Event> events_;
};

}  // namespace trireme
