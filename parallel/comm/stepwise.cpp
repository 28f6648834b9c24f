#include "parallel/comm/stepwise.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/forwarding.h"
#include "parallel/comm/transfer.h"

namespace trireme {
namespace {

class StepwiseOperation;

/// The lists in flight of one rank, in the order of their start, and the memory for them.
class StepDriver {
 public:
  Context& host() { return host_; }
  void add(StepwiseOperation& operation) { operations_.push_back(&operation); }
  void remove(StepwiseOperation& operation) { std::erase(operations_, &operation); }
  bool busy() const { return !operations_.empty(); }

  /// Takes every list as far as possible without waiting; false if none moved.
  bool advance();
  /// Advances until done() returns true. `other`: an operation of the transport that done() asks, or null.
  void wait(const std::function<bool()>& done, Work* other = nullptr);

 private:
  Arena arena_{Device::kReference};
  Context host_{Device::kReference, &arena_, 1};
  std::vector<StepwiseOperation*> operations_;
};

/// What a list works on. `result` is copied to `target` at the end, if defined.
struct StepBuffers {
  Tensor data = {}, scratch = {}, result = {}, target = {};
};

/// One list in flight.
class StepwiseOperation final : public Work::Operation {
 public:
  StepwiseOperation(std::shared_ptr<StepDriver> driver, Communicator& transport, std::shared_ptr<const CollectiveSteps> steps, StepBuffers buffers,
                    ReduceOp op, int channel)
      : driver_(std::move(driver)), transport_(transport), steps_(std::move(steps)), buffers_(std::move(buffers)), op_(op), channel_(channel) {
    driver_->add(*this);
  }
  ~StepwiseOperation() override { driver_->remove(*this); }

  Communicator& transport() const { return transport_; }
  Work& current() { return current_; }
  bool finished() const { return next_ == steps_->size(); }
  bool ready() override {
    driver_->advance();
    return finished();
  }
  void wait(Context& /*ctx*/) override {
    driver_->wait([this] { return finished(); });
    if (buffers_.target.defined()) copy_elements(buffers_.result, buffers_.target);
  }

  bool advance() {
    bool moved = false;
    while (!finished()) {
      const CollectiveStep& step = (*steps_)[next_];
      if (!current_.pending()) current_ = post(step);
      if (!current_.ready()) return moved;
      current_.wait(driver_->host());
      if (step.receive) merge(step);
      ++next_;
      moved = true;
    }
    return moved;
  }

 private:
  Tensor place_of_receive(const CollectiveStep& step) const {
    const CollectiveStep::Message& message = *step.receive;
    return step.merge == CollectiveStep::Merge::kReplace ? buffers_.data.flat(message.begin, message.count) : buffers_.scratch.flat(0, message.count);
  }

  Work post(const CollectiveStep& step) const {
    std::vector<PointToPoint> messages;
    if (step.receive) messages.push_back({PointToPoint::Kind::kRecv, place_of_receive(step), step.receive->peer, channel_});
    if (step.send) messages.push_back({PointToPoint::Kind::kSend, buffers_.data.flat(step.send->begin, step.send->count), step.send->peer, channel_});
    return transport_.exchange(driver_->host(), messages);
  }

  void merge(const CollectiveStep& step) const {
    if (step.merge == CollectiveStep::Merge::kReplace) return;
    const Tensor received = place_of_receive(step), own = buffers_.data.flat(step.receive->begin, step.receive->count);
    std::array<const std::byte*, 2> operands{static_cast<const std::byte*>(own.raw()), static_cast<const std::byte*>(received.raw())};
    if (step.merge == CollectiveStep::Merge::kReceivedFirst) std::swap(operands[0], operands[1]);
    reduce_in_order(own.dtype(), op_, operands, static_cast<std::byte*>(own.raw()), own.numel());
  }

  std::shared_ptr<StepDriver> driver_;
  Communicator& transport_;
  std::shared_ptr<const CollectiveSteps> steps_;
  StepBuffers buffers_;
  ReduceOp op_;
  int channel_;
  size_t next_ = 0;
  Work current_;  ///< the messages of step next_, once they are posted
};

bool StepDriver::advance() {
  bool moved = false;
  for (StepwiseOperation* operation : operations_) moved |= operation->advance();
  std::erase_if(operations_, [](const StepwiseOperation* operation) { return operation->finished(); });
  return moved;
}

void StepDriver::wait(const std::function<bool()>& done, Work* other) {
  while (true) {
    const bool moved = advance();
    if (done()) return;
    if (moved) continue;
    std::vector<Work*> blocked;
    for (StepwiseOperation* operation : operations_) blocked.push_back(&operation->current());
    if (other != nullptr) blocked.push_back(other);
    operations_.front()->transport().wait_any(blocked);
  }
}

/// An operation of the transport, whose wait takes the lists further meanwhile: other ranks may wait for this rank's part in them.
class DrivenOperation final : public Work::Operation {
 public:
  DrivenOperation(std::shared_ptr<StepDriver> driver, Work work) : driver_(std::move(driver)), work_(std::move(work)) {}
  bool ready() override {
    driver_->advance();
    return work_.ready();
  }
  void wait(Context& ctx) override {
    if (driver_->busy()) driver_->wait([&] { return !driver_->busy() || work_.ready(); }, &work_);
    work_.wait(ctx);
  }

 private:
  std::shared_ptr<StepDriver> driver_;
  Work work_;
};

class StepwiseCommunicator final : public ForwardingCommunicator {
 public:
  /// `hosts`: of the ranks of this group, or empty.
  StepwiseCommunicator(std::unique_ptr<Communicator> made, const StepwiseOptions& options, std::vector<int> hosts, std::shared_ptr<StepDriver> driver)
      : ForwardingCommunicator(std::move(made)), options_(options), hosts_(std::move(hosts)), driver_(std::move(driver)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    if (ctx.device == Device::kMeta) return inner().all_reduce(ctx, buffer, op);
    if (uses_inner()) return ForwardingCommunicator::all_reduce(ctx, buffer, op);
    return start(CollectiveVerb::kAllReduce, {.data = buffer.flat(0, buffer.numel())}, op);
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (ctx.device == Device::kMeta) return inner().all_gather(ctx, in, out);
    if (uses_inner()) return ForwardingCommunicator::all_gather(ctx, in, out);
    if (!is_own_part(*this, "all_gather", in, out)) copy_elements(in, own_part(*this, out));
    return start(CollectiveVerb::kAllGather, {.data = out.flat(0, out.numel())}, ReduceOp::kSum);
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    if (ctx.device == Device::kMeta) return inner().reduce_scatter(ctx, in, out, op);
    if (uses_inner()) return ForwardingCommunicator::reduce_scatter(ctx, in, out, op);
    if (is_own_part(*this, "reduce_scatter", out, in)) return start(CollectiveVerb::kReduceScatter, {.data = in.flat(0, in.numel())}, op);
    const Tensor copy = scratch(in.numel(), in.dtype());
    copy_elements(in, copy);
    return start(CollectiveVerb::kReduceScatter, {.data = copy, .result = own_part(*this, copy), .target = out}, op);
  }
  void barrier() override {
    const Tensor token = scratch(1, DType::kU8);
    *token.data<uint8_t>() = 0;
    all_reduce(driver_->host(), token, ReduceOp::kMax).wait(driver_->host());
  }
  void advance() override {
    driver_->advance();
    inner().advance();
  }
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    finish();
    return ForwardingCommunicator::group(ranks, name);
  }
  std::unique_ptr<Communicator> host_group(const std::vector<int>& ranks, const std::string& name) override {
    finish();
    return ForwardingCommunicator::host_group(ranks, name);
  }

 protected:
  Work perform(Context& /*ctx*/, const char* /*verb*/, int64_t /*bytes*/, const Call& call) override {
    driver_->advance();
    Work work = call();
    if (!work.pending()) return work;
    return Work(std::make_unique<DrivenOperation>(driver_, std::move(work)));
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    if (made->size() == 1) return made;
    std::vector<int> hosts;
    for (const int rank : ranks)
      if (!hosts_.empty()) hosts.push_back(hosts_[static_cast<size_t>(rank)]);
    return std::make_unique<StepwiseCommunicator>(std::move(made), options_, std::move(hosts), driver_);
  }

 private:
  Tensor scratch(int64_t count, DType dtype) const { return Tensor::empty(driver_->host(), {count}, dtype, MemoryCategory::kCommunication); }

  /// Making a group blocks without progressing the lists.
  void finish() const {
    driver_->wait([this] { return !driver_->busy(); });
  }

  bool on_one_host() const {
    return std::ranges::all_of(hosts_, [&](int host) { return host == hosts_.front(); });
  }
  bool uses_inner() const { return options_.only_between_hosts && on_one_host(); }

  /// The list for a buffer. A training step repeats its sizes, so lists are kept.
  std::shared_ptr<const CollectiveSteps> steps_for(CollectiveVerb verb, const Tensor& data) {
    constexpr size_t kMostKept = 256;
    const MessageCosts& costs = on_one_host() ? options_.within : options_.between;
    const auto bytes = static_cast<double>(data.bytes());
    const CollectiveAlgorithm algorithm = options_.algorithm ? *options_.algorithm : fastest_algorithm(verb, size(), bytes, costs);
    const bool cut = algorithm == CollectiveAlgorithm::kDoubleBinaryTree && verb == CollectiveVerb::kAllReduce;
    const int64_t pieces = cut ? tree_pieces(size(), bytes, costs) : 1;
    if (kept_.size() >= kMostKept) kept_.clear();
    auto& kept = kept_[{verb, algorithm, data.numel(), pieces}];
    if (!kept) kept = std::make_shared<const CollectiveSteps>(collective_steps(algorithm, verb, rank(), size(), data.numel(), pieces));
    return kept;
  }

  Work start(CollectiveVerb verb, StepBuffers buffers, ReduceOp op) {
    const auto steps = steps_for(verb, buffers.data);
    int64_t largest = 0;
    for (const CollectiveStep& step : *steps)
      if (step.receive && step.merge != CollectiveStep::Merge::kReplace) largest = std::max(largest, step.receive->count);
    if (largest > 0) buffers.scratch = scratch(largest, buffers.data.dtype());
    const int channel = 1 + static_cast<int>(started_++ % (kChannels - 1));  // 0 is the caller's
    auto operation = std::make_unique<StepwiseOperation>(driver_, inner(), steps, std::move(buffers), op, channel);
    driver_->advance();
    return Work(std::move(operation));
  }

  StepwiseOptions options_;
  std::vector<int> hosts_;
  std::shared_ptr<StepDriver> driver_;
  int64_t started_ = 0;
  std::map<std::tuple<CollectiveVerb, CollectiveAlgorithm, int64_t, int64_t>, std::shared_ptr<const CollectiveSteps>> kept_;
};

}  // namespace

std::unique_ptr<Communicator> stepwise(std::unique_ptr<Communicator> inner, const StepwiseOptions& options) {
  if (inner->size() == 1) return inner;
  return std::make_unique<StepwiseCommunicator>(std::move(inner), options, options.hosts, std::make_shared<StepDriver>());
}

}  // namespace trireme
