// The attention table of one instruction-set level. Only this file is also compiled for the levels avx512_bf16 and amx, whose tables contain only
// bf16.
#include "kernels/cpu/isa/attention.h"

#include "kernels/cpu/isa/attention_backward.h"
#include "kernels/cpu/isa/attention_forward.h"
#ifdef __AMX_BF16__
#include "kernels/cpu/isa/tiles.h"
#endif

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class Engine, class T>
constexpr TypedAttention<T> kTyped{attention_forward<Engine, T>, attention_backward<Engine, T>, forward_workspace<Engine>,
                                   backward_workspace<Engine>};

}  // namespace

extern const AttentionKernels kAttention;
#if defined(__AMX_BF16__)
const AttentionKernels kAttention{.f32 = {}, .bf16 = kTyped<AmxEngine<AmxTiles>, bfloat16>, .f16 = {}};
#elif defined(__AVX512BF16__)
const AttentionKernels kAttention{.f32 = {}, .bf16 = kTyped<Bf16DotEngine, bfloat16>, .f16 = {}};
#else
const AttentionKernels kAttention{.f32 = kTyped<Fp32Engine, float>, .bf16 = kTyped<Fp32Engine, bfloat16>, .f16 = kTyped<Fp32Engine, float16>};
#endif

}  // namespace trireme::cpu::TRIREME_ISA
