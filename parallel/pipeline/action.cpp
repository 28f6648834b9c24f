#include "parallel/pipeline/action.h"

#include <array>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/mesh.h"

namespace trireme {

namespace {

constexpr MeshAxis kTensor[] = {MeshAxis::kTensor}, kShard[] = {MeshAxis::kShard}, kReplicate[] = {MeshAxis::kReplicate},
                   kEmbedding[] = {MeshAxis::kEmbedding}, kPartial[] = {MeshAxis::kTensor, MeshAxis::kKv},
                   kMatrix[] = {MeshAxis::kShard, MeshAxis::kTensor}, kStep[] = {MeshAxis::kStep};
constexpr std::span<const MeshAxis> kAlone;

constexpr std::array kFacts = std::to_array<ActionFacts>({
    {ActionType::kForward, "F", ActionScope::kPart, kTensor, true},
    {ActionType::kBackward, "B", ActionScope::kPart, kTensor, true},
    {ActionType::kBackwardInput, "I", ActionScope::kPart, kTensor, true},
    {ActionType::kBackwardWeight, "W", ActionScope::kPart, kTensor, true},
    {ActionType::kSendForward, "SEND_F", ActionScope::kTransfer, kAlone, false},
    {ActionType::kRecvForward, "RECV_F", ActionScope::kTransfer, kAlone, false},
    {ActionType::kSendBackward, "SEND_B", ActionScope::kTransfer, kAlone, false},
    {ActionType::kRecvBackward, "RECV_B", ActionScope::kTransfer, kAlone, false},
    {ActionType::kUnshard, "UNSHARD", ActionScope::kUnit, kShard, false},
    {ActionType::kReshard, "RESHARD", ActionScope::kUnit, kAlone, false},
    {ActionType::kReduceGrads, "REDUCE_GRADS", ActionScope::kUnit, kShard, false},
    {ActionType::kReduceReplicas, "REDUCE_REPLICAS", ActionScope::kUnit, kReplicate, false},
    {ActionType::kReduceTied, "REDUCE_TIED", ActionScope::kUnit, kEmbedding, false},
    {ActionType::kWaitGrads, "WAIT_GRADS", ActionScope::kUnit, kAlone, false},
    {ActionType::kClipSamples, "CLIP", ActionScope::kMicrobatch, kTensor, true},
    {ActionType::kWaitClip, "WAIT_CLIP", ActionScope::kMicrobatch, kAlone, true},
    {ActionType::kSumPartial, "SUM_PARTIAL", ActionScope::kStage, kPartial, true},
    {ActionType::kNorm, "NORM", ActionScope::kStep, kStep, true},
    {ActionType::kOrthogonalize, "ORTHOGONALIZE", ActionScope::kStage, kMatrix, true},
    {ActionType::kUpdate, "UPDATE", ActionScope::kUnit, kAlone, false},
});

constexpr bool is_in_order() {
  for (size_t i = 0; i < kFacts.size(); ++i)
    if (static_cast<size_t>(kFacts[i].type) != i) return false;
  return kFacts.size() == static_cast<size_t>(ActionType::kUpdate) + 1;
}
static_assert(is_in_order());

}  // namespace

const ActionFacts& facts_of(ActionType type) { return kFacts[static_cast<size_t>(type)]; }

Action counterpart(const Action& transfer) {
  Action other = transfer;
  other.peer = -1;
  if (transfer.peer_microbatch >= 0) other.microbatch = std::exchange(other.peer_microbatch, transfer.microbatch);
  switch (transfer.type) {
    case ActionType::kSendForward: other.type = ActionType::kRecvForward, ++other.stage; break;
    case ActionType::kRecvForward: other.type = ActionType::kSendForward, --other.stage; break;
    case ActionType::kSendBackward: other.type = ActionType::kRecvBackward, --other.stage; break;
    case ActionType::kRecvBackward: other.type = ActionType::kSendBackward, ++other.stage; break;
    default: throw InternalError(concat(to_string(transfer), " is not a transfer"));
  }
  return other;
}

std::string to_string(const Action& action) {
  std::string text = action.stage >= 0 ? std::to_string(action.stage) : "";
  text += name_of(action.type);
  if (action.microbatch >= 0) text += std::to_string(action.microbatch);
  if (action.part >= 0) text += concat(".", action.part);
  if (action.unit >= 0) text += std::to_string(action.unit);
  if (action.peer >= 0) text += concat("@", action.peer, "/", action.peer_microbatch);
  return text;
}

std::string to_string(const ActionList& list) {
  std::string text;
  for (const Action& action : list) text += concat(text.empty() ? "" : " ", to_string(action));
  return text;
}

}  // namespace trireme
