#include "trainer/plan/step_costs.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "trainer/loop/rank_plan.h"
#include "trainer/loop/recompute.h"
#include "trainer/model/dims.h"
#include "kernels/core/optimizer_traits.h"
#include "trainer/model/elements.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/layouts.h"

namespace trireme {
namespace {

/// Memory traffic of norm and update, an element: its gradient read by both; weight and the optimizer's state read and written; a 16-bit copy written.
double update_bytes(const Config& config) {
  const Precision precision = precision_of(config.training);
  const int states = traits_of(optimizer_named(config.training.optimizer.name)).states;
  return static_cast<double>((4 + 2 * states) * size_of(precision.master) + (precision.compute == precision.master ? 0 : size_of(precision.compute)));
}

/// What every formula here needs of a configuration, in double so that products of sizes cannot overflow.
struct Sizes {
  Sizes(const Config& config, const ClusterConfig& cluster)
      : dims(config.model, static_cast<int>(config.parallel.tensor)),
        elements(config.model, config.parallel.tensor),
        stack(stack_on(cluster, config)),
        tensor(config.parallel.tensor),
        element_bytes(size_of(precision_of(config.training).compute)),
        B(static_cast<double>(config.training.micro_batch_size)),
        T(static_cast<double>(config.training.sequence_length)),
        M(B * T),
        D(static_cast<double>(dims.D)),
        F(static_cast<double>(dims.local_F)),
        Q(static_cast<double>(dims.local_N * dims.H)),
        KV(static_cast<double>(2 * dims.local_K * dims.H)),
        V(static_cast<double>((dims.V + tensor - 1) / tensor)),
        up(dims.gpt2 ? F : 2 * F),
        residual_rows(config.parallel.sequence_parallel ? M / static_cast<double>(tensor) : M) {}

  Dims dims;
  PartElements elements;
  Stack stack;
  int64_t tensor;
  int64_t element_bytes;
  double B, T, M, D, F, Q, KV, V;
  double up;             ///< outputs of the first product of the MLP
  double residual_rows;  ///< of [M, D] that this rank keeps

  double bytes(double count) const { return static_cast<double>(element_bytes) * count; }
};

/// Communication of one micro-batch over the tensor ranks, at one boundary of a region (enter or exit), forward or backward: an all-reduce of [M,D],
/// or under sequence parallelism the gather and the scatter that stand in its place.
double crossing_seconds(const Config& config, const ClusterConfig& cluster, const Sizes& s) {
  const GroupPlace place = place_of(s.tensor, 1, cluster);
  const double bytes = s.bytes(s.M * s.D);
  return (1 - s.stack.tensor_overlap) *
         (config.parallel.sequence_parallel ? 2 * all_gather_seconds(place, bytes, cluster) : all_reduce_seconds(place, bytes, cluster));
}

struct Products {
  double forward = 0, input_gradient = 0, weight_gradient = 0;
};

/// y[M,n] = x[M,k] w[n,k]^T and its two gradients.
Products linear_seconds(double n, double k, const ClusterConfig& cluster, const Sizes& s) {
  const auto product = [&](double rows, double columns, double depth) {
    return product_seconds(rows, columns, depth, s.element_bytes, s.stack, cluster);
  };
  return {product(s.M, n, k), product(s.M, k, n), product(n, k, s.M) + traffic_seconds(kAccumulateBytes * n * k, 1, cluster)};
}

/// Seconds that collectives add to `compute` seconds beside them: the share that takes the device from it, and of the rest what goes on for longer.
double exposed(double held, double beside, double compute) { return held + std::max(0.0, beside - compute); }

class Model {
 public:
  Model(const Config& config, const ClusterConfig& cluster)
      : config_(config), cluster_(cluster), s_(config, cluster), shared_(shared_uses(config, s_.stack)) {}

  ModelSeconds seconds() const {
    ModelSeconds model;
    for (const Recompute kind : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) model.kinds.push_back(block(kind));
    model.head = head();
    // A row of the table each token, read and written, and the gradient of it.
    const double rows = moved(s_.bytes(s_.residual_rows * s_.D));
    model.embedding = {.forward = elementwise_seconds(4 * rows, 2, cluster_), .weight_gradient = elementwise_seconds(6 * rows, 2, cluster_)};
    // Each tensor rank has some of the vocabulary's rows: their sum is reduced, or under sequence parallelism scattered, and its gradient gathered.
    const double crossing = crossing_seconds(config_, cluster_, s_);
    PartSeconds& embedding = model.embedding;
    embedding.tensor_forward = config_.parallel.sequence_parallel ? crossing / 2 : crossing;
    embedding.tensor_backward = config_.parallel.sequence_parallel ? crossing / 2 : 0;
    embedding.forward += embedding.tensor_forward;
    embedding.input_gradient += embedding.tensor_backward;
    move(embedding, static_cast<double>(s_.elements.embedding()), {.gather_backward = !shared_.embedding});
    return model;
  }

 private:
  PartSeconds block(Recompute kind) const {
    Products products, down;
    for (const auto& [n, k] : {std::pair(s_.Q + s_.KV, s_.D), std::pair(s_.D, s_.Q), std::pair(s_.up, s_.D), std::pair(s_.D, s_.F)}) {
      down = linear_seconds(n, k, cluster_, s_);
      products.forward += down.forward;
      products.input_gradient += down.input_gradient;
      products.weight_gradient += down.weight_gradient;
    }
    const AttentionSeconds attention =
        attention_seconds(s_.B, s_.T, static_cast<double>(s_.dims.local_N), static_cast<double>(s_.dims.H), s_.element_bytes, s_.stack, cluster_);
    // Two norms with their residual sums read and write four rows each; q, k and v are rotated or biased; the activation reads what the product
    // wrote.
    const double rows = s_.stack.elementwise * moved(s_.bytes(8 * s_.residual_rows * s_.D + s_.M * (2 * s_.Q + s_.KV) + s_.M * (s_.up + s_.F)));
    const double forward = products.forward + attention.forward + elementwise_seconds(rows, 6, cluster_);
    // Gradients are twice as many rows, less what is read once for both.
    const double backward = products.input_gradient + attention.backward + elementwise_seconds(1.8 * rows, 10, cluster_);
    const double crossing = 2 * crossing_seconds(config_, cluster_, s_), host = s_.stack.layer_seconds;
    PartSeconds part{.forward = forward + crossing + host,
                     .input_gradient = backward + crossing + host,
                     .weight_gradient = products.weight_gradient + host,
                     .tensor_forward = crossing,
                     .tensor_backward = crossing};
    const double again = kind == Recompute::kNone        ? 0
                         : kind == Recompute::kSelective ? attention.forward + s_.stack.selective_blocks * forward
                         : s_.stack.own                  ? forward - down.forward
                                                         : forward + host;
    part.recompute = again;
    const bool split = config_.parallel.sequence_parallel;
    // Of a block's two entries and two exits Trireme's recomputation leaves out the last exit; entries cost something only where the sequence is
    // split.
    double waits = kind != Recompute::kFull ? 0 : !s_.stack.own ? crossing : split ? 0.75 * crossing : 0.5 * crossing;
    if (s_.stack.own && split) waits += 0.5 * crossing;  // weight gradients gather both inputs again
    part.tensor_backward += waits;
    part.input_gradient += again + waits;
    move(part, static_cast<double>(s_.elements.block), {});
    return part;
  }

  PartSeconds head() const {
    const Products products = linear_seconds(s_.V, s_.D, cluster_, s_);
    // Logits are read for their maximum, for the sum and for the loss, and kept in fp32; their gradient is made from them in place.
    const double logits = s_.stack.elementwise * moved(s_.M * s_.V);
    const double forward = products.forward + elementwise_seconds(10 * logits, 3, cluster_);
    const double backward = products.input_gradient + products.weight_gradient + elementwise_seconds(6 * logits, 2, cluster_);
    const double crossing = crossing_seconds(config_, cluster_, s_);
    PartSeconds part = s_.stack.own ? PartSeconds{.input_gradient = forward + backward + crossing}
                                    : PartSeconds{.forward = forward, .input_gradient = backward + crossing};
    part.tensor_backward = crossing;
    move(part, static_cast<double>(s_.elements.head(false)), {.gather_forward = !shared_.head, .reduce = !shared_.table});
    return part;
  }

  double moved(double bytes) const { return traffic_bytes(bytes, s_.element_bytes, cluster_.device.cores.has_value()); }

  struct Moves {
    bool gather_forward = true, gather_backward = true, reduce = true;
  };
  /// Adds what ZeRO-2 and 3 move every micro-batch for a part of `elements` weights.
  void move(PartSeconds& part, double elements, const Moves& moves) const {
    const ZeroPolicy policy = zero_policy(config_.parallel);
    const GroupPlace shard = place_of(policy.shard, s_.tensor, cluster_);
    const double factor = s_.stack.data_factor;
    const double gathered = policy.unshard_each_use ? factor * all_gather_seconds(shard, s_.bytes(elements), cluster_) : 0;
    const double reduced =
        policy.gradients_resident || !moves.reduce ? 0 : factor * all_gather_seconds(shard, s_.stack.reduce_bytes * elements, cluster_);
    const double forward = moves.gather_forward ? gathered : 0, backward = moves.gather_backward ? gathered : 0;
    const double gather_held = 1 - s_.stack.gather_overlap, reduce_held = 1 - s_.stack.scatter_overlap;
    part.gather_forward = exposed(gather_held * forward, (1 - gather_held) * forward, part.forward);
    part.gather_backward = exposed(gather_held * backward + reduce_held * reduced, (1 - gather_held) * backward + (1 - reduce_held) * reduced,
                                   part.input_gradient + part.weight_gradient);
    part.forward += part.gather_forward;
    part.input_gradient += part.gather_backward;
  }

  const Config& config_;
  const ClusterConfig& cluster_;
  Sizes s_;
  SharedUses shared_;
};

/// Once a step on one pipeline rank that holds `elements` weights: reduction of the gradients and gathers of the parameters, what is not behind the
/// last micro-batch's backward and the first one's forward.
double reduce_seconds(const Config& config, const ClusterConfig& cluster, const Sizes& s, double elements, double first_forward,
                      double last_backward) {
  const ZeroPolicy policy = zero_policy(config.parallel);
  const GroupPlace shard = place_of(policy.shard, s.tensor, cluster);
  const GroupPlace replicate = place_of(policy.replicate, s.tensor * policy.shard, cluster);
  double reduced = all_reduce_seconds(replicate, s.stack.reduce_bytes * elements / policy.shard, cluster);
  if (policy.gradients_resident) reduced += all_gather_seconds(shard, s.stack.reduce_bytes * elements, cluster);
  const double gathered = policy.unshard_each_use ? 0 : all_gather_seconds(shard, s.bytes(elements), cluster);
  // A tenth stays in sight: the last bucket, and what starts late.
  const auto visible = [&](double seconds, double beside) {
    seconds *= s.stack.data_factor;
    return s.stack.reduce_overlap ? std::max(0.1 * seconds, seconds - 0.6 * beside) : seconds;
  };
  return visible(reduced, last_backward) + visible(gathered, first_forward);
}

}  // namespace

Stack stack_on(const ClusterConfig& cluster, const Config& config) {
  Stack stack = stack_of(cluster.software.stack);
  if (config.training.precision == "fp64" && !cluster.device.cores)
    throw ConfigError(concat("training.precision=fp64: runs on the reference kernels of CPUs, and no ", cluster.device.type,
                             " has those; allowed bf16, fp16, fp32, or a cluster with device.cores"));
  if (size_of(precision_of(config.training).compute) != 2 && !stack.own)
    throw ConfigError(concat("training.precision=", config.training.precision, ": of software.stack ", stack.name,
                             " only bf16 and fp16 are known; allowed bf16, fp16, or stack ", stacks().front().name));
  if (stack.own) stack.reduce_bytes = static_cast<double>(size_of(precision_of(config.training).reduce));
  if (cluster.device.cores) stack.elementwise = 1;  // there Trireme's fused kernels themselves were measured
  stack.tf32 = config.kernels.tf32 && !cluster.device.cores;
  const bool overlap = config.parallel.overlap && !cluster.device.cores;
  stack.scatter_overlap = overlap ? stack.gather_overlap : 0;
  if (!overlap || config.parallel.prefetch == 0) stack.gather_overlap = 0;
  if (!overlap) stack.tensor_overlap = 0;
  stack.reduce_overlap = stack.reduce_overlap && overlap;
  return stack;
}

PartSeconds& PartSeconds::add(const PartSeconds& other, double times) {
  forward += times * other.forward;
  input_gradient += times * other.input_gradient;
  weight_gradient += times * other.weight_gradient;
  recompute += times * other.recompute;
  tensor_forward += times * other.tensor_forward;
  tensor_backward += times * other.tensor_backward;
  gather_forward += times * other.gather_forward;
  gather_backward += times * other.gather_backward;
  return *this;
}

void PartSeconds::slow_down(double times) {
  forward += (times - 1) * (forward - tensor_forward - gather_forward);
  input_gradient += (times - 1) * (input_gradient - tensor_backward - gather_backward);
  weight_gradient *= times;
  recompute *= times;
}

SharedUses shared_uses(const Config& config, const Stack& stack) {
  if (!stack.own || config.parallel.schedule == "file") return {};
  const ScheduleKind kind = layout_of(config).schedule;
  const bool one_rank = config.parallel.pipeline == 1, alternates = one_rank || kind != ScheduleKind::kGPipe;
  return {.head = alternates,
          .embedding = one_rank || (alternates && kind != ScheduleKind::kZbV),
          .table = config.model.tied_embeddings && (one_rank || kind == ScheduleKind::kZbV)};
}

ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster) { return Model(config, cluster).seconds(); }

StepCosts step_costs(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model, const std::vector<int>& stage_rank) {
  const Sizes s(config, cluster);
  const std::vector<int64_t>& layers = *config.parallel.layers_per_stage;
  const std::vector<Recompute> recompute = recompute_plan(config);
  StepCosts costs;
  std::vector<double> elements(static_cast<size_t>(config.parallel.pipeline));
  std::vector<double> forward(elements.size()), backward(elements.size());  // less what the same links are busy with
  for (size_t i = 0; i < layers.size(); ++i) {
    const StageRange range = stage_range(layers, static_cast<int>(i));
    PartSeconds stage;
    for (int64_t b = 0; b < range.blocks; ++b) stage.add(model.kinds[static_cast<size_t>(recompute[static_cast<size_t>(range.first_block + b)])]);
    if (range.first()) stage.add(model.embedding);
    if (range.last()) stage.add(model.head);
    const auto rank = static_cast<size_t>(stage_rank[i]);
    // A tied table on a rank that holds both ends is one.
    const bool both = config.model.tied_embeddings && stage_rank.front() == stage_rank.back();
    elements[rank] += static_cast<double>(range.blocks * s.elements.block + (range.first() ? s.elements.embedding() : 0) +
                                          (range.last() ? s.elements.head(both) : 0));
    forward[rank] += stage.forward - stage.gather_forward;
    backward[rank] += stage.input_gradient + stage.weight_gradient - stage.gather_backward;
    costs.stages.push_back(stage);
  }
  const MeshShape mesh = mesh_shape(config.parallel);
  const double part = config.parallel.sequence_parallel || s.stack.split_transfers ? 1.0 / static_cast<double>(mesh.tensor) : 1;
  for (size_t i = 0; i + 1 < stage_rank.size(); ++i) {
    const int from = stage_rank[i], to = stage_rank[i + 1];
    costs.transfers.push_back(from == to ? 0 : transfer_seconds(from, to, int64_t{mesh.tensor} * mesh.data(), part * s.bytes(s.M * s.D), cluster));
  }
  // The owners of a tied table on first and last rank sum their shards, when everything else is done.
  const int64_t apart = int64_t{mesh.tensor} * mesh.data() * (stage_rank.back() - stage_rank.front());
  const double tied =
      config.model.tied_embeddings && apart > 0
          ? all_reduce_seconds(place_of(2, apart, cluster), s.stack.reduce_bytes * static_cast<double>(s.elements.vocabulary) / mesh.shard, cluster)
          : 0;
  for (size_t rank = 0; rank < elements.size(); ++rank) {
    const bool end = static_cast<int>(rank) == stage_rank.front() || static_cast<int>(rank) == stage_rank.back();
    costs.reduce.push_back(reduce_seconds(config, cluster, s, elements[rank], forward[rank], backward[rank]) + (end ? tied : 0));
    costs.optimizer.push_back(traffic_seconds(update_bytes(config) * elements[rank] / mesh.shard, 1, cluster));
  }
  costs.host = s.stack.host_seconds;
  std::vector<double> compute(elements.size());
  for (size_t i = 0; i < stage_rank.size(); ++i) compute[static_cast<size_t>(stage_rank[i])] += costs.stages[i].total();
  costs.slowest = static_cast<int>(std::ranges::max_element(compute) - compute.begin());
  for (size_t i = 0; i < stage_rank.size(); ++i)
    if (stage_rank[i] == costs.slowest) costs.stages[i].slow_down(cluster.software.straggler);
  return costs;
}

}  // namespace trireme
