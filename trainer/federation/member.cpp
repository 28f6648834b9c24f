#include "trainer/federation/member.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "trainer/config/check_federation.h"
#include "trainer/federation/votes.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"

namespace trireme::federation {
namespace {

constexpr std::chrono::seconds kConnectTime{10};
constexpr int kMostRefusals = 3;

/// The value of a key as its file has it.
std::string shown(const std::string& value) { return value.empty() ? "not set" : printable(value); }
std::string text_of_message(const crypto::Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
std::span<const uint8_t> bytes_of_message(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace

Member::Member(const Identity& identity, MemberOptions options) : identity_(identity), options_(std::move(options)) {
  watcher_ = std::thread([this] {
    while (!is_over_) {
      std::this_thread::sleep_for(kLook);
      const std::lock_guard lock(mutex_);
      if (options_.stopped()) link_.shut_down();
    }
  });
}

Member::~Member() {
  is_over_ = true;
  watcher_.join();
}

void Member::set_link(Link link) {
  const std::lock_guard lock(mutex_);
  link_ = std::move(link);
}

void Member::lose(const std::string& why) {
  set_link(Link());
  weights_.reset();
  sum_.reset();
  masks_.reset();
  owes_update_ = false;
  if (!options_.stopped()) options_.say(concat("lost the coordinator: ", why, "; connecting again"));
}

/// A lost connection is noticed by the next question.
template <class Body>
void Member::guarded(const Body& body) {
  if (!link_.is_open()) return;
  try {
    body();
  } catch (const Error& error) {
    lose(error.what());
  }
}

/// Waits for the coordinator, which may start later or again.
void Member::connect() {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.config.round_seconds));
  std::string told;
  for (auto pause = kLook; !options_.stopped(); pause = std::min<std::chrono::milliseconds>(2 * pause, std::chrono::seconds(2))) {
    try {
      set_link(connect_to_coordinator(options_.address, identity_, std::min(end, Clock::now() + kConnectTime)));
      link_.set_timeout(std::chrono::seconds(static_cast<int64_t>(std::ceil(options_.config.round_seconds))));
      return;
    } catch (const IoError& error) {
      if (Clock::now() >= end) throw;
      if (std::exchange(told, error.what()) != error.what()) options_.say(concat("waiting for the coordinator: ", error.what()));
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Nothing if the connection is lost, or a stop was requested.
std::optional<Message> Member::next_question() {
  while (!options_.stopped())
    if (ready_before(link_.file(), POLLIN, Clock::now() + kLook)) {
      try {
        std::optional<Message> question = receive(link_);
        if (!question) throw IoError("it has closed the connection");
        was_accepted_ = true;
        refusals_ = 0;
        return question;
      } catch (const Error& error) {  // a frame that was changed on its way is as good as none
        if (!was_accepted_ && ++refusals_ >= kMostRefusals)
          throw ConfigError(concat("the coordinator at ", options_.address, " refuses this member: it has closed ", refusals_,
                                   " connections at once. The key may not be that of this member in its roster"));
        lose(error.what());
        return std::nullopt;
      }
    }
  return std::nullopt;
}

Order Member::next() {
  for (;;) {
    if (!link_.is_open()) connect();
    if (options_.stopped()) return {Task::kStop};
    const std::optional<Message> question = next_question();
    if (options_.stopped()) return {Task::kStop};
    if (!question) return {Task::kLost};
    try {
      if (std::optional<Order> order = take(*question)) return std::move(*order);
    } catch (const IoError& error) {
      lose(error.what());
      return {Task::kLost};
    } catch (const DataError& error) {
      lose(error.what());
      return {Task::kLost};
    }
  }
}

void Member::answer(const std::string& body) { send(link_, {Kind::kAnswer, body}); }
void Member::refuse(const std::string& why) { send(link_, {Kind::kRefusal, why}); }

/// Answers a question. Returns what is left to do.
std::optional<Order> Member::take(const Message& question) {
  switch (question.kind) {
    case Kind::kConfiguration:
      compare_terms(question.body);
      answer(nlohmann::json{{"sequences", options_.sequences}}.dump());
      return std::nullopt;
    case Kind::kWeights: {
      sum_.reset();  // an update is that of the weights before it
      owes_update_ = false;
      masks_.reset();
      weights_.reset();
      arriving_.emplace();
      const nlohmann::json body = parse_body(question.body, link_.peer());
      return Order{.task = Task::kWeights,
                   .step = integer_member(body, "step", body_of_peer(link_.peer())),
                   .bytes = integer_member(body, "bytes", body_of_peer(link_.peer()))};
    }
    case Kind::kTrain: return begin_training(question.body);
    case Kind::kEnd: guarded([&] { answer("{}"); }); return Order{Task::kEnd};
    case Kind::kMask:
      if (options_.config.secure) break;
      // With secure aggregation, the phases see to it that there is one update a round. Two with independent noise would have less noise than one.
      if (!std::exchange(owes_update_, false)) {
        refuse("there is no update to send: a round has one");
        return std::nullopt;
      }
      keep(options_.run, round_);
      return Order{Task::kSend};
    case Kind::kAdvertise:
    case Kind::kShare:
    case Kind::kAgree:
    case Kind::kUnmask: break;
    default: throw DataError(concat(link_.peer(), " has sent what is no question"));
  }
  return take_phase(question);
}

/// The phases of secure aggregation. What is wrong with another member ends this attempt; a coordinator that does what the protocol forbids ends the job.
std::optional<Order> Member::take_phase(const Message& question) {
  try {
    if (!sum_) throw DataError("no round of secure aggregation has begun");
    const std::span<const uint8_t> body = bytes_of_message(question.body);
    switch (question.kind) {
      case Kind::kAdvertise: answer(text_of_message(sum_->advertise())); break;
      case Kind::kShare: answer(text_of_message(sum_->share(body))); break;
      case Kind::kAgree: answer(text_of_message(sum_->confirm(body))); break;
      case Kind::kUnmask: {
        const std::string shares = text_of_message(sum_->reveal(body));
        keep(options_.run, round_);
        answer(shares);
        break;
      }
      default: masks_ = sum_->mask(body); return Order{Task::kSend};
    }
  } catch (const crypto::PartyError& error) {
    refuse(error.what());
    if (error.members.size() == 0)
      throw InternalError(concat("the coordinator at ", options_.address, " is not honest, or its messages were changed: ", error.what()));
    options_.say(concat("this attempt is void: ", error.what()));
  } catch (const DataError& error) {
    refuse(error.what());
  }
  return std::nullopt;
}

/// Both sides must train the same model in the same way. Errors: ConfigError with the first keys that differ.
void Member::compare_terms(const std::string& theirs) {
  const nlohmann::json other = parse_body(theirs, link_.peer()), own = parse_value(options_.terms, "own terms");
  std::string differences;
  const auto value_in = [](const nlohmann::json& terms, const std::string& key) {
    if (!terms.contains(key)) return std::string();
    return terms[key].is_string() ? terms[key].get<std::string>() : terms[key].dump();
  };
  std::set<std::string> keys;
  for (const nlohmann::json* terms : {&own, &other})
    for (const auto& [key, value] : terms->items()) keys.insert(key);
  for (const std::string& key : keys)
    if (const std::string own_value = value_in(own, key), other_value = value_in(other, key); own_value != other_value)
      differences += concat("\n  ", printable(key), ": ", shown(own_value), " here, ", shown(other_value), " at the coordinator");
  if (differences.empty()) return;
  refuse(concat("it trains another model, or in another way:", differences));
  throw ConfigError(concat("the coordinator at ", options_.address, " has another configuration:", differences, "\nall members need the same"));
}

void Member::keep(const std::string& run, int64_t revealed_round) {
  options_.keep(run, revealed_round);
  options_.run = run;
  options_.revealed_round = revealed_round;
}

/// Errors: ConfigError if the coordinator has begun another run.
std::optional<Order> Member::begin_training(const std::string& text) {
  const RoundTerms terms = parse_round(text, link_.peer());
  const bool by_samples = options_.config.weighting == MemberWeight::kSamples;
  const std::string run = crypto::hex(terms.run);
  sum_.reset();
  masks_.reset();
  owes_update_ = false;
  if (options_.run.empty()) keep(run, 0);
  std::string why;
  if (run != options_.run)
    why =
        "this member has taken part in another run of a coordinator; allowed another run.directory of the member, or that of the coordinator before";
  else if (!weights_)
    why = "it has not sent the weights of this round";
  else if (!by_samples && terms.whole_weight != 1)
    why = "the weight of this member would not be what security.federation.weighting says";
  else if (terms.round <= options_.revealed_round)  // the same steps might give the same update: two sums over other members would tell it
    why = concat("round ", terms.round, " cannot be repeated: the coordinator may know its sum");
  if (!why.empty()) {
    refuse(why);
    if (run != options_.run) throw ConfigError(concat("the coordinator at ", options_.address, " is not the one of this run: ", why));
    return std::nullopt;
  }
  round_ = terms.round;
  owes_update_ = !options_.config.secure;
  if (options_.config.secure)
    sum_.emplace(
        crypto::SumRound(identity_.roster.member_keys(), static_cast<size_t>(fewest_members(options_.config)), name_of_round(terms, *weights_)),
        static_cast<size_t>(identity_.index), identity_.key);
  weights_.reset();
  return Order{.task = Task::kTrain, .round = terms.round, .weight = by_samples ? weight_of(options_.sequences, terms.whole_weight) : 1};
}

bool Member::receive_weights(std::span<std::byte> bytes) {
  guarded([&] {
    if (!link_.receive(bytes)) throw IoError("it has closed the connection");
    arriving_->update(bytes.data(), bytes.size());
  });
  return link_.is_open();
}

void Member::answer_weights(double loss, int64_t tokens) {
  if (arriving_) weights_ = arriving_->finish();
  arriving_.reset();
  guarded([&] { answer(nlohmann::json{{"loss", loss}, {"tokens", tokens}}.dump()); });  // null if it is not finite
}
void Member::answer_trained(int64_t steps) {
  guarded([&] { answer(nlohmann::json{{"steps", steps}}.dump()); });
}
void Member::begin_update() {
  guarded([&] { answer("{}"); });
}
void Member::send_update(int64_t first, std::span<uint64_t> values) {
  if (masks_) masks_->add(static_cast<uint64_t>(first), values);
  const Range range{static_cast<uint64_t>(first), values.size()};
  guarded([&] {
    link_.send(std::as_bytes(std::span(&range, 1)));
    link_.send(std::as_bytes(values));
  });
}
void Member::refuse_update(const std::string& why) {
  guarded([&] { refuse(why); });
}
void Member::end_update() {
  const Range end;
  guarded([&] { link_.send(std::as_bytes(std::span(&end, 1))); });
  masks_.reset();  // they hide one update
}

}  // namespace trireme::federation
