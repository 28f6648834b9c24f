#include "trainer/config/check_federation.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"

namespace trireme {
namespace {

void check_rounds(Rules& rules, const FederationConfig& f, const TrainingConfig& t) {
  if (!rules.apply({"training.steps", "training.local.steps", "security.federation.rounds"}) || !t.local.steps || !t.steps) return;
  const int64_t round = *t.local.steps;
  if (f.rounds > 0 && f.rounds * round != *t.steps)
    rules.broken("security.federation.rounds", concat("must be training.steps=", *t.steps, " divided by training.local.steps=", round),
                 concat("0 or ", *t.steps / round), "0");
  if (*t.steps % round != 0)
    rules.broken("training.steps", concat("must be a multiple of training.local.steps=", round, ", the steps of a round"), "",
                 nearest(*t.steps, round, kMaxExtent, [&](int64_t steps) { return steps % round == 0; }));
}

void check_members(Rules& rules, const FederationConfig& f) {
  const auto missing = [&](bool is_missing, const char* key, const char* what, const char* allowed) {
    if (is_missing && rules.apply({key})) rules.broken(key, what, allowed, "a path");
  };
  missing(!f.roster, "security.federation.roster", "the coordinator and the members recognise each other by it",
          "the path of a file with a name and a public key in each line");
  missing(!f.identity_key_file, "security.federation.identity_key_file", "every process must prove its identity",
          "the path of a secret key: trireme audit keygen");
  if (f.noise && f.weighting == MemberWeight::kSamples)
    rules.broken("security.federation.weighting", "the presence of one member would rescale the others, more than noise covers",
                 "equal, or noise null", "equal");
  if (f.noise && f.max_loss_increase)
    rules.broken("security.federation.max_loss_increase", "which rounds are refused would tell about held-out data, which noise does not cover",
                 "null, or noise null", "null");
  if (f.noise && !f.delta) rules.broken("security.federation.delta", "an epsilon means nothing without the delta that it is for", "", "1e-5");
  if (!rules.apply({"security.federation.minimum"})) return;
  const int64_t fewest = fewest_members(f), least = f.secure ? f.members / 2 + 1 : 1;
  if (f.secure && f.members < 2)
    rules.broken("security.federation.members", "the sum of one member's update is that update, which secure aggregation cannot hide",
                 "2 to 64, or security.federation.secure false", "2");
  else if (fewest < least || fewest > f.members)
    rules.broken("security.federation.minimum",
                 f.secure ? "more than half of the members must agree on whose masks are removed" : "no more than members",
                 concat("integer from ", least, " to ", f.members, ", or auto"), "auto");
}

}  // namespace

double noise_of_member(const FederationConfig& f) {
  return f.noise ? *f.noise * *f.clip / std::sqrt(static_cast<double>(std::max<int64_t>(1, fewest_members(f) - 1))) : 0;
}

int64_t fewest_members(const FederationConfig& f) { return f.minimum.value_or(f.secure ? 2 * f.members / 3 + 1 : 1); }

void check_federation(Rules& rules, const Config& c) {
  if (!is_federated(c.security) || !rules.apply({"security.federation.members"})) return;
  const TrainingConfig& t = c.training;
  check_members(rules, c.security.federation);
  check_rounds(rules, c.security.federation, t);
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(key, rule, concat(allowed, ", or security.federation.members 0"), allowed);
  };
  refuse(!t.local.steps, "training.local.steps", "the members of a federation train this number of steps alone in a round", "integer from 1");
  refuse(t.epochs.has_value(), "training.epochs", "members have data of different sizes, and all take the same number of steps",
         "null, with training.steps");
  refuse(t.local.fragments > 1, "training.local.fragments", "members exchange whole updates at the end of a round", "1");
  refuse(t.local.delay > 0, "training.local.delay", "members exchange updates at the end of a round", "0");
  refuse(t.local.blend != 1, "training.local.blend", "members begin a round with the weights of the coordinator", "1");
  refuse(is_asynchronous(t), "training.asynchronous.mode", "members take synchronous steps between rounds", "none");
  refuse(c.parallel.islands > 1, "parallel.islands", "a member is an island of its own", "1");
  refuse(is_robust(c.security), "security.aggregation.rule",
         c.security.federation.secure ? "secure aggregation hides the updates that a robust rule compares"
                                      : "a robust rule compares the data ranks of one job, and not members",
         "mean");
  refuse(is_private(c.security), "security.privacy.clip",
         "no accountant covers the rounds of a federation together with the steps of its members; security.federation.noise protects whole members",
         "null");
  refuse(t.ema.decay.has_value(), "training.ema.decay", "the average would mix the weights of one member with those of rounds", "null");
  refuse(t.stop.patience.has_value(), "training.stop.patience", "the coordinator decides when training ends", "null");
}

}  // namespace trireme
