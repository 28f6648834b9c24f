// A state that comes from the memory of peers is the state that they copied, whichever hosts are lost and whichever layout reads it.
#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/peer_placement.h"
#include "trainer/run/peer_copies.h"
#include "trainer/run/peer_state.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

/// Hosts are directories: each has the copies of its ranks in one of its own.
class Hosts {
 public:
  explicit Hosts(const Config& config, int copies = 1) : config_(config) {
    config_.run.directory = files_.path / "run";
    config_.resilience.peer_copies = copies;
    fs::create_directories(config_.run.directory);
  }
  fs::path place(int host) const { return files_.path / ("host-" + std::to_string(host)); }
  fs::path run() const { return config_.run.directory; }
  /// The configuration of a rank, with the layout of `parallel`.
  Config of(int host, const ParallelConfig& parallel) const {
    Config config = config_;
    config.parallel = parallel;
    config.resilience.peer_directory = place(host);
    fs::create_directories(place(host));
    return config;
  }
  const Config& config() const { return config_; }
  /// All that the host's memory contained.
  void lose(int host) const { fs::remove_all(place(host)); }
  /// What a rank holds of each generation, as paths.
  std::vector<fs::path> generations(int host, int holder) const {
    std::vector<fs::path> found;
    const PeerDirectory directory(place(host), run());
    const fs::path of_holder = directory.of(holder, {}).parent_path();
    if (fs::exists(of_holder))
      for (const auto& item : fs::directory_iterator(of_holder)) found.push_back(item.path());
    return found;
  }

 private:
  TemporaryDirectory files_;
  Config config_;
};

constexpr ParityModel kModel = ParityModel::kLlama;

ParityLayout layout_of(int tensor, int pipeline, int data, int zero) {
  ParityLayout layout;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.zero = zero;
  return layout;
}

void steps(Trainer& trainer, int first, int last) {
  const RaggedDataset data{29, 12, 61};
  for (int step = first; step < last; ++step) TRIREME_CHECK(trainer.step(data, step, 1e-3).accepted, "a step was rejected");
}

/// Trains on `host_of_rank.size()` ranks, with copies after each of `saves` steps; the last one is waited for.
void train_with_copies(const Hosts& hosts, const ParityLayout& layout, const std::vector<int>& host_of_rank, const std::vector<int>& saves,
                       GatheredState& state, const std::string& session = "1") {
  write_peer_record(hosts.run(), {session});
  on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
    const Config config = hosts.of(host_of_rank[static_cast<size_t>(trainer.mesh().world.rank())], trainer.config().parallel);
    PeerCopies peers(trainer, config, session);
    trainer.initialise();
    int done = 0;
    for (const int save : saves) {
      steps(trainer, std::exchange(done, save), save);
      const auto report = peers.save(description_of_step(trainer, save));
      TRIREME_CHECK(!report || !report->error, report->error.value_or(""));
    }
    state.add(trainer);
    for (const OwnedBox& owned : trainer.owned_boxes())  // long before the thread that copies reaches it
      for (const auto& [kind, tensor] : owned.kept()) std::memset(tensor.raw(), 0, static_cast<size_t>(tensor.numel() * size_of(tensor.dtype())));
    const auto report = peers.finish();
    TRIREME_CHECK(report && !report->error && report->step == saves.back() && report->sent_bytes > 0, "the last copy");
  });
}

struct Loaded {
  GatheredState state;
  std::optional<PeerGeneration> generation;
  std::vector<std::set<std::string>> fetched;  ///< by rank
  std::mutex mutex;
};

/// Loads the newest copies in a job of another layout, on other hosts.
void load_from_peers(const Hosts& hosts, const ParityLayout& layout, const std::vector<int>& host_of_rank, Loaded& loaded) {
  loaded.fetched.resize(host_of_rank.size());
  on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
    Communicator& world = trainer.mesh().world;
    const Config config = hosts.of(host_of_rank[static_cast<size_t>(world.rank())], trainer.config().parallel);
    const std::unique_ptr<PeerState> peers = PeerState::find(world, config, 0, 1000);
    if (!peers) return;
    const std::unique_ptr<CheckpointReader> reader = peers->open();
    const std::set<std::string> absent = reader->absent_files_of([&] { load_state(trainer, *reader); });
    peers->fetch(absent);
    load_state(trainer, *reader);
    loaded.state.add(trainer);
    const std::lock_guard lock(loaded.mutex);
    loaded.generation = peers->generation();
    loaded.fetched[static_cast<size_t>(world.rank())] = absent;
  });
}

size_t fetched_files(const Loaded& loaded) {
  size_t count = 0;
  for (const auto& files : loaded.fetched) count += files.size();
  return count;
}

}  // namespace

TEST_CASE("peer copies: two of four hosts lost, and any layout continues from the memory of the others") {
  const ParityLayout saved = layout_of(2, 1, 4, 3);
  const std::vector<int> pairs{0, 0, 1, 1, 2, 2, 3, 3};
  struct Case {
    const char* name;
    ParityLayout layout;
    std::vector<int> hosts;
  };
  const Case cases[] = {{"new hosts in place of the lost ones", saved, pairs},
                        {"other ranks on the hosts", saved, {3, 3, 2, 2, 1, 1, 0, 0}},
                        {"half as many data ranks on the hosts that are left", layout_of(2, 1, 2, 3), {0, 0, 3, 3}},
                        {"a pipeline", layout_of(1, 2, 2, 2), {0, 3, 0, 3}},
                        {"one rank on a new host, and one that has copies", layout_of(2, 1, 1, 0), {7, 3}}};
  for (const Case& each : cases) {
    INFO(each.name);
    const Hosts hosts(parity_config(kModel, saved, "fp64"));
    GatheredState state;
    train_with_copies(hosts, saved, pairs, {1, 2}, state);
    hosts.lose(1);
    hosts.lose(2);
    Loaded loaded;
    // Hosts without ranks of the job have nothing to give: the last case needs those of host 0.
    const bool complete = std::ranges::count(each.hosts, 0) > 0;
    load_from_peers(hosts, each.layout, each.hosts, loaded);
    REQUIRE(loaded.generation.has_value() == complete);
    if (!complete) continue;
    CHECK(loaded.generation->step == 2);
    CHECK(loaded.state.whole() == state.whole());
  }
}

TEST_CASE("peer copies: a rank fetches the parts that it needs and its host lacks, and no others") {
  const ParityLayout layout = layout_of(2, 1, 4, 3);
  const std::vector<int> pairs{0, 0, 1, 1, 2, 2, 3, 3};
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  GatheredState state;
  train_with_copies(hosts, layout, pairs, {1}, state);
  Loaded all;
  load_from_peers(hosts, layout, pairs, all);
  CHECK(fetched_files(all) == 0);  // every host has the parts of its own ranks
  hosts.lose(1);
  Loaded some;
  load_from_peers(hosts, layout, pairs, some);
  CHECK(some.fetched[2] == std::set<std::string>{"rank-00002.safetensors"});
  CHECK(some.fetched[3] == std::set<std::string>{"rank-00002.safetensors", "rank-00003.safetensors"});  // the first has what tensor ranks replicate
  CHECK(fetched_files(some) == 3);
  CHECK(some.state.whole() == state.whole());
  // Nothing of a load remains, and the copies are as before.
  CHECK(hosts.generations(0, 0).size() == 1);
  for (const auto& item : fs::directory_iterator(PeerDirectory(hosts.place(0), hosts.run()).path()))
    CHECK(item.path().filename().string().starts_with("holder-"));
}

TEST_CASE("peer copies: without every part of the newest copies, those before are used") {
  const ParityLayout layout = layout_of(1, 1, 4, 1);
  const std::vector<int> apart{0, 1, 2, 3};
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  GatheredState first, last;
  train_with_copies(hosts, layout, apart, {1}, first);
  train_with_copies(hosts, layout, apart, {1, 2}, last);
  REQUIRE(hosts.generations(0, 0).size() == 2);
  for (const auto& [host, holder] : {std::pair{2, 2}, {3, 3}})
    for (const fs::path& generation : hosts.generations(host, holder))
      if (generation.filename().string().starts_with("step-00000002")) fs::remove(generation / "rank-00002.json");
  Loaded loaded;
  load_from_peers(hosts, layout, apart, loaded);
  REQUIRE(loaded.generation);
  CHECK(loaded.generation->step == 1);
  CHECK(loaded.state.whole() == first.whole());
  hosts.lose(2);
  hosts.lose(3);  // the only holders of the states of ranks 2 and 3
  Loaded none;
  load_from_peers(hosts, layout, apart, none);
  CHECK(!none.generation);
}

TEST_CASE("peer copies: at most two are kept, and those that the job continued from until its own are complete") {
  const ParityLayout layout = layout_of(1, 1, 2, 1);
  const std::vector<int> apart{0, 1};
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  GatheredState state;
  train_with_copies(hosts, layout, apart, {1, 2, 3, 4}, state);
  CHECK(hosts.generations(0, 0).size() == 2);
  const PeerGeneration before{4, "1", 2};
  write_peer_record(hosts.run(), {"2", before});
  on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
    const int rank = trainer.mesh().world.rank();
    PeerCopies peers(trainer, hosts.of(rank, trainer.config().parallel), "2");
    peers.keep(before);
    trainer.initialise();
    const PeerDirectory directory(hosts.place(rank), hosts.run());
    const auto has = [&](const PeerGeneration& generation) { return fs::exists(directory.of(rank, generation)); };
    peers.save(description_of_step(trainer, 5));
    TRIREME_CHECK(has(before) && !has({3, "1", 2}), "the copies that the job continued from are the only ones of the job before");
    peers.save(description_of_step(trainer, 6));
    trainer.mesh().world.barrier();
    TRIREME_CHECK(!has(before) && has({5, "2", 2}), "the job has its own");
  });
}

TEST_CASE("peer copies: where there are too few hosts, or one host has too few ranks, the user learns how many are needed") {
  const ParityLayout layout = layout_of(1, 1, 2, 1);
  const Hosts hosts(parity_config(kModel, layout, "fp64"), 2);
  const auto said_on = [&](const std::vector<int>& host_of_rank) {
    std::string text;
    on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
      const int rank = trainer.mesh().world.rank();
      const PeerCopies peers(trainer, hosts.of(host_of_rank[static_cast<size_t>(rank)], trainer.config().parallel), "1");
      if (rank == 0) text = peers.text();
    });
    return text;
  };
  using Catch::Matchers::StartsWith;  // the state itself is on one more than the copies
  CHECK_THAT(said_on({0, 1}), StartsWith("warning: resilience.peer_copies=2 needs 3 hosts; peer copies: every "));
  CHECK_THAT(said_on({0, 0}), StartsWith("warning: resilience.peer_copies=2 needs 3 ranks; peer copies: every "));
}

TEST_CASE("peer copies: copies of another history are not used") {
  const ParityLayout layout = layout_of(1, 1, 2, 1);
  const std::vector<int> apart{0, 1};
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  GatheredState state;
  train_with_copies(hosts, layout, apart, {1, 2}, state);
  const auto step_with = [&](const PeerRecord& record) {
    write_peer_record(hosts.run(), record);
    Loaded loaded;
    load_from_peers(hosts, layout, apart, loaded);
    return loaded.generation ? loaded.generation->step : 0;
  };
  CHECK(step_with({"1"}) == 2);
  CHECK(step_with({"2"}) == 0);                             // a job that started from a checkpoint
  CHECK(step_with({"2", PeerGeneration{2, "1", 2}}) == 2);  // a job that continued from the copies and died before its own
  CHECK(step_with({"2", PeerGeneration{1, "1", 2}}) == 1);
  fs::remove(hosts.run() / kPeerRecordName);  // the directory of a run that was deleted
  Loaded loaded;
  load_from_peers(hosts, layout, apart, loaded);
  CHECK(!loaded.generation);
}

TEST_CASE("peer copies: a copy that fails is reported on all ranks, and the one before remains") {
  const ParityLayout layout = layout_of(1, 1, 2, 1);
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  write_peer_record(hosts.run(), {"1"});
  on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
    const int rank = trainer.mesh().world.rank();
    PeerCopies peers(trainer, hosts.of(rank, trainer.config().parallel), "1");
    trainer.initialise();
    const PeerDirectory directory(hosts.place(rank), hosts.run());
    peers.save(description_of_step(trainer, 1));
    const fs::path obstacle = directory.of(1, {2, "1", 2});
    if (rank == 1) {  // a file where rank 1 would put a directory: it can keep neither its own part nor that of rank 0
      fs::create_directories(obstacle.parent_path());
      std::ofstream(obstacle) << "in the way";
    }
    trainer.mesh().world.barrier();
    TRIREME_CHECK(!peers.save(description_of_step(trainer, 2))->error, "the first copy is complete");
    const auto report = peers.save(description_of_step(trainer, 3));
    TRIREME_CHECK(report->step == 2 && report->error.has_value(), "the second copy failed");
    TRIREME_CHECK(fs::exists(directory.of(rank, {1, "1", 2})), "the first copy remains");
    const auto third = peers.finish();
    TRIREME_CHECK(!third->error, "the third is complete: ", third->error.value_or(""));
  });
}

TEST_CASE("peer copies: copies that fail from the first one on do not pile up, and what earlier jobs left goes") {
  const ParityLayout layout = layout_of(1, 1, 2, 1);
  const Hosts hosts(parity_config(kModel, layout, "fp64"));
  GatheredState state;
  train_with_copies(hosts, layout_of(1, 1, 4, 1), {0, 1, 0, 1}, {1}, state, "0");  // a job of four ranks
  write_peer_record(hosts.run(), {"1"});                                           // this one starts from a checkpoint
  on_ranks(parity_config(kModel, layout, "fp64"), [&](Trainer& trainer) {
    Communicator& world = trainer.mesh().world;
    const int rank = world.rank();
    PeerCopies peers(trainer, hosts.of(rank, trainer.config().parallel), "1");
    trainer.initialise();
    const PeerDirectory directory(hosts.place(rank), hosts.run());
    const fs::path holder = directory.of(1, {}).parent_path();
    if (rank == 1) {
      fs::remove_all(holder);
      std::ofstream(holder) << "in the way";
    }
    world.barrier();
    peers.save(description_of_step(trainer, 1));
    for (int step = 2; step < 6; ++step)
      TRIREME_CHECK(peers.save(description_of_step(trainer, step))->error, "a copy without a directory is complete");
    TRIREME_CHECK(rank != 0 || hosts.generations(0, 0).size() <= 2, "copies pile up");
    world.barrier();
    if (rank == 1) fs::remove(holder);
    world.barrier();
    peers.save(description_of_step(trainer, 6));
    TRIREME_CHECK(!peers.save(description_of_step(trainer, 7))->error, "the obstacle is gone");
    peers.finish();
    world.barrier();
    for (const PeerPart& part : directory.parts())
      TRIREME_CHECK(part.generation.session == "1", "a part of the earlier job, of holder ", part.holder);
  });
}

TEST_CASE("peer copies: placement in groups survives what the formula says") {
  const auto binomial = [](int n, int k) {
    double value = 1;
    for (int i = 0; i < k; ++i) value = value * (n - i) / (i + 1);
    return value;
  };
  const auto survival = [&](int hosts, int copies, int lost, int per_host) {
    std::vector<std::string> host_of_rank;
    for (int host = 0; host < hosts; ++host)
      for (int rank = 0; rank < per_host; ++rank) host_of_rank.push_back(std::to_string(host));
    const auto domains = failure_domains(host_of_rank);
    const auto holders = peer_holders(domains, copies);
    std::vector<int> chosen(static_cast<size_t>(hosts), 0);
    std::fill(chosen.end() - lost, chosen.end(), 1);
    int64_t sets = 0, survived = 0;
    do {
      const auto is_lost = [&](int rank) { return chosen[static_cast<size_t>(rank / per_host)] == 1; };
      bool complete = true;
      for (int rank = 0; rank < hosts * per_host; ++rank)
        complete &= !is_lost(rank) || std::ranges::any_of(holders[static_cast<size_t>(rank)], [&](int holder) { return !is_lost(holder); });
      survived += complete ? 1 : 0;
      ++sets;
    } while (std::next_permutation(chosen.begin(), chosen.end()));
    CHECK(sets == std::llround(binomial(hosts, lost)));
    return static_cast<double>(survived) / static_cast<double>(sets);
  };
  // 1 - (N/m) C(N-m, k-m) / C(N, k), with m = copies + 1: Gemini, and its ring placement at N 16, m 2, k 2, which has .86667.
  CHECK(survival(16, 1, 2, 1) == Approx(.93333).margin(5e-6));
  CHECK(survival(16, 1, 2, 3) == Approx(.93333).margin(5e-6));
  CHECK(survival(16, 1, 3, 1) == Approx(.80).margin(5e-6));
  CHECK(survival(128, 1, 2, 1) == Approx(.99213).margin(5e-6));
  CHECK(survival(128, 1, 3, 1) == Approx(.97638).margin(5e-6));
  for (const auto& [hosts, copies, lost] : {std::array{6, 1, 2}, {6, 2, 3}, {12, 2, 4}, {12, 3, 5}}) {
    const int m = copies + 1;
    CHECK(survival(hosts, copies, lost, 2) == Approx(1 - static_cast<double>(hosts) / m * binomial(hosts - m, lost - m) / binomial(hosts, lost)));
  }
  for (int hosts = 2; hosts <= 9; ++hosts)
    for (int copies = 1; copies < hosts; ++copies) CHECK(survival(hosts, copies, copies, 2) == 1);
}

TEST_CASE("peer copies: every holder is on another host, in the same group, and hosts may have different numbers of ranks") {
  using Ranks = std::vector<std::vector<int>>;  // matched by their place on a host
  CHECK(peer_holders(Ranks{{0, 1}, {2, 3}}, 1) == Ranks{{2}, {3}, {0}, {1}});
  CHECK(peer_holders(Ranks{{0, 2, 4}, {1, 3, 5}, {6, 7, 8}}, 2) == Ranks{{1, 6}, {6, 0}, {3, 7}, {7, 2}, {5, 8}, {8, 4}, {0, 1}, {2, 3}, {4, 5}});
  CHECK(peer_holders(Ranks{{0, 1, 2}, {3, 4}}, 1) == Ranks{{3}, {4}, {3}, {0}, {1}});
  const auto domains = failure_domains({"a", "a", "a", "b", "c", "c", "d", "e", "e"});
  REQUIRE(domains.size() == 5);
  for (int copies = 1; copies < 5; ++copies) {
    const auto holders = peer_holders(domains, copies);
    const auto groups = peer_groups(domains, copies);
    for (size_t rank = 0; rank < holders.size(); ++rank) {
      std::set<int> hosts;
      for (size_t domain = 0; domain < domains.size(); ++domain)
        for (const int member : domains[domain])
          if (std::ranges::count(holders[rank], member) > 0 || member == static_cast<int>(rank)) hosts.insert(static_cast<int>(domain));
      CHECK(hosts.size() == static_cast<size_t>(copies) + 1);
      for (const int holder : holders[rank]) CHECK(groups[rank] == groups[static_cast<size_t>(holder)]);
    }
  }
  CHECK(failure_domains({"a", "a", "a"}).size() == 3);  // on one host the domains are ranks
}

}  // namespace trireme::test
