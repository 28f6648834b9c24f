#pragma once
// Where the time of a step goes: what each rank did in it, and how much of that was waiting, by cause.
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "parallel/comm/timed.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

enum class Cause : uint8_t {
  kCompute,           ///< the actions of the list, less what they waited for
  kTensor,            ///< waiting for tensor ranks
  kPipelineBubble,    ///< idle because other stages compute, even were transfers free
  kPipelineTransfer,  ///< the rest of the waits for pipeline ranks
  kZeroGather,        ///< waiting for gathered parameters
  kZeroReduce,        ///< waiting for reduced gradients
  kDataWait,          ///< reading the batch
  kOptimizer,         ///< SUM_PARTIAL, NORM and UPDATE, less what they waited for
  kOther,             ///< what is left
};
constexpr size_t kCauses = static_cast<size_t>(Cause::kOther) + 1;
const char* name_of(Cause cause);  ///< "compute", "pipeline_bubble", ...

/// Something a rank did besides its list, of one cause but for what it waited for meanwhile.
struct Stretch {
  Cause cause = Cause::kOther;
  double begin = 0, end = 0;
};

/// One operation of kernels/ops.
struct TimedKernel {
  std::string name;  ///< with the layer's, where there is one: "qkv linear_forward"
  double begin = 0, end = 0;
};

/// What one rank did in a step, in seconds since `origin`, which all ranks pass about together.
struct StepTrace {
  std::chrono::steady_clock::time_point origin;
  std::string clock;   ///< names the one that was read: one for each host
  double seconds = 0;  ///< of the whole step
  Timeline timeline;   ///< of the executed list
  std::vector<Stretch> stretches;
  std::vector<TimedOperation> operations;  ///< of communicators
  std::vector<TimedKernel> kernels;        ///< where they were logged: they lie within the list's actions

  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin).count(); }
};

/// Adds its lifetime to a trace, where there is one.
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

/// Seconds by cause; their sum is the step.
using ExposedTime = std::array<double, kCauses>;

/// Of each world rank, from the aligned traces of all. A rank's waits for pipeline ranks are bubble as far as it would idle too if transfers took
/// no time: the lists of its pipeline run again in the simulator, each action for as long as it took here without such waits. A rank that is done
/// with its list waits for the others in the sum over a tied embedding and in the one over the world, so those count among its waits for pipeline
/// ranks, up to that idle time.
std::vector<ExposedTime> exposed_time(const std::vector<StepTrace>& ranks, const MeshShape& mesh);

/// "0.1234" seconds of each cause, mean and most over `ranks`, and the mean's share of the step: a table for people.
std::string exposed_table(const std::vector<ExposedTime>& ranks);

/// One origin for all: the earliest. Ranks of another clock than rank 0's are taken to have passed theirs at that moment.
void align(std::vector<StepTrace>& ranks);

/// For a trace on its way to another rank.
std::string to_bytes(const StepTrace& trace);
StepTrace step_trace_from(const std::string& bytes);

}  // namespace trireme
