#pragma once
// Private to run.cpp, run_setup.cpp, run_evaluation.cpp, run_samples.cpp, run_anomalies.cpp, run_rebalance.cpp,
// run_asynchronous.cpp, run_peers.cpp, run_privacy.cpp, run_audit.cpp, run_member.cpp, run_coordinate.cpp and run_jobs.cpp.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/audit/run_audit.h"
#include "trainer/federation/flat_model.h"
#include "trainer/federation/member.h"
#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/memory.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/resilience/job_record.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/run/anomaly_window.h"
#include "trainer/run/checkpoint_manager.h"
#include "trainer/run/early_stopping.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/peer_copies.h"
#include "trainer/run/private_training.h"
#include "trainer/run/rank_figures.h"
#include "trainer/run/rebalancer.h"
#include "trainer/run/rejected_steps.h"
#include "trainer/run/reporter.h"
#include "trainer/run/rerun.h"
#include "trainer/run/resume.h"
#include "trainer/run/run.h"
#include "trainer/run/run_data.h"
#include "trainer/run/save_interval.h"
#include "trainer/run/steady_steps.h"
#include "trainer/run/step_timeout.h"
#include "trainer/run/tracer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// Seconds, for a rank that waits for other jobs, which may take as long as they like.
inline constexpr double kNoTimeLimit = 1e9;

/// The complete state of one rank's run. Members are initialised in the order of the constructor, and all ranks agree on the outcome of each stage.
class Run {
 public:
  /// `log` records the communication of `world` if steps are to be traced; else null. `exchanges` observes it.
  Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress, CommunicationLog* log,
      ExchangeLog& exchanges);
  ExitCode loop();

 private:
  friend class FederatedRounds;  ///< run_coordinate.cpp
  ExitCode train();
  bool train_steps();
  ExitCode end_training(bool stopped);
  void join_federation();
  federation::Order next_order();
  std::optional<int64_t> federate();
  bool take_weights(const federation::Order& order);
  void send_update();
  bool coordinate();
  void take_outer_step(const federation::FlatModel& model, std::span<const double> mean);
  audit::Job audit_job(const Resumed& resumed) const;
  void open_audit(const Resumed& resumed);
  void complete_audit(const Resumed& resumed);
  void end_audit(const char* status, const std::string& reason = "");
  privacy::History known_history(const Resumed& resumed) const;
  void digest_private_data();
  void open_privacy(const Resumed& resumed);
  void begin_privacy();
  void write_statement(int64_t step, const std::optional<privacy::Bracket>& tight) const;
  void announce_steps(int64_t step);
  void report_privacy();
  void open_data();
  void resume();
  void sweep_finished(const Resumed& resumed);
  std::vector<std::string> candidates();
  void open_directory(const Resumed& resumed);
  void open_record();
  void log(RankRecord::Level level, const std::string& text);
  void report_change(const Resumed& resumed);
  void make_trainer();
  void tune();
  void report_forecast(const std::vector<RankMemory>& measured);
  void report_memory();
  void report_goodput();
  void report_suspects();
  nlohmann::ordered_json use_of_sets(int64_t step) const;
  bool records_activations(int64_t step) const;
  bool makes_histograms(int64_t step) const;
  bool samples_at(int64_t step) const;
  void open_samples();
  void sample(int64_t step);
  std::vector<int32_t> continue_text(std::vector<int32_t> text);
  nlohmann::ordered_json more_figures(int64_t step, const StepResult& result);
  void end_if_diverged();
  void end_if_untrained();
  void share_island_reports();
  /// Those of the island that has rejected most steps in a row.
  const RejectedSteps& most_rejected() const { return most_rejected_ ? *most_rejected_ : rejected_; }
  std::string checkpoint_before_rejections() const;
  /// Those that the device applies to the next step.
  StepLimits step_limits() const { return rank_window_.add_to(judges_before_update() ? window_.limits() : StepLimits()); }
  bool judges_before_update() const { return config_.observe.anomalies.policy != AnomalyPolicy::kWarn; }
  void report_step(int64_t step, StepResult result, double seconds);
  void count_step(int64_t step, const StepResult& result);
  RerunVerdict repeat(int64_t step, const StepResult& result, const StepLimits& limits);
  void end_if_anomalous(int64_t step);
  void resume_split(const Resumed& resumed);
  void report_logged_splits();
  std::vector<double> seconds_of_data_ranks();
  void rebalance(int64_t step);
  double learning_rate_of(int64_t step) const;
  void read_replay();
  void resume_order(const Resumed& resumed);
  void report_logged_order();
  void report_staleness(int64_t step);
  void start_step(int64_t step);
  void finish_step();
  void continue_training();
  void set_timeout() { progress_.set_timeout(timeout_.seconds()); }
  void warn_of_plain_products(int64_t step);
  void report_attention(int64_t step);
  void check_replicas(int64_t step);
  void save(int64_t step);
  bool may_have_peer_copies();
  std::unique_ptr<PeerState> find_peer_state(const std::vector<std::string>& checkpoints);
  void open_peer_copies();
  void begin_peer_copies();
  bool copies_to_peers(int64_t step) const;
  void copy_to_peers(int64_t step);
  void report_peer_copy(const std::optional<PeerReport>& report);
  void end_peer_copies();
  void take_lock();
  /// Whether this job continues from copies that no checkpoint has yet.
  bool has_unsaved_state() const { return resumed_peers_ && done_ == resumed_peers_->step; }
  void record(const char* event, const nlohmann::ordered_json& fields);
  void record_start(const Resumed& resumed, const MetricsSink::Discarded& discarded);
  void record_slurm_start();
  void begin_intervals();
  void report_interval(int64_t step);
  bool saves_anyway(int64_t step) const;
  bool stop_agreed();
  std::string evaluation_text() const;
  bool evaluate(int64_t step);
  void recall_evaluation(const Resumed& resumed);
  bool finished() const { return evaluated_ && (done_ >= last_step() || stopper_.reached()); }
  bool evaluates_at(int64_t step) const;
  std::filesystem::path directory() const { return config_.run.directory; }
  /// The last step of this job. With training.local and training.asynchronous a round is not cut short: only after
  /// it a state can be saved.
  int64_t last_step() const {
    const int64_t affordable = privacy_ ? privacy_->last_step() : total_;
    return rounds().end_of(std::min({total_, affordable, options_.max_steps.value_or(total_)}));
  }
  /// Whether islands decide anything alone within a round.
  bool islands_decide() const { return config_.parallel.islands > 1 && !has_parameter_servers(config_.training); }
  bool coordinates() const { return options_.federation && options_.federation->coordinates; }
  bool is_member() const { return options_.federation && !options_.federation->coordinates; }
  Rounds rounds() const {
    return is_member() ? Rounds{.round = options_.federation->round_steps, .last = total_} : rounds_of(config_.training, total_);
  }
  bool reports() const { return world_.rank() == 0; }

  Context& ctx_;
  Communicator& world_;
  Config config_;
  RunOptions options_;
  Progress& progress_;
  StopRequest stop_;
  SaveRequest save_request_;
  const WallClock::time_point joined_ = WallClock::now();
  std::string session_;             ///< equal on every rank, new at every start
  std::vector<std::string> hosts_;  ///< of each rank
  std::unique_ptr<RunData> data_;
  std::string training_data_;  ///< TokenDataset::identity of the training set
  std::unique_ptr<Trainer> trainer_;
  std::optional<Tracer> tracer_;
  std::optional<RankFigures> figures_;         ///< from the first step on
  std::optional<Rebalancer> rebalancer_;       ///< with resilience.rebalance
  std::vector<double> data_rank_seconds_;      ///< with it: compute of the last finished step, the same on all ranks
  LoggedSplits logged_splits_;                 ///< with it: those of an earlier job in the steps that this one repeats
  LoggedOrder logged_order_;                   ///< with training.asynchronous: of the steps that an earlier job has trained, and this one repeats
  LoggedOrder replayed_order_;                 ///< with it: of training.asynchronous.replay
  StalenessHistogram staleness_;               ///< with it: of the gradients or exchanges of this job
  std::optional<Sampler> blend_;               ///< rank 0: the sample order, if data.train has groups with weights
  std::unique_ptr<RunLock> lock_;              ///< rank 0: held until this run ends
  bool has_lock_ = false;                      ///< this job holds it; the same on all ranks
  std::unique_ptr<audit::RunAudit> audit_;     ///< rank 0, with security.audit
  Reporter reporter_;                          ///< has an effect on rank 0 only
  bool is_recorded_ = false;                   ///< rank 0: this job is in jobs.jsonl
  bool record_failed_ = false;                 ///< rank 0: and a message has said so
  double load_seconds_ = 0;                    ///< for the state
  std::optional<SaveInterval> save_interval_;  ///< rank 0, with checkpoint.every auto, from the first step on
  int64_t reported_interval_ = 0;              ///< with it: the last one in a message
  std::unique_ptr<CheckpointManager> checkpoints_;  ///< uses lock_ and reporter_ until its destruction
  std::unique_ptr<PeerCopies> peers_;               ///< with resilience.peer_copies
  std::optional<PeerGeneration> resumed_peers_;     ///< those that this job has continued from
  std::string peer_problem_;                        ///< why this job makes none; empty: it does, or is not to
  std::unique_ptr<PrivateTraining> privacy_;        ///< with security.privacy, and after it
  std::string samples_digest_, weights_digest_;     ///< with it: PrivacyStart::data and initial_weights; empty until they are computed
  int64_t announced_ = 0;                           ///< with it: the last step in privacy.json
  // Only in a member of a federation:
  std::unique_ptr<federation::Identity> identity_;  ///< rank 0
  std::unique_ptr<federation::Member> member_;      ///< rank 0
  std::unique_ptr<federation::FlatModel> model_;
  int64_t round_ = 0;  ///< being trained, from 1; 0: none
  double round_weight_ = 1;
  bool has_ended_ = false;               ///< the coordinator has said so
  std::vector<RankMemory> memory_;       ///< forecast by pipeline rank
  std::optional<RunForecast> forecast_;  ///< of step time, if this machine's hardware figures are known
  std::string accumulation_;             ///< cost of parallel.gradient_accumulation, if both values are possible
  std::string recompute_;                ///< the choice of training.recompute budget, as text
  RunHistory history_;                   ///< of the checkpoint that the run resumed from, with this resume's change and algorithms
  int64_t total_ = 0;
  int64_t done_ = 0;                     ///< steps completed
  int64_t padding_ = 0;                  ///< StepResult::padding of the steps reported since the start of this job
  bool evaluated_ = false;               ///< false if the evaluation due after step done_ is missing: a run may be stopped or killed in it
  Trainer::Evaluation last_evaluation_;  ///< of all validation sets
  EarlyStopping stopper_;
  std::optional<Tokenizer> tokenizer_;  ///< with observe.samples
  std::vector<std::vector<int32_t>> prompts_;
  std::optional<double> recalled_loss_;  ///< of an evaluation after step done_ that was made before this start
  struct Started {
    int64_t step;
    Trainer::StepInFlight in_flight;
    StepLimits limits = {};                ///< that the device applied
    LossScale loss_scale = {};             ///< before the step
    std::vector<Exchange> exchanges = {};  ///< with the policy rerun
  };
  ExchangeLog& exchanges_;
  std::optional<Started> started_;                  ///< step not yet reported
  Started finished_{};                              ///< the last reported step
  RejectedSteps rejected_;                          ///< up to the last reported step; of this rank's island
  std::optional<RejectedSteps> most_rejected_;      ///< with several islands, of the one that rejected most steps in a row, after the last round
  AnomalyWindow window_;                            ///< up to the last reported step
  RankWindow rank_window_;                          ///< likewise, of this rank
  std::string stop_reason_;                         ///< why the run ends at an anomalous step; empty: it does not
  std::set<std::string> plain_shapes_;              ///< those that have been warned of; the same on all ranks
  bool first_step_reported_ = false;                ///< with the shapes of its operations
  std::vector<AttentionKernels::Shape> attention_;  ///< those that have been reported; the same on all ranks
  std::chrono::steady_clock::time_point last_report_ = std::chrono::steady_clock::now();
  StepTimeout timeout_;
  SteadySteps steady_;
};

}  // namespace trireme
