#pragma once
// Private to run.cpp and run_setup.cpp.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/run/anomaly_phase.h"
#include "trainer/run/arrival_phase.h"
#include "trainer/run/coordinator_rounds.h"
#include "trainer/run/evaluation_phase.h"
#include "trainer/run/job_forecast.h"
#include "trainer/run/job_reports.h"
#include "trainer/run/kernel_notes.h"
#include "trainer/run/member_rounds.h"
#include "trainer/run/peer_phase.h"
#include "trainer/run/privacy_phase.h"
#include "trainer/run/rebalance_phase.h"
#include "trainer/run/rejection_phase.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"
#include "trainer/run/save_phase.h"
#include "trainer/run/steps.h"
#include "trainer/run/text_samples.h"

namespace trireme {

/// One rank's run: the order in which its phases act. All ranks agree on the outcome of each stage of the set-up and of each round.
class Run {
 public:
  /// `log` records the communication of `world` if steps are to be traced; else null. `exchanges` observes it.
  Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress, CommunicationLog* log,
      ExchangeLog& exchanges);
  ExitCode loop();

 private:
  /// What a rank asks for at the end of a round, in the order of precedence: the last one that any rank asks for is served, and the others remain set.
  enum class Request : uint8_t { kNone, kGather, kSaveDue, kSave, kStop, kSaveFailed };

  void open_on_all_ranks();
  void agree_on_session();
  void open_data();
  void make_trainer();
  void resume();
  Resumed load(const std::vector<std::string>& checkpoints);
  std::vector<std::string> candidates();
  void take_lock();
  void sweep_finished(const Resumed& resumed);
  void begin(const Resumed& resumed);
  void open_directory(const Resumed& resumed);
  void report_start(const std::filesystem::path& aside);
  void report_change(const Resumed& resumed);
  void open_record();
  void tune();

  ExitCode train();
  bool coordinate() { return coordinate_rounds(run_, saves_, is_finished()); }
  bool train_steps();
  void take_step(int64_t step);
  bool end_round(int64_t step);
  Request agreed_request(int64_t step);
  void end_saves();
  ExitCode end_training(bool stopped);
  /// Nothing is left to do in the run directory.
  bool has_nothing_to_do() const { return is_finished() && !peers_.has_unsaved_state(); }
  bool is_finished() const { return evaluation_.is_complete() && (run_.done >= run_.last_step() || evaluation_.stopper().reached()); }

  RunContext run_;
  JobForecast forecast_{run_};
  JobReports jobs_{run_};
  KernelNotes kernels_{run_};
  TextSamples samples_{run_};
  SavePhase saves_{run_, jobs_};
  RejectionPhase rejections_{run_, saves_};
  AnomalyPhase anomalies_;
  ArrivalPhase arrivals_{run_};
  PrivacyPhase privacy_{run_};
  RebalancePhase rebalance_{run_};
  EvaluationPhase evaluation_{run_, kernels_};
  PeerPhase peers_{run_, jobs_};
  Steps steps_{run_, anomalies_, kernels_};
  MemberRounds member_{run_, evaluation_};
};

}  // namespace trireme
