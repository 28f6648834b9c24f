#pragma once
// What a rank computed: one record for each operation of kernels/ops and each collective of a tensor-parallel layer, in the order of issue. On the meta
// device the log is the cost of a program that was never run; on a real one it has the seconds too.
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/dtype.h"

namespace trireme {

enum class OperationKind : uint8_t {
  kElementwise,  ///< limited by the bytes that pass through memory
  kProduct,
  kAttention,
  kCollective,
};

/// The causal attention of an operation; the letters of AttentionShape.
struct AttentionWork {
  int64_t sequences = 0, length = 0, heads = 0, head_size = 0;
  int64_t window = 0;  ///< keys that a query sees at most; 0: all before it
  bool backward = false;
  /// Pairs of a query and a key that it sees, over all sequences and heads. Without a window length^2 / 2 each, by convention.
  double scores() const;
  /// The same with the pairs that a causal mask leaves out: length x length, or length x window.
  double all_scores() const;
};

struct OperationRecord {
  const char* name = "";   ///< the function of kernels/ops, or the communicator's verb
  const char* layer = "";  ///< whose it is, where LogLayer says so
  OperationKind kind = OperationKind::kElementwise;
  DType dtype = DType::kF32;     ///< the activations' dtype
  int64_t bytes = 0;             ///< sum over operands, twice where one is read and written; a collective's whole tensor
  int64_t m = 0, n = 0, k = 0;   ///< kProduct: [m,k] times [k,n]
  bool accumulates = false;      ///< kProduct: added to what is there, a weight's gradient
  AttentionWork attention = {};  ///< kAttention
  double begin = 0;              ///< in a timed log: seconds after its origin
  double seconds = 0;            ///< in a timed log; 0 of a collective

  /// 2 m n k; 4 H a score in an attention's forward and twice that in its backward; 0 of the others.
  double flops() const;
};

/// Operations that are made of others (a fused product with its activation on engines that have none) appear as those others.
class OperationLog {
 public:
  using Clock = std::chrono::steady_clock;

  OperationLog() = default;
  /// A timed log: each record gets the begin and the seconds of its operation. On a GPU the log waits for the device before and after each, so that the
  /// seconds include a launch and nothing overlaps.
  explicit OperationLog(Clock::time_point origin) : timed_(true), origin_(origin) {}

  /// A collective starts here; `bytes` is the whole tensor's. It is not timed: communicators tell what ranks wait for.
  void collective(const char* verb, DType dtype, int64_t bytes) {
    records_.push_back({.name = verb, .layer = layer_, .kind = OperationKind::kCollective, .dtype = dtype, .bytes = bytes});
  }

  /// Errors, both: those of the device, in a timed log.
  void open(const Context& ctx, const OperationRecord& record);
  void close(const Context& ctx);

  std::vector<OperationRecord> take();  ///< and is empty again

 private:
  friend class LogLayer;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  const char* layer_ = "";
  bool timed_ = false;
  Clock::time_point origin_;
  std::vector<OperationRecord> records_;
};

/// While this lives, what is logged belongs to `layer`.
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
