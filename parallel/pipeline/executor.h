#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <utility>

#include "parallel/comm/communicator.h"
#include "parallel/comm/progress.h"
#include "parallel/pipeline/stage.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

/// Runs one rank's lowered list, the only place where a schedule becomes work. Stage s lives on pipeline rank stage_rank[s].
class Executor {
 public:
  Executor(Communicator& pipeline, std::map<int, Stage*> local_stages, std::vector<int> stage_rank);

  /// Receives are waited for by the part that reads them, sends at the latest when the list ends; nothing is left in flight on return.
  /// `timeline`, where given, gets one event for each action, in seconds since `origin`. An event of compute begins after its input has come; one
  /// of a transfer lasts until somebody has waited for it.
  void run(Context& ctx, const ActionList& list, Timeline* timeline = nullptr,
           std::chrono::steady_clock::time_point origin = std::chrono::steady_clock::now());

  /// From now on what is in flight in `world`, which outlives this, is moved along between any two actions.
  void drive(Communicator& world) { world_ = &world; }
  /// From now on `progress`, which outlives this, is told of every action.
  void watch(Progress& progress) { progress_ = &progress; }
  /// What NORM does: a list that trains needs it.
  void on_norm(std::function<void(Context&)> norm) { norm_ = std::move(norm); }

 private:
  Communicator& pipeline_;
  std::map<int, Stage*> stages_;
  std::vector<int> stage_rank_;
  Communicator* world_ = nullptr;
  Progress* progress_ = nullptr;
  std::function<void(Context&)> norm_;
};

}  // namespace trireme
