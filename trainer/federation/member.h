#pragma once
// A member of a federation, as rank 0 of its job: it answers the questions of the coordinator (messages.h), of which those that concern the model become
// tasks for all ranks of the job.
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "parallel/crypto/secure_sum.h"
#include "trainer/config/config.h"
#include "trainer/federation/connection.h"
#include "trainer/federation/messages.h"

namespace trireme::federation {

struct MemberOptions {
  std::string address;  ///< of the coordinator, "HOST:PORT"
  FederationConfig config;
  std::string terms;  ///< as CoordinatorOptions::terms
  int64_t sequences;  ///< of the training data
  std::function<bool()> stopped;
  std::function<void(const std::string&)> say;
  int64_t revealed_round = 0;  ///< the last round of which the coordinator may know the sum; 0: none
  std::string run = {};        ///< of the coordinator's run in hexadecimal digits; empty: none yet
  /// Called with `run` and `revealed_round` before they change: what it makes durable is given to a later job of this member.
  std::function<void(const std::string& run, int64_t revealed_round)> keep = [](const std::string&, int64_t) {};
};

enum class Task : uint8_t { kStop, kWeights, kTrain, kSend, kEnd, kLost };

/// What all ranks are to do next.
struct Order {
  Task task = Task::kStop;
  int64_t step = 0;   ///< kWeights: the last step that they have
  int64_t bytes = 0;  ///< kWeights: their size
  int64_t round = 0;  ///< kTrain: from 1
  double weight = 1;  ///< kTrain: of this member in the mean
};

class Member {
 public:
  Member(const Identity& identity, MemberOptions options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Connects if there is no connection, and answers what needs no model, until there is something to do. kStop: a stop was requested. kLost: the connection was
  /// lost within a round, whose update is void; call it again.
  /// Errors: ConfigError if the coordinator has other terms or another roster, or does not know this member; IoError if there is no coordinator for
  /// round_seconds; InternalError if the coordinator does what secure aggregation forbids.
  Order next();

  /// kWeights: fills `bytes` with the next ones of the weights. False if the connection was lost.
  bool receive_weights(std::span<std::byte> bytes);
  /// kWeights: the held-out loss. `tokens` 0: there is no held-out data. kTrain: the steps are done.
  void answer_weights(double loss, int64_t tokens);
  void answer_trained(int64_t steps);
  /// kSend: begins the stream of the update; then runs of elements of it in any order; then its end. Runs are masked here.
  void begin_update();
  void send_update(int64_t first, std::span<uint64_t> values);
  void end_update();
  /// kSend: there is no update to send.
  void refuse_update(const std::string& why);

 private:
  void connect();
  void set_link(Link link);
  void keep(const std::string& run, int64_t revealed_round);
  std::optional<Message> next_question();
  std::optional<Order> take(const Message& question);
  std::optional<Order> take_phase(const Message& question);
  void compare_terms(const std::string& theirs);
  std::optional<Order> begin_training(const std::string& body);
  void answer(const std::string& body);
  void refuse(const std::string& why);
  void lose(const std::string& why);
  template <class Body>
  void guarded(const Body& body);

  const Identity& identity_;
  MemberOptions options_;
  Link link_;
  bool was_accepted_ = false;                   ///< the coordinator has asked something
  int refusals_ = 0;                            ///< connections that it has closed before
  std::optional<crypto::SecureSumMember> sum_;  ///< of the last kTrain, with secure aggregation
  std::optional<crypto::MaskKeys> masks_;
  bool owes_update_ = false;                ///< without secure aggregation: for round_
  int64_t round_ = 0;                       ///< of the last kTrain
  std::optional<crypto::Sha256> arriving_;  ///< of the weights that are being received
  std::optional<crypto::Hash> weights_;     ///< SHA-256 of the last weights, until they are trained
  std::mutex mutex_;                        ///< guards link_ against watcher_
  std::atomic<bool> is_over_ = false;
  std::thread watcher_;  ///< shuts the connection down when a stop is requested
};

}  // namespace trireme::federation
