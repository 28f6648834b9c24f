#pragma once
// A step is data: one list of actions for each pipeline rank. Generators emit only compute; lowering adds communication and the actions after the
// last backward; one executor runs the list; the validator and the simulators read the same list.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme {

enum class MeshAxis : uint8_t;  // parallel/mesh.h

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
  kReshard,         ///< RESHARD: this use of the unit has ended; its full copy may be freed
  kReduceGrads,     ///< REDUCE_GRADS: start the reduce-scatter of a unit's gradient over `shard`
  kReduceReplicas,  ///< REDUCE_REPLICAS: start the all-reduce of a unit's owned gradient shard over `replicate`, once a step
  kReduceTied,      ///< REDUCE_TIED: start the all-reduce of the tied embedding's owned gradient shard over `embedding`, once a step
  kWaitGrads,       ///< WAIT_GRADS: wait for the reduction of a unit's gradient that is in flight; the owned shard then holds its sum
  kClipSamples,     ///< CLIP: after the rank's last I of a micro-batch, start to sum the squared gradient norms of its samples over the model's ranks
  kWaitClip,        ///< WAIT_CLIP: before the rank's first W of the micro-batch, wait for these sums
  kSumPartial,      ///< SUM_PARTIAL: all-reduce a stage's owned gradients that are partial over `tensor` or over `kv`, once a step
  kAggregate,       ///< AGGREGATE: a robust rule combines the gradients of the data ranks, which their reductions have only collected
  kNoise,           ///< NOISE: add the noise of a private step to the owned gradients, once a step
  kNorm,            ///< NORM: all-reduce squared gradient norm and loss over the ranks of the step, and decide clipping and acceptance of the step
  kOrthogonalize,   ///< ORTHOGONALIZE: the updates of a stage's matrices, for an optimizer of whole matrices: over `shard` and `tensor`, once a step
  kUpdate,          ///< UPDATE: run the optimizer on the owned shard of a unit
  kOuter,           ///< OUTER: local updates over `islands`. After most steps nothing, after some a sum begins, after others an outer step ends
  kExchange,        ///< EXCHANGE: asynchronous training. The ranks of an island send a gradient or weights to parameter servers and wait for new
                    ///< weights. With hogwild they update weights that all islands share in memory
};

/// What an action names beside its type.
enum class ActionScope : uint8_t {
  kPart,        ///< a stage, a micro-batch and a part of the stage: compute
  kTransfer,    ///< a stage and a micro-batch
  kUnit,        ///< a stage and a unit of it
  kMicrobatch,  ///< a micro-batch of all stages of the rank
  kStage,       ///< a stage
  kStep,        ///< nothing: the rank's step
};

/// What everybody who reads a list knows of a type: its validation, its deadlock check, its simulations and its execution.
struct ActionFacts {
  ActionType type;
  const char* name;
  ActionScope scope;
  /// The axes of the groups whose ranks must all reach the action, in the order in which a rank joins them. Empty if the action concerns only its rank or
  /// is a transfer, which has a counterpart instead. WAIT_CLIP meets nobody: it waits for CLIP of the other ranks of the pipeline.
  std::span<const MeshAxis> axes;
  /// True if every rank of a group waits until the last one has reached the action; false if the ranks start an operation that ends later, or have no
  /// group. WAIT_CLIP counts as true, because it costs its rank nothing but waiting.
  bool blocks;
  /// What a rank is doing, for messages: "gathering $u". $m becomes the micro-batch, $u the name of the part or unit. Null: its handler says it.
  const char* doing;
};
const ActionFacts& facts_of(ActionType type);
inline const char* name_of(ActionType type) { return facts_of(type).name; }
constexpr bool is_compute(ActionType type) { return type <= ActionType::kBackwardWeight; }
constexpr bool is_send(ActionType type) { return type == ActionType::kSendForward || type == ActionType::kSendBackward; }
constexpr bool is_receive(ActionType type) { return type == ActionType::kRecvForward || type == ActionType::kRecvBackward; }
constexpr bool is_transfer(ActionType type) { return is_send(type) || is_receive(type); }
constexpr bool is_reduction(ActionType type) { return type >= ActionType::kReduceGrads && type <= ActionType::kReduceTied; }
/// True for SUM_PARTIAL and what comes after it, which follow the last reduction of the step.
constexpr bool ends_step(ActionType type) { return type >= ActionType::kSumPartial; }
/// True for AGGREGATE and what comes after it, which make the step of a list that has computed gradients.
constexpr bool makes_step(ActionType type) { return type >= ActionType::kAggregate; }
/// True for OUTER and EXCHANGE, which follow the updates and do not do the same in each step, so that no graph can capture them.
constexpr bool follows_updates(ActionType type) { return type > ActionType::kUpdate; }

struct Action {
  ActionType type;
  int stage = -1;            ///< global index (virtual stages included); -1: all stages of the rank (ActionScope::kMicrobatch and kStep)
  int microbatch = -1;       ///< for compute, transfers, CLIP and WAIT_CLIP
  int unit = -1;             ///< for UNSHARD, RESHARD, REDUCE_*, WAIT_GRADS, UPDATE
  int part = -1;             ///< for F, B, I, W: the part to compute; -1: all parts, as before lowering
  int group = -1;            ///< consecutive sends and receives of one rank with the same group >= 0 are issued together
  int peer = -1;             ///< for rerouted transfers (reroute.h): data rank of the other end; -1: this rank's own pipeline
  int peer_microbatch = -1;  ///< for rerouted transfers: the number of the micro-batch at the other end; -1: the same
  bool operator==(const Action&) const = default;
};

using ActionList = std::vector<Action>;       ///< one rank
using ActionLists = std::vector<ActionList>;  ///< indexed by pipeline rank

inline std::span<const MeshAxis> axes_of(const Action& action) { return facts_of(action.type).axes; }

/// The other end of a transfer: SEND_F of stage s meets RECV_F of stage s + 1, SEND_B of stage s meets RECV_B of stage s - 1. Its `peer` is not set, as
/// the transfer does not know its own data rank.
Action counterpart(const Action& transfer);

/// What the rank is doing, by ActionFacts::doing; `what` names the part or unit. Empty if the action's handler says it.
std::string describe(const Action& action, const std::string& what);

/// "2F0", "2F0.3" (part 3), "2UNSHARD5", "2SEND_F0", "2SEND_F0@1/4" (to micro-batch 4 of data rank 1), "NORM".
std::string to_string(const Action& action);
std::string to_string(const ActionList& list);  ///< separated by spaces

}  // namespace trireme
