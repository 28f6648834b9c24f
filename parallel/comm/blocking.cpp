#include "parallel/comm/blocking.h"

#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {
namespace {

class BlockingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  Work perform(Context& ctx, const char* /*verb*/, int64_t /*bytes*/, const Call& call) override {
    call().wait(ctx);
    return {};
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    return std::make_unique<BlockingCommunicator>(std::move(made));
  }
};

}  // namespace

std::unique_ptr<Communicator> blocking(Communicator& inner) { return std::make_unique<BlockingCommunicator>(inner); }

}  // namespace trireme
