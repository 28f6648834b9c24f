#include "trainer/islands/parameter_server.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/ops/delay_compensation.h"
#include "kernels/ops/elastic_exchange.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "trainer/files/printable.h"

namespace trireme {

UpdateRules update_rules(const Config& config) {
  const AsynchronousConfig& asynchronous = config.training.asynchronous;
  const auto islands = static_cast<int>(config.parallel.islands);
  if (averages_elastically(config.training)) return exchange_rules(islands);
  return {.workers = islands,
          .apply_after = static_cast<int>(asynchronous.apply_after),
          .staleness = asynchronous.staleness,
          .discards_late = config.resilience.backup_replicas > 0};
}

ParameterServer::ParameterServer(Context& ctx, Communicator& islands, const Stages& stages, const ServerOptions& options)
    : server_(ctx), islands_(islands), stages_(stages), options_(options), own_(islands.rank()), workers_(islands.size()) {
  server_.log = nullptr;
  for (int server = 0; server < workers_; ++server) parts_.push_back(parts_of(server));
  pushed_.resize(static_cast<size_t>(workers_));
  then_.resize(static_cast<size_t>(workers_));
  const auto make = [&](const Part& part, DType dtype, MemoryCategory category) { return Tensor::zeros(ctx, {part.numel()}, dtype, category); };
  for (const Part& part : parts_[static_cast<size_t>(own_)]) {
    const DType master = options.precision.master, narrow = options.precision.gradient;
    theta_.push_back(averages_elastically() ? centre(part) : make(part, master, MemoryCategory::kOptimizer));
    if (options.rules.apply_after > 1) sum_.push_back(make(part, narrow, MemoryCategory::kOptimizer));
    for (int worker = 0; worker < workers_; ++worker) {
      const auto w = static_cast<size_t>(worker);
      pushed_[w].push_back(worker == own_ ? sent(part) : make(part, sent_dtype(), MemoryCategory::kCommunication));
      if (options.delay_compensation > 0) then_[w].push_back(make(part, master, MemoryCategory::kOptimizer));
    }
  }
  sums_ = Tensor::zeros(ctx, {kStepSums}, DType::kF64, MemoryCategory::kWorkspace);
  norm_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  scalars_ = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  if (ctx.device == Device::kMeta) return;
  fill(ctx, std::numeric_limits<double>::infinity(), scalars_.flat(kNormLimit, kStepScalars - kNormLimit));
  fill(ctx, 1, scalars_.flat(kLossScale, 1));
  if (workers_ > 1) links_ = std::make_unique<RankLinks>(islands, options.encrypted);
  threads_.emplace_back([this] { serve(); });
  for (int worker = 0; worker < workers_; ++worker)
    if (worker != own_) threads_.emplace_back([this, worker] { receive_from(worker); });
}

ParameterServer::~ParameterServer() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (links_) links_->shut_down();
  for (std::thread& thread : threads_) thread.join();
}

/// Parts begin at multiples of the alignment of shards.
std::vector<ParameterServer::Part> ParameterServer::parts_of(int server) const {
  std::vector<Part> parts;
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (size_t unit = 0; unit < stages_[s]->params().units().size(); ++unit) {
      if (!stages_[s]->params().units()[unit]->trainable()) continue;
      const int64_t all = stages_[s]->params().master(static_cast<int>(unit)).numel(), each = Unit::shard_numel(all, workers_);
      parts.push_back({s, unit, std::min(all, server * each), std::min(all, (server + 1) * each)});
    }
  }
  return parts;
}

std::optional<Assignment> ParameterServer::start_round(int64_t first, int64_t updates, int64_t accepted_updates, std::function<double(int64_t)> rate,
                                                       std::vector<int> order) {
  const std::lock_guard lock(mutex_);
  check_running();
  TRIREME_CHECK(is_over_, "a round within a round");
  const std::optional<size_t> impossible = first_impossible_arrival(options_.rules, updates, order);
  TRIREME_CHECK(!impossible, "arrival ", *impossible, " of the round after update ", first, " is impossible");  // it would be waited for indefinitely
  if (was_left_) throw IoError("asynchronous training: another island has ended");
  const std::vector<Part>& own = parts_[static_cast<size_t>(own_)];
  for (size_t i = 0; i < own.size() && !averages_elastically(); ++i) {
    copy(server_, master(own[i]), theta_[i]);
    for (const std::vector<Tensor>& of_worker : then_)
      if (!of_worker.empty()) copy(server_, theta_[i], of_worker[i]);
  }
  order_.emplace(options_.rules, updates);
  rate_ = std::move(rate);
  update_ = {};
  first_ = first;
  last_update_ = std::chrono::steady_clock::now();
  fill(server_, static_cast<double>(accepted_updates), scalars_.flat(kAcceptedSteps, 1));
  logged_ = std::move(order);
  applied_.clear();
  exchanged_ = {};
  base_ = granted_ = next_ = first * options_.rules.apply_after;
  delivers_last_ = is_over_ = false;
  changed_.notify_all();
  const auto starts = std::ranges::find(order_->first(), own_, &Assignment::worker);
  return starts != order_->first().end() ? std::optional(*starts) : std::nullopt;
}

void ParameterServer::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty() && !stops_) failure_ = what;
  if (links_) links_->shut_down();  // wakes the main thread, and lets the other islands know
  changed_.notify_all();
}

void ParameterServer::check_running() const {
  if (!failure_.empty()) throw IoError("asynchronous training: " + failure_);
}

/// Waits until `ready`, of which `lock` is held. Errors: IoError once the server has failed or is stopped.
void ParameterServer::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
  changed_.wait(lock, [&] { return stops_ || !failure_.empty() || ready(); });
  check_running();
  if (stops_) throw IoError("asynchronous training: the parameter server has stopped");
}

int64_t ParameterServer::grant(int worker) {
  std::unique_lock lock(mutex_);
  wait(lock, [&] {
    const auto place = static_cast<size_t>(granted_ - base_);
    return !is_over_ && (place >= logged_.size() || logged_[place] == worker);
  });
  changed_.notify_all();  // those that wait for their turn in a log
  return granted_++;
}

AppliedUpdate ParameterServer::take(int64_t update) {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return applied_.contains(update); });
  AppliedUpdate taken = std::move(applied_.at(update));
  applied_.erase(update);
  return taken;
}

Arrivals ParameterServer::take_exchanges(bool all) {
  const std::lock_guard lock(mutex_);
  const auto last = std::ranges::find(exchanged_.workers.rbegin(), exchanged_.workers.rend(), own_);
  const auto count = all ? std::ssize(exchanged_.workers) : exchanged_.workers.rend() - last;
  Arrivals taken;
  taken.workers.assign(exchanged_.workers.begin(), exchanged_.workers.begin() + count);
  taken.staleness.assign(exchanged_.staleness.begin(), exchanged_.staleness.begin() + count);
  exchanged_.workers.erase(exchanged_.workers.begin(), exchanged_.workers.begin() + count);
  exchanged_.staleness.erase(exchanged_.staleness.begin(), exchanged_.staleness.begin() + count);
  return taken;
}

void ParameterServer::finish_round(Context& ctx) {
  {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return is_over_; });
  }
  for (int server = 0; server < workers_; ++server) {
    for (const Part& part : parts_[static_cast<size_t>(server)]) {
      if (part.numel() == 0) continue;
      if (averages_elastically()) {
        islands_.broadcast(ctx, centre(part), server).wait(ctx);
        continue;
      }
      for (const ShardedOptimizer::State& state : stages_[part.stage]->optimizer()->state(static_cast<int>(part.unit)))
        islands_.broadcast(ctx, part.of(state.shard), server).wait(ctx);
    }
  }
  islands_.barrier();  // no island asks for a place in the next round before this server has ended this one
}

/// The thread that applies gradients in the order of their tickets.
void ParameterServer::serve() {
  try {
    for (;;) {
      Pushed pushed;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stops_ || !failure_.empty() || (!is_over_ && arrived_.contains(next_)); });
        if (stops_ || !failure_.empty()) return;
        pushed = std::move(arrived_.at(next_));
        arrived_.erase(next_);
      }
      apply(pushed);
      const std::lock_guard lock(mutex_);
      ++next_;
      is_over_ = order_->is_over();
      changed_.notify_all();
    }
  } catch (const std::exception& error) {
    fail(printable(error));
  }
}

void ParameterServer::apply(const Pushed& pushed) {
  const Arrival arrival = order_->arrive(pushed.worker);
  TRIREME_CHECK(arrival.of == pushed.of, "a gradient of batch ", pushed.of.batch, " by weights of version ", pushed.of.version, ", expected batch ",
                arrival.of.batch, " by version ", arrival.of.version);
  if (averages_elastically()) return exchange(arrival);
  update_.workers.push_back(pushed.worker);
  update_.staleness.push_back(arrival.staleness);
  if (arrival.counts) add_to_update(pushed, arrival);
  if (arrival.applies) finish_update(first_ + arrival.update);
  for (const Assignment& start : arrival.starts) deliver(start.worker, start);
  if (!order_->is_over()) return;
  {
    const std::lock_guard lock(mutex_);
    delivers_last_ = true;
  }
  for (int worker = 0; worker < workers_; ++worker) deliver(worker, {});
}

/// Elastic averaging of the worker's weights and the centre. The worker gets its weights at once, and waits for no other one.
void ParameterServer::exchange(const Arrival& arrival) {
  const std::vector<Tensor>& weights = pushed_by(arrival.of.worker);
  for (size_t i = 0; i < weights.size(); ++i) elastic_exchange(server_, options_.moving_rate, weights[i], theta_[i]);
  {
    const std::lock_guard lock(mutex_);
    exchanged_.workers.push_back(arrival.of.worker);
    exchanged_.staleness.push_back(arrival.staleness);
    delivers_last_ = order_->is_over();
  }
  deliver(arrival.of.worker, arrival.starts.empty() ? std::nullopt : std::optional(arrival.starts.front()));
}

/// Judges and clips the gradient, as a step of synchronous training does, and adds it, weighted by its tokens, if an update has several.
void ParameterServer::add_to_update(const Pushed& pushed, const Arrival& arrival) {
  const std::vector<Tensor>& gradients = pushed_by(pushed.worker);
  update_.targets += pushed.figures.targets;
  loss_sum_ += pushed.figures.sums[kLosses];
  factor_sum_ += options_.scales_learning_rate ? staleness_factor(arrival.staleness) : 1;
  std::copy_n(pushed.figures.sums, static_cast<size_t>(kStepSums), sums_.data<double>());
  finalize_step_scalars(server_, options_.optimizer.hyper, {}, sums_, options_.gradient_clip, norm_, scalars_);
  const double* const scalars = scalars_.data<double>();
  if (scalars[kAccepted] == 0) return;
  ++accepted_gradients_;
  accepted_targets_ += pushed.figures.targets;
  norm_sum_ += *norm_.data<double>();
  if (options_.delay_compensation > 0)
    for (size_t i = 0; i < gradients.size(); ++i)
      compensate_delay(server_, options_.delay_compensation, theta_[i], then_[static_cast<size_t>(pushed.worker)][i], gradients[i]);
  if (sum_.empty()) return;
  for (size_t i = 0; i < sum_.size(); ++i)
    add_scaled(server_, scalars[kGradScale] * static_cast<double>(pushed.figures.targets), gradients[i], sum_[i]);
}

void ParameterServer::finish_update(int64_t update) {
  double* const scalars = scalars_.data<double>();
  update_.learning_rate = rate_(update) * (factor_sum_ / options_.rules.apply_after);
  update_.loss = loss_sum_ * (1.0 / static_cast<double>(std::max<int64_t>(update_.targets, 1)));
  update_.accepted = accepted_gradients_ > 0;
  update_.grad_norm = update_.accepted ? norm_sum_ / static_cast<double>(accepted_gradients_) : *norm_.data<double>();
  scalars[kLearningRate] = update_.learning_rate;
  if (!sum_.empty()) {
    // The count of accepted updates, which the judgement of each gradient has changed, is that of the updates.
    scalars[kAcceptedSteps] -= static_cast<double>(accepted_gradients_);
    std::fill_n(sums_.data<double>(), static_cast<size_t>(kStepSums), 0.0);
    if (!update_.accepted) sums_.data<double>()[kSquares] = std::numeric_limits<double>::quiet_NaN();
    finalize_step_scalars(server_, options_.optimizer.hyper, {}, sums_, 0, norm_, scalars_);
    scalars[kGradScale] = 1.0 / static_cast<double>(std::max<int64_t>(accepted_targets_, 1));
  }
  update_weights();
  const auto now = std::chrono::steady_clock::now();
  update_.seconds = std::chrono::duration<double>(now - std::exchange(last_update_, now)).count();
  {
    const std::lock_guard lock(mutex_);
    applied_[update] = std::exchange(update_, {});
  }
  loss_sum_ = norm_sum_ = factor_sum_ = 0;
  accepted_gradients_ = accepted_targets_ = 0;
}

/// The optimizer on this server's part, by the last gradient or the sum of several.
void ParameterServer::update_weights() {
  const std::vector<Part>& own = parts_[static_cast<size_t>(own_)];
  for (size_t i = 0; i < own.size(); ++i) {
    const Part& part = own[i];
    if (part.numel() == 0) continue;
    const Tensor& gradient = sum_.empty() ? pushed_by(update_.workers.back())[i] : sum_[i];
    if (const std::vector<UpdateSlice> all = slices(i, gradient); !all.empty())
      update_step(server_, options_.optimizer.kind, options_.optimizer.hyper, scalars_, all);
    if (options_.optimizer.average_decay)
      average_step(server_, *options_.optimizer.average_decay, scalars_, theta_[i],
                   part.of(stages_[part.stage]->optimizer()->state(static_cast<int>(part.unit)).back().shard));
    if (!sum_.empty()) fill(server_, 0, sum_[i]);
  }
}

/// As ShardedOptimizer::slices(), of a part of the owned shard.
std::vector<UpdateSlice> ParameterServer::slices(size_t index, const Tensor& gradient) const {
  const Part& part = parts_[static_cast<size_t>(own_)][index];
  const TransformerStage& stage = *stages_[part.stage];
  const ParamStore& params = stage.params();
  const int64_t shard_begin = params.units()[part.unit]->owned_begin();
  std::vector<UpdateSlice> slices;
  for (const Unit::Segment& segment : params.units()[part.unit]->segments(shard_begin + part.begin, shard_begin + part.end)) {
    const int64_t begin = segment.flat_begin - shard_begin - part.begin;
    UpdateSlice& added =
        slices.emplace_back(UpdateSlice{.w = theta_[index].flat(begin, segment.count), .g = gradient.flat(begin, segment.count), .state = {}});
    added.decay = segment.spec->decay;
    added.matrix = segment.matrix_range();
    for (size_t k = 0; k < static_cast<size_t>(traits_of(options_.optimizer.kind).states); ++k)
      added.state[k] = stage.optimizer()->state(static_cast<int>(part.unit))[k].shard.flat(part.begin + begin, segment.count);
  }
  return slices;
}

}  // namespace trireme
