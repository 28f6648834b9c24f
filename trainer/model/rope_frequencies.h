#pragma once
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// RoPE frequencies: the angles, in radians per position, that rotate the pairs i < R/2 of a head's first R elements: f = theta^(-2i/R) (Su et al. 2021,
/// arXiv:2104.09864), scaled as in Hugging Face transformers (modeling_rope_utils.py):
///   linear  f / factor.   Source: Chen et al. 2023, arXiv:2306.15595.
///   llama3  by the wavelength w = 2 pi / f and the original context length P: f if w < P / high_frequency_factor, f / factor if
///           w > P / low_frequency_factor, and (1 - s) f / factor + s f between, with s = (P / w - low) / (high - low).   Source: Llama 3.1.
std::vector<double> rope_frequencies(double theta, int64_t rotated, const RopeScalingConfig& scaling);

}  // namespace trireme
