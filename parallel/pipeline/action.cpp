#include "parallel/pipeline/action.h"

#include <array>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/mesh.h"

namespace trireme {

namespace {

constexpr MeshAxis kTensor[] = {MeshAxis::kTensor}, kShard[] = {MeshAxis::kShard}, kReplicate[] = {MeshAxis::kReplicate},
                   kEmbedding[] = {MeshAxis::kEmbedding}, kPartial[] = {MeshAxis::kTensor, MeshAxis::kKv},
                   kMatrix[] = {MeshAxis::kShard, MeshAxis::kTensor}, kStep[] = {MeshAxis::kStep}, kIslands[] = {MeshAxis::kIslands};
constexpr std::span<const MeshAxis> kAlone;

constexpr std::array kFacts = std::to_array<ActionFacts>({
    {ActionType::kForward, "F", ActionScope::kPart, kTensor, true, "forward of micro-batch $m, $u"},
    {ActionType::kBackward, "B", ActionScope::kPart, kTensor, true, "backward of micro-batch $m, $u"},
    {ActionType::kBackwardInput, "I", ActionScope::kPart, kTensor, true, "input gradient of micro-batch $m, $u"},
    {ActionType::kBackwardWeight, "W", ActionScope::kPart, kTensor, true, "weight gradient of micro-batch $m, $u"},
    {ActionType::kSendForward, "SEND_F", ActionScope::kTransfer, kAlone, false, "sending the output of micro-batch $m"},
    {ActionType::kRecvForward, "RECV_F", ActionScope::kTransfer, kAlone, false, "receiving the input of micro-batch $m"},
    {ActionType::kSendBackward, "SEND_B", ActionScope::kTransfer, kAlone, false, "sending the input gradient of micro-batch $m"},
    {ActionType::kRecvBackward, "RECV_B", ActionScope::kTransfer, kAlone, false, "receiving the output gradient of micro-batch $m"},
    {ActionType::kUnshard, "UNSHARD", ActionScope::kUnit, kShard, false, "gathering $u"},
    {ActionType::kReshard, "RESHARD", ActionScope::kUnit, kAlone, false, "releasing $u"},
    {ActionType::kReduceGrads, "REDUCE_GRADS", ActionScope::kUnit, kShard, false, "reducing the gradient of $u"},
    {ActionType::kReduceReplicas, "REDUCE_REPLICAS", ActionScope::kUnit, kReplicate, false, "reducing the gradient of $u over its replicas"},
    {ActionType::kReduceTied, "REDUCE_TIED", ActionScope::kUnit, kEmbedding, false, "reducing the gradient of the tied $u"},
    {ActionType::kWaitGrads, "WAIT_GRADS", ActionScope::kUnit, kAlone, false, "waiting for the reduced gradient of $u"},
    {ActionType::kClipSamples, "CLIP", ActionScope::kMicrobatch, kTensor, true, "norms of the samples of micro-batch $m"},
    {ActionType::kWaitClip, "WAIT_CLIP", ActionScope::kMicrobatch, kAlone, true, "waiting for the norms of the samples of micro-batch $m"},
    {ActionType::kSumPartial, "SUM_PARTIAL", ActionScope::kStage, kPartial, true, "summing partial gradients over tensor ranks"},
    {ActionType::kAggregate, "AGGREGATE", ActionScope::kStep, kStep, true, "combining the gradients of the data ranks"},
    {ActionType::kNoise, "NOISE", ActionScope::kStep, kAlone, false, "adding noise to the gradient"},
    {ActionType::kNorm, "NORM", ActionScope::kStep, kStep, true, "gradient norm"},
    {ActionType::kOrthogonalize, "ORTHOGONALIZE", ActionScope::kStage, kMatrix, true, "orthogonalizing the updates of matrices"},
    {ActionType::kUpdate, "UPDATE", ActionScope::kUnit, kAlone, false, "updating $u"},
    {ActionType::kOuter, "OUTER", ActionScope::kStep, kIslands, false, nullptr},
    {ActionType::kExchange, "EXCHANGE", ActionScope::kStep, kStep, false, nullptr},
});

constexpr bool is_in_order() {
  for (size_t i = 0; i < kFacts.size(); ++i)
    if (static_cast<size_t>(kFacts[i].type) != i) return false;
  return kFacts.size() == static_cast<size_t>(ActionType::kExchange) + 1;
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

std::string describe(const Action& action, const std::string& what) {
  std::string text;
  const char* const doing = facts_of(action.type).doing;
  for (const char* at = doing != nullptr ? doing : ""; *at != 0; ++at) {
    if (*at != '$') {
      text += *at;
    } else {
      text += *++at == 'm' ? std::to_string(action.microbatch) : what;
    }
  }
  return text;
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
