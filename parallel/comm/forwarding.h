#pragma once
// Base class of communicators that wrap another one and change part of its behaviour.
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Forwards every verb to the wrapped communicator, and has its rank, size and name. A decorator that treats all verbs the same overrides `perform`;
/// one that treats a verb specially overrides that verb.
class ForwardingCommunicator : public Communicator {
 public:
  /// `inner` outlives this communicator.
  explicit ForwardingCommunicator(Communicator& inner) : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner) {}
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size(), inner->name()), inner_(*inner), owned_(std::move(inner)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override;
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override;
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override;
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override;
  void barrier() override { inner_.barrier(); }
  void raise_errors() override { inner_.raise_errors(); }
  void advance() override { inner_.advance(); }
  void reserve_memory(Context& ctx, int64_t bytes) override { inner_.reserve_memory(ctx, bytes); }
  std::string register_memory() override { return inner_.register_memory(); }
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override;
  std::unique_ptr<Communicator> host_group(const std::vector<int>& ranks, const std::string& name) override;

 protected:
  using Call = std::function<Work()>;

  Communicator& inner() const { return inner_; }

  /// Starts the operation of a verb ("all_gather") on tensors of `bytes`, the full one where ranks have parts of it. `call` calls the wrapped
  /// communicator and must be invoked once.
  virtual Work perform(Context& /*ctx*/, const char* /*verb*/, int64_t /*bytes*/, const Call& call) { return call(); }
  /// What group() and host_group() return: `made` is the wrapped communicator's group of `ranks`.
  virtual std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) = 0;

 private:
  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;  ///< null if the caller owns `inner_`
};

}  // namespace trireme
