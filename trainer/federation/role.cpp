#include "trainer/federation/role.h"

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "trainer/config/fields.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme::federation {

std::string terms_of(const Config& config) {
  nlohmann::ordered_json terms;
  for (const FieldRow& row : table_of(config).fields) {
    const bool own = row.path.starts_with("data.") || row.path == "run.seed" || row.path == "training.initial_weights";
    if (row.field.decides == Aspect::kMathematics && !own) terms[row.path] = written_value(row);
  }
  terms["data.tokenizer"] = Tokenizer::open(config.data.tokenizer).digest();
  return terms.dump();
}

static bool has_port(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon != address.npos && colon > 0 && colon + 1 < address.size() && address.find_first_not_of("0123456789", colon + 1) == address.npos;
}

std::optional<Role> role_of(const Config& config, const std::optional<std::string>& join) {
  if (join && !has_port(*join)) throw ConfigError(concat("join ", *join, ": expected HOST:PORT, such as 10.0.0.5:7117"));
  if (is_federated(config.security))
    return Role{!join, join.value_or(""), config.security.federation, config.training.local.steps.value_or(0), terms_of(config)};
  if (join)
    throw ConfigError(
        concat("join ", *join, ": security.federation.members is 0; allowed the configuration of a federation, with its members from 1"));
  return std::nullopt;
}

LoadedConfig config_of(const Role& role, LoadedConfig loaded) {
  loaded.sources.keys.clear();
  Config& config = loaded.config;
  config.security.federation = {};
  if (!role.coordinates) {
    config.training.evaluate.every = 0;
    config.training.local = {};
    config.training.initial_weights = "none";
    return loaded;
  }
  config.run.device = DeviceType::kCpu;
  config.parallel = {};
  config.training.evaluate = {};
  config.data.validation.clear();
  config.data.weights = {};
  config.data.packing = Packing::kNone;
  config.data.balance = Balance::kNone;
  config.training.compression = {};
  config.training.recompute = RecomputeMode::kNone;
  config.kernels = {};
  config.observe.activations = {};
  config.observe.histograms = {};
  config.observe.samples = {};
  config.observe.anomalies = {};
  config.resilience.rebalance = Rebalance::kNone;
  config.resilience.backup_replicas = 0;
  config.resilience.elastic = Elastic::kNone;
  config.resilience.minimum_replicas = 1;
  config.security.encryption = Encryption::kNone;
  config.security.key_file = {};
  return loaded;
}

}  // namespace trireme::federation
