#include "trainer/config/check_elastic.h"

#include "kernels/core/check.h"

namespace trireme {

void check_elastic(Rules& rules, const Config& c) {
  if (!is_elastic(c.resilience)) return;
  const auto refuse = [&](bool is, const char* key, const std::string& rule, const std::string& allowed) {
    if (is && rules.apply({key})) rules.broken("resilience.elastic", rule, concat("none, or ", key, " ", allowed), "none");
  };
  const ParallelConfig& p = c.parallel;
  const int64_t minimum = c.resilience.minimum_replicas;
  refuse(!p.data, "parallel.data", "how many data ranks the complete job has is not given", "as an integer");
  refuse(p.islands > 1, "parallel.islands", "an island is made of a fixed number of data ranks", "1");
  refuse(is_robust(c.security), "security.aggregation.rule", "how many data ranks may be wrong depends on how many there are", "mean");
  refuse(is_private(c.security), "security.privacy.clip", "steps draw different numbers of sequences, so that there is no batch to divide anew",
         "null");
  refuse(p.schedule == "file", "parallel.schedule", "parallel.schedule_file is for one number of micro-batches", "1f1b");
  refuse(!c.resilience.reroute.empty(), "resilience.reroute", "a smaller job does not have the data ranks that it names", "[]");
  refuse(c.data.balance != Balance::kNone, "data.balance", "data.balance gives every data rank the same number of sequences", "none");
  if (p.data && rules.apply({"parallel.data", "resilience.minimum_replicas"}) && minimum > *p.data)
    rules.broken("resilience.minimum_replicas", concat("more than parallel.data ", *p.data), concat("integer from 1 to ", *p.data),
                 std::to_string(*p.data));
}

}  // namespace trireme
