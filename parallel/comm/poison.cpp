#include "parallel/comm/poison.h"

#include <cstring>
#include <string_view>

#include "parallel/comm/arguments.h"

namespace trireme {
namespace {

size_t hash_of(const Tensor& tensor) {
  return std::hash<std::string_view>{}({static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes())});
}

void poison(const Tensor& tensor) { std::memset(tensor.raw(), 0xFF, static_cast<size_t>(tensor.bytes())); }

class PoisonOperation final : public Work::Operation {
 public:
  PoisonOperation(std::string place, Context scratch) : place_(std::move(place)), scratch_(scratch) {}

  /// A copy of `user` for the operation to run on.
  Tensor shadow(const Tensor& user) {
    const Tensor copy = Tensor::empty(scratch_, user.shape(), user.dtype(), MemoryCategory::kCommunication);
    copy_elements(user, copy);
    watched_.push_back({user, 0});
    return copy;
  }
  /// At wait, `from` is copied to `user`.
  void result(const Tensor& user, const Tensor& from) { results_.push_back({user, from}); }
  /// From here on the buffers belong to the operation.
  void launch(Work inner) {
    inner_ = std::move(inner);
    for (Watched& watched : watched_) watched.hash = hash_of(watched.user);
  }

  void wait(Context& ctx) override {
    inner_.wait(ctx);
    for (const Watched& watched : watched_)
      TRIREME_CHECK(hash_of(watched.user) == watched.hash, "a buffer was written while it was in flight in ", place_);
    for (const auto& [user, from] : results_) copy_elements(from, user);
  }

 private:
  struct Watched {
    Tensor user;
    size_t hash;
  };
  struct Result {
    Tensor user, from;
  };
  std::string place_;
  Context scratch_;
  std::vector<Watched> watched_;
  std::vector<Result> results_;
  Work inner_;
};

}  // namespace

std::string PoisonCommunicator::place(const char* verb) const { return concat(verb, " of group '", name(), "', rank ", rank()); }

Work PoisonCommunicator::all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) {
  if (ctx.device == Device::kMeta) return inner().all_reduce(ctx, buffer, op);
  auto operation = std::make_unique<PoisonOperation>(place("all_reduce"), Context{Device::kReference, &arena_, 1});
  const Tensor copy = operation->shadow(buffer);
  operation->result(buffer, copy);
  poison(buffer);
  operation->launch(inner().all_reduce(ctx, copy, op));
  return Work(std::move(operation));
}

Work PoisonCommunicator::all_gather(Context& ctx, const Tensor& in, const Tensor& out) {
  if (ctx.device == Device::kMeta) return inner().all_gather(ctx, in, out);
  const bool in_place = is_own_part(*this, "all_gather", in, out);
  auto operation = std::make_unique<PoisonOperation>(place("all_gather"), Context{Device::kReference, &arena_, 1});
  const Tensor out_copy = operation->shadow(out);
  const Tensor in_copy = in_place ? own_part(*this, out_copy) : operation->shadow(in);
  operation->result(out, out_copy);
  poison(out);
  operation->launch(inner().all_gather(ctx, in_copy, out_copy));
  return Work(std::move(operation));
}

Work PoisonCommunicator::reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) {
  if (ctx.device == Device::kMeta) return inner().reduce_scatter(ctx, in, out, op);
  const bool in_place = is_own_part(*this, "reduce_scatter", out, in);
  auto operation = std::make_unique<PoisonOperation>(place("reduce_scatter"), Context{Device::kReference, &arena_, 1});
  const Tensor in_copy = operation->shadow(in);
  const Tensor out_copy = in_place ? own_part(*this, in_copy) : operation->shadow(out);
  operation->result(out, out_copy);
  poison(in_place ? in : out);
  operation->launch(inner().reduce_scatter(ctx, in_copy, out_copy, op));
  return Work(std::move(operation));
}

Work PoisonCommunicator::all_to_all(Context& ctx, const Tensor& in, const Tensor& out) {
  if (ctx.device == Device::kMeta) return inner().all_to_all(ctx, in, out);
  check_all_to_all(*this, in, out);
  auto operation = std::make_unique<PoisonOperation>(place("all_to_all"), Context{Device::kReference, &arena_, 1});
  const Tensor in_copy = operation->shadow(in), out_copy = operation->shadow(out);
  operation->result(out, out_copy);
  poison(out);
  operation->launch(inner().all_to_all(ctx, in_copy, out_copy));
  return Work(std::move(operation));
}

Work PoisonCommunicator::all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                      std::span<const int64_t> receive_counts) {
  if (ctx.device == Device::kMeta) return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts);
  check_all_to_all_v(*this, in, send_counts, out, receive_counts);
  auto operation = std::make_unique<PoisonOperation>(place("all_to_all_v"), Context{Device::kReference, &arena_, 1});
  const Tensor in_copy = operation->shadow(in), out_copy = operation->shadow(out);
  operation->result(out, out_copy);
  poison(out);
  operation->launch(inner().all_to_all_v(ctx, in_copy, send_counts, out_copy, receive_counts));
  return Work(std::move(operation));
}

Work PoisonCommunicator::broadcast(Context& ctx, const Tensor& buffer, int root) {
  if (ctx.device == Device::kMeta) return inner().broadcast(ctx, buffer, root);
  auto operation = std::make_unique<PoisonOperation>(place("broadcast"), Context{Device::kReference, &arena_, 1});
  const Tensor copy = operation->shadow(buffer);
  if (rank() != root) {
    operation->result(buffer, copy);
    poison(buffer);
  }
  operation->launch(inner().broadcast(ctx, copy, root));
  return Work(std::move(operation));
}

Work PoisonCommunicator::exchange(Context& ctx, std::span<const PointToPoint> messages) {
  if (ctx.device == Device::kMeta) return inner().exchange(ctx, messages);
  auto operation = std::make_unique<PoisonOperation>(place("exchange"), Context{Device::kReference, &arena_, 1});
  std::vector<PointToPoint> copies;
  for (const PointToPoint& message : messages) {
    copies.push_back({message.kind, operation->shadow(message.buffer), message.peer, message.channel});
    if (message.kind == PointToPoint::Kind::kSend) continue;
    operation->result(message.buffer, copies.back().buffer);
    poison(message.buffer);
  }
  operation->launch(inner().exchange(ctx, copies));
  return Work(std::move(operation));
}

std::unique_ptr<Communicator> PoisonCommunicator::wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) {
  return std::make_unique<PoisonCommunicator>(std::move(made));
}

}  // namespace trireme
