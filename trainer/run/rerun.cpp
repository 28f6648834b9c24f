#include "trainer/run/rerun.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "trainer/machine/environment.h"
#include "trainer/resilience/replica_check.h"
#include "trainer/run/anomaly_window.h"
#include "trainer/run/median.h"

namespace trireme {
namespace {

constexpr int kMostRepetitions = 3;
constexpr int64_t kGroups = 32;  ///< of samples whose losses are compared at a time

bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b)); }

/// How two executions differ on one rank.
struct RankDifference {
  std::string host;
  ExchangeDifference exchanges;
  bool local_result = false;  ///< the loss of the rank's samples or the norm of its gradients differs

  bool any() const { return local_result || !exchanges.first.empty(); }
};

/// The differences of every rank, on every rank. Collective.
std::vector<RankDifference> rank_differences(Communicator& world, const Execution& a, const Execution& b) {
  const ExchangeDifference mine = compare(a.exchanges, b.exchanges, world.rank());
  const bool local_result = !same(a.result.local_loss, b.result.local_loss) || !same(a.result.local_squares, b.result.local_squares);
  std::string text = concat(host_name(), "\n", local_result, "\n", mine.first_is_sent, "\n", mine.first, "\n");
  for (const std::string& operation : mine.sent) text += operation + "\n";
  std::vector<RankDifference> all;
  for (const std::string& of_rank : all_gather_strings(world, text)) {
    std::istringstream lines(of_rank);
    RankDifference& one = all.emplace_back();
    std::string flag;
    std::getline(lines, one.host);
    std::getline(lines, flag);
    one.local_result = flag == "1";
    std::getline(lines, flag);
    one.exchanges.first_is_sent = flag == "1";
    std::getline(lines, one.exchanges.first);
    for (std::string operation; std::getline(lines, operation);) one.exchanges.sent.push_back(operation);
  }
  return all;
}

/// The ranks at which the difference began. A rank that first sent something else has computed something else. If there is none, what some rank
/// received has changed on the way: then it is a rank that received what nobody sent differently.
std::vector<int> origins(const std::vector<RankDifference>& ranks) {
  std::set<std::string> sent_differently;
  for (const RankDifference& rank : ranks) sent_differently.insert(rank.exchanges.sent.begin(), rank.exchanges.sent.end());
  std::vector<int> first_sent, received_alone, differing;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const ExchangeDifference& exchanges = ranks[r].exchanges;
    const int rank = static_cast<int>(r);
    if (ranks[r].any()) differing.push_back(rank);
    if (exchanges.first.empty()) continue;
    if (exchanges.first_is_sent)
      first_sent.push_back(rank);
    else if (!sent_differently.contains(exchanges.first))
      received_alone.push_back(rank);
  }
  return !first_sent.empty() ? first_sent : !received_alone.empty() ? received_alone : differing;
}

std::string list_of(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i)
    text += concat(i == 0 ? "" : i + 1 == ranks.size() ? " or " : ", ", "rank ", ranks[i], " on ", hosts[static_cast<size_t>(ranks[i])]);
  return text;
}

std::vector<std::string> hosts_of(const std::vector<RankDifference>& ranks) {
  std::vector<std::string> hosts;
  for (const RankDifference& rank : ranks) hosts.push_back(rank.host);
  return hosts;
}

std::string hardware_text(const std::vector<RankDifference>& ranks, const std::vector<int>& suspects) {
  const ExchangeDifference& first = ranks[static_cast<size_t>(suspects.front())].exchanges;
  return concat("hardware: ", list_of(suspects, hosts_of(ranks)), " computed something else from the same weights and data",
                first.first.empty() ? "" : concat(", first seen in what it ", first.first_is_sent ? "sent" : "received", " in ", first.first));
}

/// The summed loss of the samples of each data rank, as computed by that rank and by another one. Indexed by data rank.
struct CrossCheck {
  std::vector<double> own;              ///< loss of a rank's samples, computed by the rank
  std::vector<double> elsewhere;        ///< loss of the same samples, computed by the data rank before it
  std::vector<std::vector<int>> ranks;  ///< world ranks of each data rank
};

/// Executes the step once more, without an update, with the samples of each data rank moved to the one before it. Collective.
CrossCheck cross_check(Trainer& trainer, ExchangeLog& log, RepeatableStep step, const StepResult& before) {
  step.limits = {.loss = -1, .grad_norm = -1};  // no update
  trainer.rotate_data(1);
  const StepResult rotated = execute(trainer, log, step).result;
  trainer.rotate_data(0);
  Mesh& mesh = trainer.mesh();
  const auto degree = static_cast<size_t>(mesh.shape.data());
  CrossCheck check{std::vector<double>(degree), std::vector<double>(degree), std::vector<std::vector<int>>(degree)};
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  const std::vector<std::string> all = all_gather_strings(
      mesh.world, concat(mesh.data->rank(), " ", trainer.counts_loss(), " ", bits(before.local_loss), " ", bits(rotated.local_loss)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream words(all[rank]);
    size_t data = 0;
    bool has = false;
    uint64_t first = 0, second = 0;
    words >> data >> has >> first >> second;
    check.ranks[data].push_back(static_cast<int>(rank));
    if (!has) continue;
    check.own[data] = std::bit_cast<double>(first);
    check.elsewhere[(data + 1) % degree] = std::bit_cast<double>(second);
  }
  return check;
}

/// The ranks whose losses another data rank does not reproduce; empty if all are reproduced. The samples of data rank d are computed by d and d - 1, so
/// a rank at fault is one of these two for all samples whose losses differ.
std::vector<int> suspects_of(const CrossCheck& check) {
  const size_t degree = check.own.size();
  std::vector<int> suspects;
  std::vector<size_t> differing;
  for (size_t d = 0; d < degree; ++d)
    if (!same(check.own[d], check.elsewhere[d])) differing.push_back(d);
  if (differing.empty()) return {};
  for (size_t rank = 0; rank < degree; ++rank) {
    const auto computes = [&](size_t samples) { return samples == rank || samples == (rank + 1) % degree; };
    if (std::ranges::all_of(differing, computes)) suspects.insert(suspects.end(), check.ranks[rank].begin(), check.ranks[rank].end());
  }
  if (suspects.empty())
    for (const std::vector<int>& ranks : check.ranks) suspects.insert(suspects.end(), ranks.begin(), ranks.end());
  std::ranges::sort(suspects);
  return suspects;
}

/// The samples of a step's global batch, in order, of which only those in [begin, end) have targets.
class PartOfBatch final : public Dataset {
 public:
  PartOfBatch(const Dataset& data, std::vector<int64_t> samples, int64_t length) : data_(data), samples_(std::move(samples)), length_(length) {}
  void select(int64_t begin, int64_t end) {
    begin_ = begin;
    end_ = end;
  }
  int64_t sequences() const override { return static_cast<int64_t>(samples_.size()); }
  void read(int64_t place, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(place < 0 ? place : samples_[static_cast<size_t>(place)], tokens, targets, segments);
    if (place < begin_ || place >= end_) std::fill(targets, targets + length_, -1);
  }

 private:
  const Dataset& data_;
  std::vector<int64_t> samples_;
  int64_t length_;
  int64_t begin_ = 0, end_ = 0;
};

/// The limit of a sample's loss: z robust deviations above the median of the others. Not of the logarithm, as losses of learned samples near 0 would
/// differ by large factors.
double limit_of_losses(std::vector<double> others, double z) {
  constexpr double kToDeviation = 1.4826, kFloor = 0.05;
  const double center = median(others);
  for (double& loss : others) loss = std::abs(loss - center);
  return center + z * std::max(kToDeviation * median(others), kFloor * center);
}

/// The place in the batch whose sample has a loss that stands out from the others'; empty if none does. Evaluates groups of samples, then the samples
/// of the group with the largest loss. The ranks take the maximum of their copies of a loss, so that all select the same samples. Collective.
std::optional<int64_t> outlier(Trainer& trainer, PartOfBatch& batch, double z) {
  for (int64_t begin = 0, end = batch.sequences();;) {
    const int64_t groups = std::min(kGroups, end - begin);
    const auto start_of = [&, first = begin, count = end - begin](int64_t group) { return first + count * group / groups; };
    std::vector<double> losses;
    int64_t worst = 0;
    for (int64_t group = 0; group < groups; ++group) {
      batch.select(start_of(group), start_of(group + 1));
      const Trainer::Evaluation evaluation = trainer.evaluate(batch, 1);
      // A group without a target has the loss 0, and is never the worst.
      const double loss = std::isfinite(evaluation.loss) ? evaluation.loss : std::numeric_limits<double>::infinity();
      losses.push_back(all_reduce_scalar(trainer.mesh().world, loss, ReduceOp::kMax));
      if (losses.back() > losses[static_cast<size_t>(worst)]) worst = group;
    }
    const int64_t first = start_of(worst), last = start_of(worst + 1);
    if (last - first == 1) {  // others may be means of two samples, which differ less
      const double largest = losses[static_cast<size_t>(worst)];
      losses.erase(losses.begin() + worst);
      std::erase(losses, 0);
      return !losses.empty() && largest > limit_of_losses(losses, z) ? std::optional(first) : std::nullopt;
    }
    std::tie(begin, end) = std::pair(first, last);
  }
}

}  // namespace

const char* name_of(RerunVerdict::Cause cause) {
  switch (cause) {
    case RerunVerdict::Cause::kHardware: return "hardware";
    case RerunVerdict::Cause::kData: return "data";
    case RerunVerdict::Cause::kModel: return "model";
    case RerunVerdict::Cause::kReplicas: return "replicas";
  }
  return "?";
}

Execution execute(Trainer& trainer, ExchangeLog& log, const RepeatableStep& step) {
  if (scales_loss(trainer.config().training)) trainer.scalars().set_loss_scale(step.loss_scale);
  // An evaluation may have gathered parameters. Each execution gathers them itself, so that its exchanges are the same.
  trainer.weights_changed();
  log.start();
  const Trainer::StepInFlight started = trainer.start(step.data, step.step, step.learning_rate, step.limits);
  Execution execution;
  execution.exchanges = log.stop();
  execution.result = trainer.finish(started);
  return execution;
}

RerunVerdict rerun(Trainer& trainer, ExchangeLog& log, RepeatableStep step, const Execution& first, double z) {
  Communicator& world = trainer.mesh().world;
  RerunVerdict verdict;
  Execution before = first;
  for (int repetition = 1;; ++repetition) {
    Execution again = execute(trainer, log, step);
    verdict.result = again.result;
    const std::vector<RankDifference> ranks = rank_differences(world, before, again);
    if (std::ranges::none_of(ranks, &RankDifference::any)) break;
    if (verdict.ranks.empty()) {
      verdict.cause = RerunVerdict::Cause::kHardware;
      verdict.ranks = origins(ranks);
      verdict.text = hardware_text(ranks, verdict.ranks);
    }
    if (again.result.accepted || repetition == kMostRepetitions) return verdict;
    before = std::move(again);
  }

  const auto accept_unusual_samples = [&] {
    if (!anomaly_in(verdict.result, step.limits).only_ranks()) return;
    step.limits.reject_outliers = false;
    verdict.result = execute(trainer, log, step).result;
  };
  if (verdict.cause == RerunVerdict::Cause::kHardware) {  // an earlier execution differed, whatever else is anomalous
    accept_unusual_samples();
    return verdict;
  }
  // Two executions agree, and both are anomalous.
  if (const std::string differences = replica_differences(trainer); !differences.empty()) {
    verdict.cause = RerunVerdict::Cause::kReplicas;
    verdict.text = concat("hardware: copies of the same state differ between ranks:\n", differences);
    return verdict;
  }
  if (trainer.mesh().shape.data() > 1) {
    const LossScale after = trainer.scalars().loss_scale();
    const CrossCheck check = cross_check(trainer, log, step, verdict.result);
    if (scales_loss(trainer.config().training)) trainer.scalars().set_loss_scale(after);
    verdict.ranks = suspects_of(check);
  }
  if (!verdict.ranks.empty()) {
    const std::vector<std::string> hosts = all_gather_strings(world, host_name());
    verdict.cause = RerunVerdict::Cause::kHardware;
    verdict.text = concat("hardware: ", list_of(verdict.ranks, hosts), " computed another loss than other ranks did from the same samples, twice");
    return verdict;
  }
  const int64_t batch = trainer.config().training.global_batch_size;
  std::vector<int64_t> samples;
  for (int64_t place = 0; place < batch; ++place) samples.push_back(trainer.batches().sample(step.data, step.step, place));
  PartOfBatch parts(step.data, samples, trainer.config().training.sequence_length);
  const std::optional<int64_t> place = outlier(trainer, parts, z);
  verdict.cause = place ? RerunVerdict::Cause::kData : RerunVerdict::Cause::kModel;
  if (place) verdict.samples = {samples[static_cast<size_t>(*place)]};
  verdict.text = place ? concat("data: the loss of sample ", verdict.samples[0], " stands out in repeated executions that agree")
                       : "model: repeated executions agree, and the loss of no sample stands out";
  accept_unusual_samples();
  return verdict;
}

}  // namespace trireme
