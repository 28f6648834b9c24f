#include "trainer/verify/oracle.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme {
namespace {

/// A row-major matrix.
struct Matrix {
  std::array<int64_t, 2> shape;
  std::vector<double> values;
  double at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * shape[1] + column)]; }
};

Matrix transposed(const Matrix& a) {
  Matrix t{{a.shape[1], a.shape[0]}, {}};
  for (int64_t r = 0; r < t.shape[0]; ++r)
    for (int64_t c = 0; c < t.shape[1]; ++c) t.values.push_back(a.at(c, r));
  return t;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{{a.shape[0], b.shape[1]}, {}};
  for (int64_t row = 0; row < c.shape[0]; ++row) {
    for (int64_t column = 0; column < c.shape[1]; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < a.shape[1]; ++k) sum += a.at(row, k) * b.at(k, column);
      c.values.push_back(sum);
    }
  }
  return c;
}

/// Five Newton-Schulz iterations X = 3.4445 X - 4.7750 (X X^T) X + 2.0315 (X X^T)^2 X from X = G / (|G| + 1e-7).
Matrix orthogonalized(Matrix x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::sqrt(squares) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    const Matrix gram = product(x, transposed(x)), once = product(gram, x), twice = product(gram, once);
    for (size_t e = 0; e < x.values.size(); ++e) x.values[e] = 3.4445 * x.values[e] - 4.7750 * once.values[e] + 2.0315 * twice.values[e];
  }
  return x;
}

/// One step of Muon on the values of a matrix.
void muon_step(const OptimizerConfig& o, const std::vector<double>& gradient, double scale, double rate, Matrix& momentum,
               std::vector<double>& weights) {
  Matrix update = momentum;
  for (size_t i = 0; i < weights.size(); ++i) {
    momentum.values[i] = o.momentum * momentum.values[i] + gradient[i] * scale;
    update.values[i] = gradient[i] * scale + o.momentum * momentum.values[i];
  }
  const auto rows = static_cast<double>(update.shape[0]), columns = static_cast<double>(update.shape[1]);
  const double length = o.update_scale == MuonScale::kRms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  const Matrix direction = orthogonalized(update);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * (o.weight_decay * weights[i] + length * direction.values[i]);
}

bool is_of_adapter(const std::string& name) { return name.find(".lora_") != name.npos; }

/// Whether `*` for any characters and `?` for one make the pattern the name.
bool matches(const char* pattern, const char* name) {
  if (*pattern == '*') return matches(pattern + 1, name) || (*name != 0 && matches(pattern, name + 1));
  return (*pattern == 0 && *name == 0) || (*name != 0 && (*pattern == '?' || *pattern == *name) && matches(pattern + 1, name + 1));
}

}  // namespace

bool Oracle::trains(const std::string& name) const {
  if (is_of_adapter(name)) return true;
  if (config_.model.frozen.empty()) return config_.model.adapter.rank == 0;
  return std::ranges::none_of(config_.model.frozen, [&](const std::string& pattern) { return matches(pattern.c_str(), name.c_str()); });
}

GlobalTensors Oracle::updated(const GlobalTensors& weights, const std::vector<Step>& steps) const {
  const OptimizerConfig& o = config_.training.optimizer;
  const double clip = config_.training.gradient_clip;
  std::vector<double> scales;
  for (const Step& step : steps) {
    double squares = 0;
    for (const auto& [name, gradient] : step.gradient)
      if (trains(name))
        for (const double g : gradient.values) squares += g * g;
    const double norm = std::sqrt(squares);
    scales.push_back(clip > 0 && norm > clip ? clip / norm : 1);
  }
  GlobalTensors result = weights;
  for (auto& [name, tensor] : result) {
    if (!trains(name)) continue;
    const bool is_matrix = !name.ends_with(".bias") && !name.ends_with("norm.weight");
    const double decay = is_matrix ? o.weight_decay : 0;
    if (o.name == Optimizer::kMuon && is_matrix && name.starts_with("blocks.") && !is_of_adapter(name)) {
      Matrix momentum{tensor.shape, std::vector<double>(tensor.values.size())};
      for (size_t s = 0; s < steps.size(); ++s)
        muon_step(o, steps[s].gradient.at(name).values, scales[s], steps[s].learning_rate, momentum, tensor.values);
      continue;
    }
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      double& w = tensor.values[i];
      double m = 0, v = 0, power1 = 1, power2 = 1;
      for (size_t s = 0; s < steps.size(); ++s) {
        const double g = steps[s].gradient.at(name).values[i] * scales[s], rate = steps[s].learning_rate;
        if (o.name == Optimizer::kSgd) {
          w -= rate * (decay * w + g);
          continue;
        }
        if (o.name == Optimizer::kLion) {
          const double direction = o.beta1 * m + (1 - o.beta1) * g;
          w -= rate * (decay * w + (direction > 0 ? 1 : direction < 0 ? -1 : 0));
          m = *o.beta2 * m + (1 - *o.beta2) * g;
          continue;
        }
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = *o.beta2 * v + (1 - *o.beta2) * g * g;
        power1 *= o.beta1;
        power2 *= *o.beta2;
        w = w * (1 - rate * decay) - rate * (m / (1 - power1)) / (std::sqrt(v / (1 - power2)) + o.epsilon);
      }
    }
  }
  return result;
}

GlobalTensors Oracle::averaged(const std::vector<const GlobalTensors*>& history) const {
  GlobalTensors average = *history.front();
  std::erase_if(average, [&](const auto& named) { return !trains(named.first); });
  for (size_t t = 0; t + 1 < history.size(); ++t) {
    const double decay = std::min(config_.training.ema.decay.value(), static_cast<double>(1 + t) / static_cast<double>(10 + t));
    for (auto& [name, tensor] : average) {
      const std::vector<double>& updated = history[t + 1]->at(name).values;
      for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = decay * tensor.values[i] + (1 - decay) * updated[i];
    }
  }
  return average;
}

}  // namespace trireme
