#include "trainer/run/private_training.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "kernels/core/counted.h"
#include "trainer/config/fields.h"

namespace trireme {
namespace {

using privacy::History;
using privacy::Mechanism;
using privacy::PrivateSteps;

constexpr const char* kTarget = "security.privacy.target_epsilon";

/// Everything that decides what is trained, but the data: two runs that differ in it must not share noise.
std::string mathematics_of(const Config& config, const std::string& initial_weights) {
  std::string text = concat("weights: ", initial_weights, "\n");
  for (const FieldRow& row : table_of(config).fields)
    if (row.field.decides == Aspect::kMathematics)
      if (const std::string value = written_value(row); !value.empty()) text += concat(row.path, ": ", value, "\n");
  return text;
}

/// Rounded up to four digits behind the point.
std::string needed(double epsilon) {
  if (!std::isfinite(epsilon)) return "unbounded";
  std::ostringstream text;
  text << std::setprecision(12) << std::ceil(epsilon * 1e4) / 1e4;
  return text.str();
}

/// History before a job without any in the checkpoint: steps that were not private.
History saved_history(const PrivacyStart& start) {
  if (!start.saved.empty() || start.step == 0) return start.saved;
  return {{"", privacy::no_privacy(), 0, start.step}};
}

/// The noise of a segment of `known` that began like this job; so a job that was killed before its first checkpoint is repeated, and not counted twice.
std::optional<double> repeated_noise(const History& saved, const PrivacyStart& start, double rate, const std::string& key,
                                     const std::string& changes) {
  for (const privacy::Segment& segment : start.known) {
    const Mechanism mechanism{rate, segment.mechanism.noise, key};
    if (segment.first != start.step || segment.mechanism != mechanism) continue;
    if (privacy::continued(saved, {}, start.step, mechanism, changes).back().lineage == segment.lineage) return mechanism.noise;
  }
  return std::nullopt;
}

}  // namespace

/// security.privacy.noise, or the least with which all steps of the run stay within the budget. A job that continues a segment keeps its noise.
double PrivateTraining::choose_noise(const Config& config, const PrivacyStart& start, double rate, const std::string& key,
                                     const std::string& changes) const {
  const PrivacyConfig& c = config.security.privacy;
  if (c.noise) return *c.noise;
  const History saved = saved_history(start);
  if (!saved.empty())
    if (const Mechanism same{rate, saved.back().mechanism.noise, key}; privacy::continues(saved, same, changes)) return same.noise;
  if (const auto noise = repeated_noise(saved, start, rate, key, changes)) return *noise;
  // Steps of other segments count in full; the last one is that of this job.
  History history = privacy::continued(saved, start.known, start.step, {rate, std::numeric_limits<double>::infinity(), key}, changes);
  history.pop_back();
  const std::vector<PrivateSteps> others = privacy::steps_of(history);
  const int64_t steps = start.total - start.step;
  const double noise = privacy::noise_for(*c.target_epsilon, rate, steps, *c.delta, others);
  if (std::isfinite(noise)) return noise;
  const double used = privacy::rdp_epsilon(others, *c.delta).value;
  const std::string so_far = used > 0 ? concat(", of which the run has used ", needed(used), " already") : "";
  throw ConfigError(concat(kTarget, "=", *c.target_epsilon, ": no noise multiplier up to a million keeps ", counted(steps, "step"), " within it",
                           so_far, "; allowed a target_epsilon above ",
                           needed(std::max(used, privacy::rdp_epsilon(std::vector<PrivateSteps>{{rate, 1e6, steps}}, *c.delta).value))));
}

void PrivateTraining::check_budget(const Config& config, const PrivacyStart& start, bool continues) {
  const PrivacyConfig& c = config.security.privacy;
  if (!c.target_epsilon) return;
  const privacy::Segment& mine = history_.back();
  const std::vector<PrivateSteps> others = privacy::steps_of(History(history_.begin(), history_.end() - 1));
  const auto with = [&](int64_t steps) {
    std::vector<PrivateSteps> all = others;
    all.push_back({mine.mechanism.sampling_rate, mine.mechanism.noise, steps});
    return all;
  };
  const double target = *c.target_epsilon, used = privacy::rdp_epsilon(with(mine.steps), *c.delta).value;
  const int64_t planned = std::max(mine.steps, start.total - mine.first);
  const int64_t steps = privacy::affordable_steps(others, with(planned).back(), *c.delta, target);
  last_step_ = steps == planned ? std::numeric_limits<int64_t>::max() : mine.first + steps;
  const bool none_left = last_step_ <= start.step && start.step < start.total && !continues;
  if (used <= target && !none_left) return;
  throw ConfigError(concat(kTarget, "=", target, ": ",
                           used > target ? concat("the run has used ", needed(used), " already") : "does not suffice for one step", ", at delta ",
                           *c.delta, "; ", counted(start.total - start.step, "more step"), " with a noise multiplier of ", mine.mechanism.noise,
                           " would need ", needed(privacy::rdp_epsilon(with(planned), *c.delta).value)));
}

PrivateTraining::PrivateTraining(const Config& config, const PrivacyStart& start, const crypto::Key* key) {
  const PrivacyConfig& c = config.security.privacy;
  facts_ = {c.clip, key != nullptr ? c.delta : std::nullopt, c.target_epsilon, start.sequences, config.training.sequence_length};
  if (key != nullptr && adds_noise_on_each_rank(config)) facts_.noise_ranks = *config.parallel.data;
  const History saved = saved_history(start);
  // A job that changes nothing continues; anything else begins with all that tells it from other runs of the same key.
  std::string changes = start.changes;
  if (key != nullptr &&
      (saved.empty() || !changes.empty()))  // without the key nobody learns from a lineage whether a guess of the configuration is right
    changes =
        crypto::PrivateRandom(crypto::derive(*key, concat("changes ", changes, "\n", mathematics_of(config, start.initial_weights)))).fingerprint();
  Mechanism mechanism = privacy::no_privacy();
  if (key != nullptr) {
    const int64_t batch = config.training.global_batch_size;
    if (batch > start.sequences)
      throw ConfigError(concat("training.global_batch_size=", batch,
                               ": security.privacy draws each sequence at most once in a step, and the training data have ",
                               counted(start.sequences, "sequence"), "; allowed 1 to ", start.sequences));
    // Other data make it another key: what they have in common must not be drawn again with the same noise.
    // So does another number of data ranks that add noise: they have sums of other sequences.
    const std::string ranks = facts_.noise_ranks > 0 ? concat("\nnoise of each of ", facts_.noise_ranks, " data ranks") : "";
    const std::string fingerprint = crypto::PrivateRandom(crypto::derive(*key, concat("data ", start.data, ranks))).fingerprint();
    const double rate = static_cast<double>(batch) / static_cast<double>(start.sequences);
    mechanism = {rate, choose_noise(config, start, rate, fingerprint, changes), fingerprint};
    if (*c.delta * static_cast<double>(start.sequences) >= 1)
      warning_ = concat("security.privacy.delta=", *c.delta, ": at least 1 / (number of sequences), which is ",
                        1 / static_cast<double>(start.sequences), ": publishing a sequence at random would satisfy it, too");
  }
  history_ = privacy::continued(saved, start.known, start.step, mechanism, changes);
  const std::vector<PrivateSteps> steps = privacy::steps_of(history_);
  before_ = privacy::RdpCurve(std::span(steps).first(steps.size() - 1));
  step_.add({mechanism.sampling_rate, mechanism.noise, 1});
  if (key == nullptr) return;
  check_budget(config, start, privacy::continues(saved, mechanism, changes));
  random_.emplace(crypto::derive(*key, concat("run ", history_.back().lineage)));
}

privacy::History PrivateTraining::history(int64_t step) const {
  History all = history_;
  privacy::release(all, step);
  return all;
}

privacy::Epsilon PrivateTraining::epsilon(int64_t step) const {
  if (!facts_.delta) return {std::numeric_limits<double>::infinity()};
  privacy::RdpCurve sum = before_;
  sum.add(step_, std::max(history_.back().steps, step - history_.back().first));
  return sum.epsilon(*facts_.delta);
}

std::optional<privacy::Bracket> PrivateTraining::tight(int64_t step) const {
  constexpr size_t kMostSegments = 16;
  if (!facts_.delta || history_.size() > kMostSegments) return std::nullopt;
  return privacy::tight_epsilon(privacy::steps_of(history(step)), *facts_.delta);
}

std::string PrivateTraining::text() const {
  const Mechanism& now = mechanism();
  if (!random_) return "privacy: none, after steps that were private: nothing bounds epsilon from now on";
  return concat("privacy: each of ", facts_.sequences, " sequences enters a step with probability ", now.sampling_rate, ", clipped to ", *facts_.clip,
                ", with a noise multiplier of ", now.noise,
                facts_.noise_ranks > 0 ? concat(", added by each of ", facts_.noise_ranks, " data ranks to its own sum") : "");
}

int64_t announced_step(int64_t step, int64_t checkpoint_every, int64_t last) {
  const int64_t every = checkpoint_every > 0 ? checkpoint_every : kMostAhead;
  const int64_t saved = (step + every - 1) / every * every;
  return std::max(step, std::min({saved, step + kMostAhead - 1, last}));
}

}  // namespace trireme
