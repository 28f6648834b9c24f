#include "parallel/pipeline/executor.h"

#include <memory>
#include <tuple>
#include <utility>

#include "kernels/core/profiler.h"

namespace trireme {
namespace {

/// The run of one list. After an exception transfers are deliberately not waited for: the peers may never reach theirs, and the error must propagate.
class Run {
 public:
  Run(Context& ctx, Communicator& transfers, const std::map<int, Stage*>& stages, const std::vector<int>& stage_rank, TimelineRecorder* recorder,
      Communicator* world, Progress* progress, const std::function<int(int, int)>& rank_of, const std::map<ActionType, Executor::Handler>& handlers)
      : ctx_(ctx),
        transfers_(transfers),
        rank_of_(rank_of),
        stages_(stages),
        stage_rank_(stage_rank),
        recorder_(recorder),
        world_(world),
        progress_(progress),
        handlers_(handlers) {}
  void run(std::span<const Action> list);

 private:
  /// Transfers issued together: one operation, in which all of them complete at the same time.
  struct Exchange {
    std::vector<PointToPoint> messages;
    Work work;
    size_t first_event = 0, events = 0;
    bool over = false;
  };

  void compute(const Action& action);
  void hand_over(const Action& action, Stage& stage);
  void compute_part(const Action& action, Stage& stage, int part);
  void move_unit(const Action& action);
  void act_on_stage(const Action& action);
  void act_on_all_stages(const Action& action);
  void exchange(const Action* first, const Action* last);
  PointToPoint message(const Action& transfer);
  void wait(Exchange& exchange);
  void finish_transfers();
  size_t begin_event(const Action& action);
  void end_event(size_t event);
  Stage& stage_of(const Action& action) const;

  Context& ctx_;
  Communicator& transfers_;
  const std::function<int(int, int)>& rank_of_;  ///< Executor::connect_pipelines; empty: transfers_ is the pipeline
  const std::map<int, Stage*>& stages_;
  const std::vector<int>& stage_rank_;
  TimelineRecorder* recorder_;
  Communicator* world_;
  Progress* progress_;
  const std::map<ActionType, Executor::Handler>& handlers_;
  std::map<std::tuple<ActionType, int, int>, std::shared_ptr<Exchange>> receives_;  ///< not yet waited for, by type, stage, micro-batch
  std::map<std::pair<ActionType, int>, std::shared_ptr<Exchange>> sends_;           ///< the latest send, by type, peer
};

Stage& Run::stage_of(const Action& action) const {
  const auto found = stages_.find(action.stage);
  TRIREME_CHECK(found != stages_.end(), to_string(action), " belongs to a stage that is not on this rank");
  return *found->second;
}

size_t Run::begin_event(const Action& action) { return recorder_ != nullptr ? recorder_->begin(ctx_, action) : 0; }

void Run::end_event(size_t event) {
  if (recorder_ != nullptr) recorder_->end(ctx_, event);
}

void Run::compute(const Action& action) {
  const ActionType input = action.type == ActionType::kForward ? ActionType::kRecvForward : ActionType::kRecvBackward;
  if (const auto receive = receives_.extract({input, action.stage, action.microbatch}); !receive.empty()) wait(*receive.mapped());
  Stage& stage = stage_of(action);
  hand_over(action, stage);
  const ProfilerRange range(ctx_, [&] { return to_string(action); });
  const size_t event = begin_event(action);
  if (action.part >= 0) {
    compute_part(action, stage, action.part);
  } else {
    const int parts = stage.parts();
    for (int i = 0; i < parts; ++i) compute_part(action, stage, action.type == ActionType::kForward ? i : parts - 1 - i);
  }
  end_event(event);
}

/// Hands over the output of a neighbouring stage of this rank to the first part that reads it.
void Run::hand_over(const Action& action, Stage& stage) {
  const bool forward = action.type == ActionType::kForward;
  if (action.type == ActionType::kBackwardWeight || (action.part >= 0 && action.part != (forward ? 0 : stage.parts() - 1))) return;
  const auto neighbour = stages_.find(action.stage + (forward ? -1 : 1));
  if (neighbour == stages_.end()) return;
  if (forward) {
    stage.put_forward_input(action.microbatch, neighbour->second->take_forward_output(action.microbatch));
  } else {
    stage.put_backward_input(action.microbatch, neighbour->second->take_backward_output(action.microbatch));
  }
}

void Run::compute_part(const Action& action, Stage& stage, int part) {
  if (progress_ != nullptr) progress_->act(describe(action, stage.part_name(part)), action.microbatch);
  const ProfilerRange range(ctx_, [&] { return stage.part_name(part); });
  if (action.type == ActionType::kForward) stage.forward(ctx_, action.microbatch, part);
  if (action.type == ActionType::kBackward) stage.backward(ctx_, action.microbatch, part);
  if (action.type == ActionType::kBackwardInput) stage.backward_input(ctx_, action.microbatch, part);
  if (action.type == ActionType::kBackwardWeight) stage.backward_weight(ctx_, action.microbatch, part);
}

void Run::move_unit(const Action& action) {
  Stage& stage = stage_of(action);
  if (progress_ != nullptr) progress_->act(describe(action, stage.unit_name(action.unit)));
  const ProfilerRange range(ctx_, [&] { return to_string(action); });
  const size_t event = begin_event(action);
  switch (action.type) {
    case ActionType::kUnshard: stage.unshard(ctx_, action.unit); break;
    case ActionType::kReshard: stage.reshard(ctx_, action.unit); break;
    case ActionType::kReduceGrads: stage.reduce_grads(ctx_, action.unit); break;
    case ActionType::kReduceReplicas: stage.reduce_replicas(ctx_, action.unit); break;
    case ActionType::kReduceTied: stage.reduce_tied(ctx_, action.unit); break;
    case ActionType::kWaitGrads: stage.wait_grads(ctx_, action.unit); break;
    case ActionType::kUpdate: stage.update(ctx_, action.unit); break;
    default: throw InternalError(concat(to_string(action), " is not an action on a unit"));
  }
  end_event(event);
}

void Run::act_on_stage(const Action& action) {
  if (progress_ != nullptr) progress_->act(describe(action, ""));
  const ProfilerRange range(ctx_, [&] { return to_string(action); });
  const size_t event = begin_event(action);
  Stage& stage = stage_of(action);
  action.type == ActionType::kSumPartial ? stage.sum_partial(ctx_) : stage.orthogonalize(ctx_);
  end_event(event);
}

void Run::act_on_all_stages(const Action& action) {
  const auto handler = handlers_.find(action.type);
  TRIREME_CHECK(handler != handlers_.end(), "the list contains ", to_string(action), ", which has no handler");
  const std::string doing = describe(action, "");
  if (progress_ != nullptr && !doing.empty()) progress_->act(doing, action.microbatch);
  const ProfilerRange range(ctx_, [&] { return to_string(action); });
  const size_t event = begin_event(action);
  handler->second(ctx_, action);
  end_event(event);
}

PointToPoint Run::message(const Action& transfer) {
  Stage& stage = stage_of(transfer);
  const int pipeline_rank = stage_rank_.at(static_cast<size_t>(counterpart(transfer).stage));
  TRIREME_CHECK(transfer.peer < 0 || rank_of_, to_string(transfer), " goes to another pipeline, but connect_pipelines was not called");
  const int peer = rank_of_ ? rank_of_(pipeline_rank, transfer.peer) : pipeline_rank;
  const PointToPoint::Kind kind = is_send(transfer.type) ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
  switch (transfer.type) {
    case ActionType::kSendForward: return {kind, stage.take_forward_output(transfer.microbatch), peer};
    case ActionType::kRecvForward: return {kind, stage.recv_forward_buffer(ctx_, transfer.microbatch), peer};
    case ActionType::kSendBackward: return {kind, stage.take_backward_output(transfer.microbatch), peer};
    default: return {kind, stage.recv_backward_buffer(ctx_, transfer.microbatch), peer};
  }
}

/// A send is waited for when the next one of its type to the same peer is issued, so at most one send per type and peer keeps its buffer.
void Run::exchange(const Action* first, const Action* last) {
  if (progress_ != nullptr) progress_->act(describe(*first, ""), first->microbatch);
  const ProfilerRange range(ctx_, [&] { return to_string(*first); });
  const auto issued = std::make_shared<Exchange>();
  for (const Action* transfer = first; transfer != last; ++transfer) {
    const PointToPoint& added = issued->messages.emplace_back(message(*transfer));
    if (is_receive(transfer->type)) {
      receives_[{transfer->type, transfer->stage, transfer->microbatch}] = issued;
    } else if (const auto previous = std::exchange(sends_[{transfer->type, added.peer}], issued); previous != nullptr && previous != issued) {
      wait(*previous);
    }
  }
  for (const Action* transfer = first; transfer != last; ++transfer) {
    const size_t event = begin_event(*transfer);
    if (transfer == first) issued->first_event = event;
    ++issued->events;
  }
  issued->work = transfers_.exchange(ctx_, issued->messages);
  if (!issued->work.pending()) wait(*issued);  // over already
}

void Run::wait(Exchange& exchange) {
  if (std::exchange(exchange.over, true)) return;
  exchange.work.wait(ctx_);
  exchange.messages.clear();
  for (size_t i = 0; i < exchange.events; ++i) end_event(exchange.first_event + i);
}

/// Waits for all transfers in flight. Also called before norm and update, so that sent buffers are not kept in memory beside the optimizer's.
void Run::finish_transfers() {
  for (const auto& [key, receive] : receives_) wait(*receive);
  for (const auto& [key, send] : sends_) wait(*send);
  receives_.clear();
  sends_.clear();
}

void Run::run(std::span<const Action> list) {
  const Action* const end = list.data() + list.size();
  for (const Action* action = list.data(); action != end;) {
    const Action* next = action + 1;
    if (ends_step(action->type)) finish_transfers();
    switch (facts_of(action->type).scope) {
      case ActionScope::kPart: compute(*action); break;
      case ActionScope::kUnit: move_unit(*action); break;
      case ActionScope::kStage: act_on_stage(*action); break;
      case ActionScope::kMicrobatch:
      case ActionScope::kStep: act_on_all_stages(*action); break;
      case ActionScope::kTransfer:
        while (next != end && is_transfer(next->type) && next->group == action->group && action->group >= 0) ++next;
        exchange(action, next);
        break;
    }
    if (world_ != nullptr) world_->advance();
    action = next;
  }
  finish_transfers();
}

}  // namespace

Executor::Executor(Communicator& pipeline, std::map<int, Stage*> local_stages, std::vector<int> stage_rank)
    : pipeline_(pipeline), stages_(std::move(local_stages)), stage_rank_(std::move(stage_rank)) {
  for (const auto& [stage, unused] : stages_)
    TRIREME_CHECK(stage >= 0 && stage < static_cast<int>(stage_rank_.size()) && stage_rank_[static_cast<size_t>(stage)] == pipeline_.rank(), "stage ",
                  stage, " is not assigned to pipeline rank ", pipeline_.rank());
}

void Executor::run(Context& ctx, std::span<const Action> list, TimelineRecorder* recorder) {
  Run(ctx, all_ != nullptr ? *all_ : pipeline_, stages_, stage_rank_, recorder, world_, progress_, rank_of_, handlers_).run(list);
}

}  // namespace trireme
