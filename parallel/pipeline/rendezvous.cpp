#include "parallel/pipeline/rendezvous.h"

#include <deque>
#include <optional>
#include <unordered_map>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr size_t kMostStuckRanks = 16;  ///< described one by one

/// The axis whose ranks must all be at this action.
MeshAxis axis_of(ActionType type) {
  switch (type) {
    case ActionType::kUnshard:
    case ActionType::kReduceGrads: return MeshAxis::kShard;
    case ActionType::kReduceReplicas: return MeshAxis::kReplicate;
    case ActionType::kReduceTied: return MeshAxis::kEmbedding;
    default: return MeshAxis::kTensor;
  }
}

/// A group named by its first member.
struct Group {
  int first;
  int size;
};

Group group_of(const MeshShape& mesh, MeshAxis axis, int rank) {
  MeshCoordinate at = coordinate_of(mesh, rank);
  switch (axis) {
    case MeshAxis::kShard: return {rank_of(mesh, {at.pipeline, at.replicate, 0, at.tensor}), mesh.shard};
    case MeshAxis::kReplicate: return {rank_of(mesh, {at.pipeline, 0, at.shard, at.tensor}), mesh.replicate};
    case MeshAxis::kTensor: return {rank_of(mesh, {at.pipeline, at.replicate, at.shard, 0}), mesh.tensor};
    default: break;
  }
  const bool at_an_end = mesh.pipeline > 1 && (at.pipeline == 0 || at.pipeline == mesh.pipeline - 1);
  if (at_an_end) at.pipeline = 0;
  return {rank_of(mesh, at), at_an_end ? 2 : 1};
}

/// The two ends of the tied embedding are different stages and units; every other collective is the same action on all its ranks.
bool same_collective(const Action& a, const Action& b) {
  if (a.type != b.type) return false;
  return a.type == ActionType::kReduceTied || (a.stage == b.stage && a.microbatch == b.microbatch && a.unit == b.unit);
}

class Rendezvous {
 public:
  Rendezvous(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank);
  std::vector<std::string> run();

 private:
  struct RankState {
    size_t next = 0;      ///< first action not over
    size_t end = 0;       ///< one past what was issued together
    int outstanding = 0;  ///< of these, not over yet
  };
  struct Meeting {
    const Action* action = nullptr;
    std::vector<int> waiting;
  };
  struct Message {
    int rank;
    const Action* action;
  };
  using Channel = std::deque<Message>;  ///< from one rank to another: posted sends, or posted receives, that have met nothing yet

  void advance(int rank);
  void join(int rank, const Action& action);
  void post(int rank, const Action& action);
  void release(int rank);
  int peer_of(int rank, const Action& transfer) const;  ///< -1 where no rank computes the other stage
  std::string describe(int rank) const;
  std::optional<std::string> deadlock() const;

  const std::vector<const ActionList*>& lists_;
  const MeshShape& mesh_;
  const std::vector<int>& stage_rank_;
  std::vector<RankState> ranks_;
  std::vector<int> runnable_;
  std::unordered_map<int64_t, Meeting> meetings_;  ///< by axis and first member
  std::unordered_map<int64_t, Channel> channels_;  ///< by sender and receiver
  std::vector<std::string> violations_;
};

Rendezvous::Rendezvous(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank)
    : lists_(lists), mesh_(mesh), stage_rank_(stage_rank), ranks_(lists.size()) {
  for (size_t rank = lists.size(); rank > 0; --rank) runnable_.push_back(static_cast<int>(rank - 1));
}

void Rendezvous::advance(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const ActionList& list = *lists_[static_cast<size_t>(rank)];
  while (state.next < list.size() && list[state.next].type == ActionType::kReshard) ++state.next;
  if (state.next == list.size()) return;
  const Action& action = list[state.next];
  state.end = state.next + 1;
  if (!is_transfer(action.type)) {
    state.outstanding = 1;
    join(rank, action);
    return;
  }
  while (action.group >= 0 && state.end < list.size() && is_transfer(list[state.end].type) && list[state.end].group == action.group) ++state.end;
  const size_t begin = state.next, end = state.end;
  state.outstanding = static_cast<int>(end - begin) + 1;  // the one more keeps the rank here until all are posted
  for (size_t i = begin; i < end; ++i) post(rank, list[i]);
  release(rank);
}

void Rendezvous::release(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (--state.outstanding > 0) return;
  state.next = state.end;
  runnable_.push_back(rank);
}

void Rendezvous::join(int rank, const Action& action) {
  const MeshAxis axis = axis_of(action.type);
  const Group group = group_of(mesh_, axis, rank);
  if (group.size == 1) {
    release(rank);
    return;
  }
  Meeting& meeting = meetings_[static_cast<int64_t>(axis) * mesh_.world() + group.first];
  if (meeting.waiting.empty()) meeting.action = &action;
  if (!same_collective(*meeting.action, action)) {
    violations_.push_back(concat("collectives over ", name_of(axis), " in different order: rank ", meeting.waiting.front(), " is at ",
                                 to_string(*meeting.action), ", rank ", rank, " is at ", to_string(action)));
    return;
  }
  meeting.waiting.push_back(rank);
  if (static_cast<int>(meeting.waiting.size()) < group.size) return;
  for (const int member : meeting.waiting) release(member);
  meeting.waiting.clear();
}

int Rendezvous::peer_of(int rank, const Action& transfer) const {
  MeshCoordinate at = coordinate_of(mesh_, rank);
  const int stage = counterpart(transfer).stage;
  if (stage < 0 || stage >= static_cast<int>(stage_rank_.size())) return -1;
  at.pipeline = stage_rank_[static_cast<size_t>(stage)];
  return at.pipeline < 0 ? -1 : rank_of(mesh_, at);
}

void Rendezvous::post(int rank, const Action& action) {
  const int peer = peer_of(rank, action);
  if (peer < 0) {
    violations_.push_back(concat("rank ", rank, ": no stage is at the other end of ", to_string(action)));
    release(rank);
    return;
  }
  const bool send = is_send(action.type);
  const int64_t sender = send ? rank : peer, receiver = send ? peer : rank;
  Channel& channel = channels_[sender * mesh_.world() + receiver];
  if (channel.empty() || is_send(channel.front().action->type) == send) {
    channel.push_back({rank, &action});
    return;
  }
  const Message other = channel.front();
  channel.pop_front();
  const Action expected = counterpart(action);
  if (other.action->type != expected.type || other.action->stage != expected.stage || other.action->microbatch != expected.microbatch)
    violations_.push_back(
        concat("messages do not match: rank ", rank, " is at ", to_string(action), ", rank ", other.rank, " is at ", to_string(*other.action)));
  release(other.rank);
  release(rank);
}

std::string Rendezvous::describe(int rank) const {
  const RankState& state = ranks_[static_cast<size_t>(rank)];
  const ActionList& list = *lists_[static_cast<size_t>(rank)];
  std::string text = concat("rank ", rank, " waits at");
  for (size_t i = state.next; i < state.end; ++i) {
    const Action& action = list[i];
    text += concat(i > state.next ? ", " : " ", to_string(action));
    if (!is_transfer(action.type)) {
      const MeshAxis axis = axis_of(action.type);
      text += concat(" for the ", name_of(axis), " group of rank ", group_of(mesh_, axis, rank).first);
    } else if (const int peer = peer_of(rank, action); peer >= 0) {
      text += concat(is_send(action.type) ? " to rank " : " from rank ", peer);
    }
  }
  return text;
}

std::optional<std::string> Rendezvous::deadlock() const {
  std::string text;
  size_t stuck = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].next == lists_[rank]->size()) continue;
    if (++stuck <= kMostStuckRanks) text += concat(stuck > 1 ? "; " : "deadlock: ", describe(static_cast<int>(rank)));
  }
  if (stuck > kMostStuckRanks) text += concat("; and ", stuck - kMostStuckRanks, " more ranks");
  return stuck > 0 ? std::optional(text) : std::nullopt;
}

std::vector<std::string> Rendezvous::run() {
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    advance(rank);
  }
  if (const std::optional<std::string> stuck = deadlock()) violations_.push_back(*stuck);
  return std::move(violations_);
}

}  // namespace

std::vector<std::string> run_rendezvous(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                                        const std::vector<int>& stage_rank) {
  return Rendezvous(lists_by_world_rank, mesh, stage_rank).run();
}

}  // namespace trireme
