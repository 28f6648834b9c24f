#include "trainer/plan/analysis/scaling_law.h"

#include <cmath>
#include <limits>

namespace trireme {
namespace {

/// Exponent a of the compute-optimal frontier: N grows as C^a, D as C^(1-a).
double exponent(const ScalingLaw& law) { return law.beta / (law.alpha + law.beta); }
double ratio(const ScalingLaw& law) { return std::pow(law.alpha * law.a / (law.beta * law.b), 1 / (law.alpha + law.beta)); }

}  // namespace

const std::array<ScalingLaw, 2>& scaling_laws() {
  // Both from data_analysis.ipynb of epoch-research/analyzing-chinchilla. For the first, E, A and B are exponentials of the fitted logarithms. The
  // second has the digits of the notebook's output; the paper's table prints 1.8172 for E.
  static const std::array<ScalingLaw, 2> laws{
      ScalingLaw{"Hoffmann 2022", "arXiv:2203.15556, approach 3", std::exp(0.526723), std::exp(6.00734), std::exp(6.01792), 0.339171, 0.284908},
      ScalingLaw{"Besiroglu 2024", "arXiv:2404.10102, its notebook", 1.81686, 482.006, 2085.43, 0.34781, 0.36585}};
  return laws;
}

double predicted_loss(const ScalingLaw& law, double parameters, double tokens) {
  return law.e + law.a / std::pow(parameters, law.alpha) + law.b / std::pow(tokens, law.beta);
}

ComputeOptimum compute_optimum(const ScalingLaw& law, double flops) {
  const double parameters = ratio(law) * std::pow(flops / 6, exponent(law));
  const double tokens = flops / 6 / parameters;
  return {flops, parameters, tokens, predicted_loss(law, parameters, tokens)};
}

ComputeOptimum cheapest_for_loss(const ScalingLaw& law, double loss) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (loss <= law.e) return {kInfinity, kInfinity, kInfinity, loss};
  // Both terms fall as (C/6)^-(alpha beta / (alpha + beta)) along the frontier.
  const double g = ratio(law);
  const double at_six = law.a / std::pow(g, law.alpha) + law.b * std::pow(g, law.beta);
  return compute_optimum(law, 6 * std::pow(at_six / (loss - law.e), 1 / (law.alpha * exponent(law))));
}

FrontierDistance frontier_distance(const ScalingLaw& law, double parameters, double tokens) {
  const double loss = predicted_loss(law, parameters, tokens);
  return {law, parameters, tokens, loss, compute_optimum(law, 6 * parameters * tokens), cheapest_for_loss(law, loss)};
}

}  // namespace trireme
