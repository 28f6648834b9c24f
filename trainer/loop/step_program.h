#pragma once
// What a rank does in a step: its action lists, the executor that runs them, and on a GPU the CUDA graph that replays them.
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"
#include "trainer/config/config.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// One rank's.
class StepProgram {
 public:
  /// `config`, `mesh` and `stages` outlive it; `schedule` is that of the configuration.
  StepProgram(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages, const LoweredSchedule& schedule);
  StepProgram(const StepProgram&) = delete;
  StepProgram& operator=(const StepProgram&) = delete;

  /// Sets what an action of ActionScope::kStep or kMicrobatch does.
  void on(ActionType type, Executor::Handler handler) { executor_.on(type, std::move(handler)); }
  /// Reports every action to `progress` from now on; it must outlive this object.
  void watch(Progress& progress);
  /// Records the actions of training steps from now on; null: none. On a GPU a recorded step is queued even if the configuration captures steps in a
  /// CUDA graph, because a launch of a graph does not record the times of its parts. Its bits are the same.
  void record(TimelineRecorder* actions) { actions_ = actions; }
  /// Queues steps without a CUDA graph, with the same bits, for observe.activations.
  void keep_eager(bool on) { is_eager_ = on; }

  /// The lists of this rank from now on: those of a data rank with the `longest` number of micro-batches, without the first `missing`.
  void cut(int longest, int missing);

  /// Queues a training step (from 0), update included; all of it runs on the device. `scalars`: [kStepScalars] f64.
  void train(const std::vector<Microbatch>& batch, const Tensor& scalars, int64_t step);
  /// Queues its forward and backward without partial sums, norm and update. Only the gradients change, which every step clears.
  void rehearse(const std::vector<Microbatch>& batch, const Tensor& scalars, int64_t step);
  /// Queues the forward of a batch.
  void evaluate(const std::vector<Microbatch>& batch);
  /// Queues the forward of one text of one micro-batch, where a pipeline rank has the whole model and one micro-batch.
  void run_text(const Microbatch& text, RunMode mode) { run_text(text, mode, lists_.evaluation); }
  /// Likewise in any layout, by the list that runs with observe.samples have.
  void run_sample(const Microbatch& text, RunMode mode) { run_text(text, mode, text_); }
  bool has_samples() const { return !text_.empty(); }

  int64_t step() const { return step_; }  ///< the training step queued last, from 0
  const ActionList& training_list() const { return lists_.training; }
  /// Matrix products of the last queued step for which cuBLASLt has no kernel; 0 on other devices. See cuda::ProductCounts::plain.
  int64_t plain_products() const { return plain_products_; }

 private:
  struct Lists {
    ActionList training, evaluation;
  };
  void begin(RunMode mode, const std::vector<Microbatch>& microbatches, int64_t sequence, int64_t step);
  void queue(std::span<const Action> list, const std::vector<Microbatch>& batch, const Tensor& scalars);
  void queue_step(std::span<const Action> list, const std::vector<Microbatch>& batch, const Tensor& scalars);
  void run_text(const Microbatch& text, RunMode mode, const ActionList& list);
  void launch(const std::vector<Microbatch>& batch, const Tensor& scalars);

  Context& ctx_;
  const Config& config_;
  Mesh& mesh_;
  const Stages& stages_;
  Executor executor_;
  Progress* progress_ = nullptr;
  TimelineRecorder* actions_ = nullptr;
  bool is_eager_ = false;
  std::map<int, Lists> uncut_;  ///< this rank's lists, by the largest number of micro-batches of a data rank
  Lists lists_;                 ///< cut to this data rank's number
  ActionList text_;
  int64_t step_ = 0;
  cuda::Gpu::Graph graph_;      ///< captured step
  int eager_steps_ = 0;         ///< steps run before the capture
  int64_t plain_products_ = 0;  ///< plain_products()
};

}  // namespace trireme
