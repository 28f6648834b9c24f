#pragma once
// What failures cost, and how often to save.
#include <cstdint>

namespace trireme {

/// What a job can expect of its machines, in seconds.
struct Failures {
  double mtbf = 0;      ///< mean time between failures of the whole job: a node's, over the number of nodes
  double stall = 0;     ///< in which a save keeps training waiting
  double downtime = 0;  ///< from a failure until training goes on: detection + restart + load; and how old a checkpoint is when it stands
};

/// Time between saves that loses least: sqrt(2 C M).   Source: Young 1974, CACM 17(9).
double young_interval(double stall, double mtbf);
/// Training time between saves for failures at random moments, sqrt(2 C M) (1 + sqrt(C/2M)/3 + C/2M/9) - C; M where C >= 2 M.
/// Source: Daly 2006, Future Generation Computer Systems 22(3), eq. 37.
double daly_interval(double stall, double mtbf);

/// Share of the time in which training gets ahead where it saves after each `interval` of training: 1 - C/interval - (interval/2 + downtime)/M. First
/// order: for intervals and downtimes that are short beside M; may be below zero where they are not.
double effective_share(const Failures& failures, double interval);
/// The same for failures at random moments, also while it restarts, to all orders: interval / (M exp(downtime/M) (exp((interval+C)/M) - 1)).
/// Source: Daly 2006, the complete model.
double effective_share_exponential(const Failures& failures, double interval);

}  // namespace trireme
