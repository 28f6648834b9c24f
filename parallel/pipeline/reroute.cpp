#include "parallel/pipeline/reroute.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "kernels/core/check.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/schedule.h"

namespace trireme {
namespace {

bool is_backward_of_input(ActionType type) { return type == ActionType::kBackward || type == ActionType::kBackwardInput; }

/// Edits the list of one rank.
class ListEdit {
 public:
  ListEdit(const ActionList& list, const Rerouting& rerouting, const std::vector<int>& stage_rank, int data, int pipeline)
      : list_(list), rerouting_(rerouting), stage_rank_(stage_rank), data_(data), pipeline_(pipeline), owners_{data} {
    for (const MicrobatchOrigin& one : rerouting.added[static_cast<size_t>(data)][static_cast<size_t>(pipeline)]) owners_.insert(one.data);
  }
  ActionList edited();

 private:
  /// A micro-batch of the pipeline `owner` that this rank computes.
  struct Lane {
    int owner;
    int number;
  };

  std::vector<Lane> lanes_of(int microbatch) const;
  size_t end_of_compute(size_t begin) const;
  size_t end_of_group(size_t begin) const;
  bool is_divided(size_t begin, size_t end) const;
  bool sends_result(size_t compute, size_t begin, size_t end) const;
  void add_part_by_part(size_t begin, size_t end);
  void add_whole(size_t begin, size_t end, size_t end_of_transfers);
  void add_group(size_t begin, size_t end, int owner);
  Action transfer_of(const Action& action, const Lane& lane, int group) const;
  Action with_number(Action action, int number) const {
    action.microbatch = number;
    return action;
  }

  const ActionList& list_;
  const Rerouting& rerouting_;
  const std::vector<int>& stage_rank_;
  const int data_, pipeline_;
  std::set<int> owners_;  ///< pipelines of which this rank computes micro-batches, in the order that all ranks follow
  ActionList result_;
  int groups_ = 0;
};

std::vector<ListEdit::Lane> ListEdit::lanes_of(int microbatch) const {
  std::vector<Lane> lanes;
  for (const int owner : owners_) {
    const MicrobatchOrigin at = rerouting_.place(owner, pipeline_, microbatch);
    if (at.data == data_) lanes.push_back({owner, at.microbatch});
  }
  return lanes;
}

/// One past the last part of the F, B, I or W that begins at `begin`.
size_t ListEdit::end_of_compute(size_t begin) const {
  const Action& first = list_[begin];
  size_t end = begin + 1;
  for (size_t i = end; i < list_.size() && !is_transfer(list_[i].type); ++i) {
    if (!is_compute(list_[i].type)) continue;
    if (list_[i].type != first.type || list_[i].stage != first.stage || list_[i].microbatch != first.microbatch) break;
    end = i + 1;
  }
  return end;
}

size_t ListEdit::end_of_group(size_t begin) const {
  size_t end = begin + 1;
  while (list_[begin].group >= 0 && end < list_.size() && is_transfer(list_[end].type) && list_[end].group == list_[begin].group) ++end;
  return end;
}

/// Whether parameters are freed or gradients reduced between parts, before which every micro-batch has to use them.
bool ListEdit::is_divided(size_t begin, size_t end) const {
  return std::any_of(list_.begin() + static_cast<ptrdiff_t>(begin), list_.begin() + static_cast<ptrdiff_t>(end),
                     [](const Action& action) { return !is_compute(action.type) && action.type != ActionType::kUnshard; });
}

/// Whether the transfers send what the compute has computed.
bool ListEdit::sends_result(size_t compute, size_t begin, size_t end) const {
  const Action& done = list_[compute];
  const ActionType send = done.type == ActionType::kForward ? ActionType::kSendForward : ActionType::kSendBackward;
  if (done.type != ActionType::kForward && !is_backward_of_input(done.type)) return false;
  return std::any_of(list_.begin() + static_cast<ptrdiff_t>(begin), list_.begin() + static_cast<ptrdiff_t>(end), [&](const Action& transfer) {
    return transfer.type == send && transfer.stage == done.stage && transfer.microbatch == done.microbatch;
  });
}

void ListEdit::add_part_by_part(size_t begin, size_t end) {
  const std::vector<Lane> lanes = lanes_of(list_[begin].microbatch);
  for (size_t i = begin; i < end; ++i) {
    if (!is_compute(list_[i].type)) {
      result_.push_back(list_[i]);
      continue;
    }
    for (const Lane& lane : lanes) result_.push_back(with_number(list_[i], lane.number));
  }
}

/// Each pipeline's result is sent before the next one's is computed. What moves between the parts comes before all transfers.
void ListEdit::add_whole(size_t begin, size_t end, size_t end_of_transfers) {
  const std::vector<Lane> lanes = lanes_of(list_[begin].microbatch);
  size_t next = 0;
  const auto add_lane = [&] {
    for (size_t i = begin; i < end; ++i)
      if (is_compute(list_[i].type))
        result_.push_back(with_number(list_[i], lanes[next].number));
      else if (next == 0)
        result_.push_back(list_[i]);
    ++next;
  };
  if (lanes.empty())
    std::copy_if(list_.begin() + static_cast<ptrdiff_t>(begin), list_.begin() + static_cast<ptrdiff_t>(end), std::back_inserter(result_),
                 [](const Action& action) { return !is_compute(action.type); });
  for (const int owner : owners_) {
    while (next < lanes.size() && (next == 0 || lanes[next].owner <= owner)) add_lane();
    if (end_of_transfers > end) add_group(end, end_of_transfers, owner);
  }
}

/// The transfers of the micro-batches of one pipeline.
void ListEdit::add_group(size_t begin, size_t end, int owner) {
  bool any = false;
  for (size_t i = begin; i < end; ++i) {
    const MicrobatchOrigin at = rerouting_.place(owner, pipeline_, list_[i].microbatch);
    if (at.data != data_) continue;
    any = true;
    result_.push_back(transfer_of(list_[i], {owner, at.microbatch}, groups_));
  }
  if (any) ++groups_;
}

Action ListEdit::transfer_of(const Action& action, const Lane& lane, int group) const {
  const int other_rank = stage_rank_[static_cast<size_t>(counterpart(action).stage)];
  const MicrobatchOrigin other = rerouting_.place(lane.owner, other_rank, action.microbatch);
  Action transfer = with_number(action, lane.number);
  transfer.group = group;
  if (other.data == data_ && other.microbatch == lane.number) return transfer;
  transfer.peer = other.data;
  transfer.peer_microbatch = other.microbatch;
  return transfer;
}

ActionList ListEdit::edited() {
  for (size_t i = 0; i < list_.size();) {
    const Action& action = list_[i];
    if (is_transfer(action.type)) {
      const size_t end = end_of_group(i);
      for (const int owner : owners_) add_group(i, end, owner);
      i = end;
    } else if (!is_compute(action.type)) {
      TRIREME_CHECK(action.microbatch < 0, to_string(action), " cannot be rerouted");
      result_.push_back(list_[i++]);
    } else if (const size_t end = end_of_compute(i); is_divided(i, end)) {
      add_part_by_part(i, end);
      i = end;
    } else {
      size_t transfers = end < list_.size() && is_transfer(list_[end].type) ? end_of_group(end) : end;
      if (!sends_result(i, end, transfers)) transfers = end;
      add_whole(i, end, transfers);
      i = transfers;
    }
  }
  return std::move(result_);
}

}  // namespace

bool Rerouting::relieves(int data, int pipeline) const { return std::ranges::count(relieved, PipelinePlace{data, pipeline}) > 0; }

MicrobatchOrigin Rerouting::place(int data, int pipeline, int microbatch) const {
  if (microbatch < from || !relieves(data, pipeline)) return {data, microbatch};
  for (int helper = 0; helper < data_ranks; ++helper) {
    const std::vector<MicrobatchOrigin>& here = added[static_cast<size_t>(helper)][static_cast<size_t>(pipeline)];
    const auto found = std::ranges::find(here, MicrobatchOrigin{data, microbatch});
    if (found != here.end()) return {helper, microbatches + static_cast<int>(found - here.begin())};
  }
  throw InternalError(concat("nobody computes micro-batch ", microbatch, " of data rank ", data, " on pipeline rank ", pipeline));
}

MicrobatchOrigin Rerouting::origin(int data, int pipeline, int number) const {
  if (number < microbatches) return {data, number};
  return added[static_cast<size_t>(data)][static_cast<size_t>(pipeline)].at(static_cast<size_t>(number - microbatches));
}

Rerouting make_rerouting(int data_ranks, int pipeline_ranks, int microbatches, int from, const std::vector<PipelinePlace>& relieved) {
  Rerouting rerouting{data_ranks, pipeline_ranks, microbatches, from, relieved, {}};
  rerouting.added.assign(static_cast<size_t>(data_ranks), std::vector<std::vector<MicrobatchOrigin>>(static_cast<size_t>(pipeline_ranks)));
  for (const PipelinePlace& one : relieved) {
    TRIREME_CHECK(one.data >= 0 && one.data < data_ranks && one.pipeline >= 0 && one.pipeline < pipeline_ranks, "data rank ", one.data,
                  ", pipeline rank ", one.pipeline, " is outside the mesh");
    TRIREME_CHECK(std::ranges::count(relieved, one) == 1, "data rank ", one.data, ", pipeline rank ", one.pipeline, " is named twice");
  }
  for (int pipeline = 0; pipeline < pipeline_ranks; ++pipeline) {
    std::vector<int> helpers;
    for (int data = 0; data < data_ranks; ++data)
      if (!rerouting.relieves(data, pipeline)) helpers.push_back(data);
    TRIREME_CHECK(!helpers.empty(), "no data rank computes pipeline rank ", pipeline);
    size_t next = 0;
    for (int data = 0; data < data_ranks; ++data)
      for (int m = from; rerouting.relieves(data, pipeline) && m < microbatches; ++m)
        rerouting.added[static_cast<size_t>(helpers[next++ % helpers.size()])][static_cast<size_t>(pipeline)].push_back({data, m});
  }
  return rerouting;
}

std::vector<ActionLists> reroute(const ActionLists& lists, const Rerouting& rerouting) {
  TRIREME_CHECK(static_cast<int>(lists.size()) == rerouting.pipeline_ranks, lists.size(), " lists for ", rerouting.pipeline_ranks, " pipeline ranks");
  const std::vector<int> stage_rank = stage_ranks(lists);
  std::vector<ActionLists> all(static_cast<size_t>(rerouting.data_ranks));
  for (int data = 0; data < rerouting.data_ranks; ++data)
    for (int pipeline = 0; pipeline < rerouting.pipeline_ranks; ++pipeline)
      all[static_cast<size_t>(data)].push_back(ListEdit(lists[static_cast<size_t>(pipeline)], rerouting, stage_rank, data, pipeline).edited());
  return all;
}

std::vector<const ActionList*> lists_of_ranks(const std::vector<ActionLists>& lists, const MeshShape& mesh) {
  TRIREME_CHECK(static_cast<int>(lists.size()) == mesh.data(), lists.size(), " pipelines for ", mesh.data(), " data ranks");
  std::vector<const ActionList*> by_rank;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const MeshCoordinate at = coordinate_of(mesh, rank);
    by_rank.push_back(&lists[static_cast<size_t>(at.replicate * mesh.shard + at.shard)].at(static_cast<size_t>(at.pipeline)));
  }
  return by_rank;
}

}  // namespace trireme
