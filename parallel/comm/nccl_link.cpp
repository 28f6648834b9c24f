#include "parallel/comm/nccl_link.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace trireme {
namespace {

std::string explain(ncclResult_t result, ncclComm_t comm) {
  const char* const detail = nccl().last_error(comm);
  return concat(nccl().error_string(result), detail == nullptr || *detail == '\0' ? "" : ": ", detail == nullptr ? "" : detail);
}

std::string place_of(const Communicator& group) { return concat("group '", group.name(), "', rank ", group.rank(), " of ", group.size()); }

void check_creation(ncclResult_t result, const char* call, const Communicator& group) {
  if (result != ncclSuccess) throw InternalError(concat(call, " failed (", place_of(group), "): ", explain(result, nullptr)));
}

/// Which communicator a group uses, as its rank 0 decides.
struct Invitation {
  ncclUniqueId id;
  bool exists;
};

Invitation from_first_rank(Communicator& host, const Invitation& own) {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1, nullptr};
  const Tensor bytes = Tensor::empty(ctx, {sizeof own}, DType::kU8, MemoryCategory::kCommunication);
  std::memcpy(bytes.raw(), &own, sizeof own);
  host.broadcast(ctx, bytes, 0).wait(ctx);
  Invitation decided{};
  std::memcpy(&decided, bytes.raw(), sizeof decided);
  return decided;
}

/// Waits for the compute stream. Errors are those of an earlier call, which has reported them.
void await(cuda::Gpu& gpu) {
  try {
    gpu.synchronize();
  } catch (const Error&) {
  }
}

}  // namespace

NcclLinks::~NcclLinks() {
  if (abandoned_.empty()) return;
  nccl().group_start();
  for (const ncclComm_t comm : abandoned_) nccl().comm_abort(comm);
  nccl().group_end();
}

void NcclLinks::keep(std::vector<Tensor> buffers) {
  give_up();
  buffers_.insert(buffers_.end(), std::make_move_iterator(buffers.begin()), std::make_move_iterator(buffers.end()));
}

void NcclLinks::raise_errors() {
  if (given_up_) return;
  for (const std::weak_ptr<NcclLink>& weak : made_) {
    const auto link = weak.lock();
    const std::string error = link == nullptr ? "" : link->async_error();
    if (error.empty()) continue;
    give_up();
    throw InternalError(concat("a collective failed (", link->place(), "): ", error));
  }
}

std::shared_ptr<void> NcclLinks::allocate(const std::shared_ptr<NcclLinks>& links, int64_t bytes) {
  TRIREME_CHECK(links->memory_ == nullptr, "the links have memory already");
  void* memory = nullptr;
  if (const ncclResult_t result = nccl().mem_alloc(&memory, static_cast<size_t>(bytes)); result != ncclSuccess) {
    links->refusal_ = concat("ncclMemAlloc of ", bytes, " bytes: ", explain(result, nullptr));
    return nullptr;
  }
  links->memory_ = memory;
  links->bytes_ = bytes;
  return {memory, [weak = std::weak_ptr(links), gpu = &links->gpu](void* freed) {
            if (const auto alive = weak.lock(); alive != nullptr) alive->forget_memory();
            await(*gpu);
            nccl().mem_free(freed);
          }};
}

std::string NcclLinks::register_memory(Communicator& world) {
  std::string mine = refusal_;
  TRIREME_CHECK(memory_ != nullptr || !mine.empty(), "register_memory() without reserve_memory()");
  for (const std::weak_ptr<NcclLink>& weak : made_) {
    const auto link = weak.lock();
    if (link == nullptr || !mine.empty()) continue;
    const ncclResult_t result = nccl().comm_register(link->comm_, memory_, static_cast<size_t>(bytes_), &link->registration_);
    if (result != ncclSuccess)
      mine = concat("ncclCommRegister failed (", link->place_, "): ", explain(result, link->comm_));
    else if (link->registration_ == nullptr)
      mine = concat("ncclCommRegister registers nothing (", link->place_, "); is NCCL_LOCAL_REGISTER=0 set?");
  }
  for (const std::string& why : all_gather_strings(world, mine)) {
    if (why.empty()) continue;
    deregister_memory();
    return why;
  }
  return "";
}

void NcclLinks::forget_memory() {
  deregister_memory();
  memory_ = nullptr;
}

void NcclLinks::deregister_memory() {
  for (const std::weak_ptr<NcclLink>& weak : made_)
    if (const auto link = weak.lock(); link != nullptr) link->deregister_memory();
}

std::shared_ptr<NcclLink> NcclLink::join(const std::shared_ptr<NcclLinks>& links, Communicator& host, std::vector<int> members) {
  std::erase_if(links->made_, [](const auto& link) { return link.expired(); });
  const auto find = [&](const auto& is) -> std::shared_ptr<NcclLink> {
    for (const std::weak_ptr<NcclLink>& weak : links->made_)
      if (auto link = weak.lock(); link != nullptr && is(*link)) return link;
    return nullptr;
  };
  Invitation invitation{};
  if (host.rank() == 0) {
    const auto equal = find([&](const NcclLink& link) { return link.members_ == members; });
    invitation.exists = equal != nullptr;
    if (equal != nullptr) invitation.id = equal->id_;
    if (equal == nullptr) check_creation(nccl().get_unique_id(&invitation.id), "ncclGetUniqueId", host);
  }
  invitation = from_first_rank(host, invitation);
  if (invitation.exists) {
    auto link = find([&](const NcclLink& other) { return std::memcmp(&other.id_, &invitation.id, sizeof invitation.id) == 0; });
    TRIREME_CHECK(link != nullptr, place_of(host), ": rank 0 still has an earlier group of the same ranks, and this rank has not");
    return link;
  }
  const std::shared_ptr<NcclLink> made(new NcclLink(links, host, std::move(members), invitation.id));
  links->made_.push_back(made);
  return made;
}

NcclLink::NcclLink(std::shared_ptr<NcclLinks> links, Communicator& host, std::vector<int> members, const ncclUniqueId& id)
    : links_(std::move(links)), place_(place_of(host)), members_(std::move(members)), id_(id), stream_(links_->gpu.make_stream()) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (links_->options.max_blocks > 0) config.maxCTAs = links_->options.max_blocks;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = host.name().c_str();  // for NCCL's own messages; copied
#endif
  check_creation(nccl().comm_init(&comm_, host.size(), id, host.rank(), &config), "ncclCommInitRankConfig", host);
}

NcclLink::~NcclLink() {
  if (links_->given_up() || std::uncaught_exceptions() > 0) {
    links_->abandoned_.push_back(comm_);
    return;
  }
  deregister_memory();
  nccl().comm_finalize(comm_);
  nccl().comm_destroy(comm_);
}

/// The compute stream is ordered after every operation that has been waited for.
void NcclLink::deregister_memory() {
  if (registration_ == nullptr) return;
  await(links_->gpu);
  nccl().comm_deregister(comm_, std::exchange(registration_, nullptr));
}

void NcclLink::check_registered(const Tensor& buffer) const {
  if (registration_ == nullptr || buffer.numel() == 0) return;
  const auto begin = static_cast<const char*>(buffer.raw()) - static_cast<const char*>(links_->memory_);
  TRIREME_CHECK(begin >= 0 && begin + buffer.bytes() <= links_->bytes_, "a buffer of ", place_, " lies outside the registered memory");
}

void NcclLink::check(ncclResult_t result, const char* call) const {
  if (result != ncclSuccess) throw InternalError(concat(call, ": ", explain(result, comm_)));
}

std::string NcclLink::async_error() const {
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t asked = nccl().comm_async_error(comm_, &state); asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? "" : concat("asynchronous NCCL error: ", explain(state, comm_));
}

}  // namespace trireme
