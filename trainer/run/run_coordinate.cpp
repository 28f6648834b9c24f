// The coordinator of a federation as a run: it has the weights and the momentum of the outer step, and releases what its members have verified.
#include <cmath>
#include <cstring>

#include "kernels/core/counted.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/outer_step.h"
#include "trainer/config/check_federation.h"
#include "trainer/federation/coordinator.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/privacy/accountant.h"
#include "trainer/run/rank_run.h"

namespace trireme {
namespace {

Tensor momentum_of(const OwnedBox& owned) {
  for (const auto& [name, tensor] : owned.state)
    if (name == kOuterMomentumName) return tensor;
  throw InternalError("a coordinator without the momentum of the outer step");
}

/// The state that a refused round restores.
struct Released {
  std::vector<Tensor> weights, momentum;  ///< by owned box
  std::map<int, federation::HeldOutLoss> losses;
};

Tensor copied(Context& ctx, const Tensor& from) {
  const Tensor to = Tensor::empty(ctx, from.shape(), from.dtype(), MemoryCategory::kOptimizer);
  copy(ctx, from, to);
  return to;
}

void keep(Trainer& trainer, Released& released) {
  released.weights.clear();
  released.momentum.clear();
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    released.weights.push_back(copied(trainer.context(), owned.weight));
    released.momentum.push_back(copied(trainer.context(), momentum_of(owned)));
  }
}

void restore(Trainer& trainer, const Released& released) {
  size_t i = 0;
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    copy(trainer.context(), released.weights[i], owned.weight);
    copy(trainer.context(), released.momentum[i++], momentum_of(owned));
  }
  trainer.weights_changed();
  trainer.start_round();
}

/// Of members that are in both: their mean loss, weighted by tokens, after minus before. Nothing if there are none.
std::optional<double> loss_increase(const std::map<int, federation::HeldOutLoss>& before, const std::map<int, federation::HeldOutLoss>& after) {
  double sum = 0, tokens = 0;
  for (const auto& [member, now] : after) {
    const auto found = before.find(member);
    if (found == before.end()) continue;
    sum += (now.loss - found->second.loss) * static_cast<double>(now.tokens);
    tokens += static_cast<double>(now.tokens);
  }
  return tokens > 0 ? std::optional(sum / tokens) : std::nullopt;
}

std::optional<double> mean_loss(const std::map<int, federation::HeldOutLoss>& losses) {
  double sum = 0, tokens = 0;
  for (const auto& [member, one] : losses) {
    sum += one.loss * static_cast<double>(one.tokens);
    tokens += static_cast<double>(one.tokens);
  }
  return tokens > 0 ? std::optional(sum / tokens) : std::nullopt;
}

double norm_of(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

/// The outer step of kernels/ops/outer_step.h on the mean update of a round.
void Run::take_outer_step(const federation::FlatModel& model, std::span<const double> mean) {
  const LocalConfig& local = config_.training.local;
  model.visit_boxes([&](const OwnedBox& owned, std::span<const int64_t> numbers) {
    const Tensor theta = copied(ctx_, owned.weight), sum = copied(ctx_, owned.weight), drift = copied(ctx_, owned.weight);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double update = mean[static_cast<size_t>(numbers[i])];
      const auto at = static_cast<int64_t>(i);
      if (sum.dtype() == DType::kF64)
        sum.data<double>()[at] -= update;
      else
        sum.data<float>()[at] = static_cast<float>(static_cast<double>(sum.data<float>()[at]) - update);
    }
    outer_step(ctx_, {local.outer_learning_rate, local.outer_momentum, 1, 1}, sum, owned.weight, theta, momentum_of(owned), drift);
  });
  trainer_->weights_changed();
  trainer_->start_round();
}

namespace {

constexpr const char* kRoundsName = "federation.json";

/// What federation.json of a run directory has. It is written ahead of each round, so that nothing that a crash has cut off is forgotten: a round whose sum
/// the coordinator may have known is not repeated, and counts for the epsilon of members.
struct BegunRounds {
  int64_t round = 0;     ///< the last one that has begun
  int64_t releases = 0;  ///< sums that may have been known, those of refused rounds included
};

BegunRounds read_begun(const std::filesystem::path& run_directory, bool has_rounds) {
  const std::filesystem::path path = run_directory / kRoundsName;
  if (std::filesystem::exists(path)) {
    const nlohmann::json file = parse_object(read_text(path, 1 << 16), path.string());
    const auto number = [&](const char* key) {
      if (!file.contains(key) || !file[key].is_number_unsigned()) throw DataError(concat(path.string(), ": no valid member ", key));
      return file[key].get<int64_t>();
    };
    return {number("round"), number("releases")};
  }
  if (has_rounds) throw DataError(concat(path.string(), " is missing: it has the rounds that have begun; restore it"));
  return {};
}

}  // namespace

/// The rounds of a federation. Weights are released, that is saved and trained on, once the members have verified them.
class FederatedRounds {
 public:
  FederatedRounds(Run& run, const federation::Role& role, const federation::Identity& identity)
      : run_(run),
        role_(role),
        identity_(identity),
        coordinator_(identity, {role.config, role.terms, [&run] { return run.stop_.requested(); },
                                [&run](const std::string& line) { run.reporter_.message(line); }}),
        model_(*run.trainer_),
        begun_(read_begun(run.directory(), run.done_ > 0)),
        step_(std::max(run.done_, std::min(begun_.round * role.round_steps, run.last_step()))) {
    keep(*run.trainer_, released_);
  }

  /// True if a stop was requested.
  bool take() {
    run_.reporter_.message(concat("coordinating a federation of ", counted(role_.config.members, "member"), " at port ", coordinator_.port(), ": ",
                                  counted(run_.total_ / role_.round_steps, "round"), " of ", counted(role_.round_steps, "step")));
    run_.progress_.set_timeout(1e9);  // members take as long as they like
    for (;;) {
      run_.progress_.act(concat("waiting for members after step ", step_));
      if (!coordinator_.gather()) break;
      verify();
      if (run_.stop_.requested()) break;
      if (!is_verified_) continue;
      if (step_ == run_.last_step()) return end();
      train();
    }
    if (is_new_) restore(*run_.trainer_, released_);
    if (run_.checkpoints_->last_saved() < run_.done_) run_.save(run_.done_);
    return true;
  }

 private:
  int64_t round() const { return step_ / role_.round_steps; }

  /// Members evaluate the current weights. New ones are released or refused; then is_verified_ says whether a round may begin from them.
  void verify() {
    is_verified_ = false;
    const std::map<int, federation::HeldOutLoss> losses = coordinator_.evaluate(step_, model_.weights());
    if (run_.stop_.requested() || std::ssize(coordinator_.present()) < fewest_members(role_.config)) return;
    const std::optional<double> loss = mean_loss(losses), increase = loss_increase(released_.losses, losses);
    if (is_new_) {
      if (increase) figures_["loss_increase"] = *increase;
      const FederationConfig& f = role_.config;
      if (loss && !std::isfinite(*loss)) return refuse("a held-out loss is not finite");
      if (f.max_loss_increase && increase && *increase > *f.max_loss_increase)
        return refuse(concat("the held-out loss grows by ", *increase, ", and security.federation.max_loss_increase is ", *f.max_loss_increase));
      report(true, concat("round ", round(), " of ", run_.total_ / role_.round_steps, ": ", counted(std::ssize(figures_["members"]), "member"),
                          ", update norm ", figures_["update_norm"].get<double>()));
      is_new_ = false;
      keep(*run_.trainer_, released_);
    }
    is_verified_ = true;
    run_.done_ = step_;
    released_.losses = losses;
    if (loss && step_ > 0) report_losses(losses, *loss);
    if (run_.checkpoints_->last_saved() < step_ && (step_ == run_.last_step() || run_.rounds().is_due(step_, run_.config_.checkpoint.every)))
      run_.save(step_);
    run_.checkpoints_->poll();
  }

  void report_losses(const std::map<int, federation::HeldOutLoss>& losses, double mean) {
    std::vector<std::pair<std::string, double>> by_member;
    for (const auto& [member, one] : losses) by_member.emplace_back(identity_.roster.name_of(member), one.loss);
    run_.reporter_.evaluation(step_, mean, by_member);
  }

  void report(bool is_accepted, const std::string& text) {
    figures_["accepted"] = is_accepted;
    run_.reporter_.event("round", step_, figures_, text);
  }

  void refuse(const std::string& why) {
    restore(*run_.trainer_, released_);
    is_new_ = false;
    report(false, concat("round ", round(), " is refused: ", why, "; the weights stay what they were"));
  }

  void train() {
    const auto begin = std::chrono::steady_clock::now();
    run_.progress_.act(concat("round ", round() + 1));
    begin_round(round() + 1);
    const std::optional<federation::MeanUpdate> update = coordinator_.train(round() + 1, model_.numel());
    if (!update && !coordinator_.has_revealed()) return;
    step_ += role_.round_steps;
    if (!update) {
      figures_ = {{"round", round()}};
      return refuse("its sum could not be unmasked");
    }
    run_.trainer_->set_accepted_steps(step_);
    const double norm = norm_of(update->mean);
    figures_ = {{"round", round()}, {"members", nlohmann::ordered_json::array()}, {"update_norm", norm}};
    for (const int member : update->members) figures_["members"].push_back(identity_.roster.name_of(member));
    figures_["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (role_.config.noise) figures_["epsilon"] = epsilon();
    const std::optional<double>& most = role_.config.max_update_norm;
    if (!std::isfinite(norm) || (most && norm > *most))
      return refuse(concat("the norm of the update is ", norm, most ? concat(", and security.federation.max_update_norm is ", *most) : ""));
    run_.take_outer_step(model_, update->mean);
    is_new_ = true;
  }

  /// Before members send anything.
  void begin_round(int64_t number) {
    begun_.round = number;
    ++begun_.releases;
    nlohmann::ordered_json file = {{"round", begun_.round}, {"releases", begun_.releases}};
    const FederationConfig& f = role_.config;
    if (f.noise) file.update({{"unit", "one member"}, {"clip", *f.clip}, {"noise", *f.noise}, {"delta", *f.delta}, {"epsilon", epsilon()}});
    write_durably(run_.directory() / kRoundsName, file.dump(2) + "\n");
  }
  /// Of the members, who take part in every round: Gaussian noise without sampling.
  double epsilon() const {
    const privacy::PrivateSteps all[] = {{1, *role_.config.noise, begun_.releases}};
    return privacy::rdp_epsilon(all, *role_.config.delta).value;
  }

  /// False: no stop was requested.
  bool end() {
    if (step_ == run_.total_) coordinator_.end();
    if (role_.config.noise)
      run_.reporter_.message(
          concat("privacy of members: epsilon ", epsilon(), " at delta ", *role_.config.delta, " after ", counted(begun_.releases, "sum")));
    return false;
  }

  Run& run_;
  const federation::Role& role_;
  const federation::Identity& identity_;
  federation::Coordinator coordinator_;
  federation::FlatModel model_;
  Released released_;
  BegunRounds begun_;
  int64_t step_;         ///< of the current weights
  bool is_new_ = false;  ///< they are not released yet
  bool is_verified_ = false;
  nlohmann::ordered_json figures_ = {};  ///< of the last round
};

/// True if a stop was requested.
bool Run::coordinate() {
  const FederationConfig& f = options_.federation->config;
  const federation::Identity identity = federation::read_identity(f.roster.value(), f.members, f.identity_key_file.value(), true);
  return FederatedRounds(*this, *options_.federation, identity).take();
}

}  // namespace trireme
