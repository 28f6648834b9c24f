#include "trainer/loop/exposed.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "kernels/core/check.h"
#include "parallel/pipeline/simulate.h"
#include "trainer/files/plain_zero.h"
#include "trainer/files/strict_json.h"

namespace trireme {

const char* name_of(Cause cause) {
  switch (cause) {
    case Cause::kCompute: return "compute";
    case Cause::kTensor: return "tensor";
    case Cause::kPipelineBubble: return "pipeline_bubble";
    case Cause::kPipelineTransfer: return "pipeline_transfer";
    case Cause::kZeroGather: return "zero_gather";
    case Cause::kZeroReduce: return "zero_reduce";
    case Cause::kDataWait: return "data_wait";
    case Cause::kOptimizer: return "optimizer";
    case Cause::kOther: return "other";
  }
  return "?";
}

namespace {

/// An interval in which a rank was blocked.
struct Blocked {
  Cause cause;
  bool for_pipeline;  ///< ends when another pipeline rank arrives
  double begin, end;
  double seconds() const { return end - begin; }
};

/// Cause of both intervals, start and wait, in which one operation blocks.
Cause cause_of(const TimedOperation& operation) {
  const std::string& group = operation.group;
  if (group == name_of(MeshAxis::kTensor) || group == name_of(MeshAxis::kKv)) return Cause::kTensor;
  if (group == name_of(MeshAxis::kPipeline)) return Cause::kPipelineTransfer;
  if (group == name_of(MeshAxis::kSecondary)) return Cause::kZeroGather;
  if (group == name_of(MeshAxis::kShard)) return operation.verb == "all_gather" ? Cause::kZeroGather : Cause::kZeroReduce;
  if (group == name_of(MeshAxis::kReplicate) || group == name_of(MeshAxis::kEmbedding)) return Cause::kZeroReduce;
  return Cause::kOther;
}

const Stretch* stretch_at(const std::vector<Stretch>& stretches, double time) {
  for (const Stretch& stretch : stretches)
    if (stretch.begin <= time && time < stretch.end) return &stretch;
  return nullptr;
}

/// Blocked intervals by time. Reading the batch counts entirely as data wait, so operations within it are skipped.
std::vector<Blocked> blocked(const StepTrace& trace) {
  std::vector<Blocked> all;
  for (const TimedOperation& operation : trace.operations) {
    const Stretch* const stretch = stretch_at(trace.stretches, operation.begin);
    if (stretch != nullptr && stretch->cause == Cause::kDataWait) continue;
    Cause cause = cause_of(operation);
    const bool updating = std::ranges::any_of(trace.timeline, [&](const TimelineEvent& event) {
      return ends_step(event.action.type) && !follows_updates(event.action.type) && event.begin <= operation.begin && operation.begin < event.end;
    });
    if (cause == Cause::kOther && updating) cause = Cause::kOptimizer;
    const bool for_pipeline = cause == Cause::kPipelineTransfer || operation.group == name_of(MeshAxis::kEmbedding) ||
                              (updating && (operation.group == name_of(MeshAxis::kWorld) || operation.group == name_of(MeshAxis::kStep)));
    all.push_back({cause, for_pipeline, operation.begin, operation.started});
    all.push_back({cause, for_pipeline, operation.wait, operation.end});
  }
  std::ranges::sort(all, {}, &Blocked::begin);
  return all;
}

/// Seconds of `waits` within [begin, end]. One thread does all work and all waiting, so each wait lies entirely inside or outside.
double blocked_in(const std::vector<Blocked>& waits, double begin, double end, bool for_pipeline_only) {
  double seconds = 0;
  for (auto wait = std::ranges::lower_bound(waits, begin, {}, &Blocked::begin); wait != waits.end() && wait->end <= end; ++wait)
    if (wait->for_pipeline || !for_pipeline_only) seconds += wait->seconds();
  return seconds;
}

/// A timeline up to its last action that does not wait for other ranks; after that come the waits for the last reductions, norm and update.
std::span<const TimelineEvent> own_work(const Timeline& timeline) {
  size_t end = timeline.size();
  while (end > 0 && timeline[end - 1].action.type >= ActionType::kReduceTied) --end;
  return {timeline.data(), end};
}

/// Idle seconds of a pipeline rank with free transfers.
struct Idle {
  double inside = 0;  ///< before its last action ends
  double after = 0;   ///< until the last of all ranks is done
};

/// Replays the timelines of one pipeline's ranks (`column`) with free transfers.
std::vector<Idle> replay(const std::vector<const StepTrace*>& column, const std::vector<const std::vector<Blocked>*>& waits) {
  ActionLists lists;
  std::vector<double> costs;  // by Action::group, which only transfers use otherwise
  std::vector<double> busy;
  const auto add = [&](Action action, double seconds) {
    action.group = static_cast<int>(costs.size());
    costs.push_back(seconds);
    busy.back() += seconds;
    lists.back().push_back(action);
  };
  for (size_t rank = 0; rank < column.size(); ++rank) {
    lists.emplace_back();
    busy.push_back(0);
    for (const TimelineEvent& event : own_work(column[rank]->timeline)) {
      // The time before the list becomes a local action in front of it.
      if (lists.back().empty()) add({ActionType::kReshard, event.action.stage, -1, 0}, event.begin);
      if (is_transfer(event.action.type)) {
        lists.back().push_back(event.action);
      } else {
        const double own = event.end - event.begin - blocked_in(*waits[rank], event.begin, event.end, true);
        add(event.action, std::max(0.0, own));
      }
    }
  }
  const Simulation free_transfers =
      simulate(lists, [&](const Action& action) { return is_transfer(action.type) ? 0.0 : costs[static_cast<size_t>(action.group)]; });
  std::vector<double> ends;
  for (const Timeline& timeline : free_transfers.ranks) {
    double end = 0;
    for (const TimelineEvent& event : timeline) end = std::max(end, event.end);
    ends.push_back(end);
  }
  std::vector<Idle> idle;
  const double last = *std::ranges::max_element(ends);
  for (size_t rank = 0; rank < ends.size(); ++rank) idle.push_back({std::max(0.0, ends[rank] - busy[rank]), last - ends[rank]});
  return idle;
}

ExposedTime exposed_of(const StepTrace& trace, const std::vector<Blocked>& waits, const Idle& idle) {
  ExposedTime seconds{};
  const auto of = [&](Cause cause) -> double& { return seconds[static_cast<size_t>(cause)]; };
  for (const TimelineEvent& event : trace.timeline) {
    if (is_transfer(event.action.type) || follows_updates(event.action.type)) continue;  // what islands wait for is not the optimizer's time
    of(ends_step(event.action.type) ? Cause::kOptimizer : Cause::kCompute) +=
        event.end - event.begin - blocked_in(waits, event.begin, event.end, false);
  }
  double done = 0;  // end of the rank's own work
  for (const TimelineEvent& event : own_work(trace.timeline))
    if (!is_transfer(event.action.type)) done = event.end;
  for (const Stretch& stretch : trace.stretches)
    of(stretch.cause) += stretch.end - stretch.begin - blocked_in(waits, stretch.begin, stretch.end, false);
  double inside = idle.inside, after = idle.after;
  for (const Blocked& wait : waits) {
    double& left = wait.begin < done ? inside : after;
    const double bubble = wait.for_pipeline ? std::min(left, wait.seconds()) : 0;
    left -= bubble;
    of(Cause::kPipelineBubble) += bubble;
    of(wait.cause) += wait.seconds() - bubble;
  }
  of(Cause::kOther) = 0;
  of(Cause::kOther) = std::max(0.0, trace.seconds - std::accumulate(seconds.begin(), seconds.end(), 0.0));
  return seconds;
}

}  // namespace

std::vector<ExposedTime> exposed_time(const std::vector<StepTrace>& ranks, const MeshShape& mesh) {
  TRIREME_CHECK(static_cast<int>(ranks.size()) == mesh.world(), ranks.size(), " traces of ", mesh.world(), " ranks");
  std::vector<std::vector<Blocked>> waits;
  for (const StepTrace& trace : ranks) waits.push_back(blocked(trace));
  std::vector<ExposedTime> all(ranks.size());
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const std::vector<int> members = group_members(mesh, MeshAxis::kPipeline, rank, mesh.tensor);
    if (members.front() != rank) continue;  // each pipeline once
    std::vector<const StepTrace*> column;
    std::vector<const std::vector<Blocked>*> column_waits;
    for (const int member : members) {
      column.push_back(&ranks[static_cast<size_t>(member)]);
      column_waits.push_back(&waits[static_cast<size_t>(member)]);
    }
    const std::vector<Idle> idle = replay(column, column_waits);
    for (size_t i = 0; i < members.size(); ++i) all[static_cast<size_t>(members[i])] = exposed_of(*column[i], *column_waits[i], idle[i]);
  }
  return all;
}

std::string exposed_table(const std::vector<ExposedTime>& ranks) {
  const auto count = static_cast<double>(ranks.size());
  ExposedTime mean{}, most{};
  for (const ExposedTime& rank : ranks) {
    for (size_t cause = 0; cause < kCauses; ++cause) {
      mean[cause] += rank[cause] / count;
      most[cause] = std::max(most[cause], rank[cause]);
    }
  }
  const double step = std::accumulate(mean.begin(), mean.end(), 0.0);
  std::string text;
  char line[128];
  for (size_t cause = 0; cause < kCauses; ++cause) {
    std::snprintf(line, sizeof line, "  %-18s %10.4f %10.4f %6.1f %%\n", name_of(static_cast<Cause>(cause)), mean[cause], most[cause],
                  step > 0 ? 100 * mean[cause] / step : 0);
    text += plain_zero(line);
  }
  std::snprintf(line, sizeof line, "  %-18s %10.4f", "step", step);
  return text + line;
}

void align(std::vector<StepTrace>& ranks) {
  auto earliest = ranks.front().origin;
  for (const StepTrace& rank : ranks)
    if (rank.clock == ranks.front().clock) earliest = std::min(earliest, rank.origin);
  for (StepTrace& rank : ranks) {
    const double late = rank.clock == ranks.front().clock ? std::chrono::duration<double>(rank.origin - earliest).count() : 0;
    for (TimelineEvent& event : rank.timeline) event.begin += late, event.end += late;
    for (Stretch& stretch : rank.stretches) stretch.begin += late, stretch.end += late;
    for (TimedOperation& one : rank.operations) one.begin += late, one.started += late, one.wait += late, one.end += late;
    for (TimedKernel& one : rank.kernels) one.begin += late, one.end += late;
    rank.origin = earliest;
  }
}

std::string to_bytes(const StepTrace& trace) {
  nlohmann::json json = {{"origin", trace.origin.time_since_epoch().count()},
                         {"clock", trace.clock},
                         {"seconds", trace.seconds},
                         {"timeline", nlohmann::json::array()},
                         {"stretches", nlohmann::json::array()},
                         {"operations", nlohmann::json::array()},
                         {"kernels", nlohmann::json::array()}};
  for (const auto& [action, begin, end] : trace.timeline)
    json["timeline"].push_back({static_cast<int>(action.type), action.stage, action.microbatch, action.unit, action.part, action.group, begin, end});
  for (const Stretch& stretch : trace.stretches) json["stretches"].push_back({static_cast<int>(stretch.cause), stretch.begin, stretch.end});
  for (const TimedOperation& one : trace.operations) json["operations"].push_back({one.group, one.verb, one.begin, one.started, one.wait, one.end});
  for (const TimedKernel& one : trace.kernels) json["kernels"].push_back({one.name, one.begin, one.end});
  std::string bytes;
  nlohmann::json::to_msgpack(json, bytes);
  return bytes;
}

StepTrace step_trace_from(const std::string& bytes) {
  const nlohmann::json json = unpack_value(bytes, "timeline of a rank");
  StepTrace trace;
  trace.origin = std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(json["origin"].get<int64_t>()));
  trace.clock = json["clock"];
  trace.seconds = json["seconds"];
  for (const nlohmann::json& e : json["timeline"])
    trace.timeline.push_back({{static_cast<ActionType>(e[0].get<int>()), e[1], e[2], e[3], e[4], e[5]}, e[6], e[7]});
  for (const nlohmann::json& e : json["stretches"]) trace.stretches.push_back({static_cast<Cause>(e[0].get<int>()), e[1], e[2]});
  for (const nlohmann::json& e : json["operations"]) trace.operations.push_back({e[0], e[1], e[2], e[3], e[4], e[5]});
  for (const nlohmann::json& e : json["kernels"]) trace.kernels.push_back({e[0], e[1], e[2]});
  return trace;
}

}  // namespace trireme
