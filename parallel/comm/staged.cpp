#include "parallel/comm/staged.h"

#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/host_only.h"
#include "parallel/comm/self.h"

namespace trireme {
namespace {

/// A rank's GPU and its staging memory on the host, shared by its groups and their operations. The arena keeps the copies for reuse.
struct Stage {
  explicit Stage(cuda::Gpu& of_gpu) : gpu(of_gpu) {}
  cuda::Gpu& gpu;
  Arena arena{Device::kReference};
  Context host{Device::kReference, &arena, 1, nullptr};

  Tensor empty_like(const Tensor& tensor) { return Tensor::empty(host, {tensor.numel()}, tensor.dtype(), MemoryCategory::kCommunication); }
  void download(const Tensor& from, const Tensor& to) const {
    if (from.bytes() > 0) gpu.download(from.raw(), to.raw(), from.bytes());
  }
  Tensor downloaded(const Tensor& tensor) {
    const Tensor copy = empty_like(tensor);
    download(tensor, copy);
    return copy;
  }
};

class StagedOperation final : public Work::Operation {
 public:
  explicit StagedOperation(std::shared_ptr<Stage> stage) : stage_(std::move(stage)) {}

  /// At wait, `from` is copied to `to`, which is on the device.
  void result(const Tensor& from, const Tensor& to) { results_.push_back({from, to}); }
  void launch(Work work) { work_ = std::move(work); }

  void wait(Context& /*ctx*/) override {
    work_.wait(stage_->host);
    for (const auto& [from, to] : results_)
      if (to.bytes() > 0) stage_->gpu.upload(from.raw(), to.raw(), to.bytes());
  }

 private:
  struct Result {
    Tensor from, to;
  };
  std::shared_ptr<Stage> stage_;
  std::vector<Result> results_;
  Work work_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<Stage> stage)
      : Communicator(host->rank(), host->size(), host->name()), host_(std::move(host)), stage_(std::move(stage)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    if (ctx.device != Device::kCuda) return host_->all_reduce(ctx, buffer, op);
    auto operation = std::make_unique<StagedOperation>(stage_);
    const Tensor copy = stage_->downloaded(buffer);
    operation->result(copy, buffer);
    operation->launch(host_->all_reduce(stage_->host, copy, op));
    return Work(std::move(operation));
  }

  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (ctx.device != Device::kCuda) return host_->all_gather(ctx, in, out);
    is_own_part(*this, "all_gather", in, out);
    auto operation = std::make_unique<StagedOperation>(stage_);
    const Tensor whole = stage_->empty_like(out), part = own_part(*this, whole);
    stage_->download(in, part);
    operation->result(whole, out);
    operation->launch(host_->all_gather(stage_->host, part, whole));
    return Work(std::move(operation));
  }

  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    if (ctx.device != Device::kCuda) return host_->reduce_scatter(ctx, in, out, op);
    is_own_part(*this, "reduce_scatter", out, in);
    return staged(in, out, [&](const Tensor& from, const Tensor& to) { return host_->reduce_scatter(stage_->host, from, to, op); });
  }

  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (ctx.device != Device::kCuda) return host_->all_to_all(ctx, in, out);
    check_all_to_all(*this, in, out);
    return staged(in, out, [&](const Tensor& from, const Tensor& to) { return host_->all_to_all(stage_->host, from, to); });
  }

  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    if (ctx.device != Device::kCuda) return host_->all_to_all_v(ctx, in, send_counts, out, receive_counts);
    check_all_to_all_v(*this, in, send_counts, out, receive_counts);
    return staged(in, out,
                  [&](const Tensor& from, const Tensor& to) { return host_->all_to_all_v(stage_->host, from, send_counts, to, receive_counts); });
  }

  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    if (ctx.device != Device::kCuda) return host_->broadcast(ctx, buffer, root);
    check_root(*this, root);
    auto operation = std::make_unique<StagedOperation>(stage_);
    const Tensor copy = rank() == root ? stage_->downloaded(buffer) : stage_->empty_like(buffer);
    if (rank() != root) operation->result(copy, buffer);
    operation->launch(host_->broadcast(stage_->host, copy, root));
    return Work(std::move(operation));
  }

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    if (ctx.device != Device::kCuda) return host_->exchange(ctx, messages);
    auto operation = std::make_unique<StagedOperation>(stage_);
    std::vector<PointToPoint> copies;
    for (const PointToPoint& message : messages) {
      const bool send = message.kind == PointToPoint::Kind::kSend;
      const Tensor copy = send ? stage_->downloaded(message.buffer) : stage_->empty_like(message.buffer);
      if (!send) operation->result(copy, message.buffer);
      copies.push_back({message.kind, copy, message.peer, message.channel});
    }
    operation->launch(host_->exchange(stage_->host, copies));
    return Work(std::move(operation));
  }

  void advance() override { host_->advance(); }
  void barrier() override { host_->barrier(); }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    auto host = host_->group(ranks, name);
    if (host->size() == 1) return std::make_unique<SelfCommunicator>(name);
    return std::make_unique<StagedCommunicator>(std::move(host), stage_);
  }
  std::unique_ptr<Communicator> host_group(const std::vector<int>& ranks, const std::string& name) override {
    return host_only(host_->group(ranks, name));
  }

 private:
  /// `start` starts the operation of `host_` on a host copy of `in` and on the host buffer that is copied to `out` at wait.
  template <class Start>
  Work staged(const Tensor& in, const Tensor& out, const Start& start) {
    auto operation = std::make_unique<StagedOperation>(stage_);
    const Tensor from = stage_->downloaded(in), to = stage_->empty_like(out);
    operation->result(to, out);
    operation->launch(start(from, to));
    return Work(std::move(operation));
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Stage> stage_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu) {
  if (host->size() == 1) return std::make_unique<SelfCommunicator>(host->name());
  return std::make_unique<StagedCommunicator>(std::move(host), std::make_shared<Stage>(gpu));
}

}  // namespace trireme
