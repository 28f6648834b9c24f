#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "trainer/config/config.h"

namespace trireme {

class Trainer;

/// Which kernels compute attention in a job with kernels.attention: cudnn (kernels/cuda/cudnn_attention.h).
struct AttentionKernels {
  struct Shape {
    std::string shape;      ///< with its direction, see cuda::AttentionChoice
    std::string reason;     ///< why the built-in kernels compute it; empty: cuDNN does
    int64_t ranks = 0;      ///< that computed it so
    bool mismatch = false;  ///< cuDNN's result was another one
    double difference = 0;  ///< largest of the comparisons, as a share of what is allowed
    /// Computed alike. The difference, which is part of a mismatch's reason, varies between ranks.
    bool is_like(const Shape& other) const { return shape == other.shape && mismatch == other.mismatch && (mismatch || reason == other.reason); }
  };
  std::vector<Shape> shapes;  ///< since the start of the job, ordered by rank and first use; one that ranks compute differently appears twice
};

/// The kernels that one GPU has used.
AttentionKernels attention_kernels(cuda::Gpu& gpu);
/// Empty if the configuration asks for no cuDNN attention. Collective; the result is the same on all ranks.
AttentionKernels attention_kernels(Trainer& trainer, const Config& config);

/// {"cudnn": [{shape, ranks, difference}], "builtin": [{shape, reason, ranks, mismatch}]}
nlohmann::ordered_json to_json(const AttentionKernels& kernels);
/// A warning of what the built-in kernels compute, from to_json; empty if that is nothing.
std::string attention_warning(const nlohmann::ordered_json& kernels);
/// How many shapes are computed by which kernels, with the warning.
std::string attention_text(const nlohmann::ordered_json& kernels);

}  // namespace trireme
