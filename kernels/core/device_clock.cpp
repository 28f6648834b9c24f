#include "kernels/core/device_clock.h"

#include <limits>

namespace trireme {

DeviceClock::DeviceClock(const Context& ctx, Host::time_point origin) : origin_(origin), gpu_(ctx.device == Device::kCuda ? ctx.gpu : nullptr) {
  if (gpu_ == nullptr) return;
  gpu_->synchronize();
  constexpr int kTries = 5;  // the host may be interrupted in one of them
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const double before = now().seconds;
    const cuda::Event event = recorded_.emplace_back(gpu_->record_time(gpu_->compute()));
    gpu_->synchronize();
    const double after = now().seconds;
    if (after - before >= shortest) continue;
    shortest = after - before;
    base_ = event;
    base_seconds_ = (before + after) / 2;
  }
}

DeviceClock::~DeviceClock() {
  for (const cuda::Event event : recorded_) gpu_->recycle_time(event);
}

DeviceClock::Moment DeviceClock::mark(const Context& ctx) {
  if (gpu_ == nullptr || ctx.device != Device::kCuda) return now();
  return {0, recorded_.emplace_back(gpu_->record_time(gpu_->compute()))};
}

double DeviceClock::seconds(const Moment& moment) const {
  return moment.event == nullptr ? moment.seconds : base_seconds_ + gpu_->seconds_between(base_, moment.event);
}

}  // namespace trireme
