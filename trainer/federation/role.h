#pragma once
// What a process of a federation runs: the configuration of everybody, turned into that of the coordinator or of a member.
#include <optional>
#include <string>
#include <utility>

#include "trainer/config/load.h"

namespace trireme::federation {

struct Role {
  bool coordinates = false;
  std::string address = {};  ///< member: of the coordinator
  FederationConfig config = {};
  int64_t round_steps = 0;
  std::string terms = {};  ///< terms_of()
};

/// `join`: the address of the coordinator; nullopt: this is the coordinator. `config` is that of everybody, as written. nullopt: there is no federation.
/// Errors: ConfigError if there is an address without a port, or
/// without a federation.
std::optional<Role> role_of(const Config& config, const std::optional<std::string>& join);

/// The configuration of a role, which has no federation: a member trains without training.local, and evaluates when the coordinator asks; the coordinator has
/// one rank on the CPU, does not read data.train, and takes the outer steps of training.local. It forgets where
/// values came from, because those that it replaces were given, too.
LoadedConfig config_of(const Role& role, LoadedConfig loaded);

/// The configuration of a member, for forecasts and measurements of its steps.
inline LoadedConfig member_config(LoadedConfig loaded) { return config_of(Role(), std::move(loaded)); }

/// The keys that decide what is trained, with their values, as JSON: all but those of data, seeds and the weights at the beginning. With the digest of the
/// tokenizer. Errors: those of Tokenizer::open.
std::string terms_of(const Config& config);

}  // namespace trireme::federation
