#pragma once
// Training runs on rank threads with a fault: one rank's buffer of a communication is changed, as a defect of memory, a link or a processor would.
#include <functional>
#include <optional>
#include <string>

#include "parallel/comm/observed.h"
#include "trainer/config/config.h"
#include "trainer/run/run.h"

namespace trireme::test {

/// Changes the buffer of `step` (from 1) on world rank `rank` that group, verb and direction describe.
struct Fault {
  int64_t step = 1;
  int rank = 0;
  std::string group;  ///< "shard"
  std::string verb;   ///< "reduce_scatter"
  bool outgoing = true;
  std::function<void(const Tensor& buffer)> change;
  int nth = 1;         ///< of the buffers that fit, counted over all executions of the step
  bool every = false;  ///< all buffers that fit, in all executions: a defect that stays
};

/// Strikes in `now`, the step that the rank is in; 0 beside steps.
class FaultInjector {
 public:
  FaultInjector(std::optional<Fault> fault, int rank, std::function<int64_t()> now);
  BufferObserver observer();
  void set(const std::optional<Fault>& fault);
  int struck() const { return struck_; }  ///< buffers changed since set()

 private:
  std::optional<Fault> fault_;
  int rank_;
  std::function<int64_t()> now_;
  int seen_ = 0, struck_ = 0;
};

/// These two are for fp32 and fp64. Multiplies every element.
std::function<void(const Tensor&)> scaled(double factor);
/// Flips a bit of an element, counted from the least significant bit. `element` counts from the start of the buffer; the largest one below 2 in
/// magnitude if negative, whose highest exponent bit is 0.
std::function<void(const Tensor&)> flipped(int bit, int64_t element = -1);
std::function<void(const Tensor&)> not_a_number();

/// Runs `config` (not resolved) on threads of the CPU, one for each rank, which `observer_of` observes. Returns "", or the message of the error that all
/// ranks agreed on.
std::string run_observed(const Config& config, const RunOptions& options,
                         const std::function<BufferObserver(int rank, const Progress& progress)>& observer_of);
/// The same, disturbed by a fault.
std::string run_disturbed(const Config& config, const std::optional<Fault>& fault, const RunOptions& options = {});

}  // namespace trireme::test
