// The functions that code compiled with -fsanitize=thread calls, in place of libtsan: loads and stores go to the recorder. Atomic operations occur only
// in the host code of device sources (reference counts).
#include <cstdint>
#include <cstring>

#include "tests/trace/recorder.h"

#define PLACE __builtin_return_address(0)
#define ACCESS(bytes)                                                                                    \
  void __tsan_read##bytes(void* address) { cuda_trace::record(PLACE, address, bytes, false); }           \
  void __tsan_write##bytes(void* address) { cuda_trace::record(PLACE, address, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* address) { cuda_trace::record(PLACE, address, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* address) { cuda_trace::record(PLACE, address, bytes, true); }
#define ATOMIC(bits)                                                                                                                        \
  int##bits##_t __tsan_atomic##bits##_load(const volatile int##bits##_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }         \
  void __tsan_atomic##bits##_store(volatile int##bits##_t* at, int##bits##_t value, int) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); } \
  int##bits##_t __tsan_atomic##bits##_fetch_add(volatile int##bits##_t* at, int##bits##_t value, int) {                                     \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                                                                 \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* address, size_t bytes) { cuda_trace::record(PLACE, address, bytes, false); }
void __tsan_write_range(void* address, size_t bytes) { cuda_trace::record(PLACE, address, bytes, true); }

// Clang calls these in place of memcpy, memmove and memset.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  cuda_trace::record(PLACE, from, bytes, false);
  cuda_trace::record(PLACE, to, bytes, true);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  cuda_trace::record(PLACE, from, bytes, false);
  cuda_trace::record(PLACE, to, bytes, true);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  cuda_trace::record(PLACE, to, bytes, true);
  return std::memset(to, value, bytes);
}

ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
ATOMIC(8)
ATOMIC(32)
ATOMIC(64)

}  // extern "C"
