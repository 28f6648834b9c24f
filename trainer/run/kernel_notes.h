#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "trainer/loop/attention_kernels.h"
#include "trainer/run/run_context.h"

namespace trireme {

/// Reports each shape of an operation that a library computes in another way than the run asks for, once. Every step has the same shapes, so new ones
/// come with the first step and with evaluations.
class KernelNotes {
 public:
  explicit KernelNotes(RunContext& run) : run_(run) {}

  /// A step has been reported; only the first one has an effect.
  void after_step(int64_t step);
  /// No effect before the first step.
  void after_evaluation(int64_t step);

 private:
  void report(int64_t step);
  void warn_of_plain_products(int64_t step);
  void report_attention(int64_t step);

  RunContext& run_;
  bool first_step_reported_ = false;
  std::set<std::string> plain_shapes_;              ///< those that have been warned of; the same on all ranks
  std::vector<AttentionKernels::Shape> attention_;  ///< those that have been reported; the same on all ranks
};

}  // namespace trireme
