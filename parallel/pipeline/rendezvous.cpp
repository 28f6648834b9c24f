#include "parallel/pipeline/rendezvous.h"

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "parallel/pipeline/world_clocks.h"

namespace trireme {
namespace {

constexpr size_t kMostStuckRanks = 16;  ///< described individually
constexpr size_t kMostMismatches = 16;  ///< reported, of messages (where a missing one shifts all later ones) and of collectives

/// The number of kv heads is not known here. Only SUM_PARTIAL has kv groups; it first meets the tensor groups, which contain them.
MeshGroup group_of(const MeshShape& mesh, MeshAxis axis, int rank) { return trireme::group_of(mesh, axis, rank, mesh.tensor); }

/// The two ends of the tied embedding are different stages and units; every other collective is the same action on all its ranks.
bool same_collective(const Action& a, const Action& b) {
  if (a.type != b.type) return false;
  return a.type == ActionType::kReduceTied || (a.stage == b.stage && a.microbatch == b.microbatch && a.part == b.part && a.unit == b.unit);
}

class Rendezvous {
 public:
  Rendezvous(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank, WorldClocks* clocks);
  std::vector<std::string> run();

 private:
  struct RankState {
    size_t next = 0;      ///< first action that is not complete
    size_t sums = 0;      ///< number of CLIP it has passed
    size_t axis = 0;      ///< for a collective: index of the axis it meets now
    size_t end = 0;       ///< one past the actions issued together
    int outstanding = 0;  ///< issued actions that are not complete
  };
  struct Meeting {
    const Action* action = nullptr;
    std::vector<int> waiting;    ///< at `action`
    std::vector<int> elsewhere;  ///< at another collective of this group
  };
  struct Message {
    int rank;
    const Action* action;
  };
  /// The sum over a pipeline that CLIP of a micro-batch starts.
  struct Sum {
    std::vector<int> started;  ///< ranks
    std::vector<int> waiting;  ///< at WAIT_CLIP
  };
  using Channel = std::deque<Message>;  ///< from one rank to another: posted sends, or posted receives, that are not matched yet

  void advance(int rank);
  void join(int rank, const Action& action);
  void post(int rank, const Action& action);
  void release(int rank);
  void meet(std::span<const int> members, int64_t key);
  void start_sum(int rank, int microbatch);
  bool awaits_sum(int rank, const Action& wait);
  MeshAxis axis_at(int rank) const { return axes_of(action_of(rank))[ranks_[static_cast<size_t>(rank)].axis]; }
  int64_t key_of(MeshAxis axis, const MeshGroup& group) const { return static_cast<int64_t>(axis) * mesh_.world() + group.first; }
  int64_t channel_of(int rank, int peer, bool send) const { return static_cast<int64_t>(send ? rank : peer) * mesh_.world() + (send ? peer : rank); }
  int peer_of(int rank, const Action& transfer) const;  ///< -1 where no rank computes the other stage
  bool at_end(int rank) const { return ranks_[static_cast<size_t>(rank)].next == lists_[static_cast<size_t>(rank)]->size(); }
  const Action& action_of(int rank) const { return (*lists_[static_cast<size_t>(rank)])[ranks_[static_cast<size_t>(rank)].next]; }
  void report_mismatches();
  void report_deadlock();
  std::string at_different_collectives(const Meeting& meeting) const;
  int missing(int rank) const;
  int blocker_of(int rank) const;
  std::string describe(int rank) const;

  const std::vector<const ActionList*>& lists_;
  const MeshShape& mesh_;
  const std::vector<int>& stage_rank_;
  std::vector<RankState> ranks_;
  std::vector<int> runnable_;
  std::unordered_map<int64_t, Meeting> meetings_;  ///< by axis and first member
  std::map<std::pair<int64_t, int>, Sum> sums_;    ///< by pipeline group and micro-batch
  std::map<int64_t, std::vector<int>> order_;      ///< by pipeline group: micro-batches in the order of CLIP
  std::unordered_map<int64_t, Channel> channels_;  ///< by sender and receiver
  WorldClocks* clocks_;
  size_t mismatches_ = 0;  ///< of messages
  std::vector<std::string> violations_;
};

Rendezvous::Rendezvous(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<int>& stage_rank, WorldClocks* clocks)
    : lists_(lists), mesh_(mesh), stage_rank_(stage_rank), ranks_(lists.size()), clocks_(clocks) {
  for (size_t rank = lists.size(); rank > 0; --rank) runnable_.push_back(static_cast<int>(rank - 1));
}

void Rendezvous::advance(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const ActionList& list = *lists_[static_cast<size_t>(rank)];
  for (; state.next < list.size() && !is_transfer(list[state.next].type) && axes_of(list[state.next]).empty(); ++state.next) {
    if (list[state.next].type == ActionType::kWaitClip && awaits_sum(rank, list[state.next])) return;
    if (clocks_ != nullptr) clocks_->run_local(rank, list[state.next]);
  }
  if (state.next == list.size()) {
    if (clocks_ != nullptr) clocks_->finish(rank);
    return;
  }
  const Action& action = list[state.next];
  state.end = state.next + 1;
  if (!is_transfer(action.type)) {
    if (clocks_ != nullptr && state.axis == 0) clocks_->reach(rank, action);
    join(rank, action);
    return;
  }
  while (action.group >= 0 && state.end < list.size() && is_transfer(list[state.end].type) && list[state.end].group == action.group) ++state.end;
  const size_t begin = state.next, end = state.end;
  state.outstanding = static_cast<int>(end - begin) + 1;  // + 1 keeps the rank here until all are posted
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
  const MeshAxis axis = axis_at(rank);
  const MeshGroup group = group_of(mesh_, axis, rank);
  const int64_t key = key_of(axis, group);
  if (group.size == 1) return meet({&rank, 1}, key);
  Meeting& meeting = meetings_[key];
  if (meeting.waiting.empty()) meeting.action = &action;
  (same_collective(*meeting.action, action) ? meeting.waiting : meeting.elsewhere).push_back(rank);
  if (static_cast<int>(meeting.waiting.size()) < group.size) return;
  meet(meeting.waiting, key);
  meeting.waiting.clear();
}

/// All members of a group are at the same collective, which continues with its next axis or is complete.
void Rendezvous::meet(std::span<const int> members, int64_t key) {
  if (clocks_ != nullptr) clocks_->meet(members, key);
  for (const int member : members) {
    RankState& state = ranks_[static_cast<size_t>(member)];
    if (++state.axis == axes_of(action_of(member)).size()) {
      if (action_of(member).type == ActionType::kClipSamples) start_sum(member, action_of(member).microbatch);
      state.axis = 0;
      state.next = state.end;
    }
    runnable_.push_back(member);
  }
}

/// A rank has reached CLIP; the last of its pipeline releases those that wait.
void Rendezvous::start_sum(int rank, int microbatch) {
  const MeshGroup group = group_of(mesh_, MeshAxis::kPipeline, rank);
  const int64_t key = key_of(MeshAxis::kPipeline, group);
  // Sums match in the order in which ranks start them.
  std::vector<int>& order = order_[key];
  const size_t place = ranks_[static_cast<size_t>(rank)].sums++;
  if (place == order.size()) order.push_back(microbatch);
  if (order[place] != microbatch)
    violations_.push_back(concat("rank ", rank, " is at CLIP", microbatch, " where a rank of its pipeline is at CLIP", order[place]));
  Sum& sum = sums_[{key, microbatch}];
  sum.started.push_back(rank);
  if (clocks_ != nullptr) clocks_->start_sum(rank, key, microbatch);
  if (static_cast<int>(sum.started.size()) < group.size) return;
  runnable_.insert(runnable_.end(), sum.waiting.begin(), sum.waiting.end());
  sum.waiting.clear();
}

/// Whether a rank at WAIT_CLIP has to wait for CLIP of another.
bool Rendezvous::awaits_sum(int rank, const Action& wait) {
  const MeshGroup group = group_of(mesh_, MeshAxis::kPipeline, rank);
  const int64_t key = key_of(MeshAxis::kPipeline, group);
  Sum& sum = sums_[{key, wait.microbatch}];
  if (static_cast<int>(sum.started.size()) < group.size) {
    sum.waiting.push_back(rank);
    ranks_[static_cast<size_t>(rank)].end = ranks_[static_cast<size_t>(rank)].next + 1;
    return true;
  }
  if (clocks_ != nullptr) clocks_->await_sum(rank, wait, key);
  return false;
}

int Rendezvous::peer_of(int rank, const Action& transfer) const {
  MeshCoordinate at = coordinate_of(mesh_, rank);
  const int stage = counterpart(transfer).stage;
  if (stage < 0 || stage >= static_cast<int>(stage_rank_.size())) return -1;
  at.pipeline = stage_rank_[static_cast<size_t>(stage)];
  if (transfer.peer >= mesh_.data()) return -1;
  if (transfer.peer >= 0) at.replicate = transfer.peer / mesh_.shard, at.shard = transfer.peer % mesh_.shard;
  return at.pipeline < 0 ? -1 : rank_of(mesh_, at);
}

void Rendezvous::post(int rank, const Action& action) {
  const int peer = peer_of(rank, action);
  if (peer < 0) {
    violations_.push_back(concat("rank ", rank, ": no rank computes the stage at the other end of ", to_string(action)));
    release(rank);
    return;
  }
  const bool send = is_send(action.type);
  Channel& channel = channels_[channel_of(rank, peer, send)];
  if (channel.empty() || is_send(channel.front().action->type) == send) {
    channel.push_back({rank, &action});
    return;
  }
  const Message other = channel.front();
  channel.pop_front();
  const Action expected = counterpart(action), named = counterpart(*other.action);
  if (other.action->type != expected.type || other.action->stage != expected.stage || other.action->microbatch != expected.microbatch ||
      named.microbatch != action.microbatch) {
    if (++mismatches_ <= kMostMismatches)
      violations_.push_back(
          concat("messages do not match: rank ", rank, " is at ", to_string(action), ", rank ", other.rank, " is at ", to_string(*other.action)));
  } else if (clocks_ != nullptr) {
    send ? clocks_->transfer(rank, action, other.rank, *other.action) : clocks_->transfer(other.rank, *other.action, rank, action);
  }
  release(other.rank);
  release(rank);
}

/// A member of the rank's group that is not at the rank's collective, preferably one that is at a different collective of the group.
int Rendezvous::missing(int rank) const {
  if (action_of(rank).type == ActionType::kWaitClip) {
    const MeshGroup group = group_of(mesh_, MeshAxis::kPipeline, rank);
    const std::vector<int>& started = sums_.at({key_of(MeshAxis::kPipeline, group), action_of(rank).microbatch}).started;
    int member = group.first;
    while (std::ranges::find(started, member) != started.end()) member += group.stride;
    return member;
  }
  const MeshAxis axis = axis_at(rank);
  const MeshGroup group = group_of(mesh_, axis, rank);
  const Meeting& meeting = meetings_.at(key_of(axis, group));
  if (std::ranges::find(meeting.elsewhere, rank) != meeting.elsewhere.end()) return meeting.waiting.front();
  if (!meeting.elsewhere.empty()) return meeting.elsewhere.front();
  int member = group.first;
  while (std::ranges::find(meeting.waiting, member) != meeting.waiting.end()) member += group.stride;
  return member;
}

/// A rank that a stuck one waits for.
int Rendezvous::blocker_of(int rank) const {
  const RankState& state = ranks_[static_cast<size_t>(rank)];
  for (size_t i = state.next; i < state.end; ++i) {
    const Action& action = (*lists_[static_cast<size_t>(rank)])[i];
    if (!is_transfer(action.type)) return missing(rank);
    const int peer = peer_of(rank, action);
    if (peer < 0) continue;
    const Channel& channel = channels_.at(channel_of(rank, peer, is_send(action.type)));
    if (std::ranges::find(channel, &action, &Message::action) != channel.end()) return peer;
  }
  throw InternalError(concat("rank ", rank, " is stuck and waits for no rank"));
}

std::string Rendezvous::describe(int rank) const {
  if (at_end(rank)) return concat("rank ", rank, " has finished its list");
  const RankState& state = ranks_[static_cast<size_t>(rank)];
  std::string text = concat("rank ", rank, " waits at");
  for (size_t i = state.next; i < state.end; ++i) {
    const Action& action = (*lists_[static_cast<size_t>(rank)])[i];
    text += concat(i > state.next ? ", " : " ", to_string(action));
    if (action.type == ActionType::kWaitClip) {
      text += concat(" for CLIP of rank ", missing(rank));
    } else if (!is_transfer(action.type)) {
      const MeshAxis axis = axis_at(rank);
      text +=
          concat(" for the ", name_of(axis), " group of rank ", group_of(mesh_, axis, rank).first, ", which rank ", missing(rank), " has not joined");
    } else if (const int peer = peer_of(rank, action); peer >= 0) {
      text += concat(is_send(action.type) ? " to rank " : " from rank ", peer);
    }
  }
  return text;
}

/// The chain of waits from one stuck rank ends in a cycle of ranks that wait for each other, or in a rank that has finished; reports those.
void Rendezvous::report_deadlock() {
  size_t stuck = 0;
  int rank = -1;
  for (size_t r = ranks_.size(); r > 0; --r) {
    if (at_end(static_cast<int>(r - 1))) continue;
    ++stuck;
    rank = static_cast<int>(r - 1);
  }
  if (stuck == 0) return;
  std::vector<int> chain;
  for (; std::ranges::find(chain, rank) == chain.end() && !at_end(rank); rank = blocker_of(rank)) chain.push_back(rank);
  if (at_end(rank)) {
    chain = {chain.back(), rank};
    --stuck;
  } else {
    chain.erase(chain.begin(), std::ranges::find(chain, rank));
    std::rotate(chain.begin(), std::ranges::min_element(chain), chain.end());
    stuck -= chain.size();
  }
  std::string text = "deadlock: ";
  for (size_t i = 0; i < std::min(chain.size(), kMostStuckRanks); ++i) text += (i > 0 ? "; " : "") + describe(chain[i]);
  if (chain.size() > kMostStuckRanks) text += concat("; ... in a cycle of ", chain.size(), " ranks");
  if (stuck > 0) text += concat("; ", stuck, stuck == 1 ? " more rank waits" : " more ranks wait");
  violations_.push_back(text);
}

/// "rank 7 is at 0UNSHARD1, rank 3 and 126 more are at 0UNSHARD0": smaller parties first, since those are more likely to be wrong.
std::string Rendezvous::at_different_collectives(const Meeting& meeting) const {
  std::vector<std::vector<int>> parties{meeting.waiting};
  for (const int rank : meeting.elsewhere) {
    const auto party = std::ranges::find_if(parties, [&](const auto& one) { return same_collective(action_of(one.front()), action_of(rank)); });
    if (party == parties.end())
      parties.push_back({rank});
    else
      party->push_back(rank);
  }
  for (std::vector<int>& party : parties) std::ranges::sort(party);
  std::ranges::sort(parties, {}, [](const std::vector<int>& party) { return std::pair(party.size(), party.front()); });
  std::string text;
  for (const std::vector<int>& party : parties)
    text += concat(text.empty() ? "" : ", ", "rank ", party.front(),
                   party.size() > 1 ? concat(" and ", party.size() - 1, " more are at ") : " is at ", to_string(action_of(party.front())));
  return text;
}

void Rendezvous::report_mismatches() {
  if (mismatches_ > kMostMismatches)
    violations_.push_back(concat("and ", counted(mismatches_ - kMostMismatches, "more message does", "more messages do"), " not match"));
  std::vector<int64_t> keys;
  for (const auto& [key, meeting] : meetings_)
    if (!meeting.elsewhere.empty()) keys.push_back(key);
  std::ranges::sort(keys);
  for (const int64_t key : std::span(keys).first(std::min(keys.size(), kMostMismatches)))
    violations_.push_back(concat("collectives over ", name_of(static_cast<MeshAxis>(key / mesh_.world())),
                                 " in different order: ", at_different_collectives(meetings_.at(key))));
  if (keys.size() > kMostMismatches) violations_.push_back(concat("and ", keys.size() - kMostMismatches, " more groups in different order"));
}

std::vector<std::string> Rendezvous::run() {
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    advance(rank);
  }
  report_mismatches();
  report_deadlock();
  return std::move(violations_);
}

}  // namespace

std::vector<std::string> run_rendezvous(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                                        const std::vector<int>& stage_rank, WorldClocks* clocks) {
  return Rendezvous(lists_by_world_rank, mesh, stage_rank, clocks).run();
}

}  // namespace trireme
