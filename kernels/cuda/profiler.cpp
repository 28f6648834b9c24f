#include "kernels/core/profiler.h"

#ifdef TRIREME_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme::cuda {

#ifdef TRIREME_NVTX

namespace {

/// NVTX looks for a tool in its first call. Without one the domain is null, and so is the cost of everything after.
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const handle = nvtxDomainCreateA("trireme");
  return handle;
}

}  // namespace

bool is_profiled() { return domain() != nullptr; }

void open_profiler_range(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void close_profiler_range() { nvtxDomainRangePop(domain()); }

#else

bool is_profiled() { return false; }
void open_profiler_range(const char* /*name*/) {}
void close_profiler_range() {}

#endif

}  // namespace trireme::cuda
