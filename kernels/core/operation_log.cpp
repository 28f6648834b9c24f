#include "kernels/core/operation_log.h"

#include <algorithm>
#include <utility>

#include "kernels/core/gpu.h"

namespace trireme {

static int64_t width_of(const AttentionWork& work) { return work.window > 0 ? std::min(work.window, work.length) : work.length; }

double AttentionWork::scores() const {
  const auto width = static_cast<double>(width_of(*this));
  return static_cast<double>(sequences * heads) * width * (static_cast<double>(length) - width / 2);
}

double AttentionWork::all_scores() const {
  return static_cast<double>(sequences * heads) * static_cast<double>(length) * static_cast<double>(width_of(*this));
}

double OperationRecord::flops() const {
  if (kind == OperationKind::kProduct) return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (kind != OperationKind::kAttention) return 0;
  return (attention.backward ? 8.0 : 4.0) * attention.scores() * static_cast<double>(attention.head_size);
}

void OperationLog::open(const Context& ctx, const OperationRecord& record) {
  records_.push_back(record);
  records_.back().layer = layer_;
  if (clock_ != nullptr) intervals_.push_back({records_.size() - 1, clock_->mark(ctx), {}});
  if (!timed_) return;
  if (ctx.device == Device::kCuda) ctx.gpu->synchronize();
  records_.back().begin = seconds();
}

void OperationLog::close(const Context& ctx) {
  if (clock_ != nullptr) intervals_.back().end = clock_->mark(ctx);
  if (!timed_) return;
  if (ctx.device == Device::kCuda) ctx.gpu->synchronize();
  records_.back().seconds = seconds() - records_.back().begin;
}

std::vector<OperationRecord> OperationLog::take() {
  for (const Interval& interval : std::exchange(intervals_, {})) {
    OperationRecord& record = records_[interval.record];
    record.begin = clock_->seconds(interval.begin);
    record.seconds = clock_->seconds(interval.end) - record.begin;
  }
  return std::exchange(records_, {});
}

}  // namespace trireme
