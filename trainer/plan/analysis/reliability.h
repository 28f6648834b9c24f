#pragma once
// Cost of failures and optimal checkpoint interval.
#include <cstdint>

namespace trireme {

/// Failure model of a job, in seconds.
struct Failures {
  double mtbf = 0;      ///< mean time between failures of the job: that of a node divided by the number of nodes
  double stall = 0;     ///< time that a save blocks training
  double downtime = 0;  ///< from a failure until training resumes: detection + restart + load + age of a checkpoint when it becomes valid
};

/// Interval between saves that minimises the lost time, to first order: sqrt(2 C M).   Source: Young 1974, CACM 17(9).
double young_interval(double stall, double mtbf);
/// Training time between saves for Poisson failures: sqrt(2 C M) (1 + sqrt(C/2M)/3 + C/2M/9) - C; M if C >= 2 M.
/// Source: Daly 2006, Future Generation Computer Systems 22(3), eq. 37.
double daly_interval(double stall, double mtbf);

/// Mean time between failures in seconds, from the record of a run: `failures` jobs that failed, in `seconds` of training. Before the first failure it is
/// one day more than that time, as if the next failure were a day away.
double learned_mtbf(double seconds, int64_t failures);

/// Effective training time, as a share of wall time, with a save after each `interval` of training: 1 - C/interval - (interval/2 + downtime)/M, at
/// least 0. First order: valid for intervals and downtimes much shorter than M.
double effective_share(const Failures& failures, double interval);
/// The same to all orders for Poisson failures, which may also occur during a restart:
/// interval / (M exp(downtime/M) (exp((interval+C)/M) - 1)).
/// Source: Daly 2006, the complete model.
double effective_share_exponential(const Failures& failures, double interval);

}  // namespace trireme
