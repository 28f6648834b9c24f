#pragma once
// Moments in the order of a device's work: for timelines of actions, operations and communication.
#include <chrono>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/gpu.h"

namespace trireme {

/// On a device that computes synchronously this is the host's steady clock. On a GPU a moment is an event on the compute stream: marking never waits,
/// and the time is read after the work is done. One thread only.
class DeviceClock {
 public:
  using Host = std::chrono::steady_clock;

  struct Moment {
    double seconds = 0;           ///< after the origin; on a GPU unknown until DeviceClock::seconds
    cuda::Event event = nullptr;  ///< null: `seconds` is known
  };

  /// On a GPU this waits until the device is idle, to relate the event clock to the host's. The error is at most half the time of one event record
  /// and wait. `ctx.gpu` must outlive the clock.
  DeviceClock(const Context& ctx, Host::time_point origin);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// The end of the work that `ctx` has queued so far. Never waits. On a GPU a moment on the host's clock if `ctx` computes on the host.
  Moment mark(const Context& ctx);
  /// Now, on the host's clock.
  Moment now() const { return {std::chrono::duration<double>(Host::now() - origin_).count(), nullptr}; }
  /// Seconds from the origin to the moment. On a GPU this waits for the moment, so do not call it within a step. The resolution of CUDA events is
  /// 0.5 microseconds.
  double seconds(const Moment& moment) const;

 private:
  Host::time_point origin_;
  cuda::Gpu* gpu_ = nullptr;           ///< null: the host's clock
  cuda::Event base_ = nullptr;         ///< the event that both clocks know
  double base_seconds_ = 0;            ///< its time after the origin
  std::vector<cuda::Event> recorded_;  ///< returned to the pool at the end
};

}  // namespace trireme
