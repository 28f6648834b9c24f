#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "trainer/federation/flat_model.h"
#include "trainer/federation/member.h"
#include "trainer/run/evaluation_phase.h"
#include "trainer/run/run_context.h"

namespace trireme {

/// A member's part in the rounds of a federation: the weights come from the coordinator, which gets the update of each round. All calls are collective.
class MemberRounds {
 public:
  MemberRounds(RunContext& run, EvaluationPhase& evaluation) : run_(run), evaluation_(evaluation) {}

  void join();
  /// Does what the coordinator asks until it asks for the steps of a round; returns the first one. Nothing if a stop was requested, or the federation has
  /// ended. No step is in flight.
  std::optional<int64_t> next_round();
  /// The coordinator has said so.
  bool has_ended() const { return has_ended_; }

 private:
  federation::Order next_order();
  bool take_weights(const federation::Order& order);
  void send_update();

  RunContext& run_;
  EvaluationPhase& evaluation_;
  std::unique_ptr<federation::Identity> identity_;  ///< rank 0
  std::unique_ptr<federation::Member> member_;      ///< rank 0
  std::unique_ptr<federation::FlatModel> model_;
  int64_t round_ = 0;  ///< being trained, from 1; 0: none
  double round_weight_ = 1;
  bool has_ended_ = false;
};

}  // namespace trireme
