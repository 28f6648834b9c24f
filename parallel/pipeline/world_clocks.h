#pragma once
#include <map>
#include <span>
#include <unordered_map>

#include "parallel/pipeline/world.h"

namespace trireme {

/// Keeps the time of every rank while the rendezvous runs their lists. The rendezvous blocks at every meeting, so it calls these functions in an
/// order in which everything that a time depends on is already known. The clocks themselves wait only where a run would.
class WorldClocks {
 public:
  /// Errors: InternalError if a list names a stage, part or unit that is not on its rank.
  WorldClocks(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank,
              const std::vector<StageUnits>& stages, const WorldCosts& costs, const std::vector<int>& traced);

  /// An action that concerns this rank alone.
  void run_local(int rank, const Action& action);
  /// The rank has reached a compute action or collective.
  void reach(int rank, const Action& action);
  /// All ranks of a group have reached their action. `group` numbers the groups of all axes, each of which has one stream.
  void meet(std::span<const int> members, int64_t group);
  void transfer(int sender, const Action& send, int receiver, const Action& receive);
  /// The rank has passed CLIP, and after all ranks of its pipeline have, it passes WAIT_CLIP. `pipeline` numbers the groups of that axis.
  void start_sum(int rank, int64_t pipeline, int microbatch);
  void await_sum(int rank, const Action& wait, int64_t pipeline);
  void finish(int rank);

  WorldSimulation result();

 private:
  struct Cost {
    double seconds, tensor, collective;
  };
  struct Arrival {
    const Action* receive;
    double begin, end;
  };
  struct UnitTimes {
    double gathered = 0, reduced = 0;  ///< ends of the last UNSHARD and of the last reduction
  };
  struct Rank {
    const ActionList* list = nullptr;
    const Cost* costs = nullptr;
    const Action* at = nullptr;  ///< the action it reached last
    Timeline* timeline = nullptr;
    double clock = 0;
    double slowdown = 1;
    RankTimes times;
    std::vector<Arrival> arrivals;  ///< received and not yet read
    std::vector<UnitTimes> units;   ///< of all its stages
    bool ended = false;             ///< it has reached AGGREGATE or NORM, which set times.end
    // With WorldCosts::in_launch_order:
    double launched = 0;   ///< begin of the operation that it issued last
    double transfers = 0;  ///< time at which its transfers so far have ended
    int group = -1;        ///< group of its last transfer; `launched` is the begin of all transfers of that group
  };

  static Cost cost_of(const Action& action, const WorldCosts& costs);
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  static size_t index(const Rank& rank, const Action& action) { return static_cast<size_t>(&action - rank.list->data()); }
  static const Cost& cost(const Rank& rank, const Action& action) { return rank.costs[index(rank, action)]; }
  /// Seconds of a compute action at the rank's own speed.
  static double own_seconds(const Rank& rank, const Action& action);
  static void record(const Rank& rank, const Action& action, double begin, double end);
  UnitTimes& unit(Rank& rank, int stage, const UnitRef& ref) const;
  static void wait(Rank& rank, WaitCause cause, double until);
  static void hold(Rank& rank, const Action& action);
  /// The begin of an operation that the rank issues now, on a communicator whose stream is free at `stream`.
  double launch(Rank& rank, double stream) const;
  double launch_transfer(Rank& rank, const Action& transfer) const;
  static void await_input(Rank& rank, const Action& action);
  void await_units(Rank& rank, const Action& action, int part) const;
  void compute_together(std::span<const int> members);
  void wait_together(std::span<const int> members);

  const std::vector<StageUnits>& stages_;
  bool in_launch_order_;
  std::vector<int> first_unit_;  ///< by stage: index of its first unit among those of its rank
  std::unordered_map<const ActionList*, std::vector<Cost>> costs_;
  std::vector<Rank> ranks_;
  std::vector<double> streams_;                     ///< by group: time at which its stream is free
  std::map<std::pair<int64_t, int>, double> sums_;  ///< by pipeline and micro-batch: when the last rank has passed CLIP so far
  std::map<int, Timeline> timelines_;
};

}  // namespace trireme
