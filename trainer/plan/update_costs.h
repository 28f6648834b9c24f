#pragma once
// Cost of what follows the sums of a step's gradients: updates, updates of whole matrices, outer steps and exchanges between islands. `config` and `cluster`
// are resolved.
#include <vector>

#include "kernels/core/operation_log.h"
#include "parallel/sharding/matrix_exchange.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// Memory traffic of gradient norm and update, in bytes per element: both read the gradient; weight and optimizer state are read and written; a
/// 16-bit copy is written; the moving average reads the weight again, and is read and written. The update of a whole matrix is written and read.
double update_bytes(const Config& config, bool of_matrix);

/// What the owner of a matrix does to orthogonalize it.
std::vector<OperationRecord> matrix_operations(const MatrixShape& shape, DType dtype);

/// The matrices of one pipeline rank's stages.
struct RankMatrices {
  std::vector<MatrixShape> shapes;
  std::vector<double> seconds;
  double elements = 0;  ///< over all tensor ranks
};

/// ORTHOGONALIZE: the owner with most work, and the exchanges of MatrixExchange there and back, with what the fullest rank sends or receives.
double orthogonalize_seconds(const Config& config, const ClusterConfig& cluster, const RankMatrices& matrices);

/// The gradient that a rank of an island pushes to parameter servers, and the weights that it pulls from them: each (n-1)/n of the `owned` ones. The
/// updates of the servers take the memory traffic of one optimizer step for each gradient of all. With elastic averaging, its part of an exchange of
/// weights, in which the island waits.
double server_seconds(const Config& config, const ClusterConfig& cluster, double owned);

struct OuterSeconds {
  double all_reduce = 0;  ///< sums that the rank waits for
  double hidden = 0;      ///< sums behind the computation of training.local.delay steps
  double traffic = 0;
};
/// The outer steps of a round of training.local on a rank that owns `owned` weights and computes for `compute` seconds in a step, divided among the
/// steps of the round. A delay hides the sums behind the computation of its steps.
OuterSeconds outer_seconds(const Config& config, const ClusterConfig& cluster, double owned, double compute);

}  // namespace trireme
