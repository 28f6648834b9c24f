#pragma once
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "parallel/comm/communicator.h"
#include "parallel/comm/progress.h"
#include "parallel/pipeline/stage.h"
#include "parallel/pipeline/timeline_recorder.h"

namespace trireme {

/// Runs one rank's lowered list. Stage s is on pipeline rank stage_rank[s].
class Executor {
 public:
  Executor(Communicator& pipeline, std::map<int, Stage*> local_stages, std::vector<int> stage_rank);

  /// The part that reads a receive waits for it; sends are waited for at the latest when the list ends. Nothing is in flight on return.
  /// `recorder`, if not null, gets one event for each action. A compute event begins after its input has arrived; a transfer event ends when the
  /// transfer has been waited for, on a GPU by the compute stream.
  void run(Context& ctx, std::span<const Action> list, TimelineRecorder* recorder = nullptr);

  /// Transfers go over `all` from now on, which contains the ranks of all pipelines: lists may then name ranks of other pipelines. `rank_of`: the rank in
  /// `all` of a pipeline rank of a data rank, -1 for this rank's own. `all` outlives this object.
  void connect_pipelines(Communicator& all, std::function<int(int pipeline, int data)> rank_of) {
    all_ = &all;
    rank_of_ = std::move(rank_of);
  }
  /// Progresses operations in flight in `world` between any two actions from now on. `world` outlives this object.
  void drive(Communicator& world) { world_ = &world; }
  /// Reports every action to `progress` from now on. `progress` outlives this object.
  void watch(Progress& progress) { progress_ = &progress; }
  /// Sets what an action of ActionScope::kStep or kMicrobatch does, which concerns all stages of the rank; required for lists that contain the action.
  using Handler = std::function<void(Context& ctx, const Action& action)>;
  void on(ActionType type, Handler handler) { handlers_[type] = std::move(handler); }

 private:
  Communicator& pipeline_;
  Communicator* all_ = nullptr;
  std::function<int(int, int)> rank_of_;
  std::map<int, Stage*> stages_;
  std::vector<int> stage_rank_;
  Communicator* world_ = nullptr;
  Progress* progress_ = nullptr;
  std::map<ActionType, Handler> handlers_;
};

}  // namespace trireme
