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
  if (!rules.apply({"security.federation.minimum"})) return;
  const int64_t fewest = fewest_members(f), least = f.secure ? f.members / 2 + 1 : 1;
  if ((!f.secure || f.members > 1) && (fewest < least || fewest > f.members))
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
  check_members(rules, c.security.federation);
  check_rounds(rules, c.security.federation, c.training);
}

}  // namespace trireme
