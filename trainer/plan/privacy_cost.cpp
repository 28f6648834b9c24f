#include "trainer/plan/privacy_cost.h"

#include <cmath>

#include "trainer/layout/resolve.h"
#include "trainer/plan/text.h"
#include "trainer/privacy/accountant.h"
#include "trainer/privacy/statement.h"

namespace trireme {

PrivacyCost privacy_cost(const Config& config, const ClusterConfig& cluster, const Forecast& private_step, int64_t sequences) {
  Config plain = config;
  plain.security.privacy = {};
  PrivacyCost cost{.plain_step_seconds = forecast(resolve(plain), cluster).step_seconds, .step_seconds = private_step.step_seconds};
  if (adds_noise_on_each_rank(config)) cost.noise_ranks = *config.parallel.data;
  const PrivacyConfig& privacy = config.security.privacy;
  if (sequences < config.training.global_batch_size || !config.training.steps) return cost;
  const double rate = static_cast<double>(config.training.global_batch_size) / static_cast<double>(sequences);
  const int64_t steps = *config.training.steps;
  cost.noise = privacy.noise ? *privacy.noise : privacy::noise_for(*privacy.target_epsilon, rate, steps, *privacy.delta);
  const privacy::PrivateSteps all[] = {{rate, *cost.noise, steps}};
  cost.epsilon = privacy::rdp_epsilon(all, *privacy.delta).value;
  return cost;
}

nlohmann::ordered_json privacy_cost_json(const PrivacyCost& cost) {
  const auto known = [](const std::optional<double>& value) { return value ? privacy::to_json(*value) : nlohmann::ordered_json(); };
  return {{"plain_step_seconds", cost.plain_step_seconds},
          {"noise", known(cost.noise)},
          {"noise_ranks", cost.noise_ranks},
          {"epsilon", known(cost.epsilon)}};
}

std::string privacy_cost_text(const Config& config, const PrivacyCost& cost) {
  std::string text = print("security.privacy: a step takes %.3g x as long as one without (%s), for the expected number of sequences",
                           cost.step_seconds / cost.plain_step_seconds, seconds_text(cost.plain_step_seconds).c_str());
  if (cost.epsilon && std::isfinite(*cost.epsilon))
    text += print("; %lld steps with a noise multiplier of %.6g have an epsilon of %.3g at delta %.3g",
                  static_cast<long long>(*config.training.steps), *cost.noise, *cost.epsilon, *config.security.privacy.delta);
  if (cost.noise_ranks > 1)
    text += print("; each of %lld data ranks adds the noise, so that the sum of all has %.3g times as much", static_cast<long long>(cost.noise_ranks),
                  std::sqrt(static_cast<double>(cost.noise_ranks)));
  return text + "\n";
}

}  // namespace trireme
