#include "tests/cuda_sim/nccl_operation.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "tests/cuda_sim/machine.h"

namespace cuda_sim::nccl {
namespace {

using trireme::concat;

constexpr int kPoisonByte = 0xFF;

/// The part that two operations, Begin and Meet, share. A captured graph clones first Begin and then Meet, when it is instantiated and again at each
/// launch, which issues the part.
struct Launch {
  enum class Stage : uint8_t { kCaptured, kInstantiated, kIssued } stage;
  std::shared_ptr<Part> part;
  std::shared_ptr<Launch> copy{};  ///< made when Begin is cloned, taken by the clone of Meet

  static std::shared_ptr<Launch> make(Stage stage, std::shared_ptr<Part> part) {
    const std::lock_guard lock(mutex());
    if (stage == Stage::kIssued) issue(part);
    return std::make_shared<Launch>(Launch{stage, std::move(part)});
  }
  void make_copy() { copy = make(stage == Stage::kCaptured ? Stage::kInstantiated : Stage::kIssued, std::make_shared<Part>(*part)); }
};

/// True if no more data is to be moved: the part was dropped, or its communicator is broken.
bool is_over(const Part& part) {
  const std::lock_guard lock(mutex());
  return part.dropped || part.clique->error != ncclSuccess;
}

/// From here on the operation owns the buffers: it takes a snapshot of the inputs and poisons the outputs until the end.
class Begin final : public Operation {
 public:
  explicit Begin(std::shared_ptr<Launch> launch) : launch_(std::move(launch)) {}
  std::string name() const override { return concat("start of ", launch_->part->str()); }
  std::unique_ptr<Operation> clone() const override {
    launch_->make_copy();
    return std::make_unique<Begin>(launch_->copy);
  }
  void run() override {
    if (is_over(*launch_->part)) return;
    for (Region& region : launch_->part->regions) {
      if (!is_device_memory(region.memory, region.bytes, launch_->part->device())) return fail_part("a buffer was freed before the start of");
      if (region.input) region.snapshot.assign(region.memory, region.memory + region.bytes);
      if (region.output) std::memset(region.memory, kPoisonByte, region.bytes);
    }
  }

 private:
  void fail_part(const char* why) const {
    const Part& part = *launch_->part;
    const std::lock_guard lock(mutex());
    break_clique(*part.clique, ncclInvalidUsage, concat(why, " ", part.str()));
  }
  std::shared_ptr<Launch> launch_;
};

class Meet final : public Operation {
 public:
  explicit Meet(std::shared_ptr<Launch> launch) : launch_(std::move(launch)), part_(*launch_->part) {}
  ~Meet() override {
    if (launch_->stage != Launch::Stage::kIssued) return;
    {
      const std::lock_guard lock(mutex());
      if (part_.phase == Part::Phase::kDone) return;
      // The machine was reset, or the device has failed: the other parts can never complete.
      if (!part_.dropped) break_clique(*part_.clique, ncclRemoteError, concat("operation dropped before completion: ", part_.str()));
      part_.dropped = true;
      finish(part_);
    }
    changed();
  }
  std::string name() const override { return part_.str(); }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Meet>(std::exchange(launch_->copy, nullptr)); }
  void arrive() override {
    const std::lock_guard lock(mutex());
    part_.phase = Part::Phase::kArrived;
  }
  bool ready() override {
    const std::lock_guard lock(mutex());
    return nccl::ready(part_);
  }
  void run() override {
    if (!is_over(part_)) check_buffers();
    if (!is_over(part_)) move();
    std::string trouble;
    {
      const std::lock_guard lock(mutex());
      finish(part_);
      if (!part_.dropped && part_.clique->error != ncclSuccess) trouble = concat("NCCL: ", part_.clique->reason);
    }
    if (!trouble.empty()) fail(part_.device(), cudaErrorLaunchFailure, trouble);
  }

 private:
  /// Reports buffers that were written or freed since the beginning.
  void check_buffers() const {
    for (const Region& region : part_.regions) {
      const auto is_poison = [](std::byte byte) { return byte == static_cast<std::byte>(kPoisonByte); };
      const bool live = is_device_memory(region.memory, region.bytes, part_.device());
      const bool untouched = live && (region.output ? std::all_of(region.memory, region.memory + region.bytes, is_poison)
                                                    : std::equal(region.snapshot.begin(), region.snapshot.end(), region.memory));
      if (untouched) continue;
      const std::lock_guard lock(mutex());
      break_clique(*part_.clique, ncclInternalError, concat("a buffer was ", live ? "written" : "freed", " while it was in flight in ", part_.str()));
    }
  }

  void move() {
    if (part_.collective != nullptr) {
      Collective& collective = *part_.collective;
      std::call_once(collective.computed, [&] { compute(collective); });
      const std::vector<std::byte>& result = collective.results[static_cast<size_t>(part_.rank)];
      std::copy(result.begin(), result.end(), part_.out);
    }
    for (const MessageEnd& end : part_.ends) {
      if (end.send) continue;
      const std::vector<std::byte>& sent = end.message->sender->regions[end.message->sender_region].snapshot;
      std::copy(sent.begin(), sent.end(), part_.regions[end.region].memory);
    }
  }

  static void compute(Collective& collective) {
    const trireme::Call& call = collective.call;
    const size_t ranks = collective.parts.size();
    const size_t bytes = static_cast<size_t>(call.count * size_of(call.dtype)) * (call.verb == trireme::Verb::kAllGather ? ranks : 1);
    collective.results.assign(ranks, std::vector<std::byte>(bytes));
    trireme::Transfer transfer;
    transfer.call = call;
    for (size_t rank = 0; rank < ranks; ++rank) {
      transfer.in.push_back(collective.parts[rank]->regions[0].snapshot.data());
      transfer.out.push_back(collective.results[rank].data());
    }
    trireme::move_data(transfer);
  }

  std::shared_ptr<Launch> launch_;
  Part& part_;
};

}  // namespace

cudaError_t enqueue(cudaStream_t stream, const std::shared_ptr<Part>& part) {
  const auto launch = Launch::make(is_capturing(stream) ? Launch::Stage::kCaptured : Launch::Stage::kIssued, part);
  auto begin = std::make_unique<Begin>(launch);
  auto meet = std::make_unique<Meet>(launch);
  const cudaError_t error = cuda_sim::enqueue(stream, std::move(begin));
  return error != cudaSuccess ? error : cuda_sim::enqueue(stream, std::move(meet));
}

}  // namespace cuda_sim::nccl
