#include "trainer/federation/coordinator.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <semaphore>
#include <utility>

#include "kernels/core/counted.h"
#include "parallel/crypto/aead.h"
#include "parallel/crypto/secure_sum.h"
#include "trainer/config/check_federation.h"
#include "trainer/federation/votes.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"

namespace trireme::federation {
namespace {

constexpr double kFarewellSeconds = 30;            ///< for the answers to kEnd
constexpr std::chrono::seconds kGreetingTime{30};  ///< between two pieces of the answer to kConfiguration
constexpr std::ptrdiff_t kUpdatesAtOnce = 2;

crypto::Bytes bytes_of_text(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of_bytes(const crypto::Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

std::string seconds_text(double seconds) { return concat(seconds, seconds == 1 ? " second" : " seconds"); }

/// A connection of a member that waits has nothing to read, unless it is closed.
bool is_closed(const Link& link) {
  pollfd source{link.file(), POLLIN, 0};
  return ::poll(&source, 1, 0) != 0;
}

/// Checks that ranges of (first, count) tile [0, numel).
void check_complete(std::vector<std::pair<uint64_t, uint64_t>> ranges, uint64_t numel, const std::string& peer) {
  std::ranges::sort(ranges);
  uint64_t end = 0;
  for (const auto& [first, count] : ranges) {
    if (first != end) throw DataError(concat(peer, " has left out elements of its update, or sent some twice"));
    end += count;
  }
  if (end != numel) throw DataError(concat(peer, " has left out elements of its update"));
}

/// The stream that follows the answer to kMask.
std::vector<uint64_t> receive_update(const Link& link, uint64_t numel) {
  std::vector<uint64_t> values(numel);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint64_t left = numel;;) {
    Range range;
    if (!link.receive(std::as_writable_bytes(std::span(&range, 1))))
      throw IoError(concat(link.peer(), " has closed its connection within its update"));
    if (range.count == 0) break;
    if (range.count > kLongestRange || range.first > numel || range.count > numel - range.first || range.count > left)
      throw DataError(concat(link.peer(), " has sent elements that the model does not have"));
    const std::span<uint64_t> part = std::span(values).subspan(range.first, range.count);
    if (!link.receive(std::as_writable_bytes(part))) throw IoError(concat(link.peer(), " has closed its connection within its update"));
    left -= range.count;
    ranges.emplace_back(range.first, range.count);
  }
  check_complete(std::move(ranges), numel, link.peer());
  return values;
}

void add_to(std::span<uint64_t> sum, std::span<const uint64_t> values) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

}  // namespace

/// The body of the answer to a question that has been sent. Errors: those of ask().
static std::string answer_of(const Link& link) {
  std::optional<Message> answer = receive(link);
  if (!answer) throw IoError(concat(link.peer(), " has closed its connection"));
  if (answer->kind == Kind::kRefusal) throw Refusal(printable(answer->body));
  if (answer->kind != Kind::kAnswer) throw DataError(concat(link.peer(), " has not answered the question"));
  return std::move(answer->body);
}

std::string ask(const Link& link, Kind kind, std::string body) {
  send(link, {kind, std::move(body)});
  return answer_of(link);
}

Coordinator::Coordinator(const Identity& identity, CoordinatorOptions options)
    : identity_(identity), options_(std::move(options)), listener_(options_.config.address, static_cast<int>(options_.config.port), identity) {
  thread_ = std::thread([this] { listen(); });
}

Coordinator::~Coordinator() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  thread_.join();
  for (auto& [member, greeting] : greetings_) end_greeting(greeting);
}

int64_t Coordinator::fewest() const { return fewest_members(options_.config); }

std::vector<int> Coordinator::present() const {
  std::vector<int> members;
  for (const auto& [member, link] : links_) members.push_back(member);
  return members;
}

void Coordinator::listen() {
  for (;;) {
    std::optional<std::pair<int, Link>> arrival = listener_.next(Clock::now() + kLook);
    {
      const std::lock_guard lock(mutex_);
      if (is_closing_) return;
    }
    if (!arrival) continue;
    const int member = arrival->first;
    Greeting& greeting = greetings_[member];
    end_greeting(greeting);  // a member that connects again
    greeting.link = std::make_unique<Link>(std::move(arrival->second));
    greeting.thread = std::thread([this, member, &link = *greeting.link] { greet(member, link); });
  }
}

void Coordinator::end_greeting(Greeting& greeting) {
  if (!greeting.thread.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (greeting.link->is_open()) greeting.link->shut_down();
  }
  greeting.thread.join();
}

/// Runs beside everything else, because a member may take its time: only those that have said what they have take part in a round.
void Coordinator::greet(int member, Link& link) {
  std::string problem;
  int64_t sequences = 0;
  try {
    link.set_timeout(kGreetingTime);
    const nlohmann::json answer = parse_body(ask(link, Kind::kConfiguration, options_.terms), link.peer());
    sequences = integer_member(answer, "sequences", body_of_peer(link.peer()), 1, kMostSequences);
    link.set_timeout(std::chrono::seconds(0));
  } catch (const Refusal& refusal) {
    problem = concat("member ", name_of(member), " refuses: ", refusal.what());
  } catch (const std::exception& error) {
    problem = concat("member ", name_of(member), " has left: ", printable(error));
  }
  const std::lock_guard lock(mutex_);
  if (problem.empty())
    arrivals_[member] = {std::move(link), sequences, {}};
  else
    arrivals_[member].problem = problem;
  arrived_.notify_all();
}

void Coordinator::leave(int member, const std::string& reason) {
  if (links_.erase(member) == 0) return;
  options_.say(concat("member ", name_of(member), " has left: ", reason));
}

void Coordinator::remove_closed() {
  for (const int member : present())
    if (is_closed(links_.at(member))) leave(member, "it has closed its connection");
}

/// Asks all members at once, each in a thread of its own. Those that fail or have not answered after `seconds` leave; those that refuse stay. Returns those
/// that have answered.
std::vector<int> Coordinator::ask_all(const std::vector<int>& members, double seconds, const Ask& ask_one) {
  struct Asked {
    std::optional<std::string> problem = {};
    bool is_over = false, is_late = false, has_refused = false;
  };
  std::map<int, Asked> asked;
  for (const int member : members)
    if (links_.contains(member)) asked[member];
  std::mutex mutex;
  std::condition_variable done;
  std::vector<std::thread> threads;
  for (auto& [member, state] : asked) {
    threads.emplace_back([&, member = member, &link = links_.at(member), &state = state] {
      std::optional<std::string> problem;
      bool refuses = false;
      try {
        ask_one(member, link);
      } catch (const std::exception& error) {
        problem = printable(error);
        refuses = dynamic_cast<const Refusal*>(&error) != nullptr;
      }
      const std::lock_guard lock(mutex);
      state = {std::move(problem), true, state.is_late, refuses};
      done.notify_all();
    });
  }
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::unique_lock lock(mutex);
  const auto all_over = [&] { return std::ranges::all_of(asked, [](const auto& one) { return one.second.is_over; }); };
  while (!done.wait_for(lock, kLook, all_over)) {
    const bool is_late = Clock::now() >= end;
    if (!is_late && !options_.stopped()) continue;
    for (auto& [member, state] : asked) {
      if (state.is_over) continue;
      state.is_late = is_late;
      links_.at(member).shut_down();
    }
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  std::vector<int> good;
  for (const auto& [member, state] : asked) {
    if (!state.problem) good.push_back(member);
    if (!state.problem || options_.stopped()) continue;
    if (state.has_refused)
      options_.say(concat("member ", name_of(member), " refuses: ", *state.problem));
    else
      leave(member, state.is_late ? concat("it has not answered for ", seconds_text(seconds)) : *state.problem);
  }
  return good;
}

/// Takes those that have been greeted. A member that connects again has lost its connection.
void Coordinator::admit() {
  std::map<int, Arrival> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (auto& [member, arrival] : arrivals) {
    if (!arrival.problem.empty()) options_.say(arrival.problem);
    if (!arrival.link.is_open()) continue;
    leave(member, "it has connected again");
    links_[member] = std::move(arrival.link);
    sequences_[member] = arrival.sequences;
    options_.say(concat("member ", name_of(member), " has joined"));
  }
}

bool Coordinator::gather() {
  const auto begin = Clock::now();
  const auto wait = std::chrono::duration<double>(options_.config.wait_seconds);
  for (bool told = false; !options_.stopped();) {
    admit();
    remove_closed();
    const auto here = std::ssize(links_);
    if (here == options_.config.members || (here >= fewest() && Clock::now() - begin >= wait)) return !options_.stopped();
    if (!std::exchange(told, true))
      options_.say(concat("waiting for members at port ", port(), ": ", here, " of ", options_.config.members, " are connected, and a round needs ",
                          fewest()));
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, kLook, [this] { return !arrivals_.empty(); });
  }
  return false;
}

std::map<int, double> Coordinator::evaluate(int64_t step, std::span<const std::byte> weights) {
  std::map<int, double> losses;
  std::mutex mutex;
  const std::string body = nlohmann::json{{"step", step}, {"bytes", weights.size()}}.dump();
  weights_ = crypto::sha256({reinterpret_cast<const char*>(weights.data()), weights.size()});
  ask_all(present(), phase_seconds(), [&](int member, const Link& link) {
    send(link, {Kind::kWeights, body});
    link.send(weights);
    const nlohmann::json said = parse_body(answer_of(link), link.peer());
    if (integer_member(said, "tokens", body_of_peer(link.peer())) == 0) return;
    const bool is_number = said.contains("loss") && said["loss"].is_number();  // null: not finite
    const double loss = is_number ? said["loss"].get<double>() : std::nan("");
    if (loss < 0) throw DataError(concat(link.peer(), " reports a held-out loss below zero"));
    const std::lock_guard lock(mutex);
    losses[member] = loss;
  });
  return losses;
}

std::optional<MeanUpdate> Coordinator::train(int64_t round, int64_t numel) {
  has_revealed_ = false;
  RoundTerms terms{options_.run, round, attempts_[round]++, 1};
  const bool by_samples = options_.config.weighting == MemberWeight::kSamples;
  if (by_samples) {
    std::vector<int64_t> sequences;
    for (const int member : present()) sequences.push_back(sequences_.at(member));
    terms.whole_weight = whole_weight(sequences);
  }
  const std::vector<int> trained = ask_all(present(), phase_seconds(), [&](int, const Link& link) { ask(link, Kind::kTrain, body_of(terms)); });
  if (options_.stopped()) return std::nullopt;
  if (std::ssize(trained) < fewest()) {
    options_.say(concat("round ", round, " is repeated: ", counted(std::ssize(trained), "member"), " finished it, and it needs ", fewest()));
    return std::nullopt;
  }
  const std::optional<Summed> sum = options_.config.secure ? sum_securely(trained, numel, terms) : sum_plainly(trained, numel);
  if (!sum) return std::nullopt;
  double weight = 0;
  for (const int member : sum->members) weight += by_samples ? weight_of(sequences_.at(member), terms.whole_weight) : 1.0;
  const crypto::FixedPoint numbers(kFractionBits, static_cast<size_t>(options_.config.members));
  MeanUpdate update{sum->members, std::vector<double>(sum->values.size())};
  for (size_t i = 0; i < update.mean.size(); ++i) update.mean[i] = numbers.decode(sum->values[i]) / weight;
  return update;
}

/// Adds the updates of members up in `sum`, kUpdatesAtOnce at a time. `question`: the body of kMask for a member. `admit` is called with each member whose update
/// has arrived, before it is added, and may throw. Returns the members whose updates were added.
std::vector<int> Coordinator::collect_updates(const std::vector<int>& members, const std::function<std::string(int)>& question,
                                              const std::function<void(int)>& admit, std::span<uint64_t> sum) {
  std::mutex mutex;
  std::counting_semaphore<> places(kUpdatesAtOnce);
  return ask_all(members, phase_seconds() * static_cast<double>(members.size()), [&](int member, const Link& link) {
    places.acquire();
    const auto release = std::unique_ptr<void, std::function<void(void*)>>(&places, [&](void*) { places.release(); });
    ask(link, Kind::kMask, question(member));
    const std::vector<uint64_t> values = receive_update(link, sum.size());
    const std::lock_guard lock(mutex);
    admit(member);
    add_to(sum, values);
  });
}

std::optional<Coordinator::Summed> Coordinator::sum_plainly(const std::vector<int>& members, int64_t numel) {
  Summed sum{{}, std::vector<uint64_t>(static_cast<size_t>(numel))};
  options_.before_sum();
  has_revealed_ = true;
  sum.members = collect_updates(
      members, [](int) { return ""; }, [](int) {}, sum.values);
  if (std::ssize(sum.members) >= fewest()) return sum;
  if (!options_.stopped())
    options_.say(concat("the round ends without a result: ", counted(std::ssize(sum.members), "update"), " arrived, and it needs ", fewest()));
  return std::nullopt;
}

/// The phases of parallel/crypto/secure_sum.h.
std::optional<Coordinator::Summed> Coordinator::sum_securely(const std::vector<int>& members, int64_t numel, const RoundTerms& terms) {
  const crypto::SumRound sum_round(identity_.roster.member_keys(), static_cast<size_t>(fewest()), name_of_round(terms, weights_));
  crypto::SecureSumCoordinator sum(sum_round);
  Summed result{{}, std::vector<uint64_t>(static_cast<size_t>(numel))};
  std::mutex mutex;
  const auto left = [&] {
    std::vector<int> all;
    for (const size_t member : sum.members().members()) all.push_back(static_cast<int>(member));
    return all;
  };
  const auto phase = [&](const std::vector<int>& whom, Kind kind, const std::function<crypto::Bytes(int)>& question, const auto& take) {
    ask_all(whom, phase_seconds(), [&](int member, const Link& link) {
      const crypto::Bytes answer = bytes_of_text(ask(link, kind, text_of_bytes(question(member))));
      const std::lock_guard lock(mutex);
      take(static_cast<size_t>(member), answer);
    });
  };
  const auto always = [](const crypto::Bytes& bytes) { return [&bytes](int) { return bytes; }; };
  try {
    phase(
        members, Kind::kAdvertise, [](int) { return crypto::Bytes(); },
        [&](size_t member, const crypto::Bytes& answer) { sum.advertised(member, answer); });
    const crypto::Bytes keys = sum.key_list();
    phase(left(), Kind::kShare, always(keys), [&](size_t member, const crypto::Bytes& answer) { sum.shared(member, answer); });
    const std::vector<crypto::Bytes> inboxes = sum.inboxes();
    collect_updates(
        left(), [&](int member) { return text_of_bytes(inboxes[static_cast<size_t>(member)]); },
        [&](int member) { sum.masked(static_cast<size_t>(member)); }, result.values);
    const crypto::Bytes survivors = sum.survivors();
    phase(left(), Kind::kAgree, always(survivors), [&](size_t member, const crypto::Bytes& answer) { sum.confirmed(member, answer); });
    const crypto::Bytes confirmations = sum.confirmations();
    options_.before_sum();
    has_revealed_ = true;
    phase(left(), Kind::kUnmask, always(confirmations), [&](size_t member, const crypto::Bytes& answer) { sum.revealed(member, answer); });
    const crypto::Unmask unmask = sum.unmask();
    unmask.remove(0, result.values);
    for (const crypto::WrongShare& wrong : unmask.wrong_shares())
      options_.say(concat("warning: a share of member ", name_of(static_cast<int>(wrong.owner)), " that member ",
                          name_of(static_cast<int>(wrong.revealer)), " sent was wrong; the sum is right without it"));
    for (const size_t member : unmask.summed().members()) result.members.push_back(static_cast<int>(member));
    return result;
  } catch (const crypto::RoundAborted& aborted) {
    if (!options_.stopped())
      options_.say(concat("round ", terms.round, has_revealed_ ? " ends without a result: " : " is repeated: ", aborted.what()));
  } catch (const crypto::PartyError& error) {
    for (const size_t member : error.members.members()) leave(static_cast<int>(member), error.what());
    options_.say(concat("round ", terms.round, has_revealed_ ? " ends without a result: " : " is repeated: ", error.what()));
  }
  return std::nullopt;
}

void Coordinator::end(int64_t step, std::span<const std::byte> weights) {
  const auto tell = [&] {
    const std::vector<int> told = ask_all(present(), kFarewellSeconds, [&](int, const Link& link) { ask(link, Kind::kEnd, ""); });
    for (const int member : present()) links_.erase(member);
    return std::ssize(told);
  };
  auto left = options_.config.members - tell();
  const auto last = Clock::now() + std::chrono::duration<double>(options_.config.wait_seconds);
  if (left > 0)
    options_.say(concat("final weights not yet sent to ", counted(left, "member"), "; waiting ", seconds_text(options_.config.wait_seconds)));
  while (left > 0 && Clock::now() < last && !options_.stopped()) {
    admit();
    if (!links_.empty()) {
      evaluate(step, weights);
      left -= tell();
    }
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, kLook, [this] { return !arrivals_.empty(); });
  }
}

}  // namespace trireme::federation
