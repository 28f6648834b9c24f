#pragma once
// A second opinion on what private steps reveal, close to the truth where the accountant's RDP is a few tenths above it: the distribution of the privacy
// loss ln(P(x) / Q(x)), computed numerically. P and Q are what a step releases for two neighbouring data sets.
//
// The loss of one step is put on a grid by splitting the probability between two grid points such that both P and Q keep their totals ("connecting the
// dots", Doroshenko et al. 2022, arXiv:2207.04380). Such a step reveals more than the real one, by little. Losses of steps add up, so that the
// distribution of the sum is a convolution, which one Fourier transform computes. Both directions are computed, a sample that is added and one that is
// removed.
// - upper is a bound of epsilon up to rounding: whatever is cut off, wraps around or may be rounding of the transform is added to delta.
// - lower follows from how far the sum on the grid may be above the real one, by Hoeffding's inequality.
#include <cstdint>
#include <span>

#include "trainer/privacy/accountant.h"

namespace trireme::privacy {

struct Bracket {
  double lower = 0;
  double upper = 0;  ///< infinite if the losses are beyond what this computation covers, as with a noise below 0.04
};

/// The bracket within which the smallest epsilon lies that `history` satisfies with `delta` (above 0 and below 1). Takes about 0.2 s for each kind of
/// steps.
Bracket tight_epsilon(std::span<const PrivateSteps> history, double delta);

}  // namespace trireme::privacy
