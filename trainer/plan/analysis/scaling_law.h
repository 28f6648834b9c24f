#pragma once
// Loss as a function of model and data, and the best use of a number of FLOPs that follows from it.
#include <array>

namespace trireme {

/// L(N, D) = E + A / N^alpha + B / D^beta, in nats a token, of N parameters trained on D tokens, each seen once. What a fit to one family of models
/// and one data set says: differences between choices are better than the loss itself.
struct ScalingLaw {
  const char* name;
  const char* source;
  double e, a, b, alpha, beta;
};

/// Hoffmann et al. 2022 (arXiv:2203.15556), approach 3: the unrounded fit, since with the printed constants the exponents come out as 0.45 and 0.55
/// where the paper has 0.46 and 0.54. And Besiroglu et al. 2024 (arXiv:2404.10102), who fitted the same runs again and found wider intervals and
/// other constants.
const std::array<ScalingLaw, 2>& scaling_laws();

double predicted_loss(const ScalingLaw& law, double parameters, double tokens);

/// N and D with the least loss of all with 6 N D = flops, in closed form: N = G (C/6)^(beta/(alpha+beta)), D = (C/6)^(alpha/(alpha+beta)) / G,
/// G = (alpha A / (beta B))^(1/(alpha+beta)).   Source: Hoffmann et al. 2022, eq. 4.
struct ComputeOptimum {
  double flops = 0, parameters = 0, tokens = 0, loss = 0;
};
ComputeOptimum compute_optimum(const ScalingLaw& law, double flops);
/// The cheapest that reaches `loss`; infinite FLOPs where no size does (loss <= E).
ComputeOptimum cheapest_for_loss(const ScalingLaw& law, double loss);

/// How a model and its tokens compare with the best use of their FLOPs, 6 N D.
struct FrontierDistance {
  ScalingLaw law;
  double parameters = 0, tokens = 0, loss = 0;
  ComputeOptimum same_flops;  ///< what these FLOPs could have bought
  ComputeOptimum same_loss;   ///< what this loss could have cost
};
FrontierDistance frontier_distance(const ScalingLaw& law, double parameters, double tokens);

}  // namespace trireme
