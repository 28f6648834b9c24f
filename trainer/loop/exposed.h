#pragma once
// Time breakdown of a step: what each rank did, and its exposed waits by cause.
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "parallel/comm/timed.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

enum class Cause : uint8_t {
  kCompute,           ///< actions of the list, minus their waits
  kTensor,            ///< waiting for tensor ranks
  kPipelineBubble,    ///< idle while other stages compute; remains with free transfers
  kPipelineTransfer,  ///< remaining waits for pipeline ranks
  kZeroGather,        ///< waiting for gathered parameters
  kZeroReduce,        ///< waiting for reduced gradients
  kDataWait,          ///< reading the batch
  kOptimizer,         ///< SUM_PARTIAL, NORM, ORTHOGONALIZE and UPDATE, minus their waits
  kOther,             ///< remainder of the step
};
constexpr size_t kCauses = static_cast<size_t>(Cause::kOther) + 1;
const char* name_of(Cause cause);  ///< "compute", "pipeline_bubble", ...

/// An interval that a rank spent outside its action list, attributed to `cause` except for the waits in it.
struct Stretch {
  Cause cause = Cause::kOther;
  double begin = 0, end = 0;
};

/// One operation of kernels/ops.
struct TimedKernel {
  std::string name;  ///< with the layer's name, if any: "qkv linear_forward"
  double begin = 0, end = 0;
};

/// What one rank did in a step. Times are seconds since `origin`, which is about the same moment on all ranks.
struct StepTrace {
  std::chrono::steady_clock::time_point origin;
  std::string clock;   ///< name of the clock that was read: one per host
  double seconds = 0;  ///< of the entire step
  Timeline timeline;   ///< of the executed list
  std::vector<Stretch> stretches;
  std::vector<TimedOperation> operations;  ///< communication
  std::vector<TimedKernel> kernels;        ///< if logged; they lie within the list's actions

  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin).count(); }
};

/// Adds its lifetime to `trace`, unless null.
class TracedRegion {
 public:
  TracedRegion(StepTrace* trace, Cause cause) : trace_(trace), stretch_{cause, trace != nullptr ? trace->now() : 0, 0} {}
  ~TracedRegion() {
    if (trace_ == nullptr) return;
    stretch_.end = trace_->now();
    trace_->stretches.push_back(stretch_);
  }
  TracedRegion(const TracedRegion&) = delete;
  TracedRegion& operator=(const TracedRegion&) = delete;

 private:
  StepTrace* trace_;
  Stretch stretch_;
};

/// Seconds by cause; they add up to the step.
using ExposedTime = std::array<double, kCauses>;

/// Exposed time of each world rank, from the aligned traces of all. A rank's waits for pipeline ranks are bubble as far as it would also idle with
/// free transfers: the simulator replays the lists of its pipeline, each action with its measured time minus such waits. A rank that has finished its
/// list waits for the others in the all-reduce of a tied embedding and in the world's all-reduce, so those count as waits for pipeline ranks, up to
/// that idle time.
std::vector<ExposedTime> exposed_time(const std::vector<StepTrace>& ranks, const MeshShape& mesh);

/// Text table of the seconds per cause ("0.1234"): mean and maximum over `ranks`, and the mean's share of the step.
std::string exposed_table(const std::vector<ExposedTime>& ranks);

/// Shifts all traces to the earliest origin. Ranks that read a different clock than rank 0 are assumed to have had their origin at that moment.
void align(std::vector<StepTrace>& ranks);

/// Serialise a trace to send it to another rank.
std::string to_bytes(const StepTrace& trace);
StepTrace step_trace_from(const std::string& bytes);

}  // namespace trireme
