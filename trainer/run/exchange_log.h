#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/transfer.h"
#include "parallel/comm/observed.h"

namespace trireme {

/// One buffer that this rank sent or received in an execution of a step.
struct Exchange {
  const std::string* group;  ///< as in ObservedBuffer; these three belong to the communicator
  const std::vector<int>* ranks;
  const char* verb;
  bool outgoing;
  int64_t number;  ///< since the communicator was made
  int peer;
  uint64_t digest;
};

/// Records a digest of everything that a rank exchanges with others in a step, so that two executions of the step can be compared: the first rank in
/// the flow of data that sends something else has computed something else. On CPUs the digest covers every bit. On a GPU it is the sum of squares,
/// which a sign does not change, and integers are left out; it is queued behind the computation, and the host does not wait.
class ExchangeLog {
 public:
  /// For observed(); the log must outlive the communicators.
  BufferObserver observer();
  void start();
  /// Ends the recording; on a GPU, waits for it.
  std::vector<Exchange> stop();

 private:
  void add(Context& ctx, const ObservedBuffer& traffic);

  bool running_ = false;
  std::vector<Exchange> exchanges_;
  std::vector<ScalarReadback> pending_;  ///< on a GPU: by exchange, its digest
  Tensor sum_;                           ///< on a GPU: [1] f64
};

/// How a rank's executions of a step differ. An operation has the same text on all ranks that take part, such as
/// "all_reduce 3 over tensor (ranks 2, 3)" or "message 5 from rank 0 to rank 2", numbered within the step.
struct ExchangeDifference {
  std::string first = {};              ///< the first operation that differs; empty if all are equal
  bool first_is_sent = false;          ///< this rank contributed something else to it; otherwise it received something else
  std::vector<std::string> sent = {};  ///< all operations to which this rank contributed something else
};
/// Both executions must begin with the same copies of parameters gathered. Exchanges that only one of them has are differences.
ExchangeDifference compare(const std::vector<Exchange>& first, const std::vector<Exchange>& second, int own_rank);

}  // namespace trireme
