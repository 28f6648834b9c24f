// Rosters, connections and rounds of a federation, without models: members are threads that send vectors.
#include <sys/socket.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "parallel/crypto/fixed_point.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/strangers.h"
#include "trainer/federation/coordinator.h"
#include "trainer/federation/member.h"
#include "trainer/federation/votes.h"

using namespace trireme;
using namespace trireme::test;
using namespace trireme::federation;
using Catch::Matchers::Contains;

namespace {

/// Keys of a coordinator and members, and what each of them knows.
struct Parties {
  explicit Parties(int members) : coordinator_key(crypto::SigningKey::generate()) {
    std::string text = "coordinator ed25519-public:" + crypto::hex(coordinator_key.public_key()) + "\n";
    for (int member = 0; member < members; ++member) {
      keys.push_back(crypto::SigningKey::generate());
      text += concat("m", member, " ed25519-public:", crypto::hex(keys.back().public_key()), "\n");
    }
    roster = parse_roster(text, "roster");
  }
  Identity coordinator() const { return {roster, copy_of(coordinator_key), kCoordinator}; }
  Identity member(int index) const { return {roster, copy_of(keys[static_cast<size_t>(index)]), index}; }
  static crypto::SigningKey copy_of(const crypto::SigningKey& key) {
    crypto::SecretBytes seed = key.seed();
    return crypto::SigningKey::from_seed(seed.span());
  }
  crypto::SigningKey coordinator_key;
  std::vector<crypto::SigningKey> keys;
  Roster roster;
};

FederationConfig config_of_members(int members, bool secure) {
  FederationConfig config;
  config.members = members;
  config.port = 0;
  config.secure = secure;
  config.wait_seconds = 0.2;
  config.round_seconds = 20;
  return config;
}

constexpr int64_t kElements = 1000;
/// Element `i` of the update of a member.
double update_of(int member, int64_t i) { return std::sin(static_cast<double>(i * (member + 1))) / 7; }

/// What a member does in place of training: `leaves` is the question at which it closes its connection; kAnswer: never; kRefusal: it trains for three seconds.
void be_member(const Identity& identity, const FederationConfig& config, int port, Kind leaves, const std::atomic<bool>& over,
               int64_t sequences = 0) {
  Member member(identity, {concat("127.0.0.1:", port), config, R"({"model.layers":"2"})", sequences > 0 ? sequences : 100 + identity.index,
                           [&] { return over.load(); }, [](const std::string&) {}});
  for (double weight = 0;;) {
    const Order order = member.next();
    switch (order.task) {
      case Task::kWeights: {
        std::vector<std::byte> bytes(static_cast<size_t>(order.bytes));
        if (leaves == Kind::kWeights || !member.receive_weights(bytes)) return;
        member.answer_weights(1.5, 10);
        break;
      }
      case Task::kTrain:
        if (leaves == Kind::kTrain) return;
        if (leaves == Kind::kRefusal) std::this_thread::sleep_for(std::chrono::seconds(3));
        weight = order.weight;
        member.answer_trained(2);
        break;
      case Task::kSend: {
        if (leaves == Kind::kMask) return;
        const crypto::FixedPoint numbers(kFractionBits, static_cast<size_t>(config.members));
        std::vector<uint64_t> values;
        for (int64_t i = 0; i < kElements; ++i) values.push_back(numbers.encode(weight * update_of(identity.index, i)));
        member.begin_update();
        member.send_update(kElements / 2, std::span(values).subspan(kElements / 2));
        member.send_update(0, std::span(values).first(kElements / 2));
        member.end_update();
        break;
      }
      case Task::kStop:
      case Task::kEnd: return;
      case Task::kLost:
        if (leaves != Kind::kAnswer) return;
    }
  }
}

/// A coordinator and the threads of its members.
struct Federated {
  Federated(const Parties& parties, const FederationConfig& config)
      : own(parties.coordinator()),
        coordinator(own, {config, {}, R"({"model.layers":"2"})", [] { return false; }, [this](const std::string& line) { said += line + "\n"; }}) {}
  ~Federated() {
    over = true;
    for (std::thread& thread : threads) thread.join();
  }
  void add(const Parties& parties, const FederationConfig& config, int member, Kind leaves = Kind::kAnswer) {
    threads.emplace_back(
        [this, identity = parties.member(member), config, leaves] { be_member(identity, config, coordinator.port(), leaves, over); });
  }
  /// With weights before it, as every round has.
  std::optional<MeanUpdate> train(int64_t round, int64_t numel) {
    coordinator.evaluate(0, std::vector<std::byte>(100));
    return coordinator.train(round, numel);
  }
  std::string said;
  Identity own;
  Coordinator coordinator;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
};

void check_mean(const MeanUpdate& update, const std::vector<int>& members, const std::vector<double>& weights) {
  CHECK(update.members == members);
  REQUIRE(std::ssize(update.mean) == kElements);
  double total = 0, worst = 0;
  for (const int member : members) total += weights[static_cast<size_t>(member)];
  for (int64_t i = 0; i < kElements; ++i) {
    double expected = 0;
    for (const int member : members) expected += weights[static_cast<size_t>(member)] * update_of(member, i) / total;
    worst = std::max(worst, std::abs(expected - update.mean[static_cast<size_t>(i)]));
  }
  CHECK(worst < 1e-11);
}

}  // namespace

TEST_CASE("federation: rosters name their errors, and their order of lines is of no importance") {
  const Parties parties(3);
  const auto line = [&](const std::string& name, int key) {
    return concat(name, " ed25519-public:", crypto::hex(parties.keys[static_cast<size_t>(key)].public_key()), "\n");
  };
  const Roster first = parse_roster(line("coordinator", 0) + line("b", 1) + "# a comment\n\n" + line("a", 2), "r");
  const Roster second = parse_roster(line("a", 2) + line("coordinator", 0) + line("b", 1), "r");
  CHECK(first.digest == second.digest);
  CHECK(first.name_of(0) == "a");
  CHECK(first.name_of(1) == "b");
  CHECK(first.name_of(kCoordinator) == "coordinator");
  CHECK((first.key_of(0) == parties.keys[2].public_key() && first.key_of(1) == parties.keys[1].public_key()));
  CHECK(first.key_of(kCoordinator) == parties.keys[0].public_key());
  CHECK(first.member_keys() == std::vector{first.key_of(0), first.key_of(1)});
  CHECK(parse_roster(line("coordinator", 0) + line(std::string(64, 'x'), 1), "r").name_of(0) == std::string(64, 'x'));
  CHECK(parse_roster(line("coordinator", 0) + line("a", 1) + line("b", 2), "r").digest != first.digest);  // keys exchanged
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {line("a", 0), "r: no line for the name coordinator"},
           {line("coordinator", 0) + line("a", 1) + line("a", 2), "r, line 3: the name a is there twice"},
           {line("coordinator", 0) + line("a", 0), "r, line 2: the key of a is there twice"},
           {line("coordinator", 0) + "a\n", "r, line 2: expected a name and a public key"},
           {line("coordinator", 0) + "a ed25519-secret:" + std::string(64, 'a'), "r, line 2: the key of a is not a line as"},
           {line("coordinator", 0) + "a ed25519-public:" + std::string(63, 'a'), "r, line 2: the key of a is not a line as"},
           {line("coordinator", 0) + line("a b", 1), "r, line 2: expected a name and a public key"},
           {line("coordinator", 0) + line("a", 1) + line(std::string(65, 'x'), 2), "r, line 3: expected a name and a public key"},
           {"\n# x\n" + line("coordinator", 0) + line("a", 1) + line("b", 1), "r, line 5: the key of b is there twice"},
           {line("coordinator", 0) + line("a/b", 1), "r, line 2: expected a name and a public key"}})
    CHECK_THROWS_WITH(parse_roster(text, "r"), Contains(error));
}

TEST_CASE("federation: sums are those of the members in the round, with and without secure aggregation, by any weighting") {
  const Parties parties(4);
  std::vector<double> secure_mean;
  for (const bool secure : {true, false}) {
    for (const MemberWeight weighting : {MemberWeight::kEqual, MemberWeight::kSamples}) {
      FederationConfig config = config_of_members(4, secure);
      config.weighting = weighting;
      config.minimum = 4;  // the coordinator waits for all of them, however long their connections take
      Federated all(parties, config);
      for (int member = 0; member < 4; ++member) all.add(parties, config, member);
      REQUIRE(all.coordinator.gather());
      const std::vector<std::byte> weights(3 << 20);
      const auto losses = all.coordinator.evaluate(0, weights);
      CHECK(losses.size() == 4);
      const std::optional<MeanUpdate> update = all.train(1, kElements);
      REQUIRE(update);
      check_mean(*update, {0, 1, 2, 3},
                 weighting == MemberWeight::kEqual ? std::vector<double>{1, 1, 1, 1} : std::vector<double>{100, 101, 102, 103});
      if (weighting == MemberWeight::kSamples) {
        if (secure) secure_mean = update->mean;
        if (!secure) CHECK(secure_mean == update->mean);  // to the bit
      }
      CHECK(all.train(2, kElements));
      all.coordinator.end(0, std::vector<std::byte>(100));
    }
  }
}

TEST_CASE("federation: a member that leaves at any question is left out, and too few repeat the round") {
  const Parties parties(4);
  for (const bool secure : {true, false}) {
    for (const Kind leaves : {Kind::kWeights, Kind::kTrain, Kind::kMask}) {
      INFO(secure << " " << static_cast<int>(leaves));
      const FederationConfig config = config_of_members(4, secure);
      Federated all(parties, config);
      for (int member = 0; member < 4; ++member) all.add(parties, config, member, member == 2 ? leaves : Kind::kAnswer);
      REQUIRE(all.coordinator.gather());
      const std::optional<MeanUpdate> update = all.train(1, kElements);
      REQUIRE(update);
      check_mean(*update, {0, 1, 3}, {1, 1, 1, 1});
      CHECK_THAT(all.said, Contains("member m2 has left: "));
      CHECK(all.coordinator.gather());  // after wait_seconds, without it
      CHECK(all.train(2, kElements));
      all.coordinator.end(0, std::vector<std::byte>(100));
    }
  }
  const FederationConfig config = config_of_members(4, true);
  Federated all(parties, config);
  for (int member = 0; member < 4; ++member) all.add(parties, config, member, member < 2 ? Kind::kMask : Kind::kAnswer);
  REQUIRE(all.coordinator.gather());
  CHECK(!all.train(1, kElements));
  CHECK_THAT(all.said, Contains("round 1 is repeated: "));
  all.add(parties, config, 0);  // it comes back
  REQUIRE(all.coordinator.gather());
  const std::optional<MeanUpdate> update = all.train(1, kElements);
  REQUIRE(update);
  check_mean(*update, {0, 2, 3}, {1, 1, 1, 1});
  all.coordinator.end(0, std::vector<std::byte>(100));
}

TEST_CASE("federation: a member that closes its connection between rounds has left") {
  const Parties parties(2);
  FederationConfig config = config_of_members(2, false);
  Federated all(parties, config);
  all.add(parties, config, 0);
  std::atomic<bool> leaves = false;
  std::thread member([&] {
    const Link link = connect_to_coordinator(concat("127.0.0.1:", all.coordinator.port()), parties.member(1), Clock::now() + std::chrono::seconds(5));
    receive(link);
    send(link, {Kind::kAnswer, R"({"sequences":5})"});
    while (!leaves) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (all.coordinator.present().size() < 2) all.coordinator.admit();
  leaves = true;
  member.join();
  REQUIRE(all.coordinator.gather());
  CHECK(all.coordinator.present() == std::vector{0});
  all.coordinator.end(0, std::vector<std::byte>(100));
}

TEST_CASE("federation: the end waits for members that have not got the weights, and no longer", "[federation]") {
  const Parties parties(4);
  FederationConfig config = config_of_members(4, false);
  config.wait_seconds = 100;
  Federated all(parties, config);
  for (const int member : {0, 1}) all.add(parties, config, member);
  while (all.coordinator.present().size() < 2) all.coordinator.admit();
  std::thread late([&] {
    for (const int member : {2, 3}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      all.add(parties, config, member);
    }
  });
  const auto begin = Clock::now();
  all.coordinator.end(0, std::vector<std::byte>(100));
  late.join();
  CHECK(Clock::now() - begin < std::chrono::seconds(50));
  CHECK_THAT(all.said, Contains("final weights not yet sent to 2 members"));
  CHECK_THAT(all.said, Contains("member m2 has joined") && Contains("member m3 has joined"));
}

TEST_CASE("federation: whoever is not in the roster, or has another one, or other terms, is refused") {
  const Parties parties(2), others(2);
  const FederationConfig config = config_of_members(2, true);
  Federated all(parties, config);
  const auto soon = [] { return Clock::now() + std::chrono::seconds(5); };
  const std::string address = concat("127.0.0.1:", all.coordinator.port());
  CHECK_THROWS_WITH(connect_to_coordinator(address, others.member(0), soon()), Contains("is not the coordinator of this roster"));
  const auto outcome_of = [&](const Identity& identity, const std::string& terms) {
    auto answer = std::async(std::launch::async, [&] {
      try {
        std::atomic<bool> over = false;
        Member member(identity, {address, config, terms, 10, [&] { return over.load(); }, [](const std::string&) {}});
        for (;;) member.next();
      } catch (const Error& error) {
        return std::string(error.what());
      }
    });
    while (answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) all.coordinator.admit();
    return answer.get();
  };
  Identity impostor = others.member(0);
  impostor.roster = parties.roster;  // the key of somebody else
  CHECK_THAT(outcome_of(impostor, "{}"), Contains("refuses this member"));
  CHECK_THAT(outcome_of(parties.member(1), R"({"model.layers":"3"})"),
             Contains("has another configuration:\n  model.layers: 3 here, 2 at the coordinator"));
  CHECK_THAT(
      outcome_of(parties.member(1), R"({"model.heads":"4","model.layers":"3","training.steps":"7"})"),
      Contains("has another configuration:\n  model.heads: 4 here, not set at the coordinator\n  model.layers: 3 here, 2 at the coordinator\n  "
               "training.steps: 7 here, not set at the coordinator\nall members need the same"));
  CHECK_THAT(outcome_of(parties.member(1), "{}"), Contains("has another configuration:\n  model.layers: not set here, 2 at the coordinator\nall"));
  // A key that one of them does not know, and the other has not set, is equal; a value that is no text is another one.
  CHECK_THAT(outcome_of(parties.member(1), R"({"model.layers":"3","model.new":""})"), !Contains("model.new"));
}

TEST_CASE("federation: an update with elements left out, sent twice or beyond the model is refused") {
  const Parties parties(2);
  const FederationConfig config = config_of_members(2, false);
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  for (const Ranges& ranges : {Ranges{{0, 500}}, Ranges{{0, 500}, {501, 499}}, Ranges{{0, 500}, {0, 500}}, Ranges{{0, 1000}, {999, 1}},
                               Ranges{{0, 1001}}, Ranges{{2000, 1}}, Ranges{}}) {
    Federated all(parties, config);
    all.add(parties, config, 0);
    all.threads.emplace_back([&, identity = parties.member(1)] {
      Member member(identity, {concat("127.0.0.1:", all.coordinator.port()), config, R"({"model.layers":"2"})", 10, [&] { return all.over.load(); },
                               [](const std::string&) {}});
      std::vector<std::byte> weights(100);
      if (member.next().task == Task::kWeights && member.receive_weights(weights)) member.answer_weights(0, 0);
      if (member.next().task == Task::kTrain) member.answer_trained(2);
      if (member.next().task != Task::kSend) return;
      member.begin_update();
      for (const auto& [first, count] : ranges) {
        std::vector<uint64_t> values(static_cast<size_t>(count));
        member.send_update(first, values);
      }
      member.end_update();
      member.next();
    });
    REQUIRE(all.coordinator.gather());
    while (all.coordinator.present().size() < 2) all.coordinator.admit();
    const std::optional<MeanUpdate> update = all.train(1, kElements);
    REQUIRE(update);
    check_mean(*update, {0}, {1, 1});
    CHECK_THAT(all.said, Contains("member m1 has left: member m1 has "));
  }
}

TEST_CASE("federation: a member that takes longer than round_seconds has left the round") {
  const Parties parties(3);
  FederationConfig config = config_of_members(3, false);
  config.round_seconds = 1;
  Federated all(parties, config);
  for (int member = 0; member < 3; ++member) all.add(parties, config, member, member == 1 ? Kind::kRefusal : Kind::kAnswer);
  REQUIRE(all.coordinator.gather());
  const std::optional<MeanUpdate> update = all.train(1, kElements);
  REQUIRE(update);
  check_mean(*update, {0, 2}, {1, 1, 1});
  CHECK_THAT(all.said, Contains("member m1 has left: it has not answered for 1 second\n"));
}

namespace {

/// The coordinator's end of a connection with one member, which a test controls.
struct HandMadeCoordinator {
  HandMadeCoordinator(const Parties& parties, FederationConfig config, int64_t revealed_round = 0, const std::string& run = "")
      : own(parties.coordinator()), listener("127.0.0.1", 0, own) {
    thread = std::thread([this, identity = parties.member(0), config, revealed_round, run] {
      try {
        MemberOptions options{
            concat("127.0.0.1:", listener.port()), config, "{}", 50, [&] { return over.load(); }, [](const std::string&) {}, revealed_round, run};
        options.keep = [this](const std::string&, int64_t round) { kept = round; };
        Member member(identity, std::move(options));
        for (;;) {
          const Order order = member.next();
          if (order.task == Task::kStop || order.task == Task::kLost) return;
          std::vector<std::byte> bytes(static_cast<size_t>(order.bytes));
          if (order.task == Task::kWeights && member.receive_weights(bytes)) member.answer_weights(1.5, 10);
          if (order.task == Task::kTrain) member.answer_trained(2);
          if (order.task == Task::kSend) sent = true;
        }
      } catch (const Error& error) {
        failed = error.what();
      }
    });
    link = listener.next(Clock::now() + std::chrono::seconds(5)).value().second;
    CHECK(ask(link, Kind::kConfiguration, "{}") == R"({"sequences":50})");
  }
  ~HandMadeCoordinator() {
    over = true;
    thread.join();
  }
  std::string give_weights(char fill) {
    send(link, {Kind::kWeights, R"({"step":0,"bytes":3})"});
    const std::string weights(3, fill);
    link.send(std::as_bytes(std::span(weights)));
    return receive(link).value().body;
  }
  std::string refusal(Kind kind, const std::string& body) const {
    try {
      return "answered: " + ask(link, kind, body);
    } catch (const Refusal& refusal) {
      return refusal.what();
    }
  }
  Identity own;
  MemberListener listener;
  std::atomic<bool> over = false, sent = false;
  std::atomic<int64_t> kept = 0;
  std::string failed;
  std::thread thread;
  Link link;
};

std::string round_body(int64_t round, int64_t most, uint8_t run = 0) {
  RoundTerms terms{{}, round, 0, most};
  terms.run[0] = run;
  return body_of(terms);
}

}  // namespace

TEST_CASE("federation: a member says nothing but figures, and refuses a coordinator that could learn its update") {
  const Parties parties(3);
  FederationConfig config = config_of_members(3, true);
  {
    HandMadeCoordinator by_hand(parties, config);
    CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(1, 1)), Contains("has not sent the weights"));
    CHECK(by_hand.give_weights('a') == R"({"loss":1.5,"tokens":10})");
    CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(1, 1000)), Contains("the weight of this member would not be"));
    CHECK(by_hand.refusal(Kind::kTrain, round_body(1, 1)) == R"(answered: {"steps":2})");
    by_hand.give_weights('b');  // the update of round 1 would be that of other weights
    for (const Kind kind : {Kind::kAdvertise, Kind::kShare, Kind::kMask, Kind::kAgree, Kind::kUnmask})
      CHECK_THAT(by_hand.refusal(kind, "x"), Contains("no round of secure aggregation has begun"));
    CHECK(!by_hand.sent);
    CHECK(by_hand.refusal(Kind::kTrain, round_body(2, 1)) == R"(answered: {"steps":2})");
    CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(3, 1)), Contains("has not sent the weights"));
    CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(1, 1, 7)), Contains("another run of a coordinator"));
  }
  {
    HandMadeCoordinator by_hand(parties, config, 4, crypto::hex(std::array<uint8_t, 32>{}));
    by_hand.give_weights('a');
    CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(4, 1)), Contains("round 4 cannot be repeated"));
    CHECK(by_hand.refusal(Kind::kTrain, round_body(5, 1)) == R"(answered: {"steps":2})");
    CHECK_THAT(by_hand.refusal(Kind::kMask, "x"), !Contains("answered"));
    CHECK(!by_hand.sent);
  }
  config.weighting = MemberWeight::kSamples;
  HandMadeCoordinator by_hand(parties, config);
  by_hand.give_weights('a');
  CHECK(by_hand.refusal(Kind::kTrain, round_body(1, 50)) == R"(answered: {"steps":2})");
  const crypto::Hash a = crypto::sha256("a"), b = crypto::sha256("b");
  const auto name = [](int64_t most, uint8_t run, const crypto::Hash& weights) {
    RoundTerms terms{{}, 1, 0, most};
    terms.run[0] = run;
    return name_of_round(terms, weights).run;
  };
  CHECK(name(1, 0, a) == name(1, 0, a));
  for (const auto& other : {name(2, 0, a), name(1, 1, a), name(1, 0, b)}) CHECK(other != name(1, 0, a));  // signatures of one are void in the other
}

namespace {

/// A member that a test controls: it gives the greeting `greets`, says `loss` of all weights, and refuses to train but in round `trains`.
class HandMadeMember {
 public:
  HandMadeMember(const Identity& identity, int port, Message greets, std::string loss = "", int64_t trains = 0) {
    thread_ = std::thread([this, &identity, port, greets = std::move(greets), loss = std::move(loss), trains] {
      try {
        const Link link = connect_to_coordinator(concat("127.0.0.1:", port), identity, Clock::now() + std::chrono::seconds(20));
        receive(link);  // kConfiguration
        send(link, greets);
        while (const std::optional<Message> question = receive(link)) answer(link, *question, loss, trains);
      } catch (const Error&) {  // the coordinator has closed the connection
      }
    });
  }
  ~HandMadeMember() { thread_.join(); }
  HandMadeMember(const HandMadeMember&) = delete;
  HandMadeMember& operator=(const HandMadeMember&) = delete;

  std::vector<RoundTerms> rounds() {
    const std::lock_guard lock(mutex_);
    return rounds_;
  }

 private:
  void answer(const Link& link, const Message& question, const std::string& loss, int64_t trains) {
    if (question.kind == Kind::kWeights) {
      std::vector<std::byte> weights(parse_body(question.body, "x")["bytes"].get<size_t>());
      link.receive(weights);
      return send(link, {Kind::kAnswer, loss});
    }
    if (question.kind != Kind::kTrain) return send(link, {Kind::kAnswer, "{}"});
    const RoundTerms terms = parse_round(question.body, "x");
    {
      const std::lock_guard lock(mutex_);
      rounds_.push_back(terms);
    }
    send(link, terms.round == trains ? Message{Kind::kAnswer, R"({"steps":2})"} : Message{Kind::kRefusal, "not now"});
  }

  std::mutex mutex_;
  std::vector<RoundTerms> rounds_;
  std::thread thread_;
};

Message greeting_of(int64_t sequences) { return {Kind::kAnswer, concat(R"({"sequences":)", sequences, "}")}; }

}  // namespace

TEST_CASE("federation: losses and numbers of sequences are those of their members, and every attempt at a round has its own number") {
  const Parties parties(5);
  FederationConfig config = config_of_members(5, false);
  config.minimum = 3;
  config.weighting = MemberWeight::kSamples;
  std::vector<Identity> identities;
  for (int member = 0; member < 5; ++member) identities.push_back(parties.member(member));
  std::vector<std::unique_ptr<HandMadeMember>> members;  // end after the coordinator
  Federated all(parties, config);
  const std::vector<std::pair<int64_t, std::string>> said{{10, R"({"loss":1.25,"tokens":5})"},
                                                          {20, R"({"loss":null,"tokens":5})"},
                                                          {30, R"({"loss":0.5,"tokens":0})"},
                                                          {40, R"({"loss":-0.5,"tokens":5})"},
                                                          {1000, R"({"loss":0,"tokens":1})"}};
  for (size_t member = 0; member < said.size(); ++member)
    members.push_back(std::make_unique<HandMadeMember>(identities[member], all.coordinator.port(), greeting_of(said[member].first),
                                                       said[member].second, member == 4 ? 2 : 0));
  while (all.coordinator.present().size() < 5) all.coordinator.admit();
  const std::map<int, double> losses = all.coordinator.evaluate(0, std::vector<std::byte>(100));
  CHECK(losses.at(0) == 1.25);
  CHECK(std::isnan(losses.at(1)));
  CHECK(!losses.contains(2));  // it has no held-out data
  CHECK(!losses.contains(3));
  CHECK(losses.at(4) == 0);
  CHECK(all.coordinator.present() == std::vector{0, 1, 2, 4});
  CHECK_THAT(all.said, Contains("member m3 has left: member m3 reports a held-out loss below zero"));

  for (const int64_t round : {1, 1, 2, 1}) CHECK(!all.coordinator.train(round, kElements));
  CHECK_THAT(all.said, Contains("member m2 refuses: not now") && Contains("round 1 is repeated: 0 members finished it, and it needs 3") &&
                           Contains("round 2 is repeated: 1 member finished it, and it needs 3"));
  for (const size_t member : {0, 1, 2, 4}) {
    std::vector<std::array<int64_t, 3>> asked;
    for (const RoundTerms& terms : members[member]->rounds()) asked.push_back({terms.round, terms.attempt, terms.whole_weight});
    // The weight is that of 10 + 20 + 30 sequences, as the last member has more than these together, and m3 has left.
    CHECK(asked == std::vector<std::array<int64_t, 3>>{{1, 0, 60}, {1, 1, 60}, {2, 0, 60}, {1, 2, 60}});
  }
  CHECK(members[3]->rounds().empty());
}

TEST_CASE("federation: members that refuse the terms or have no number of sequences do not join, and one that connects again replaces itself") {
  const Parties parties(5);
  const FederationConfig config = config_of_members(5, true);
  std::vector<Identity> identities;
  for (int member = 0; member < 5; ++member) identities.push_back(parties.member(member));
  std::vector<std::unique_ptr<HandMadeMember>> members;
  Federated all(parties, config);
  const auto join = [&](size_t member, Message greets) {
    members.push_back(std::make_unique<HandMadeMember>(identities[member], all.coordinator.port(), std::move(greets)));
  };
  const auto wait_for = [&](const std::string& text) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (all.said.find(text) == all.said.npos && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all.coordinator.admit();
    }
    CHECK_THAT(all.said, Contains(text));
  };
  join(0, {Kind::kRefusal, "it trains another model"});
  join(1, greeting_of(0));
  join(2, greeting_of(kMostSequences + 1));
  join(3, greeting_of(kMostSequences));
  join(4, greeting_of(1));
  for (const char* text : {"member m0 refuses: it trains another model\n", "member m1 has left: ", "member m2 has left: ", "member m3 has joined\n",
                           "member m4 has joined\n"})
    wait_for(text);
  CHECK(all.coordinator.present() == std::vector{3, 4});
  all.said.clear();
  join(3, greeting_of(5));
  wait_for("member m3 has left: it has connected again\nmember m3 has joined\n");
  CHECK(all.coordinator.present() == std::vector{3, 4});
}

TEST_CASE("federation: a coordinator says for how many members it waits, and that too few updates are no result") {
  const Parties parties(5);
  std::string said;
  {
    const Identity own = parties.coordinator();
    Coordinator coordinator(own,
                            {config_of_members(5, true), {}, "{}", [&] { return !said.empty(); }, [&](const std::string& line) { said += line; }});
    CHECK(!coordinator.gather());
    CHECK(said == concat("waiting for members at port ", coordinator.port(), ": 0 of 5 are connected, and a round needs 4"));
  }
  FederationConfig config = config_of_members(3, false);
  config.minimum = 2;
  const Parties three(3);
  Federated all(three, config);
  for (int member = 0; member < 3; ++member) all.add(three, config, member, member == 1 ? Kind::kAnswer : Kind::kMask);
  REQUIRE(all.coordinator.gather());
  while (all.coordinator.present().size() < 3) all.coordinator.admit();
  CHECK(!all.train(1, kElements));
  CHECK(all.coordinator.has_revealed());
  CHECK_THAT(all.said, Contains("the round ends without a result: 1 update arrived, and it needs 2"));
}

TEST_CASE("federation: terms of a round are read as they were written, within their limits, and name each attempt") {
  RoundTerms terms{{}, 3, 4, 5};
  terms.run[1] = 9;
  const RoundTerms read = parse_round(body_of(terms), "x");
  CHECK((read.run == terms.run && read.round == 3 && read.attempt == 4 && read.whole_weight == 5));
  const crypto::RoundName name = name_of_round(terms, crypto::sha256("a"));
  CHECK((name.number == 3 && name.attempt == 4));
  constexpr uint32_t kLastAttempt = std::numeric_limits<uint32_t>::max();
  for (const auto& [round, attempt, whole, valid] : {std::tuple(int64_t{1}, uint32_t{0}, int64_t{1}, true),
                                                     {int64_t{0}, uint32_t{0}, int64_t{1}, false},
                                                     {int64_t{1}, kLastAttempt, kMostSequences, true},
                                                     {int64_t{1}, uint32_t{0}, int64_t{0}, false},
                                                     {int64_t{1}, uint32_t{0}, kMostSequences + 1, false}}) {
    const std::string body = body_of({{}, round, attempt, whole});
    CAPTURE(body);
    if (valid) CHECK(parse_round(body, "x").attempt == attempt);
    if (!valid) CHECK_THROWS_WITH(parse_round(body, "member m1"), Contains("a message of member m1"));
  }
}

TEST_CASE("federation: addresses that are none, and ports that are taken or closed, are said") {
  const Parties parties(1);
  const Identity own = parties.coordinator(), member = parties.member(0);
  CHECK_THROWS_WITH(MemberListener("localhost", 0, own), Contains("security.federation.address=localhost: is no IPv4 address; allowed such as"));
  int port = 0;
  {
    const MemberListener first("127.0.0.1", 0, own);
    port = first.port();
    CHECK_THROWS_WITH(MemberListener("127.0.0.1", port, own),
                      Contains(concat("security.federation.port: cannot listen at 127.0.0.1, port ", port, ": Address already in use")));
  }
  const auto soon = Clock::now() + std::chrono::seconds(5);
  CHECK_THROWS_WITH(connect_to_coordinator(concat("127.0.0.1:", port), member, soon),
                    Contains(concat("cannot connect to the coordinator at 127.0.0.1:", port, ": Connection refused")));
  CHECK_THROWS_WITH(connect_to_coordinator("without-a-port", member, soon),
                    Contains("cannot connect to the coordinator at without-a-port: no such host"));
}

TEST_CASE("federation: a round whose sum may be known is not repeated") {
  const Parties parties(3);
  const FederationConfig config = config_of_members(3, true);
  Federated all(parties, config);
  for (int member = 0; member < 3; ++member) all.add(parties, config, member);
  REQUIRE(all.coordinator.gather());
  REQUIRE(all.train(4, kElements));
  CHECK(all.coordinator.has_revealed());
  CHECK(!all.train(4, kElements));
  CHECK(!all.coordinator.has_revealed());
  CHECK_THAT(all.said, Contains("round 4 cannot be repeated: the coordinator may know its sum"));
}

TEST_CASE("federation: without secure aggregation too a member sends one update a round, of the weights that it has trained") {
  const Parties parties(3);
  const FederationConfig config = config_of_members(3, false);
  const auto owes_nothing = Contains("there is no update to send: a round has one");
  HandMadeCoordinator by_hand(parties, config);
  CHECK_THAT(by_hand.refusal(Kind::kMask, ""), owes_nothing);
  by_hand.give_weights('a');
  CHECK_THAT(by_hand.refusal(Kind::kMask, ""), owes_nothing);
  CHECK(by_hand.refusal(Kind::kTrain, round_body(1, 1)) == R"(answered: {"steps":2})");
  by_hand.give_weights('b');
  CHECK_THAT(by_hand.refusal(Kind::kMask, ""), owes_nothing);  // of other weights
  CHECK(by_hand.refusal(Kind::kTrain, round_body(1, 1)) == R"(answered: {"steps":2})");
  CHECK(by_hand.kept == 0);
  send(by_hand.link, {Kind::kMask, ""});
  while (!by_hand.sent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(by_hand.kept == 1);  // before the update, so that a member that is killed now sends no second one
  CHECK_THAT(by_hand.refusal(Kind::kMask, ""), owes_nothing);
  by_hand.give_weights('a');
  CHECK_THAT(by_hand.refusal(Kind::kTrain, round_body(1, 1)), Contains("round 1 cannot be repeated: the coordinator may know its sum"));
  CHECK(by_hand.refusal(Kind::kTrain, round_body(2, 1)) == R"(answered: {"steps":2})");
}

TEST_CASE("federation: fifteen hostile coordinators learn no second update, no update of other weights and no sum of too few") {
  const Parties parties(3);
  const std::string trained = R"(answered: {"steps":2})";
  // What a coordinator asks, one question after another: w weights, t round 1, u round 2, r another run, m kMask, a kAdvertise, s kShare, g kAgree, k kUnmask.
  // No series makes the member send more updates than it has trained rounds for that it has not answered yet.
  const auto sends_at_most = [&](bool secure, const std::string& questions, int most) {
    HandMadeCoordinator by_hand(parties, config_of_members(3, secure));
    int sent = 0;
    INFO(secure << " " << questions);
    for (const char question : questions) {
      if (!by_hand.failed.empty()) break;
      by_hand.sent = false;
      try {
        switch (question) {
          case 'w': by_hand.give_weights(static_cast<char>('a' + sent)); break;
          case 't': by_hand.refusal(Kind::kTrain, round_body(1, 1)); break;
          case 'u': by_hand.refusal(Kind::kTrain, round_body(2, 1)); break;
          case 'r': by_hand.refusal(Kind::kTrain, round_body(1, 1, 7)); break;
          case 'm':
            send(by_hand.link, {Kind::kMask, ""});
            for (int tries = 0; tries < 100 && !by_hand.sent; ++tries) {
              if (ready_before(by_hand.link.file(), 1, Clock::now() + std::chrono::milliseconds(2))) {
                receive(by_hand.link);
                break;
              }
            }
            sent += by_hand.sent ? 1 : 0;
            break;
          case 'a': by_hand.refusal(Kind::kAdvertise, ""); break;
          case 's': by_hand.refusal(Kind::kShare, "x"); break;
          case 'g': by_hand.refusal(Kind::kAgree, "x"); break;
          case 'k': by_hand.refusal(Kind::kUnmask, "x"); break;
          default: FAIL("unknown question");
        }
      } catch (const Error&) {  // the member has ended the connection, or its job
        break;
      }
    }
    CHECK(sent <= most);
  };
  for (const auto& [questions, most] : std::vector<std::pair<std::string, int>>{
           {"wtmm", 1}, {"wtmwtm", 1}, {"mwm", 0}, {"wtwm", 0}, {"wttm", 1}, {"wtmwummm", 2}, {"wumwtm", 1}, {"wtrm", 0}})
    sends_at_most(false, questions, most);
  for (const std::string questions : {"wtm", "wtam", "wtasm", "wtasgk", "wtaa", "wtk", "wtgm"}) sends_at_most(true, questions, 0);
}

TEST_CASE("federation: no member decides alone about a loss, and none has more than half of the weight") {
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  CHECK(upper_median({}) == std::nullopt);
  CHECK(upper_median({3}) == 3);
  CHECK(upper_median({1, 5}) == 5);
  CHECK(upper_median({9, 1, 5}) == 5);
  CHECK(upper_median({9, 1, 5, 7}) == 7);
  CHECK(upper_median({1, nan, 2}) == 2);
  CHECK(upper_median({nan, infinite, 2}) == infinite);
  CHECK(agreed_increase({{0, 1.0}, {1, 2.0}, {2, 3.0}, {3, nan}}, {{0, 1.5}, {1, 2.25}, {2, 9.0}, {3, 1.0}, {4, 1.0}}) == 0.5);
  CHECK(agreed_increase({{0, 1.0}}, {{1, 2.0}}) == std::nullopt);
  CHECK(agreed_loss({{0, 1.0}, {1, 7.0}}) == 7);

  // Sixteen lying members, each alone among honest ones: nothing that it says moves a decision beyond what some honest member says.
  const std::vector<double> lies = {0, 1e-300, 1e300, nan, infinite, 1e9, 1.0, 2.0};
  int liars = 0;
  for (const int members : {3, 4, 5, 16})
    for (const double lie : lies)
      for (const bool about_before : {false, true}) {
        ++liars;
        Losses before, after;
        double least = infinite, most = -infinite;
        for (int member = 0; member < members; ++member) {
          before[member] = 2 + 0.01 * member;
          after[member] = before[member] + 0.001 * (member - 1);
          if (member == members - 1) continue;
          least = std::min(least, after[member] - before[member]);
          most = std::max(most, after[member] - before[member]);
        }
        (about_before ? before : after)[members - 1] = lie;
        const std::optional<double> agreed = agreed_increase(before, after);
        INFO(members << " members, " << lie << ", " << about_before);
        REQUIRE(agreed);
        CHECK((*agreed >= least && *agreed <= most));
        CHECK((std::isfinite(*agreed_loss(after)) && *agreed_loss(after) < 3));
      }
  CHECK(liars == 64);
  // Sixteen at once, of 33: all with the same lie, or each with another one.
  for (size_t common = 0; common <= lies.size(); ++common) {
    Losses before, after;
    for (int member = 0; member < 33; ++member) {
      before[member] = 2 + 0.01 * member;
      after[member] = before[member] + 0.001 * (member - 16);
      if (member < 17) continue;
      const size_t lie = common < lies.size() ? common : static_cast<size_t>(member) % lies.size();
      (member % 2 == 0 ? before : after)[member] = lies[lie];
    }
    INFO(common);
    const std::optional<double> agreed = agreed_increase(before, after);
    REQUIRE(agreed);
    CHECK((*agreed >= -0.016 - 1e-12 && *agreed <= 1e-12));
    CHECK((*agreed_loss(after) >= after.at(0) && *agreed_loss(after) <= after.at(16)));
  }
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {kMostSequences, 1, 1}, {kMostSequences, 100}, {100, 101, 102, 103}, {1, 1, 1, kMostSequences}, {5}, {7, 7}, {1000, 10, 20, 30}}) {
    const int64_t whole = whole_weight(counts);
    double sum = 0, largest = 0;
    for (const int64_t count : counts) {
      const double weight = weight_of(count, whole);
      CHECK((weight > 0 && weight <= 1));
      sum += weight;
      largest = std::max(largest, weight);
    }
    if (counts.size() > 1) CHECK(largest <= sum / 2 + 1e-12);
  }
  CHECK(whole_weight(std::vector<int64_t>{100, 101, 102, 103}) == 103);  // honest numbers count as they are
  CHECK(whole_weight(std::vector<int64_t>{1000, 10, 20, 30}) == 60);
}

TEST_CASE("federation: a member that claims more data than all others has half of the weight, and one with a loss below zero leaves") {
  const Parties parties(3);
  for (const bool secure : {true, false}) {
    FederationConfig config = config_of_members(3, secure);
    config.weighting = MemberWeight::kSamples;
    Federated all(parties, config);
    for (int member = 0; member < 2; ++member) all.add(parties, config, member);
    all.threads.emplace_back(
        [&, identity = parties.member(2)] { be_member(identity, config, all.coordinator.port(), Kind::kAnswer, all.over, kMostSequences); });
    REQUIRE(all.coordinator.gather());
    const std::optional<MeanUpdate> update = all.train(1, kElements);
    REQUIRE(update);
    check_mean(*update, {0, 1, 2}, {100, 101, 201});
    all.coordinator.end(0, std::vector<std::byte>(100));
  }
}

TEST_CASE("federation: a member that does not answer the greeting holds up neither a round nor the others") {
  const Parties parties(3);
  FederationConfig config = config_of_members(3, false);
  config.wait_seconds = 0.1;
  Federated all(parties, config);
  for (int member = 0; member < 2; ++member) all.add(parties, config, member);
  std::vector<Link> silent;
  const auto begin = Clock::now();
  for (int64_t round = 1; round <= 3; ++round) {
    silent.push_back(connect_to_coordinator(concat("127.0.0.1:", all.coordinator.port()), parties.member(2), Clock::now() + std::chrono::seconds(5)));
    CHECK(receive(silent.back())->kind == Kind::kConfiguration);  // and no answer
    REQUIRE(all.coordinator.gather());
    const std::optional<MeanUpdate> update = all.train(round, kElements);
    REQUIRE(update);
    check_mean(*update, {0, 1}, {1, 1, 1});
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
  silent.clear();
  all.add(parties, config, 2);
  while (all.coordinator.present().size() < 3) all.coordinator.admit();
  CHECK_THAT(all.said, Contains("member m2 has joined"));
  all.coordinator.end(0, std::vector<std::byte>(100));
}

namespace {

/// Hostile connections of every kind while members join.
void check_strangers_at_coordinator(int count) {
  const Parties parties(2);
  const FederationConfig config = config_of_members(2, true);
  const Footprint before = footprint_of(::getpid());
  {
    Federated all(parties, config);
    const crypto::Handshake handshake;
    const std::string hello(reinterpret_cast<const char*>(handshake.hello().data()), handshake.hello().size());
    Strangers strangers(all.coordinator.port(), {hello, hello + std::string(84, 'x'), hello.substr(0, 40)});
    strangers.connect(count / 2);
    all.add(parties, config, 0);
    strangers.connect(count - count / 2);
    strangers.drip();
    all.add(parties, config, 1);
    REQUIRE(all.coordinator.gather());
    const std::optional<MeanUpdate> update = all.train(1, kElements);
    REQUIRE(update);
    check_mean(*update, {0, 1}, {1, 1});
    CHECK(strangers.opened() == count);
    CHECK(strangers.open(8) == 0);
    CHECK(footprint_of(::getpid()).descriptors < before.descriptors + 1100);
    all.coordinator.end(0, std::vector<std::byte>(100));
  }
  CHECK(footprint_of(::getpid()).descriptors <= before.descriptors + 2);
}

}  // namespace

TEST_CASE("federation: hostile connections of every kind neither join nor keep members out") { check_strangers_at_coordinator(400); }
TEST_CASE("federation: 10,000 hostile connections neither join nor keep members out", "[slow]") { check_strangers_at_coordinator(10'000); }
