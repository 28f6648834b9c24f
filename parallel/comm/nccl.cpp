#include "parallel/comm/nccl.h"

#include <cstdlib>
#include <numeric>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/host_only.h"
#include "parallel/comm/nccl_link.h"
#include "parallel/comm/self.h"

namespace trireme {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return ncclFloat64;
    case DType::kF32: return ncclFloat32;
    case DType::kBF16: return ncclBfloat16;
    case DType::kF16: return ncclFloat16;
    case DType::kI64: return ncclInt64;
    case DType::kI32: return ncclInt32;
    case DType::kU8: return ncclUint8;
  }
  return ncclNumTypes;
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kMin: return ncclMin;
  }
  return ncclNumOps;
}

size_t count_of(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

/// An operation whose start is queued, until its wait.
class NcclOperation final : public Work::Operation {
 public:
  NcclOperation(std::shared_ptr<NcclLink> link, std::string place, const char* verb, std::vector<Tensor> buffers)
      : link_(std::move(link)), place_(std::move(place)), verb_(verb), buffers_(std::move(buffers)) {}
  ~NcclOperation() override {
    if (!ended_) link_->all().keep(std::move(buffers_));
  }

  /// Runs `call()`, which queues NCCL's work on the link's stream, after the work on the compute stream.
  template <class Call>
  void start(const Call& call) {
    guarded([&] {
      cuda::Gpu& gpu = link_->all().gpu;
      const cuda::Event inputs = gpu.record(gpu.compute());
      gpu.order_after(link_->stream(), inputs);
      gpu.recycle(inputs);
      call();
      done_ = gpu.record(link_->stream());
      gpu.begin_communication();
    });
  }

  void wait(Context& /*ctx*/) override {
    guarded([&] {
      cuda::Gpu& gpu = link_->all().gpu;
      gpu.order_after(gpu.compute(), done_);
      gpu.recycle(done_);
      gpu.end_communication();
    });
    ended_ = true;
  }

 private:
  /// Any error of CUDA or NCCL, thrown by the body or asynchronous, ends the use of all links of this rank and is reported with verb, group and rank.
  template <class Body>
  void guarded(const Body& body) const {
    if (link_->all().given_up()) throw InternalError(concat(verb_, " failed (", place_, "): this rank's communicators ended with an earlier error"));
    std::string error;
    try {
      body();
      error = link_->async_error();
    } catch (const Error& thrown) {
      error = thrown.what();
      if (const std::string cause = link_->async_error(); !cause.empty()) error += "; " + cause;
    }
    if (error.empty()) return;
    link_->all().give_up();
    throw InternalError(concat(verb_, " failed (", place_, "): ", error));
  }

  std::shared_ptr<NcclLink> link_;
  std::string place_;
  const char* verb_;
  std::vector<Tensor> buffers_;
  cuda::Event done_ = nullptr;
  bool ended_ = false;  ///< the compute stream is ordered after the operation
};

class NcclCommunicator final : public Communicator {
 public:
  /// `members`: the world ranks of `host`, in their order.
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<NcclLinks> links, std::vector<int> members)
      : Communicator(host->rank(), host->size(), host->name()),
        host_(std::move(host)),
        links_(std::move(links)),
        members_(std::move(members)),
        link_(NcclLink::join(links_, *host_, members_)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    if (ctx.device != Device::kCuda) return host_->all_reduce(ctx, buffer, op);
    return start("all_reduce", "ncclAllReduce", {buffer}, [&] {
      return nccl().all_reduce(buffer.raw(), buffer.raw(), count_of(buffer), type_of(buffer.dtype()), op_of(op), link_->comm(), link_->stream());
    });
  }

  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (ctx.device != Device::kCuda) return host_->all_gather(ctx, in, out);
    is_own_part(*this, "all_gather", in, out);
    return start("all_gather", "ncclAllGather", {in, out},
                 [&] { return nccl().all_gather(in.raw(), out.raw(), count_of(in), type_of(in.dtype()), link_->comm(), link_->stream()); });
  }

  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    if (ctx.device != Device::kCuda) return host_->reduce_scatter(ctx, in, out, op);
    is_own_part(*this, "reduce_scatter", out, in);
    return start("reduce_scatter", "ncclReduceScatter", {in, out}, [&] {
      return nccl().reduce_scatter(in.raw(), out.raw(), count_of(out), type_of(out.dtype()), op_of(op), link_->comm(), link_->stream());
    });
  }

  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (ctx.device != Device::kCuda) return host_->all_to_all(ctx, in, out);
    const std::vector<int64_t> counts(static_cast<size_t>(size()), check_all_to_all(*this, in, out));
    return start_parts("all_to_all", in, counts, out, counts);
  }

  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    if (ctx.device != Device::kCuda) return host_->all_to_all_v(ctx, in, send_counts, out, receive_counts);
    check_all_to_all_v(*this, in, send_counts, out, receive_counts);
    return start_parts("all_to_all_v", in, send_counts, out, receive_counts);
  }

  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    if (ctx.device != Device::kCuda) return host_->broadcast(ctx, buffer, root);
    check_root(*this, root);
    return start("broadcast", "ncclBroadcast", {buffer}, [&] {
      return nccl().broadcast(buffer.raw(), buffer.raw(), count_of(buffer), type_of(buffer.dtype()), root, link_->comm(), link_->stream());
    });
  }

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    if (ctx.device != Device::kCuda) return host_->exchange(ctx, messages);
    check_peers(*this, messages);
    std::vector<Tensor> buffers;
    for (const PointToPoint& message : messages) {
      TRIREME_CHECK(message.channel == 0, "NCCL has no channel ", message.channel);
      buffers.push_back(message.buffer);
    }
    return start("exchange", "ncclSend or ncclRecv", std::move(buffers), [&] { return post(messages); });
  }

  void barrier() override { host_->barrier(); }
  void raise_errors() override { links_->raise_errors(); }
  void reserve_memory(Context& ctx, int64_t bytes) override {
    std::shared_ptr<void> memory = ctx.device == Device::kCuda && links_->options.register_buffers ? NcclLinks::allocate(links_, bytes) : nullptr;
    if (memory == nullptr) return Communicator::reserve_memory(ctx, bytes);
    ctx.arena->reserve(std::move(memory), bytes);
  }
  std::string register_memory() override { return links_->options.register_buffers ? links_->register_memory(*host_) : ""; }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    auto host = host_->group(ranks, name);
    if (host->size() == 1) return std::make_unique<SelfCommunicator>(name);
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(members_[static_cast<size_t>(rank)]);
    return std::make_unique<NcclCommunicator>(std::move(host), links_, std::move(members));
  }

  std::unique_ptr<Communicator> host_group(const std::vector<int>& ranks, const std::string& name) override {
    return host_only(host_->group(ranks, name));
  }

 private:
  template <class Call>
  Work start(const char* verb, const char* function, std::vector<Tensor> buffers, const Call& call) {
    for (const Tensor& buffer : buffers) link_->check_registered(buffer);
    auto operation = std::make_unique<NcclOperation>(link_, concat("group '", name(), "', rank ", rank(), " of ", size()), verb, std::move(buffers));
    operation->start([&] { link_->check(call(), function); });
    return Work(std::move(operation));
  }

  /// Posts the parts as messages of one NCCL group, including this rank's own: ncclAlltoAll needs NCCL 2.28 and equal parts.
  Work start_parts(const char* verb, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                   std::span<const int64_t> receive_counts) {
    const std::vector<PointToPoint> messages = messages_of(*this, split_parts(in, send_counts), split_parts(out, receive_counts), true);
    return start(verb, "ncclSend or ncclRecv", {in, out}, [&] { return post(messages); });
  }

  /// Posts one NCCL group, so that all messages progress together. The group is closed even after an error. Empty messages are skipped.
  ncclResult_t post(std::span<const PointToPoint> messages) const {
    ncclResult_t result = nccl().group_start();
    if (result != ncclSuccess) return result;
    for (const PointToPoint& message : messages) {
      const Tensor& buffer = message.buffer;
      if (result != ncclSuccess || buffer.numel() == 0) continue;
      if (message.kind == PointToPoint::Kind::kSend)
        result = nccl().send(buffer.raw(), count_of(buffer), type_of(buffer.dtype()), message.peer, link_->comm(), link_->stream());
      else
        result = nccl().recv(buffer.raw(), count_of(buffer), type_of(buffer.dtype()), message.peer, link_->comm(), link_->stream());
    }
    const ncclResult_t end = nccl().group_end();
    return result != ncclSuccess ? result : end;
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<NcclLinks> links_;
  std::vector<int> members_;
  std::shared_ptr<NcclLink> link_;
};

void check_version() {
  int version = 0;
  nccl().get_version(&version);
  if (version < kOldestNccl)
    throw ConfigError(concat("NCCL ", version / 10000, ".", version / 100 % 100, " is too old; Trireme needs at least ", kOldestNccl / 10000, ".",
                             kOldestNccl / 100 % 100, ", the first with NCCL_LAUNCH_ORDER_IMPLICIT"));
}

}  // namespace

bool nccl_available(std::string* why) {
  try {
    check_version();
  } catch (const ConfigError& error) {
    if (why != nullptr) *why = error.what();
    return false;
  }
  return true;
}

std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu, const NcclOptions& options) {
  if (host->size() == 1) return std::make_unique<SelfCommunicator>(host->name());
  // Set once, because NCCL reads it once, and ranks that are threads must not write the environment while another thread reads it.
  static const int set = setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  TRIREME_CHECK(set == 0, "cannot set NCCL_LAUNCH_ORDER_IMPLICIT in the environment");
  check_version();
  std::vector<int> all(static_cast<size_t>(host->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<NcclCommunicator>(std::move(host), std::make_shared<NcclLinks>(gpu, options), std::move(all));
}

}  // namespace trireme
