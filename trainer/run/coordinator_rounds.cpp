#include "trainer/run/coordinator_rounds.h"

#include <cmath>

#include "kernels/core/counted.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/outer_step.h"
#include "trainer/config/check_federation.h"
#include "trainer/federation/coordinator.h"
#include "trainer/federation/flat_model.h"
#include "trainer/federation/votes.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/privacy/accountant.h"

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
  std::map<int, double> losses;
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
  trainer.updates().start_round();
}

double norm_of(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// The outer step of kernels/ops/outer_step.h on the mean update of a round.
void take_outer_step(RunContext& run, const federation::FlatModel& model, std::span<const double> mean) {
  const LocalConfig& local = run.config.training.local;
  model.visit_boxes([&](const OwnedBox& owned, std::span<const int64_t> numbers) {
    const Tensor theta = copied(run.ctx, owned.weight), sum = copied(run.ctx, owned.weight), drift = copied(run.ctx, owned.weight);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double update = mean[static_cast<size_t>(numbers[i])];
      const auto at = static_cast<int64_t>(i);
      if (sum.dtype() == DType::kF64)
        sum.data<double>()[at] -= update;
      else
        sum.data<float>()[at] = static_cast<float>(static_cast<double>(sum.data<float>()[at]) - update);
    }
    outer_step(run.ctx, {local.outer_learning_rate, local.outer_momentum, 1, 1}, sum, owned.weight, theta, momentum_of(owned), drift);
  });
  run.trainer->weights_changed();
  run.trainer->updates().start_round();
}

constexpr const char* kRoundsName = "federation.json";

/// federation.json of the coordinator. It is written before each sum may become known, so that nothing that a crash has cut off is forgotten: that round is not
/// repeated, and counts for the epsilon of members.
struct SummedRounds {
  std::array<uint8_t, 32> run{};  ///< drawn at the beginning
  int64_t round = 0;              ///< the last one of which the sum may be known
  int64_t sums = 0;               ///< that may be known, those of refused rounds included
  nlohmann::json privacy;         ///< clip, noise and delta; null: no noise
};

nlohmann::json privacy_of(const FederationConfig& f) {
  return f.noise ? nlohmann::json{{"clip", *f.clip}, {"noise", *f.noise}, {"delta", *f.delta}} : nlohmann::json();
}

/// Errors: DataError if the file is missing, damaged, or more than a round ahead of the checkpoint after round `done`; ConfigError if the privacy of members has changed.
SummedRounds read_summed(const std::filesystem::path& run_directory, int64_t done, const FederationConfig& f) {
  const std::filesystem::path path = run_directory / kRoundsName;
  SummedRounds summed;
  summed.privacy = privacy_of(f);
  if (!std::filesystem::exists(path)) {
    if (done > 0) throw DataError(concat(path.string(), " is missing: it has the rounds whose sums may be known; restore it"));
    crypto::draw(summed.run);
    return summed;
  }
  const nlohmann::json file = parse_object(read_text(path, 1 << 16), path.string());
  summed.round = integer_member(file, "round", path.string());
  summed.sums = integer_member(file, "sums", path.string());
  if (!crypto::from_hex(string_member(file, "run", path.string()), summed.run)) throw DataError(concat(path.string(), ": no valid run"));
  if (file.value("privacy", nlohmann::json()) != summed.privacy)
    throw ConfigError(concat("security.federation.noise: clip, noise and delta of this run are ", file.value("privacy", nlohmann::json()).dump(),
                             " in ", path.string(), ", and ", summed.privacy.dump(),
                             " now, for which no epsilon is computed; allowed the same as before"));
  if (summed.round > done + 1)
    throw DataError(concat(path.string(), " has ", summed.round,
                           " as the last round whose sum may be known, but the newest checkpoint is that of round ", done,
                           "; restore the checkpoints, or use another run.directory"));
  return summed;
}

/// The rounds of a federation. Weights are released, that is saved and trained on, once the members have verified them.
class FederatedRounds {
 public:
  FederatedRounds(RunContext& run, SavePhase& saves, const federation::Role& role, const federation::Identity& identity)
      : run_(run),
        saves_(saves),
        role_(role),
        identity_(identity),
        summed_(read_summed(run.directory(), run.done / role.round_steps, role.config)),
        coordinator_(identity, {role.config, summed_.run, role.terms, [&run] { return run.stop.requested(); },
                                [&run](const std::string& line) { run.reporter.message(line); }, [this] { note_sum(); }}),
        model_(*run.trainer),
        step_(std::max(run.done, summed_.round * role.round_steps)) {
    keep(*run.trainer, released_);
  }

  /// For members that were away when the run ended.
  void serve_last_weights() { coordinator_.end(step_, model_.weights()); }

  /// True if a stop was requested.
  bool take() {
    run_.reporter.message(concat("coordinating a federation of ", counted(role_.config.members, "member"), " at port ", coordinator_.port(), ": ",
                                 counted(run_.total / role_.round_steps, "round"), " of ", counted(role_.round_steps, "step")));
    if (step_ > run_.done) run_.reporter.message(concat("round ", round(), " is skipped: its sum may be known, but its result was not saved"));
    write_summed();
    run_.progress.set_timeout(kNoTimeLimit);  // members have time limits of their own
    for (;;) {
      run_.progress.act(concat("waiting for members after step ", step_));
      if (!coordinator_.gather()) break;
      verify();
      if (run_.stop.requested()) break;
      if (!is_verified_) continue;
      if (step_ >= run_.last_step()) return end();
      train();
      if (run_.stop.requested()) break;
    }
    if (is_new_) drop();
    return true;
  }

 private:
  int64_t round() const { return step_ / role_.round_steps; }

  /// Members evaluate the current weights. New ones are released or refused; then is_verified_ says whether a round may begin from them.
  void verify() {
    is_verified_ = false;
    const std::map<int, double> losses = coordinator_.evaluate(step_, model_.weights());
    if (run_.stop.requested() || std::ssize(coordinator_.present()) < fewest_members(role_.config)) return;
    const std::optional<double> loss = federation::agreed_loss(losses), increase = federation::agreed_increase(released_.losses, losses);
    if (is_new_) {
      if (increase) figures_["loss_increase"] = *increase;
      const FederationConfig& f = role_.config;
      if (loss && !std::isfinite(*loss)) return refuse("the held-out losses of half of the members or more are not finite");
      if (f.max_loss_increase && !increase) return refuse("no member evaluated both the old and the new weights");
      if (f.max_loss_increase && !(*increase <= *f.max_loss_increase))
        return refuse(concat("the held-out loss grows by ", *increase, ", and security.federation.max_loss_increase is ", *f.max_loss_increase));
      report(true, concat("round ", round(), " of ", run_.total / role_.round_steps, ": ", counted(std::ssize(figures_["members"]), "member"),
                          ", update norm ", figures_["update_norm"].get<double>()));
      is_new_ = false;
      keep(*run_.trainer, released_);
      run_.trainer->scalars().set_accepted_steps(step_);
    }
    is_verified_ = true;
    run_.done = step_;
    released_.losses = losses;
    if (loss && std::isfinite(*loss) && step_ > 0) report_losses(losses, *loss);
    if (run_.checkpoints->last_saved() == step_) return;
    saves_.save(step_);
    run_.checkpoints->finish();  // before the sum of the next round may be known
  }

  void report_losses(const std::map<int, double>& losses, double agreed) {
    std::vector<std::pair<std::string, double>> by_member;
    for (const auto& [member, loss] : losses) by_member.emplace_back(identity_.roster.name_of(member), loss);
    run_.reporter.evaluation(step_, agreed, by_member);
  }

  void report(bool is_accepted, const std::string& text) {
    figures_["accepted"] = is_accepted;
    run_.reporter.event("round", step_, figures_, text);
  }

  /// The weights and the momentum become those that were released last.
  void drop() {
    restore(*run_.trainer, released_);
    is_new_ = false;
  }

  void refuse(const std::string& why) {
    drop();
    report(false, concat("round ", round(), " is refused: ", why, "; the weights stay what they were"));
  }

  void train() {
    const auto begin = std::chrono::steady_clock::now();
    run_.progress.act(concat("round ", round() + 1));
    const std::optional<federation::MeanUpdate> update = coordinator_.train(round() + 1, model_.numel());
    if (!update && (!coordinator_.has_revealed() || run_.stop.requested())) return;
    step_ += role_.round_steps;
    if (!update) {
      figures_ = {{"round", round()}};
      return refuse("its sum could not be computed");
    }
    const double norm = norm_of(update->mean);
    figures_ = {{"round", round()}, {"members", nlohmann::ordered_json::array()}, {"update_norm", norm}};
    for (const int member : update->members) figures_["members"].push_back(identity_.roster.name_of(member));
    figures_["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (role_.config.noise) figures_["epsilon"] = epsilon();
    const std::optional<double>& most = role_.config.max_update_norm;
    if (!std::isfinite(norm) || (most && norm > *most))
      return refuse(concat("the norm of the update is ", norm, most ? concat(", and security.federation.max_update_norm is ", *most) : ""));
    take_outer_step(run_, model_, update->mean);
    is_new_ = true;
  }

  /// The sum of the round that is being trained may become known.
  void note_sum() {
    summed_.round = round() + 1;
    ++summed_.sums;
    write_summed();
  }
  void write_summed() const {
    nlohmann::ordered_json file = {{"run", crypto::hex(summed_.run)}, {"round", summed_.round}, {"sums", summed_.sums}, {"privacy", summed_.privacy}};
    if (role_.config.noise) file["epsilon"] = epsilon();
    write_durably(run_.directory() / kRoundsName, file.dump(2) + "\n");
  }
  /// The epsilon of a member that takes part in every round: Gaussian noise without sampling.
  double epsilon() const {
    const privacy::PrivateSteps all[] = {{1, *role_.config.noise, summed_.sums}};
    return privacy::rdp_epsilon(all, *role_.config.delta).value;
  }

  /// False: no stop was requested.
  bool end() {
    if (step_ == run_.total) coordinator_.end(step_, model_.weights());
    if (role_.config.noise)
      run_.reporter.message(
          concat("privacy of members: epsilon ", epsilon(), " at delta ", *role_.config.delta, " after ", counted(summed_.sums, "sum")));
    return false;
  }

  RunContext& run_;
  SavePhase& saves_;
  const federation::Role& role_;
  const federation::Identity& identity_;
  SummedRounds summed_;
  federation::Coordinator coordinator_;
  federation::FlatModel model_;
  Released released_;
  int64_t step_;         ///< the last step that the current weights have
  bool is_new_ = false;  ///< they are not released yet
  bool is_verified_ = false;
  nlohmann::ordered_json figures_ = {};  ///< of the last round
};

}  // namespace

bool coordinate_rounds(RunContext& run, SavePhase& saves, bool is_finished) {
  const federation::Role& role = *run.options.federation;
  const FederationConfig& f = role.config;
  const federation::Identity identity = federation::read_identity(f.roster.value(), f.members, f.identity_key_file.value(), true);
  FederatedRounds rounds(run, saves, role, identity);
  if (!is_finished) return rounds.take();
  rounds.serve_last_weights();
  return false;
}

}  // namespace trireme
