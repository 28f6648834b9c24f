#pragma once
// Annotations for the sanitizers: inaccessible memory and stack switches.
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_sim {

inline void asan_poison([[maybe_unused]] uintptr_t begin, [[maybe_unused]] uintptr_t end) {
#if defined(__SANITIZE_ADDRESS__)
  if (begin < end) __asan_poison_memory_region(reinterpret_cast<void*>(begin), end - begin);
#endif
}
inline void asan_unpoison([[maybe_unused]] uintptr_t begin, [[maybe_unused]] uintptr_t end) {
#if defined(__SANITIZE_ADDRESS__)
  if (begin < end) __asan_unpoison_memory_region(reinterpret_cast<void*>(begin), end - begin);
#endif
}

/// The sanitizers' record of one stack. Around a switch, call leave() on the old stack's mark, and arrive() on the new stack's mark once it runs.
struct StackMark {
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake_stack = nullptr;
  void* tsan = nullptr;

  void leave([[maybe_unused]] StackMark& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.size);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan = __tsan_get_current_fiber();
    if (to.tsan == nullptr) to.tsan = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(to.tsan, 0);
#endif
  }
  /// `from`: the stack that was left.
  void arrive([[maybe_unused]] StackMark& from) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &from.bottom, &from.size);
#endif
  }
  void destroy() {
#if defined(__SANITIZE_THREAD__)
    if (tsan != nullptr) __tsan_destroy_fiber(tsan);
#endif
    tsan = nullptr;
  }
};

}  // namespace cuda_sim
