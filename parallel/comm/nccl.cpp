#include "parallel/comm/nccl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/nccl_library.h"
#include "parallel/comm/self.h"

namespace trireme {
namespace {

constexpr int kOldest = kOldestNccl;

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

/// One NCCL communicator with its stream.
class Link {
 public:
  /// Collective over `host`.
  Link(Communicator& host, cuda::Gpu& gpu)
      : place_(concat("group '", host.name(), "', rank ", host.rank(), " of ", host.size())), stream_(gpu.make_stream()) {
    const auto check_init = [&](ncclResult_t result, const char* call) {
      if (result != ncclSuccess) throw InternalError(concat(call, " failed (", place_, "): ", explain(result)));
    };
    ncclUniqueId id{};
    if (host.rank() == 0) check_init(nccl().get_unique_id(&id), "ncclGetUniqueId");
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1, nullptr};
    const Tensor bytes = Tensor::empty(ctx, {sizeof(id)}, DType::kU8, MemoryCategory::kCommunication);
    std::memcpy(bytes.raw(), &id, sizeof(id));
    host.broadcast(ctx, bytes, 0).wait(ctx);
    std::memcpy(&id, bytes.raw(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    config.commName = host.name().c_str();  // for NCCL's own messages; copied
#endif
    check_init(nccl().comm_init(&comm_, host.size(), id, host.rank(), &config), "ncclCommInitRankConfig");
  }
  ~Link() {
    if (given_up_ || std::uncaught_exceptions() > 0) abort();
    if (comm_ == nullptr) return;
    nccl().comm_finalize(comm_);
    nccl().comm_destroy(comm_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const std::string& place() const { return place_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  bool usable() const { return comm_ != nullptr && !given_up_; }
  void abort() {
    if (comm_ != nullptr) nccl().comm_abort(std::exchange(comm_, nullptr));
  }
  /// Leaves the abort to the destructor: ncclCommAbort waits for every CUDA graph that contains operations of the communicator.
  void give_up() { given_up_ = true; }

  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) throw InternalError(concat(call, ": ", explain(result)));
  }
  /// The asynchronous error of the communicator, on this rank or another; "" if none.
  std::string async_error() const {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t asked = nccl().comm_async_error(comm_, &state); asked != ncclSuccess) state = asked;
    return state == ncclSuccess || state == ncclInProgress ? "" : concat("asynchronous NCCL error: ", explain(state));
  }

 private:
  std::string explain(ncclResult_t result) const {
    const char* const detail = nccl().last_error(comm_);
    return concat(nccl().error_string(result), detail == nullptr || *detail == '\0' ? "" : ": ", detail == nullptr ? "" : detail);
  }

  std::string place_;
  cuda::Stream stream_;
  ncclComm_t comm_ = nullptr;
  bool given_up_ = false;
};

/// All links of one rank. An error in one aborts them all: otherwise a GPU could wait in another link for a rank that has given up.
struct Links {
  explicit Links(cuda::Gpu& of_gpu) : gpu(of_gpu) {}
  cuda::Gpu& gpu;
  std::vector<std::weak_ptr<Link>> made;

  void abort() const {
    for (const std::weak_ptr<Link>& weak : made)
      if (const auto link = weak.lock()) gpu.holds_graphs() ? link->give_up() : link->abort();
  }
  /// Throws the first asynchronous error of any link.
  void raise_errors() const {
    for (const std::weak_ptr<Link>& weak : made) {
      const auto link = weak.lock();
      if (link == nullptr || !link->usable()) continue;
      const std::string error = link->async_error();
      if (error.empty()) continue;
      const std::string place = link->place();
      abort();
      throw InternalError(concat("a collective failed (", place, "): ", error));
    }
  }
};

/// An operation whose start is queued, until its wait.
class NcclOperation final : public Work::Operation {
 public:
  NcclOperation(std::shared_ptr<Links> links, std::shared_ptr<Link> link, const char* verb, std::vector<Tensor> buffers)
      : links_(std::move(links)), link_(std::move(link)), verb_(verb), buffers_(std::move(buffers)) {}
  /// If an exception drops the operation, its buffers still return to the arena in the order of the compute stream, and no other rank is waited for.
  ~NcclOperation() override {
    if (done_ == nullptr) return;
    try {
      order_compute();
    } catch (const Error&) {  // only the first error is reported
    }
    links_->abort();
  }

  /// Runs `call()`, which queues NCCL's work on the link's stream, after the work on the compute stream.
  template <class Call>
  void start(const Call& call) {
    guarded([&] {
      cuda::Gpu& gpu = links_->gpu;
      const cuda::Event inputs = gpu.record(gpu.compute());
      gpu.order_after(link_->stream(), inputs);
      gpu.recycle(inputs);
      call();
      done_ = gpu.record(link_->stream());
    });
  }

  void wait(Context& /*ctx*/) override {
    guarded([&] { order_compute(); });
  }

 private:
  void order_compute() {
    cuda::Gpu& gpu = links_->gpu;
    const cuda::Event done = std::exchange(done_, nullptr);
    gpu.order_after(gpu.compute(), done);
    gpu.recycle(done);
  }

  /// Any error of CUDA or NCCL, thrown by the body or asynchronous, aborts the communicators of this rank and is reported with verb, group and rank.
  template <class Body>
  void guarded(const Body& body) const {
    std::string error;
    try {
      TRIREME_CHECK(link_->usable(), "this rank's communicators were aborted");
      body();
      error = link_->async_error();
    } catch (const Error& thrown) {
      error = thrown.what();
      const std::string cause = link_->usable() ? link_->async_error() : "";
      if (!cause.empty()) error += "; " + cause;
    }
    if (error.empty()) return;
    links_->abort();
    throw InternalError(concat(verb_, " failed (", link_->place(), "): ", error));
  }

  std::shared_ptr<Links> links_;
  std::shared_ptr<Link> link_;
  const char* verb_;
  std::vector<Tensor> buffers_;
  cuda::Event done_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<Links> links)
      : Communicator(host->rank(), host->size(), host->name()),
        host_(std::move(host)),
        links_(std::move(links)),
        link_(std::make_shared<Link>(*host_, links_->gpu)) {
    std::erase_if(links_->made, [](const auto& link) { return link.expired(); });
    links_->made.push_back(link_);
  }

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
    for (const PointToPoint& message : messages) buffers.push_back(message.buffer);
    return start("exchange", "ncclSend or ncclRecv", std::move(buffers), [&] { return post(messages); });
  }

  void barrier() override { host_->barrier(); }
  void raise_errors() override { links_->raise_errors(); }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    auto host = host_->group(ranks, name);
    if (host->size() == 1) return std::make_unique<SelfCommunicator>(name);
    return std::make_unique<NcclCommunicator>(std::move(host), links_);
  }

 private:
  template <class Call>
  Work start(const char* verb, const char* name, std::vector<Tensor> buffers, const Call& call) {
    auto operation = std::make_unique<NcclOperation>(links_, link_, verb, std::move(buffers));
    operation->start([&] { link_->check(call(), name); });
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
  std::shared_ptr<Links> links_;
  std::shared_ptr<Link> link_;
};

void check_version() {
  int version = 0;
  nccl().get_version(&version);
  if (version < kOldest)
    throw ConfigError(concat("NCCL ", version / 10000, ".", version / 100 % 100, " is too old; Trireme needs at least ", kOldest / 10000, ".",
                             kOldest / 100 % 100, ", the first with NCCL_LAUNCH_ORDER_IMPLICIT"));
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

std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu) {
  if (host->size() == 1) return std::make_unique<SelfCommunicator>(host->name());
  // Set once, because NCCL reads it once, and ranks that are threads must not write the environment while another thread reads it.
  static const int set = setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  TRIREME_CHECK(set == 0, "cannot set NCCL_LAUNCH_ORDER_IMPLICIT in the environment");
  check_version();
  return std::make_unique<NcclCommunicator>(std::move(host), std::make_shared<Links>(gpu));
}

}  // namespace trireme
