#pragma once
// A pipeline schedule is data: one list of actions for each pipeline rank. Generators emit compute only; lowering passes add what moves data;
// one executor runs the list; the validator and the simulator read the same list.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class ActionType : uint8_t {
  kForward,         ///< F
  kBackward,        ///< B = I then W
  kBackwardInput,   ///< I
  kBackwardWeight,  ///< W
  kSendForward,     ///< SEND_F: this stage's output to the next stage
  kRecvForward,     ///< RECV_F: this stage's input from the previous stage
  kSendBackward,    ///< SEND_B: gradient of this stage's input to the previous stage
  kRecvBackward,    ///< RECV_B: gradient of this stage's output from the next stage
  kUnshard,         ///< UNSHARD: start gathering a unit's parameters over `shard`
  kReshard,         ///< RESHARD: this use of the unit is over; its full copy may go
  kReduceGrads,     ///< REDUCE_GRADS: start the reduce-scatter of a unit's gradient over `shard`
  kReduceReplicas,  ///< REDUCE_REPLICAS: start the all-reduce of a unit's owned gradient shard over `replicate`, once a step
  kReduceTied,      ///< REDUCE_TIED: all-reduce of the tied embedding's owned gradient shard over `embedding`, once a step
};
const char* name_of(ActionType type);
constexpr bool is_compute(ActionType type) { return type <= ActionType::kBackwardWeight; }
constexpr bool is_send(ActionType type) { return type == ActionType::kSendForward || type == ActionType::kSendBackward; }
constexpr bool is_receive(ActionType type) { return type == ActionType::kRecvForward || type == ActionType::kRecvBackward; }
constexpr bool is_transfer(ActionType type) { return is_send(type) || is_receive(type); }

/// stage: global index (virtual stages included). microbatch: -1 where it does not apply. unit: the unit moved (UNSHARD, RESHARD, REDUCE_*) or the
/// part computed (F, B, I, W after lowering), -1 = all parts. group: consecutive sends and receives of one rank with the same group >= 0 are issued together.
struct Action {
  ActionType type;
  int stage;
  int microbatch = -1;
  int unit = -1;
  int group = -1;
  bool operator==(const Action&) const = default;
};

using ActionList = std::vector<Action>;        ///< one rank
using PipelinePlan = std::vector<ActionList>;  ///< indexed by pipeline rank

/// The other end of a transfer: SEND_F of stage s meets RECV_F of stage s + 1, SEND_B of stage s meets RECV_B of stage s - 1.
Action counterpart(const Action& transfer);

/// "2F0", "2F0.3" (part 3), "2UNSHARD5", "2SEND_F0".
std::string to_string(const Action& action);
std::string to_string(const ActionList& list);  ///< separated by spaces

}  // namespace trireme
