#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"
#include "trainer/run/exchange_log.h"

namespace trireme {

/// One execution of a step on this rank.
struct Execution {
  StepResult result;
  std::vector<Exchange> exchanges;
};

/// A step, from 0, that may be executed several times from the same weights.
struct RepeatableStep {
  const Dataset& data;
  int64_t step = 0;
  double learning_rate = 0;
  StepLimits limits = {};
  LossScale loss_scale = {};  ///< before the step
};

/// Executes a step, with the loss scale from before it; a step above its limits changes no weight. `log` observes the communicators of `trainer`.
/// Collective. Errors: those of Trainer::finish.
Execution execute(Trainer& trainer, ExchangeLog& log, const RepeatableStep& step);

/// What the repetition of an anomalous step says about the cause.
struct RerunVerdict {
  enum class Cause : uint8_t {
    kHardware,  ///< executions from the same weights and data differ
    kData,      ///< they agree, and few samples have a loss that stands out
    kModel,     ///< they agree, and no sample stands out
    kReplicas,  ///< they agree, but copies of the weights that must be equal are not
  };
  Cause cause = Cause::kModel;
  StepResult result = {};             ///< of the last execution; accepted if one was clean
  std::vector<int> ranks = {};        ///< hardware: world ranks that may be at fault
  std::vector<int64_t> samples = {};  ///< data: samples of the data set that stand out
  std::string text = {};              ///< cause, ranks with their hosts, and evidence, as part of a sentence
};
const char* name_of(RerunVerdict::Cause cause);

/// Repeats a step whose `first` execution was anomalous and did not change the weights, until an execution is clean and updates them, at most three
/// times. If repetitions agree, the samples of each data rank are computed on the next one, without an update, and copies of the state are compared.
/// A step in which nothing but a rank stands out, although executions agree, is then executed with an update: its samples may be unusual, and to drop
/// them would be a bias.
/// `z`: how many robust deviations a sample's loss must be above the median of the others. The verdict is the same on all ranks. Collective.
/// Errors: those of Trainer::finish.
RerunVerdict rerun(Trainer& trainer, ExchangeLog& log, RepeatableStep step, const Execution& first, double z);

}  // namespace trireme
