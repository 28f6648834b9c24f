#pragma once
// The coordinator of a federation: which members are there, and the rounds that it takes with them. It has no data; what it learns of members is their
// held-out losses, their numbers of training sequences, and the sum of their updates, or without secure aggregation each update.
//
// A round (McMahan et al. 2017, arXiv:1602.05629; Bonawitz et al. 2019, arXiv:1902.01046): all members that are there evaluate the current weights and
// train; those that have finished in time send their updates; the mean of these is the result. A member that fails, or takes longer than round_seconds,
// has left the round, and may come back in the next one.
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/federation/connection.h"
#include "trainer/federation/messages.h"

namespace trireme::federation {

struct CoordinatorOptions {
  FederationConfig config;
  std::array<uint8_t, 32> run{};  ///< random, the same in all jobs of the run
  std::string terms;              ///< JSON: the keys that decide what is trained, which members compare with theirs
  std::function<bool()> stopped;
  std::function<void(const std::string&)> say;  ///< called from the thread that calls the coordinator
  std::function<void()> before_sum = [] {};     ///< called before a sum of updates, or part of it, may become known
};

struct MeanUpdate {
  std::vector<int> members;  ///< those whose updates it has
  std::vector<double> mean;  ///< by element, weights before minus after; weighted
};

class Coordinator {
 public:
  /// Listens from now on. `identity` outlives the coordinator. Errors: those of MemberListener.
  Coordinator(const Identity& identity, CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  int port() const { return listener_.port(); }
  /// Waits until all members are there, or enough and wait_seconds are over. False if a stop was requested.
  bool gather();
  /// Takes those that have connected since the last call. gather() does that.
  void admit();
  std::vector<int> present() const;
  /// Sends the weights after step `step` to all members that are there; returns the mean losses, in nats, of those that have held-out data; NaN if one is not finite. Wire: size of the weights for each member.
  std::map<int, double> evaluate(int64_t step, std::span<const std::byte> weights);
  /// After evaluate(): lets all members that are there train round `round` (from 1) and sums their updates of `numel` elements. Nothing if a stop was requested, or fewer than the
  /// minimum were left. Wire: 8 bytes per element from each member. Memory: 8 bytes per element for the sum, and for each of two updates that arrive.
  std::optional<MeanUpdate> train(int64_t round, int64_t numel);
  /// After train() has returned nothing: members have revealed what unmasks a sum, so that this round must not be repeated.
  bool has_revealed() const { return has_revealed_; }
  /// Tells the members that training is over, and those that come within wait_seconds, after it has sent them the weights after step `step`.
  void end(int64_t step, std::span<const std::byte> weights);

 private:
  struct Summed {
    std::vector<int> members;
    std::vector<uint64_t> values;
  };
  using Ask = std::function<void(int member, const Link& link)>;
  void listen();
  struct Arrival {
    Link link = Link();
    int64_t sequences = 0;  ///< of its training data
    std::string problem;    ///< of a connection that was refused; `link` may be that of another one
  };
  struct Greeting {
    std::unique_ptr<Link> link;  ///< given away once the member has answered
    std::thread thread;
  };
  void greet(int member, Link& link);
  void end_greeting(Greeting& greeting);
  std::vector<int> ask_all(const std::vector<int>& members, double seconds, const Ask& ask);
  double phase_seconds() const { return options_.config.round_seconds; }
  void leave(int member, const std::string& reason);
  void remove_closed();
  std::vector<int> collect_updates(const std::vector<int>& members, const std::function<std::string(int)>& question,
                                   const std::function<void(int)>& admit, std::span<uint64_t> sum);
  std::optional<Summed> sum_plainly(const std::vector<int>& members, int64_t numel);
  std::optional<Summed> sum_securely(const std::vector<int>& members, int64_t numel, const RoundTerms& terms);
  std::string name_of(int member) const { return identity_.roster.name_of(member); }
  int64_t fewest() const;

  const Identity& identity_;
  CoordinatorOptions options_;
  std::map<int64_t, uint32_t> attempts_;
  crypto::Hash weights_{};  ///< SHA-256 of those that members have got last
  MemberListener listener_;
  bool has_revealed_ = false;
  std::map<int, Link> links_;         ///< of those that are there
  std::map<int, int64_t> sequences_;  ///< of their training data
  std::mutex mutex_;                  ///< guards arrivals_ and is_closing_
  std::condition_variable arrived_;
  std::map<int, Arrival> arrivals_;    ///< the last connection of each
  std::map<int, Greeting> greetings_;  ///< by member; of the thread that runs listen()
  bool is_closing_ = false;
  std::thread thread_;  ///< runs listen()
};

/// A member has refused to answer a question, and stays.
struct Refusal : DataError {
  using DataError::DataError;
};
/// Sends a question and returns the body of the answer. Errors: those of send() and receive(); Refusal with its text.
std::string ask(const Link& link, Kind kind, std::string body);

}  // namespace trireme::federation
