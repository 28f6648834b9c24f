// Connections between ranks for threads beside their main threads.
#include "parallel/comm/rank_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
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
  {  // Of another connection between the same ranks.
    const Between between, other;
    frames(between);
    between.pass(frames(other).first);
    refused(between);
  }
}
