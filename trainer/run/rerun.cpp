#include "trainer/run/rerun.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "trainer/loop/environment.h"
#include "trainer/resilience/replica_check.h"
#include "trainer/run/anomaly_window.h"

namespace trireme {
namespace {

constexpr int kMostRepetitions = 3;
constexpr int64_t kGroups = 32;  ///< of samples whose losses are compared at a time

bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b)); }

/// How two executions differ on one rank.
struct RankDifference {
  std::string host;
  ExchangeDifference exchanges;
  bool figures = false;  ///< its own loss or gradient norm differs

  bool any() const { return figures || !exchanges.first.empty(); }
};

/// Of every rank, on every rank.
std::vector<RankDifference> rank_differences(Communicator& world, const Execution& a, const Execution& b) {
  const ExchangeDifference mine = compare(a.exchanges, b.exchanges, world.rank());
  const bool figures = !same(a.result.local_loss, b.result.local_loss) || !same(a.result.local_squares, b.result.local_squares);
  std::string text = concat(host_name(), "\n", figures, "\n", mine.first_is_sent, "\n", mine.first, "\n");
  for (const std::string& operation : mine.sent) text += operation + "\n";
  std::vector<RankDifference> all;
  for (const std::string& of_rank : all_gather_strings(world, text)) {
    std::istringstream lines(of_rank);
    RankDifference& one = all.emplace_back();
    std::string flag;
    std::getline(lines, one.host);
    std::getline(lines, flag);
    one.figures = flag == "1";
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

/// Loss of the samples of each data rank, summed, and that of the same samples computed on the next data rank.
struct Swap {
  std::vector<double> here, there;      ///< by data coordinate of the rank that usually has the samples
  std::vector<std::vector<int>> ranks;  ///< world ranks of each data coordinate
};

Swap swap_data(Trainer& trainer, ExchangeLog& log, RepeatableStep step, const StepResult& before) {
  step.limits = {-1, -1};  // no update
  trainer.rotate_data(1);
  const StepResult rotated = execute(trainer, log, step).result;
  trainer.rotate_data(0);
  Mesh& mesh = trainer.mesh();
  const auto degree = static_cast<size_t>(mesh.shape.data());
  Swap swap{std::vector<double>(degree), std::vector<double>(degree), std::vector<std::vector<int>>(degree)};
  const bool has_loss = mesh.at.tensor == 0 && trainer.stages().back()->range().last();
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  const std::vector<std::string> all =
      all_gather_strings(mesh.world, concat(mesh.data->rank(), " ", has_loss, " ", bits(before.local_loss), " ", bits(rotated.local_loss)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream words(all[rank]);
    size_t data = 0;
    bool has = false;
    uint64_t first = 0, second = 0;
    words >> data >> has >> first >> second;
    swap.ranks[data].push_back(static_cast<int>(rank));
    if (!has) continue;
    swap.here[data] = std::bit_cast<double>(first);
    swap.there[(data + 1) % degree] = std::bit_cast<double>(second);
  }
  return swap;
}

/// The ranks whose losses cannot be repeated elsewhere; empty if all can. Samples d are computed by d and by d - 1: a rank at fault is one of both
/// for all samples whose losses differ.
std::vector<int> suspects_of(const Swap& swap) {
  const size_t degree = swap.here.size();
  std::vector<int> suspects;
  std::vector<size_t> differing;
  for (size_t d = 0; d < degree; ++d)
    if (!same(swap.here[d], swap.there[d])) differing.push_back(d);
  if (differing.empty()) return {};
  for (size_t rank = 0; rank < degree; ++rank) {
    const auto computes = [&](size_t samples) { return samples == rank || samples == (rank + 1) % degree; };
    if (std::ranges::all_of(differing, computes)) suspects.insert(suspects.end(), swap.ranks[rank].begin(), swap.ranks[rank].end());
  }
  if (suspects.empty())
    for (const std::vector<int>& ranks : swap.ranks) suspects.insert(suspects.end(), ranks.begin(), ranks.end());
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
  const auto middle = others.begin() + static_cast<ptrdiff_t>(others.size() / 2);
  std::ranges::nth_element(others, middle);
  const double median = *middle;
  for (double& loss : others) loss = std::abs(loss - median);
  std::ranges::nth_element(others, middle);
  return median + z * std::max(kToDeviation * *middle, kFloor * median);
}

/// The place in the batch whose sample has a loss that stands out from the others'; empty if none does. Evaluates groups of samples, then the samples
/// of the group with the largest loss.
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
      losses.push_back(std::isfinite(evaluation.loss) ? evaluation.loss : std::numeric_limits<double>::infinity());
      if (losses.back() > losses[static_cast<size_t>(worst)]) worst = group;
    }
    if (end - begin == groups) {
      const double largest = losses[static_cast<size_t>(worst)];
      losses.erase(losses.begin() + worst);
      std::erase(losses, 0);
      return !losses.empty() && largest > limit_of_losses(losses, z) ? std::optional(begin + worst) : std::nullopt;
    }
    std::tie(begin, end) = std::pair(start_of(worst), start_of(worst + 1));
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
  if (scales_loss(trainer.config().training)) trainer.set_loss_scale(step.loss_scale);
  trainer.weights_changed();  // an evaluation may have gathered parameters: each execution gathers them itself, so that its exchanges are the same
  log.start();
  const Trainer::StepInFlight started = trainer.start(step.data, step.step, step.learning_rate, step.limits);
  Execution execution;
  execution.exchanges = log.stop();
  execution.result = trainer.finish(started);
  return execution;
}

RerunVerdict rerun(Trainer& trainer, ExchangeLog& log, const RepeatableStep& step, const Execution& first, double z) {
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

  if (verdict.cause == RerunVerdict::Cause::kHardware) return verdict;  // an earlier execution differed, whatever else is anomalous
  // Two executions agree, and both are anomalous.
  if (const std::string differences = replica_differences(trainer); !differences.empty()) {
    verdict.cause = RerunVerdict::Cause::kReplicas;
    verdict.text = concat("hardware: copies of the same state differ between ranks:\n", differences);
    return verdict;
  }
  if (trainer.mesh().shape.data() > 1) {
    const LossScale after = trainer.loss_scale();
    const Swap swap = swap_data(trainer, log, step, verdict.result);
    if (scales_loss(trainer.config().training)) trainer.set_loss_scale(after);
    verdict.ranks = suspects_of(swap);
  }
  if (!verdict.ranks.empty()) {
    const std::vector<std::string> hosts = all_gather_strings(world, host_name());
    verdict.cause = RerunVerdict::Cause::kHardware;
    verdict.text = concat("hardware: ", list_of(verdict.ranks, hosts), " computed another loss than other ranks did from the same samples, twice");
    return verdict;
  }
  const int64_t batch = trainer.config().training.global_batch_size;
  std::vector<int64_t> samples;
  for (int64_t place = 0; place < batch; ++place) samples.push_back(trainer.sample(step.data, step.step, place));
  PartOfBatch parts(step.data, samples, trainer.config().training.sequence_length);
  const std::optional<int64_t> place = outlier(trainer, parts, z);
  verdict.cause = place ? RerunVerdict::Cause::kData : RerunVerdict::Cause::kModel;
  if (place) verdict.samples = {samples[static_cast<size_t>(*place)]};
  verdict.text = place ? concat("data: the loss of sample ", verdict.samples[0], " stands out in repeated executions that agree")
                       : "model: repeated executions agree, and the loss of no sample stands out";
  return verdict;
}

}  // namespace trireme
