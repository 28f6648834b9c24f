#pragma once
// The operations of a rank: one record for each operation of kernels/ops and each collective of a tensor-parallel layer, in the order of issue. On
// the meta device the log gives the cost of a program without running it; on a real device it can also measure seconds.
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/device_clock.h"
#include "kernels/core/dtype.h"

namespace trireme {

enum class OperationKind : uint8_t {
  kElementwise,  ///< limited by memory traffic
  kProduct,
  kAttention,
  kCollective,
};

/// Dimensions of a causal attention operation; see AttentionShape.
struct AttentionWork {
  int64_t sequences = 0, length = 0, heads = 0, head_size = 0;
  int64_t window = 0;  ///< maximum number of keys that a query attends to; 0: no limit
  bool backward = false;
  /// Unmasked (query, key) pairs over all sequences and heads. Without a window length^2 / 2 per sequence and head, by convention.
  double scores() const;
  /// The same including the pairs that the causal mask removes: length x length, or length x window, each.
  double all_scores() const;
};

struct OperationRecord {
  const char* name = "";   ///< function of kernels/ops, or collective
  const char* layer = "";  ///< layer set by LogLayer, or empty
  OperationKind kind = OperationKind::kElementwise;
  DType dtype = DType::kF32;     ///< the activations' dtype
  int64_t bytes = 0;             ///< sum over operands, twice if read and written; kCollective: the full tensor
  int64_t m = 0, n = 0, k = 0;   ///< kProduct: [m,k] times [k,n]
  bool accumulates = false;      ///< kProduct: added to the output (weight gradient)
  AttentionWork attention = {};  ///< kAttention
  double begin = 0;              ///< timed log: seconds after its origin
  double seconds = 0;            ///< timed log: duration; kCollective: 0

  /// kProduct: 2 m n k. kAttention: 4 head_size per score in the forward, 8 head_size in the backward. Others: 0.
  double flops() const;
};

/// Operations composed of others (a fused matrix product and activation on an engine without such a kernel) appear as their parts.
class OperationLog {
 public:
  using Clock = std::chrono::steady_clock;

  OperationLog() = default;
  /// A timed log: each record gets the begin and the duration of its operation. On a GPU the log waits for the device before and after each
  /// operation, so that durations include the launch and nothing overlaps.
  explicit OperationLog(Clock::time_point origin) : timed_(true), origin_(origin) {}
  /// A timed log that never waits within the program: it marks moments of `clock`, which must outlive it, and take() reads them.
  explicit OperationLog(DeviceClock& clock) : clock_(&clock) {}

  /// Records the start of a collective; `bytes` of the full tensor. It is not timed: communicators report what ranks wait for.
  void collective(const char* verb, DType dtype, int64_t bytes) {
    records_.push_back({.name = verb, .layer = layer_, .kind = OperationKind::kCollective, .dtype = dtype, .bytes = bytes});
  }

  /// Begin and end of an operation. Errors: those of the device, in a timed log.
  void open(const Context& ctx, const OperationRecord& record);
  void close(const Context& ctx);

  /// Returns the records and clears the log. With a DeviceClock of a GPU it waits for the last operation.
  std::vector<OperationRecord> take();

 private:
  friend class LogLayer;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  struct Interval {
    size_t record;
    DeviceClock::Moment begin, end;
  };

  const char* layer_ = "";
  bool timed_ = false;
  Clock::time_point origin_;
  DeviceClock* clock_ = nullptr;
  std::vector<OperationRecord> records_;
  std::vector<Interval> intervals_;  ///< of the records that are not collectives, if there is a clock
};

/// Scope guard: records logged during its lifetime belong to `layer`.
class LogLayer {
 public:
  LogLayer(const Context& ctx, const char* layer) : log_(ctx.log), before_(log_ != nullptr ? std::exchange(log_->layer_, layer) : "") {}
  ~LogLayer() {
    if (log_ != nullptr) log_->layer_ = before_;
  }
  LogLayer(const LogLayer&) = delete;
  LogLayer& operator=(const LogLayer&) = delete;

 private:
  OperationLog* log_;
  const char* before_;
};

}  // namespace trireme
