#include "trainer/run/arrival_phase.h"

#include <iostream>
#include <utility>

#include "trainer/files/strict_json.h"
#include "trainer/machine/collectively.h"

namespace trireme {

namespace {

/// Replays the arrivals that a step has logged. Returns false if they are impossible in this place of the round, or not those of one update.
bool replay(UpdateOrder* order, const std::vector<int>& workers, bool served) {
  bool applied = false;
  for (const int worker : workers) {
    if (order == nullptr || applied || worker < 0 || worker >= order->workers() || !order->is_computing(worker)) return false;
    applied = order->arrive(worker).applies && served;
  }
  return applied || !served;
}

/// Removes from `order` what does not follow step `done` without a gap, and the first step whose arrivals cannot have been with all later ones.
/// Returns that step; nullopt if all arrivals are possible.
std::optional<int64_t> keep_possible(const Config& config, const Rounds& rounds, int64_t done, LoggedOrder& order) {
  const AsynchronousConfig& asynchronous = config.training.asynchronous;
  const bool served = has_parameter_servers(config.training);
  const UpdateRules rules = update_rules(config);
  std::optional<int64_t> impossible;
  int64_t step = done + 1;
  while (!impossible && order.contains(step)) {
    const int64_t first = step, end = rounds.end_of(first);
    // An update is a step; an exchange is logged by the next step of the first island that follows one of its own.
    const int64_t updates = served ? end - first + 1 : rules.workers * (end / asynchronous.every - (first - 1) / asynchronous.every);
    std::optional<UpdateOrder> replayed;
    if (updates > 0) replayed.emplace(rules, updates);
    for (; !impossible && step <= end && order.contains(step); ++step)
      if (!replay(replayed ? &*replayed : nullptr, order.at(step), served)) impossible = step;
    if (!impossible && !served && step > end && replayed && !replayed->is_over()) impossible = end;  // exchanges are missing
  }
  order.erase(order.lower_bound(impossible.value_or(step)), order.end());
  return impossible;
}

/// The order that training.asynchronous.replay names, after `done`.
LoggedOrder order_to_replay(const Config& config, const Rounds& rounds, int64_t done) {
  const std::string& run = config.training.asynchronous.replay;
  if (run == "none") return {};
  const std::string key = concat("training.asynchronous.replay=", run);
  const std::filesystem::path log = std::filesystem::path(run) / "metrics.jsonl";
  if (std::error_code error; !std::filesystem::exists(log, error)) throw MissingFileError(concat(key, ": no ", log.string()));
  LoggedOrder order = MetricsSink::order_after(log, done);
  if (!order.contains(done + 1)) throw DataError(concat(key, ": has no order of arrivals for step ", done + 1));
  if (const std::optional<int64_t> step = keep_possible(config, rounds, done, order))
    throw DataError(concat(key, ": the arrivals of step ", *step, " are impossible with parallel.islands ", config.parallel.islands,
                           " and this training.asynchronous; the run had another configuration"));
  return order;
}

}  // namespace

void ArrivalPhase::read_replay() {
  if (is_asynchronous(run_.config.training))
    collectively(run_.world, [&] { replayed_order_ = order_to_replay(run_.config, run_.rounds(), run_.done); });
}

void ArrivalPhase::resume(const Resumed& resumed) {
  if (!is_asynchronous(run_.config.training)) return;
  nlohmann::json shared;
  collectively(run_.world, [&] {
    if (run_.reports() && !resumed.checkpoint.empty()) shared = MetricsSink::order_after(run_.directory() / "metrics.jsonl", run_.done);
  });
  shared = parse_value(all_gather_strings(run_.world, shared.dump())[0], "rank 0");
  if (!shared.is_null()) shared.get_to(logged_order_);
  const auto keep = [&](LoggedOrder& order, const char* whose) {
    const std::optional<int64_t> step = keep_possible(run_.config, run_.rounds(), run_.done, order);
    if (step && run_.reports())
      std::cerr << concat("note: from step ", *step, " on what islands send is applied as it arrives: ", whose, " is impossible with these rules\n");
  };
  keep(logged_order_, "the order that metrics.jsonl has");
  LoggedOrder order = logged_order_;
  order.merge(std::exchange(replayed_order_, {}));
  keep(order, "what training.asynchronous.replay has after the steps of this run");
  std::map<int64_t, std::vector<int>> by_index;
  for (const auto& [step, workers] : order) by_index[step - 1] = workers;
  run_.trainer->updates().set_order(by_index);
}

void ArrivalPhase::announce() {
  if (logged_order_.empty()) return;
  nlohmann::ordered_json workers = nlohmann::ordered_json::object();
  for (const auto& [step, of_step] : logged_order_) workers[std::to_string(step)] = of_step;
  run_.reporter.event("arrivals", run_.done, {{"workers", workers}},
                      concat("steps ", logged_order_.begin()->first, " to ", logged_order_.rbegin()->first,
                             " are repeated in the order of arrivals that an earlier job has logged"));
}

void ArrivalPhase::count(int64_t, const StepResult& result) {
  if (const Arrivals* const arrivals = result.arrivals())
    for (const int64_t staleness : arrivals->staleness) staleness_.add(staleness);
}

void ArrivalPhase::at_round_end(int64_t step) {
  if (!is_asynchronous(run_.config.training) || shares_weights(run_.config.training)) return;
  run_.reporter.event("staleness", step, {{has_parameter_servers(run_.config.training) ? "gradients" : "exchanges", staleness_.counts()}});
}

}  // namespace trireme
