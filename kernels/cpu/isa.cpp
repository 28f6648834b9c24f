#include "kernels/cpu/isa.h"

namespace trireme::cpu {

#define TRIREME_LEVEL(isa)       \
  namespace isa {                \
  extern const Kernels kKernels; \
  }
TRIREME_LEVEL(portable)
#ifdef __x86_64__
TRIREME_LEVEL(avx2)
TRIREME_LEVEL(avx512)
#endif
#undef TRIREME_LEVEL

const Kernels& kernels_of(Isa isa) {
#ifdef __x86_64__
  if (isa >= Isa::kAvx512) return avx512::kKernels;
  if (isa >= Isa::kAvx2) return avx2::kKernels;
#endif
  return static_cast<void>(isa), portable::kKernels;
}

}  // namespace trireme::cpu
