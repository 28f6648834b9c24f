#include "trainer/config/check_peers.h"

#include "kernels/core/check.h"

namespace trireme {

void check_peers(Rules& rules, const Config& c) {
  if (c.resilience.peer_copies == 0) return;
  const auto refuse = [&](bool is, const char* key, const std::string& rule, const std::string& allowed) {
    if (is && rules.apply({key})) rules.broken("resilience.peer_copies", rule, concat("0, or ", key, " ", allowed), "0");
  };
  refuse(c.security.audit.enabled, "security.audit.enabled", "the audit log has no record of a state in memory that a job could continue from",
         "false");
  refuse(is_federated(c.security), "security.federation.members", "a member of a federation continues from its coordinator's weights", "0");
  const ParallelConfig& p = c.parallel;
  if (is_elastic(c.resilience)) return;  // a smaller job makes fewer copies
  if (!p.data || !rules.apply({"parallel.tensor", "parallel.pipeline", "parallel.data", "parallel.islands"})) return;
  const int64_t ranks = p.tensor * p.pipeline * *p.data * p.islands;
  if (c.resilience.peer_copies >= ranks)
    rules.broken("resilience.peer_copies",
                 concat("the job has ", ranks, ranks == 1 ? " rank" : " ranks", ", and a state and its copies are on different ones"),
                 concat("0 to ", ranks - 1), std::to_string(ranks - 1));
}

}  // namespace trireme
