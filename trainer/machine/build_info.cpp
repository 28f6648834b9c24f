#include "trainer/machine/build_info.h"

#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/core/isa.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/mpi.h"
#include "trainer/version.h"  // written by the build

namespace trireme {

namespace {

std::string cuda_text() {
#ifdef TRIREME_CUDA_VERSION
  const std::string text = concat("CUDA ", TRIREME_CUDA_VERSION, " for architectures ", TRIREME_CUDA_ARCHITECTURES);
#ifdef TRIREME_NCCL_VERSION
  constexpr const char* kNccl = ", NCCL " TRIREME_NCCL_VERSION;
#else
  constexpr const char* kNccl = ", no NCCL";
#endif
#ifdef TRIREME_CUDNN_VERSION
  return text + kNccl + ", cuDNN " TRIREME_CUDNN_VERSION;
#else
  return text + kNccl + ", no cuDNN";
#endif
#else
  return "no CUDA: run.device is cpu";
#endif
}

std::string cpu_text() {
  std::string levels;
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) levels += concat(" ", name_of(static_cast<Isa>(level)));
  return concat(gemm_library({.device = Device::kCpu}), "; instruction levels on this CPU:", levels);
}

}  // namespace

std::string version() {
  const std::string_view revision = TRIREME_REVISION;
  return revision.empty() ? TRIREME_VERSION : concat(TRIREME_VERSION, " (", revision, ")");
}

std::string version_text() {
  const std::string_view sanitizers = TRIREME_SANITIZERS;
#ifdef TRIREME_SENTENCEPIECE
  constexpr const char* kSentencePiece = "SentencePiece";
#else
  constexpr const char* kSentencePiece = "no SentencePiece: *.model tokenizers cannot be read";
#endif
  return concat("trireme ", version(), "\nbuild       ", TRIREME_BUILD_TYPE, sanitizers.empty() ? "" : concat(" with sanitizers ", sanitizers),
                ", compiler ", __VERSION__, "\nGPU         ", cuda_text(), "\nCPU         ", cpu_text(), "\nMPI         ", mpi_library_version(),
                "\ntokenizers  ", kSentencePiece);
}

}  // namespace trireme
