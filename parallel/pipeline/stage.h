#pragma once
#include <string>

#include "kernels/core/tensor.h"

namespace trireme {

/// One of the four virtual interfaces: what the executor drives. A stage is a sequence of parts (embedding, blocks, head) whose parameters are in
/// units; the executor does not know what they compute. All compute is per micro-batch; a stage keeps what the backward needs until W has used it.
class Stage {
 public:
  virtual ~Stage() = default;
  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  virtual int parts() const = 0;

  /// For messages.
  virtual std::string part_name(int part) const { return "part " + std::to_string(part); }
  virtual std::string unit_name(int unit) const { return "unit " + std::to_string(unit); }

  /// Parts in ascending order for F, descending for I and W. I of all parts may run long before W of any. A fused part (StageUnits) has no W.
  virtual void forward(Context& ctx, int microbatch, int part) = 0;
  virtual void backward_input(Context& ctx, int microbatch, int part) = 0;
  virtual void backward_weight(Context& ctx, int microbatch, int part) = 0;
  /// I and W of a part with nothing in between. A stage may override it to free earlier what I keeps for W.
  virtual void backward(Context& ctx, int microbatch, int part) {
    backward_input(ctx, microbatch, part);
    backward_weight(ctx, microbatch, part);
  }

  /// Boundary buffers. Receive buffers are allocated by the call; send buffers are handed over (the stage releases them).
  virtual Tensor recv_forward_buffer(Context& ctx, int microbatch) = 0;   ///< input of part 0
  virtual Tensor take_forward_output(int microbatch) = 0;                 ///< output of the last part
  virtual Tensor recv_backward_buffer(Context& ctx, int microbatch) = 0;  ///< gradient of that output
  virtual Tensor take_backward_output(int microbatch) = 0;                ///< gradient of the input
  /// Input handed over by another stage of the same rank, instead of a receive.
  virtual void put_forward_input(int microbatch, Tensor x) = 0;
  virtual void put_backward_input(int microbatch, Tensor dy) = 0;

  virtual void unshard(Context& ctx, int unit) = 0;
  virtual void reshard(Context& ctx, int unit) = 0;
  virtual void reduce_grads(Context& ctx, int unit) = 0;
  virtual void reduce_replicas(Context& ctx, int unit) = 0;
  virtual void reduce_tied(Context& ctx, int unit) = 0;
  virtual void wait_grads(Context& ctx, int unit) = 0;
  virtual void sum_partial(Context& ctx) = 0;
  /// Computes the updates of whole matrices, which update() then applies. Only stages with StageUnits::has_matrix_updates are asked.
  virtual void orthogonalize(Context& /*ctx*/) { throw InternalError("a stage without updates of whole matrices"); }
  virtual void update(Context& ctx, int unit) = 0;
};

}  // namespace trireme
