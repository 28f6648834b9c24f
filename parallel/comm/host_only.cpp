#include "parallel/comm/host_only.h"

#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {
namespace {

class HostOnlyCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  Work perform(Context& ctx, const char* verb, int64_t /*bytes*/, const Call& call) override {
    TRIREME_CHECK(ctx.device != Device::kCuda, verb, " of group '", name(), "': this group carries tensors in host memory only");
    return call();
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    return host_only(std::move(made));
  }
};

}  // namespace

std::unique_ptr<Communicator> host_only(std::unique_ptr<Communicator> inner) { return std::make_unique<HostOnlyCommunicator>(std::move(inner)); }

}  // namespace trireme
