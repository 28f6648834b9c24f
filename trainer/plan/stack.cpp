#include "trainer/plan/stack.h"

#include "kernels/core/check.h"

namespace trireme {

const std::vector<Stack>& stacks() {
  // attention: kernel, rate; products, elementwise; overlap: tensor, gathers, reductions;
  // reduction: bytes, factor; split, own, selective, layer, host
  using enum AttentionKernel;
  static std::vector<Stack> table = {
      // not const: scripts/bench/published_table.cpp fits its figures
      // Attention and traffic: of `bench kernels` on an H200 (bench/llama-1.3b_nvidia-h200_2026-11-26.md). Attention by the kernels for compute
      // capability 8.0, forward and backward, reaches 1.01 to 1.16 times the device's rate over ten shapes, in the median 1.06; for 9.0 see
      // kernel_time.cpp. Twenty other kernels together take 1.17 times as long as their bytes at the device's bandwidth. Products reach 1.07 times the
      // device's rate in short bursts; a step is limited by power, and keeps the rate that was fitted to llm-foundry.
      {"trireme", "kernels measured on an H200 and an H100, products and overlap as fitted to llm-foundry", kFused, 1.06, 1.03, 1.17, 0.0, 0.075,
       true, 4, 1.0, false, true, 0.0, 0.0, 0.0},
      {"megatron-2021", "Narayanan et al. 2021, arXiv:2104.04473; Korthikanti et al. 2022, arXiv:2205.05198", kUnfused, 1.0, 0.92, 0.8, 0.0, 0.0,
       false, 4, 1.0, true, false, 0.0, 0.0, 0.0},
      {"megatron-deepspeed", "BigScience, chronicles of tr11-176B-ml, 2022", kUnfused, 1.0, 0.92, 2.6, 0.0, 0.0, false, 2, 4.6, false, false, 0.0,
       0.0015, 0.0},
      {"zero-bubble", "Qi et al. 2024, arXiv:2401.10241", kUnfused, 1.0, 0.89, 0.8, 0.0, 0.0, false, 4, 1.0, false, false, 0.0, 0.0, 0.0},
      {"megatron-2023", "Jiang et al. 2024, arXiv:2402.15627: its Megatron-LM baseline", kFused, 1.0, 0.80, 0.7, 0.0, 0.0, false, 4, 1.0, true, false,
       0.0, 0.0, 0.0},
      {"megatron-2024", "Megatron-Core README; NVIDIA dgxc-benchmarking (NeMo 24.09)", kFused, 1.7, 1.13, 4.4, 0.81, 0.5, true, 2, 1.0, true, false,
       0.0, 0.0, 0.0},
      {"llama-3", "Grattafiori et al. 2024, arXiv:2407.21783; rates of megatron-2024, no step time published", kFused, 1.7, 1.13, 1.0, 0.0, 0.5, true,
       4, 1.0, true, false, 0.0, 0.0, 0.0},
      {"deepspeed-zero3", "DeepSpeed's ZeRO-3 as measured by Narayanan et al. 2021, arXiv:2104.04473, table 2", kUnfused, 1.0, 0.92, 1.0, 0.0, 0.0,
       false, 2, 6.0, false, false, 0.0, 0.0, 0.0},
      {"llm-foundry", "MosaicML llm-foundry, scripts/train/benchmarking", kFused, 0.54, 1.03, 2.0, 0.0, 0.075, true, 2, 1.0, false, false, 0.0, 0.0,
       0.0},
      {"torchtitan", "torchtitan benchmarks 2024-12; Liang et al. 2024, arXiv:2410.06511", kFused, 1.0, 0.75, 2.0, 0.0, 0.0, true, 4, 1.0, false,
       false, 0.45, 0.0, 0.0},
      {"nanotron", "Hugging Face nanotron, benchmark of 2025", kFused, 1.0, 0.79, 0.4, 0.0, 0.0, false, 4, 1.25, false, false, 0.0, 0.0, 0.12},
      {"llm.c", "karpathy/llm.c", kFused, 1.1, 0.97, 1.0, 0.0, 0.5, true, 2, 1.0, false, false, 0.0, 0.0, 0.0},
      {"pytorch-fsdp", "PyTorch FSDP and DDP runs: nanoGPT, TinyLlama", kFused, 1.0, 0.78, 2.5, 0.0, 0.5, true, 4, 1.0, false, false, 0.0, 0.0, 0.0},
  };
  return table;
}

const Stack& stack_of(const std::string& name) {
  for (const Stack& stack : stacks())
    if (name == stack.name) return stack;
  throw InternalError("unknown stack: " + name);
}

}  // namespace trireme
