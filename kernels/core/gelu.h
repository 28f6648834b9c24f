#pragma once
// The two functions that are called GELU, and Phi for loops that must vectorise.   Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
#include <cstdint>

namespace trireme {

enum class Gelu : uint8_t {
  kTanh,  ///< x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3); "gelu_new" of GPT-2
  kErf,   ///< x Phi(x), Phi(x) = (1 + erf(x / sqrt(2))) / 2
};

// erfc(z) = e^(-z^2) t r(t) for z >= 0, with t = 1 / (1 + z/2) and r a polynomial in (t - kErfcMiddle) / kErfcHalf of relative error 5e-8 for z <= 10.5;
// beyond that e^(-z^2) is 0 in fp32. The coefficients interpolate at the Chebyshev nodes of [0.16, 1].
inline constexpr float kErfcMiddle = 0.58F, kErfcHalf = 0.42F;
inline constexpr float kErfc[] = {0.569408734F,     0.327187927F,    0.103520431F,    0.00630816237F,  -0.0063228367F,
                                  -0.000673933927F, 0.000612526183F, 8.56122003e-06F, -5.6678483e-05F, 7.10119348e-06F};
inline constexpr float kRootHalf = 0.707106781F;     ///< 1 / sqrt(2)
inline constexpr float kGaussAtZero = 0.398942280F;  ///< 1 / sqrt(2 pi)

}  // namespace trireme
