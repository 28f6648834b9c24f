// Connections between ranks for threads beside their main threads.
#include "parallel/comm/rank_links.h"

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

TEST_CASE("rank links: every rank serves every other one from a thread of its own, with messages larger than any buffer") {
  constexpr size_t kCount = size_t{1} << 20;
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& world) {
      const RankLinks links(world);
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
