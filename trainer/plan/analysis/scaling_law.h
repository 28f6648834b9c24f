#pragma once
// Scaling laws: loss as a function of model and data size, and the compute-optimal sizes that follow.
#include <array>

namespace trireme {

/// L(N, D) = E + A / N^alpha + B / D^beta: loss in nats per token of N parameters trained on D tokens, each seen once. Fitted to one model family and
/// one data set, so differences between choices are more reliable than the loss itself.
struct ScalingLaw {
  const char* name;
  const char* source;
  double e, a, b, alpha, beta;
};

/// Hoffmann et al. 2022 (arXiv:2203.15556), approach 3, with the unrounded fit: the printed constants yield exponents of 0.45 and 0.55 instead of the
/// paper's 0.46 and 0.54. Besiroglu et al. 2024 (arXiv:2404.10102), a refit of the same runs with wider intervals and other constants.
const std::array<ScalingLaw, 2>& scaling_laws();

double predicted_loss(const ScalingLaw& law, double parameters, double tokens);

/// N and D with the lowest loss under 6 N D = flops = C, in closed form: N = G (C/6)^(beta/(alpha+beta)), D = (C/6)^(alpha/(alpha+beta)) / G,
/// G = (alpha A / (beta B))^(1/(alpha+beta)).   Source: Hoffmann et al. 2022, eq. 4.
struct ComputeOptimum {
  double flops = 0, parameters = 0, tokens = 0, loss = 0;
};
ComputeOptimum compute_optimum(const ScalingLaw& law, double flops);
/// The optimum with the fewest FLOPs that reaches `loss`; infinite FLOPs if none does (loss <= E).
ComputeOptimum cheapest_for_loss(const ScalingLaw& law, double loss);

/// A model and its tokens compared with the compute-optimal use of their 6 N D FLOPs.
struct FrontierDistance {
  ScalingLaw law;
  double parameters = 0, tokens = 0, loss = 0;
  ComputeOptimum same_flops;  ///< optimum with the same FLOPs
  ComputeOptimum same_loss;   ///< optimum with the same loss
};
FrontierDistance frontier_distance(const ScalingLaw& law, double parameters, double tokens);

}  // namespace trireme
