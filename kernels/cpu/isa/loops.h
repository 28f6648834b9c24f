#pragma once
// The loops of one level, by name: what the files of this folder define and kernels.cpp puts into a table. Arguments: kernels.h.
#include "kernels/cpu/isa/kernels.h"

/// For the end of a file that defines a loop: its three instances.
#define TRIREME_INSTANCES(loop, Arguments)                                      \
  template void loop<float>(const Arguments<float>&, int64_t, int64_t);       \
  template void loop<bfloat16>(const Arguments<bfloat16>&, int64_t, int64_t); \
  template void loop<float16>(const Arguments<float16>&, int64_t, int64_t)

namespace trireme::cpu::TRIREME_ISA {

template <class T>
void norm_forward(const NormForward<T>& p, int64_t begin, int64_t end);
template <class T>
void norm_backward_input(const NormBackwardInput<T>& p, int64_t begin, int64_t end);
template <class T>
void norm_backward_weight(const NormBackwardWeight<T>& p, int64_t begin, int64_t end);

}  // namespace trireme::cpu::TRIREME_ISA
