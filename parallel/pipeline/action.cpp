#include "parallel/pipeline/action.h"

#include <utility>

#include "kernels/core/check.h"
#include "parallel/mesh.h"

namespace trireme {

const char* name_of(ActionType type) {
  switch (type) {
    case ActionType::kForward: return "F";
    case ActionType::kBackward: return "B";
    case ActionType::kBackwardInput: return "I";
    case ActionType::kBackwardWeight: return "W";
    case ActionType::kSendForward: return "SEND_F";
    case ActionType::kRecvForward: return "RECV_F";
    case ActionType::kSendBackward: return "SEND_B";
    case ActionType::kRecvBackward: return "RECV_B";
    case ActionType::kUnshard: return "UNSHARD";
    case ActionType::kReshard: return "RESHARD";
    case ActionType::kReduceGrads: return "REDUCE_GRADS";
    case ActionType::kReduceReplicas: return "REDUCE_REPLICAS";
    case ActionType::kReduceTied: return "REDUCE_TIED";
    case ActionType::kWaitGrads: return "WAIT_GRADS";
    case ActionType::kClipSamples: return "CLIP";
    case ActionType::kWaitClip: return "WAIT_CLIP";
    case ActionType::kSumPartial: return "SUM_PARTIAL";
    case ActionType::kNorm: return "NORM";
    case ActionType::kUpdate: return "UPDATE";
  }
  return "?";
}

std::span<const MeshAxis> axes_of(const Action& action) {
  static constexpr MeshAxis kTensor[] = {MeshAxis::kTensor}, kShard[] = {MeshAxis::kShard}, kReplicate[] = {MeshAxis::kReplicate},
                            kEmbedding[] = {MeshAxis::kEmbedding}, kPartial[] = {MeshAxis::kTensor, MeshAxis::kKv}, kStep[] = {MeshAxis::kStep};
  if (is_compute(action.type)) return kTensor;
  switch (action.type) {
    case ActionType::kUnshard:
    case ActionType::kReduceGrads: return kShard;
    case ActionType::kReduceReplicas: return kReplicate;
    case ActionType::kReduceTied: return kEmbedding;
    case ActionType::kClipSamples: return kTensor;
    case ActionType::kSumPartial: return kPartial;
    case ActionType::kNorm: return kStep;
    default: return {};
  }
}

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
