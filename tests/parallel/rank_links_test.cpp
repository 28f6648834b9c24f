// Connections between ranks for threads beside their main threads.
#include "parallel/comm/rank_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "parallel/comm/forwarding.h"
#include "parallel/comm/refused_connections.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/strangers.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

TEST_CASE("rank links: every rank serves every other one from a thread of its own, with messages larger than any buffer") {
  constexpr size_t kCount = size_t{1} << 20;
  for (const auto& [ranks, encrypted] : std::vector<std::pair<int, bool>>{{1, false}, {2, false}, {4, false}, {2, true}, {3, true}}) {
    run_ranks(ranks, [&, ranks = ranks, encrypted = encrypted](Communicator& world) {
      const RankLinks links(world, encrypted);
      std::vector<std::thread> servers;
      for (int client = 0; client < ranks; ++client) {
        if (client == world.rank()) continue;
        servers.emplace_back([&links, client, own = world.rank()] {  // answers each number with 10 times it, plus its own rank
          std::vector<int> numbers(kCount);
          if (!links.from_client(client).receive(std::as_writable_bytes(std::span(numbers)))) return;
          for (int& number : numbers) number = 10 * number + own;
          links.from_client(client).send(std::as_bytes(std::span(numbers)));
        });
      }
      std::string wrong;
      for (int server = 0; server < ranks; ++server) {
        if (server == world.rank()) continue;
        std::vector<int> numbers(kCount, 1 + world.rank());
        links.to_server(server).send(std::as_bytes(std::span(numbers)));
        if (!links.to_server(server).receive(std::as_writable_bytes(std::span(numbers)))) wrong = "closed";
        for (const int number : numbers)
          if (number != 10 * (1 + world.rank()) + server) wrong = concat("rank ", world.rank(), " got ", number, " from ", server);
      }
      for (std::thread& server : servers) server.join();
      TRIREME_CHECK(wrong.empty(), wrong);
    });
  }
}

TEST_CASE("rank links: a rank that ends is noticed, and shut_down wakes a thread that waits") {
  run_ranks(2, [](Communicator& world) {
    auto links = std::make_unique<RankLinks>(world);
    std::byte byte{};
    const int other = 1 - world.rank();
    if (world.rank() == 1) {
      world.barrier();
      links.reset();
      return;
    }
    bool received = true;
    std::thread waits([&] { received = links->from_client(other).receive({&byte, 1}); });
    world.barrier();
    waits.join();  // rank 1 has closed its end
    TRIREME_CHECK(!received, "a byte from a rank that has ended");
  });
  run_ranks(2, [](Communicator& world) {
    const RankLinks links(world);
    std::byte byte{};
    std::thread waits([&] { links.from_client(1 - world.rank()).receive({&byte, 1}); });
    links.shut_down();
    waits.join();
    world.barrier();
  });
}

namespace {

/// Two ends of a connection with an attacker in between, who moves what the first one sends to the second one.
class Between {
 public:
  Between() {
    TRIREME_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, near_) == 0 && ::socketpair(AF_UNIX, SOCK_STREAM, 0, far_) == 0, "socketpair");
    sender = Link(near_[0]);
    receiver = Link(far_[0]);
    const crypto::Handshake first, second;
    const crypto::Key key;
    sender.encrypt(first.agree(key, second.hello(), crypto::Side::kFirst, "test")->channel("link"), "rank 1 on host b");
    receiver.encrypt(second.agree(key, first.hello(), crypto::Side::kSecond, "test")->channel("link"), "rank 0 on host a");
    attacker_ = {Link(near_[1]), Link(far_[1])};
  }
  /// The next `bytes` that the sender has sent.
  std::vector<std::byte> take(size_t bytes) const {
    std::vector<std::byte> taken(bytes);
    TRIREME_CHECK(attacker_.first.receive(taken), "nothing sent");
    return taken;
  }
  void pass(const std::vector<std::byte>& bytes) const { attacker_.second.send(bytes); }

  Link sender, receiver;

 private:
  int near_[2], far_[2];
  std::pair<Link, Link> attacker_;
};

constexpr size_t kTextBytes = 100, kFrameBytes = 4 + kTextBytes + crypto::kTagBytes;

}  // namespace

TEST_CASE("rank links: each changed, replayed, reordered or cut frame of an encrypted connection is refused with the name of the peer") {
  std::vector<std::byte> text(kTextBytes, std::byte{'m'}), received(kTextBytes);
  const auto refused = [&](const Between& between) {
    trireme::test::check_throws<InternalError>([&] { between.receiver.receive(received); }, {"rank 0 on host a is not authentic"});
  };
  const auto frames = [&](const Between& between) {
    between.sender.send(text);
    between.sender.send(text);
    return std::pair{between.take(kFrameBytes), between.take(kFrameBytes)};
  };
  {
    const Between between;
    const auto [one, two] = frames(between);
    CHECK(one != two);  // of equal texts
    CHECK(std::search_n(one.begin(), one.end(), 3, std::byte{'m'}) == one.end());
    between.pass(one);
    CHECK((between.receiver.receive(received) && received == text));
    between.pass(one);  // again
    refused(between);
  }
  {
    const Between between;
    const auto [one, two] = frames(between);
    between.pass(two);
    refused(between);
  }
  for (const size_t at : {size_t{0}, size_t{3}, size_t{4}, kFrameBytes - 1}) {  // the length, the text and the tag
    INFO("byte " << at);
    const Between between;
    auto [one, two] = frames(between);
    one[at] ^= std::byte{1};
    between.pass(one);
    between.pass(two);
    refused(between);
  }
  {
    Between between;
    auto [one, two] = frames(between);
    one.resize(50);
    between.pass(one);
    between.pass(two);
    refused(between);
  }
  {  // a frame of another connection between the same ranks
    const Between between, other;
    frames(between);
    between.pass(frames(other).first);
    refused(between);
  }
}

namespace {

/// Ports at which this process listens at the loopback interface, from /proc/net/tcp.
std::set<int> listening_ports() {
  std::set<int> ports;
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
    if (word.at(3) == "0A" && own.count(word.at(9)) == 1) ports.insert(std::stoi(word[1].substr(word[1].find(':') + 1), nullptr, 16));
  }
  return ports;
}

/// The communicator of a rank that waits before one of its gathers.
class WaitingCommunicator final : public ForwardingCommunicator {
 public:
  WaitingCommunicator(std::unique_ptr<Communicator> inner, int gather, std::function<void()> wait)
      : ForwardingCommunicator(std::move(inner)), left_(gather), wait_(std::move(wait)) {}
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (left_-- == 0) wait_();
    return ForwardingCommunicator::all_gather(ctx, in, out);
  }

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>&) override { return made; }

 private:
  int left_;
  std::function<void()> wait_;
};

/// Makes links between three ranks that all listen before `count` strangers connect to each of them, and connect to each other behind these.
void check_strangers_at_links(int count, bool encrypted) {
  constexpr int kRanks = 3;
  const std::set<int> before = listening_ports();
  std::atomic<bool> attacked = false;
  std::vector<std::unique_ptr<trireme::test::Strangers>> strangers;
  std::thread attacker([&] {
    std::set<int> found;
    while (found.size() < kRanks) {
      found.clear();
      for (const int port : listening_ports())
        if (before.count(port) == 0) found.insert(port);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const int port : found)
      strangers.push_back(std::make_unique<trireme::test::Strangers>(
          port, std::vector<std::string>{std::string(36, '\0'), std::string(32, 'a') + std::string(4, '\0')}));
    for (int done = 0; done < count; done += 20)
      for (const auto& each : strangers) each->connect(20);
    attacked = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  std::exception_ptr failure;
  try {
    run_ranks(kRanks, [&](Communicator& world) {
      // Names of hosts are two gathers. Then a rank listens, and gathers secrets or addresses.
      WaitingCommunicator group(whole_world(world), 2, [&] {
        while (!attacked && world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      const RankLinks links(group, encrypted);
      for (int other = 0; other < kRanks; ++other) {
        if (other == world.rank()) continue;
        const int number = 10 + world.rank();
        links.to_server(other).send(std::as_bytes(std::span(&number, 1)));
      }
      for (int other = 0; other < kRanks; ++other) {
        int number = 0;
        if (other != world.rank()) TRIREME_CHECK(links.from_client(other).receive(std::as_writable_bytes(std::span(&number, 1))), "closed");
        TRIREME_CHECK(other == world.rank() || number == 10 + other, "got ", number, " from ", other);
      }
      world.barrier();
    });
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  attacker.join();
  if (failure) std::rethrow_exception(failure);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  for (const auto& each : strangers) CHECK(each->open(10) == 0);
}

}  // namespace

TEST_CASE("rank links: hostile connections of every kind neither delay the ranks nor take their places") {
  for (const bool encrypted : {false, true}) check_strangers_at_links(200, encrypted);
}
TEST_CASE("rank links: 10,000 hostile connections neither delay the ranks nor take their places", "[slow]") {
  check_strangers_at_links(3'400, false);
}

TEST_CASE("refused connections: one warning counts many, and later ones come at most every ten minutes") {
  RefusedConnections refused("the job monitor", "which say nothing");
  CHECK(refused.take_warning(0, true).empty());
  for (int i = 0; i < 1000; ++i) refused.add("127.0.0.1", 100);
  CHECK(refused.take_warning(100.9).empty());
  CHECK(refused.take_warning(101) == "warning: the job monitor refused 1000 connections from 127.0.0.1, which say nothing\n");
  refused.add("10.0.0.7", 102);
  CHECK(refused.take_warning(700.9).empty());
  CHECK(refused.take_warning(701) == "warning: the job monitor refused 1 connection from 10.0.0.7, which say nothing\n");
  for (int host = 0; host < 100; ++host)
    for (int i = 0; i <= host; ++i) refused.add(concat("10.0.0.", host), 702);
  CHECK(refused.take_warning(703).empty());
  CHECK(refused.take_warning(703, true) ==
        "warning: the job monitor refused 5050 connections from other addresses (4914), 10.0.0.15 (16), 10.0.0.14 (15) and 14 more, which say "
        "nothing\n");
  CHECK(refused.take_warning(5000, true).empty());
}
