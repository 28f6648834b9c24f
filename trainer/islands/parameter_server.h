#pragma once
// Asynchronous SGD with a parameter server, and elastic averaging (training.asynchronous). Workers are islands: copies of the model that compute gradients alone. Servers
// are the ranks themselves: each owned shard of an island is divided among the ranks of all islands that own the same shard, and each keeps the
// newest weights and the optimizer state of its part. A worker's rank pushes its gradient to these servers, unit by unit, and pulls from them the
// weights that it computes the next one from. The order of arrivals is one for the job: rank 0 gives each gradient a ticket, and all servers apply
// the gradients in the order of the tickets, so all units of the weights that a worker pulls have the same version.
// With elastic averaging workers train by themselves, and servers keep the centre: a worker pushes its weights in place of a gradient, and pulls them
// as they are after an exchange with the centre.
// Sources: Dean et al. 2012 (Downpour SGD); Ho et al. 2013 (bounded staleness); Zhang et al. 2015, arXiv:1511.05950; Zheng et al. 2016,
// arXiv:1609.08326; Zhang, Choromanska, LeCun 2014, arXiv:1412.6651 (asynchronous EASGD).
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ops/optimizer.h"
#include "parallel/asynchronous/update_order.h"
#include "parallel/comm/rank_links.h"
#include "trainer/islands/shared_shards.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// The rules of a run with training.asynchronous.
UpdateRules update_rules(const Config& config);

/// How gradients become updates, or weights are exchanged.
struct ServerOptions {
  UpdateRules rules;
  /// Elastic averaging: the centre, and the part of the difference of a worker's weights and the centre by which both move. What gradients need is
  /// not used.
  const SharedShards* centre = nullptr;
  double moving_rate = 0;
  bool scales_learning_rate = false;  ///< by staleness_factor(); of an update of several gradients, by their mean
  double delay_compensation = 0;      ///< lambda of compensate_delay(); 0: none
  double gradient_clip = 0;           ///< of each gradient; 0: off
  bool encrypted = false;             ///< connections between islands
  OptimizerOptions optimizer;
  Precision precision;
};

/// What all ranks of a worker know of a gradient, and send with it.
struct GradientFigures {
  double sums[kStepSums] = {};  ///< over the worker's ranks
  int64_t targets = 0;          ///< valid tokens of its batch
};

/// What servers have applied, or left out because it was late, in the order of arrival.
struct Arrivals {
  std::vector<int> workers;
  std::vector<int64_t> staleness;  ///< updates (or exchanges) applied between the weights that the worker had, and those that this one was applied to
};

/// An update that was applied, the same on all ranks.
struct AppliedUpdate : Arrivals {
  double loss = 0;       ///< mean over the valid tokens of its gradients' batches, each with the weights that its worker had
  double grad_norm = 0;  ///< before clipping; of several accepted gradients the mean
  double learning_rate = 0;
  int64_t targets = 0;
  bool accepted = false;  ///< at least one gradient was finite; the others are left out
  double seconds = 0;     ///< since the update before, or the start of the round, on this rank
};

/// One rank's server, and its connections to the servers of the other islands. A round ends when all its updates are applied; between two rounds the
/// server is idle, and its main thread may use the optimizer state.
/// Memory, of the m weights of the owned shards and n workers: m/n for the newest weights, (n-1)/n m for gradients that have arrived, m/n for the sum
/// of several gradients if an update has several, and m for the weights that each worker has, with delay compensation.
/// With elastic averaging: (n-1)/n m for weights that have arrived; the centre is the caller's.
/// Wire: a worker's rank sends (n-1)/n m gradients and receives (n-1)/n m weights for each gradient, in the dtypes of gradients and master weights; with
/// elastic averaging it sends weights, too.
/// Threads: one that applies gradients, and one that receives them for each other worker.
class ParameterServer {
 public:
  /// `islands`: the ranks that own the same shards, one for each worker. Collective over `islands`, and connects them unless the device is kMeta.
  /// Errors: IoError.
  ParameterServer(Context& ctx, Communicator& islands, const Stages& stages, const ServerOptions& options);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// Begins a round of `updates` from update `first` (from 0), with the current weights, or of exchanges with the current centre. `rate`: the learning rate of an update. `order`: the workers
  /// of the first arrivals, if they are to be those of a log; after them they are free. Call it on all ranks with the same values. Returns the first
  /// gradient of this rank's worker, or nullopt if others compute all of the round; then pull() waits for its end.
  std::optional<Assignment> start_round(int64_t first, int64_t updates, int64_t accepted_updates, std::function<double(int64_t)> rate,
                                        std::vector<int> order);
  /// The next place in the order of arrivals, for a gradient (or the weights) of this rank's worker. Call it on the first rank of an island, after its
  /// gradient has been computed. Waits if the order of a log says so.
  int64_t take_ticket();
  /// Sends this rank's part of its worker's gradient, computed as `of`, or of its weights.
  void push(int64_t ticket, const Assignment& of, const GradientFigures& figures);
  /// Waits for the weights from which this rank's worker computes its next gradient, and what that is; nullopt: these are the weights after the round
  /// or, with elastic averaging, those after the worker's last exchange in it. Errors: IoError if another island has ended.
  std::optional<Assignment> pull();
  /// The result of an update of which pull() has returned the weights, or later ones.
  AppliedUpdate take(int64_t update);
  /// With elastic averaging: the exchanges since the last call, up to this worker's last one or, if `all`, to the end of the round.
  Arrivals take_exchanges(bool all);
  /// Waits for the end of the round. Then all ranks get the optimizer state of all parts, or the centre. Collective over `islands`.
  void finish_round(Context& ctx);
  /// Bytes that this rank's worker sends and receives for a gradient or an exchange.
  double bytes_per_push() const;

 private:
  /// Elements [begin, end) of the owned shard of a unit: those that a server has.
  struct Part {
    size_t stage, unit;
    int64_t begin, end;
    int64_t numel() const { return end - begin; }
    Tensor of(const Tensor& shard) const { return shard.flat(begin, numel()); }
  };
  struct Pushed {
    int worker = 0;
    Assignment of;
    GradientFigures figures;
  };
  struct Header;
  struct UnitFrame;

  std::vector<Part> parts_of(int server) const;
  Tensor master(const Part& part) const { return part.of(stages_[part.stage]->params().master(static_cast<int>(part.unit))); }
  Tensor gradient(const Part& part) const { return part.of(stages_[part.stage]->grads().shard(static_cast<int>(part.unit))); }
  bool averages_elastically() const { return options_.centre != nullptr; }
  Tensor centre(const Part& part) const { return part.of(options_.centre->of(part.stage, part.unit)); }
  Tensor sent(const Part& part) const { return averages_elastically() ? master(part) : gradient(part); }
  DType sent_dtype() const { return averages_elastically() ? options_.precision.master : options_.precision.gradient; }
  std::vector<UpdateSlice> slices(size_t part, const Tensor& gradient) const;
  const std::vector<Tensor>& pushed_by(int worker) const { return pushed_[static_cast<size_t>(worker)]; }

  std::optional<Assignment> pull_from(int server);
  void receive_from(int worker);
  int64_t grant(int worker);
  void serve();
  void apply(const Pushed& pushed);
  void exchange(const Arrival& arrival);
  void add_to_update(const Pushed& pushed, const Arrival& arrival);
  void finish_update(int64_t update);
  void update_weights();
  void deliver(int worker, const std::optional<Assignment>& next);
  void fail(const std::string& what);
  void check_running() const;
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);
  [[noreturn]] void lose(int island);

  Context server_;  ///< of the thread that applies gradients
  Communicator& islands_;
  const Stages& stages_;
  ServerOptions options_;
  int own_, workers_;
  std::vector<std::vector<Part>> parts_;            ///< by server
  std::vector<Tensor> theta_;                       ///< the newest weights, or the centre, by part of this server
  std::vector<std::vector<Tensor>> pushed_, then_;  ///< by worker and part: what it has sent; with delay compensation the weights that it has
  std::vector<Tensor> sum_;                         ///< by part: of the gradients of an update, if it has several
  Tensor sums_, norm_, scalars_;                    ///< [kStepSums], [1], [kStepScalars] f64

  // For the thread that applies gradients; between two rounds for the main thread.
  std::optional<UpdateOrder> order_;
  std::function<double(int64_t)> rate_;
  AppliedUpdate update_;  ///< the current one
  int64_t first_ = 0;     ///< the first update of the round
  double loss_sum_ = 0, norm_sum_ = 0, factor_sum_ = 0;
  int64_t accepted_gradients_ = 0, accepted_targets_ = 0;
  std::chrono::steady_clock::time_point last_update_;

  std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  std::map<int64_t, Pushed> arrived_;  ///< by ticket
  std::map<int64_t, AppliedUpdate> applied_;
  Arrivals exchanged_;                                  ///< not yet taken
  std::optional<std::optional<Assignment>> delivered_;  ///< to this rank's worker
  std::vector<int> logged_;                             ///< the order of the round's first arrivals
  int64_t base_ = 0, granted_ = 0, next_ = 0;           ///< tickets: the round's first, the next to give and to apply
  bool stops_ = false;
  bool was_left_ = false;       ///< another island has ended
  bool delivers_last_ = false;  ///< all gradients of the round have been applied
  bool is_over_ = true;         ///< and all workers have got the weights after the round
  std::string failure_;

  std::unique_ptr<RankLinks> links_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
