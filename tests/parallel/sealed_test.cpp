// Sealed communicators on rank threads of pretended hosts, with an attacker between them.
#include "parallel/comm/sealed.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/wire_tap.h"

namespace trireme::test {
namespace {

using enum PointToPoint::Kind;

struct Host {
  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  Tensor empty(int64_t count, DType dtype = DType::kU8) { return Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication); }
};

RankOptions with_wire(const std::vector<int>& hosts, const Wire& wire) {
  return {.hosts = hosts, .wire = [=](std::unique_ptr<Communicator> inner) { return tapped(std::move(inner), hosts, wire); }};
}

/// Rank 0 sends rank 1 messages of 1000 bytes that all differ, two in each exchange.
void send_messages(Communicator& world) {
  Host host;
  if (world.rank() > 1) return;
  const bool sends = world.rank() == 0;
  for (int pair = 0; pair < 4; ++pair) {
    const Tensor one = host.empty(1000), two = host.empty(1000);
    if (sends) std::memset(one.raw(), 2 * pair + 1, 1000);
    if (sends) std::memset(two.raw(), 2 * pair + 2, 1000);
    const auto kind = sends ? kSend : kRecv;
    world.exchange(host.ctx, std::vector<PointToPoint>{{kind, one, 1 - world.rank(), 3}, {kind, two, 1 - world.rank(), 3}}).wait(host.ctx);
    if (!sends) TRIREME_CHECK(*one.data<uint8_t>() == 2 * pair + 1 && *two.data<uint8_t>() == 2 * pair + 2, "wrong message");
  }
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

/// Fails unless an attack ends the job with an error of rank 1 that names rank 0 and the reason.
void check_attack(const Wire& attack, const std::string& reason) {
  check_throws<InternalError>(
      [&] {
        run_ranks(2, send_messages, with_wire({0, 1}, attack));
      },
      {"rank 1 on host b: a message from rank 0 on host a in group 'world' is not authentic", reason});
}

bool is_arriving(const WireMessage& message) { return !message.outgoing && message.channel == 3; }

/// Every verb, on buffers full of `marker`.
void send_marker(Communicator& comm, const std::string& marker) {
  Host host;
  const int64_t n = comm.size(), each = 64 * static_cast<int64_t>(marker.size());
  const auto filled = [&](int64_t bytes) {
    const Tensor tensor = host.empty(bytes);
    for (int64_t i = 0; i < bytes; ++i) tensor.data<uint8_t>()[i] = static_cast<uint8_t>(marker[static_cast<size_t>(i) % marker.size()]);
    return tensor;
  };
  const auto check = [&](const Tensor& tensor) {
    TRIREME_CHECK(std::memcmp(tensor.raw(), filled(tensor.numel()).raw(), static_cast<size_t>(tensor.bytes())) == 0, "another content");
  };
  const Tensor all = filled(n * each), part = filled(each), out = host.empty(n * each), sum = filled(each);
  comm.all_reduce(host.ctx, sum, ReduceOp::kMax).wait(host.ctx);
  check(sum);
  comm.all_gather(host.ctx, part, out).wait(host.ctx);
  check(out);
  comm.reduce_scatter(host.ctx, all, sum, ReduceOp::kMin).wait(host.ctx);
  check(sum);
  comm.all_to_all(host.ctx, all, out).wait(host.ctx);
  check(out);
  const std::vector<int64_t> counts(static_cast<size_t>(n), each);
  comm.all_to_all_v(host.ctx, all, counts, out, counts).wait(host.ctx);
  check(out);
  for (int root = 0; root < n; ++root) comm.broadcast(host.ctx, part, root).wait(host.ctx);
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Tensor received = host.empty(each);
  comm.exchange(host.ctx, std::vector<PointToPoint>{{kSend, part, next}, {kRecv, received, previous}}).wait(host.ctx);
  check(received);
  comm.barrier();
}

/// Groups of a world, among them one on each host if there are two with equal numbers of ranks in order.
void send_marker_in_groups(Communicator& world, const std::string& marker) {
  send_marker(world, marker);
  std::vector<int> alike, backwards;
  for (int rank = world.rank() % 2; rank < world.size(); rank += 2) alike.push_back(rank);
  for (int rank = world.size(); rank-- > 0;) backwards.push_back(rank);
  const auto group = world.group(alike, "alike"), turned = world.group(backwards, "turned"), nested = turned->group(backwards, "nested");
  for (Communicator* comm : {group.get(), turned.get(), nested.get()}) send_marker(*comm, marker);
}

}  // namespace

/// The contract of a communicator, by the fastest algorithm between hosts and by two others.
static void check_contract(const std::vector<int>& hosts) {
  std::vector<std::optional<StepwiseOptions>> choices{std::nullopt};
  const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
  for (const CollectiveAlgorithm algorithm : {CollectiveAlgorithm::kRing, CollectiveAlgorithm::kDoubleBinaryTree})
    choices.emplace_back(StepwiseOptions{.algorithm = algorithm, .within = costs, .between = costs});
  for (const auto& collectives : choices) {
    const int n = static_cast<int>(hosts.size());
    INFO(n << " ranks, by " << (collectives ? name_of(*collectives->algorithm) : "the fastest between hosts"));
    CHECK_NOTHROW(run_ranks(n, check_communicator, {.collectives = collectives, .hosts = hosts}));
    if (n == 3) CHECK_NOTHROW(run_ranks(n, check_communicator, {.poison = true, .collectives = collectives, .hosts = hosts}));
  }
}

TEST_CASE("sealed: ranks on pretended hosts satisfy the contract, with every algorithm") {
  check_contract({0, 0, 1});
  CHECK_NOTHROW(run_ranks(8,
                          [](Communicator& world) {
                            check_mesh(world, {2, 1, 2, 2}, 1);
                            check_mesh(world, {1, 2, 2, 2}, 2);
                          },
                          {.hosts = {0, 0, 0, 0, 1, 1, 1, 1}}));
}

TEST_CASE("sealed: up to four ranks on pretended hosts satisfy the contract, with every algorithm", "[slow]") {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 1, 0, 1}, {0, 0, 1, 2}}) check_contract(hosts);
}

TEST_CASE("sealed: no byte of a marker crosses from host to host, by any verb of any group") {
  const std::string marker = "planted marker of 32 bytes 12345";
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}})
    for (const bool seals : {true, false}) {
      std::mutex mutex;
      int64_t messages = 0, found = 0;
      const Wire look = [&](const WireMessage& message) {
        if (!message.outgoing) return;
        const std::string_view bytes(reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size());
        const std::lock_guard lock(mutex);
        ++messages;
        for (size_t i = 0; i + 8 <= marker.size(); ++i) found += bytes.find(marker.substr(i, 8)) != bytes.npos ? 1 : 0;
      };
      RankOptions options = with_wire(hosts, look);
      const auto body = [&](Communicator& world) { send_marker_in_groups(world, marker); };
      if (seals) {
        run_ranks(static_cast<int>(hosts.size()), body, options);
        CHECK(messages > 50);
        CHECK(found == 0);
      } else {  // the same without the seal: the tap sees what it looks for
        options.hosts = {};
        options.collectives = StepwiseOptions{.algorithm = CollectiveAlgorithm::kRing, .hosts = hosts};
        run_ranks(
            static_cast<int>(hosts.size()),
            [&](Communicator& world) {
              Host host;
              const Tensor buffer = host.empty(64 * world.size());
              std::memset(buffer.raw(), 0, static_cast<size_t>(buffer.bytes()));
              std::memcpy(buffer.raw(), marker.data(), marker.size());
              world.all_gather(host.ctx, buffer.flat(64 * world.rank(), 64), buffer).wait(host.ctx);
            },
            options);
        CHECK(found > 0);
      }
    }
}

TEST_CASE("sealed: equal messages never make equal frames, between any ranks, groups, channels and runs") {
  std::mutex mutex;
  std::set<std::vector<std::byte>> frames;
  int64_t sent = 0;
  const Wire keep = [&](const WireMessage& message) {
    if (!message.outgoing || message.bytes.size() != 48) return;
    const std::lock_guard lock(mutex);
    ++sent;
    frames.insert(copy_of(message.bytes.first(32)));
  };
  for (int run = 0; run < 2; ++run)
    run_ranks(
        4,
        [](Communicator& world) {
          Host host;
          const Tensor out = host.empty(32), in = host.empty(32);
          std::memset(out.raw(), 7, 32);
          const auto one = world.group({0, 1, 2, 3}, "same name"), two = world.group({0, 1, 2, 3}, "same name");
          for (Communicator* comm : {&world, one.get(), two.get()})
            for (const int channel : {0, 1, kChannels - 1})
              for (int turn = 0; turn < 3; ++turn)
                for (const int peer : {(world.rank() + 2) % 4, 3 - world.rank()})
                  comm->exchange(host.ctx, std::vector<PointToPoint>{{kSend, out, peer, channel}, {kRecv, in, peer, channel}}).wait(host.ctx);
          for (int turn = 0; turn < 2; ++turn) {
            const Tensor all = host.empty(4 * 32), back = host.empty(4 * 32);
            std::memset(all.raw(), 7, 4 * 32);
            world.all_to_all(host.ctx, all, back).wait(host.ctx);
          }
        },
        with_wire({0, 0, 1, 1}, keep));
  CHECK(sent == 2 * (3 * 3 * 3 * 8 + 2 * 8));
  CHECK(std::ssize(frames) == sent);
}

TEST_CASE("sealed: each changed, replayed, reordered, lost or foreign frame ends the job with an error that names the peer") {
  const std::string changed = "it was changed on its way, or comes from another run";
  CHECK_NOTHROW(run_ranks(2, send_messages, with_wire({0, 1}, [](const WireMessage&) {})));
  SECTION("a flipped bit, at the beginning, in the middle and in the tag") {
    for (const size_t at : {0, 500, 1015})
      check_attack(
          [=](const WireMessage& message) {
            if (is_arriving(message) && message.number == 3) message.bytes[at] ^= std::byte{4};
          },
          changed);
  }
  SECTION("a truncated frame") {
    check_attack(
        [](const WireMessage& message) {
          if (is_arriving(message) && message.number == 0) std::ranges::fill(message.bytes.last(100), std::byte{0});
        },
        changed);
  }
  SECTION("a replayed frame") {
    std::vector<std::byte> earlier;
    check_attack(
        [&](const WireMessage& message) {
          if (!is_arriving(message)) return;
          if (message.number == 1) earlier = copy_of(message.bytes);
          if (message.number == 6) std::ranges::copy(earlier, message.bytes.begin());
        },
        "it is message 1 of its channel where 6 is due: replayed, or out of order");
  }
  SECTION("two frames in the opposite order") {
    std::span<std::byte> first;
    check_attack(
        [&](const WireMessage& message) {
          if (!is_arriving(message)) return;
          if (message.number == 4) first = message.bytes;
          if (message.number == 5) std::swap_ranges(first.begin(), first.end(), message.bytes.begin());
        },
        "it is message 5 of its channel where 4 is due: earlier ones were lost, or are out of order");
  }
  SECTION("a frame of an earlier run with the same key") {
    std::map<int64_t, std::vector<std::byte>> earlier;
    run_ranks(2, send_messages, with_wire({0, 1}, [&](const WireMessage& message) {
                if (is_arriving(message)) earlier[message.number] = copy_of(message.bytes);
              }));
    REQUIRE(earlier.size() == 8);
    check_attack(
        [&](const WireMessage& message) {
          if (is_arriving(message) && message.number == 2) std::ranges::copy(earlier[2], message.bytes.begin());
        },
        changed);
  }
  SECTION("a whole earlier run") {
    std::map<std::pair<int, int64_t>, std::vector<std::byte>> earlier;
    run_ranks(2, send_messages, with_wire({0, 1}, [&](const WireMessage& message) {
                if (!message.outgoing && message.to == 1) earlier[{message.channel, message.number}] = copy_of(message.bytes);
              }));
    CHECK_THROWS_AS(run_ranks(2, send_messages,
                              with_wire({0, 1},
                                        [&](const WireMessage& message) {
                                          if (message.outgoing || message.to != 1) return;
                                          std::ranges::copy(earlier[{message.channel, message.number}], message.bytes.begin());
                                        })),
                    ConfigError);
  }
}

TEST_CASE("sealed: a frame of another group, channel, rank or direction does not open") {
  // Rank 2 is on another host than the others. What it gets or sends first is put in the place of each other message.
  std::mutex mutex;
  std::vector<std::vector<std::byte>> frames;
  const auto body = [](Communicator& world) {
    Host host;
    const auto group = world.group({0, 1, 2}, "group");
    const auto turn = [&](Communicator& comm, int from, int to, int channel) {
      const Tensor text = host.empty(100);
      std::memset(text.raw(), 1, 100);
      if (world.rank() == from) comm.exchange(host.ctx, std::vector<PointToPoint>{{kSend, text, to, channel}}).wait(host.ctx);
      if (world.rank() == to) comm.exchange(host.ctx, std::vector<PointToPoint>{{kRecv, text, from, channel}}).wait(host.ctx);
    };
    turn(world, 0, 2, 5);
    turn(world, 2, 0, 5);
    turn(world, 1, 2, 5);
    turn(world, 0, 2, 6);
    turn(*group, 0, 2, 5);
  };
  const auto swap_in = [&](size_t place) {
    frames.clear();
    return [&, place](const WireMessage& message) {
      if (message.outgoing || message.bytes.size() != 116) return;
      const std::lock_guard lock(mutex);
      frames.push_back(copy_of(message.bytes));
      if (frames.size() == place + 1) std::ranges::copy(frames.front(), message.bytes.begin());
    };
  };
  CHECK_NOTHROW(run_ranks(3, body, with_wire({0, 0, 1}, swap_in(0))));
  for (size_t place = 1; place < 5; ++place) {
    INFO("message " << place);
    CHECK_THROWS_AS(run_ranks(3, body, with_wire({0, 0, 1}, swap_in(place))), InternalError);
  }
}

TEST_CASE("sealed: parts of an all_to_all are authentic or end the job") {
  const auto body = [](Communicator& world) {
    Host host;
    for (int turn = 0; turn < 3; ++turn) {
      const Tensor in = host.empty(2 * 64), out = host.empty(2 * 64);
      std::memset(in.raw(), turn, 2 * 64);
      world.all_to_all(host.ctx, in, out).wait(host.ctx);
      world.barrier();
    }
  };
  CHECK_NOTHROW(run_ranks(2, body, with_wire({0, 1}, [](const WireMessage&) {})));
  for (const bool replays : {true, false}) {
    std::vector<std::byte> earlier;
    const Wire attack = [&](const WireMessage& message) {
      if (message.outgoing || message.channel != -1 || message.to != 1) return;
      if (message.number == 0) earlier = copy_of(message.bytes);
      if (message.number != 2) return;
      if (replays) std::ranges::copy(earlier, message.bytes.begin());
      message.bytes[0] ^= replays ? std::byte{0} : std::byte{1};
    };
    check_throws<InternalError>(
        [&] {
          run_ranks(2, body, with_wire({0, 1}, attack));
        },
        {"rank 1 on host b", "rank 0 on host a", replays ? "it is message 0 of its channel where 2 is due" : "changed"});
  }
}

TEST_CASE("sealed: a rank with another key is named before anything is sent") {
  check_throws<ConfigError>(
      [] {
        run_ranks(3, [](Communicator&) {}, {.hosts = {0, 0, 1}, .key = [](int rank) { return rank == 2 ? "another" : "the same"; }});
      },
      {"security.key_file", "rank 2 on host b", "do not have the same key"});
}

TEST_CASE("sealed: ranks that wait for each other in steps of a collective are found as those of the transport are") {
  const auto waits_for_no_one = [](Communicator& world) {
    Host host;
    const Tensor buffer = host.empty(64);
    std::memset(buffer.raw(), 1, 64);
    if (world.rank() == 0)
      world.all_reduce(host.ctx, buffer, ReduceOp::kMax).wait(host.ctx);
    else
      world.exchange(host.ctx, std::vector<PointToPoint>{{kRecv, buffer, 0, 3}}).wait(host.ctx);
  };
  check_throws<std::exception>([&] { run_ranks(2, waits_for_no_one, {.hosts = {0, 1}}); }, {"deadlock"});
}

TEST_CASE("sealed: sums of a group on several hosts that stepwise does not make are refused") {
  check_throws<InternalError>(
      [] {
        run_ranks(2, [](Communicator& world) {
          Host host;
          const auto comm = sealed(whole_world(world), agree_on_keys(world, {}, {.hosts = {0, 1}, .names = {"a", "b"}}));
          comm->all_reduce(host.ctx, host.empty(4, DType::kF32), ReduceOp::kSum).wait(host.ctx);
        });
      },
      {"all_reduce of group 'world' on several hosts would be sent in clear text"});
}

}  // namespace trireme::test
