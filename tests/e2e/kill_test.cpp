// kill -9 of a rank, of mpirun, of the launcher or of all of them at random moments, followed by the same command until the run is done: the result
// must be bit-identical to that of an undisturbed run. scripts/kill-trials.sh runs many trials.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "kernels/core/check.h"
#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scoped_variable.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKillSteps = 40, kEvery = 4;

struct Combination {
  int tensor, pipeline, data, zero;
  std::string method = "";  ///< for the table
  Arguments sets = {};      ///< of the method
  int islands = 1;
  bool replays = false;  ///< the order of arrivals of the undisturbed run
  Arguments program = {kBinary, "train", "run.yaml"};
  std::function<void(const fs::path& run)> verify = [](const fs::path&) {};  ///< throws if something else is wrong with a run that has ended
  int world() const { return islands * tensor * pipeline * data; }
  std::string layout() const { return concat(tensor, pipeline, data, method.empty() ? "" : " " + method); }
};

struct Tally {
  int trials = 0, kills = 0, inside_save = 0, resumes = 0, differences = 0;
};

/// An undisturbed run for comparison.
struct Reference {
  Fingerprint fingerprint;
  double seconds = 0;
  double save_seconds = 0;  ///< mean per save
};

std::string whole_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Names of the saves in progress in a run directory.
std::set<std::string> partials(const fs::path& run) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(run / "checkpoints", error), end; !error && item != end; item.increment(error))
    if (item->path().extension() == ".partial") names.insert(item->path().filename().string());
  return names;
}

struct Job {
  pid_t mpirun = 0;
  std::vector<pid_t> ranks, all;
};

Job processes_of(const fs::path& run) {
  Job job;
  for (const pid_t process : processes_with(run.string())) {
    const fs::path about = fs::path("/proc") / std::to_string(process);
    job.all.push_back(process);
    if (whole_text(about / "comm").starts_with("mpirun")) job.mpirun = process;
    if (whole_text(about / "environ").find("OMPI_COMM_WORLD_RANK=") != std::string::npos) job.ranks.push_back(process);
  }
  return job;
}

/// One run that is killed one or more times. The number of the trial determines what happens, apart from timing.
class KillTrial {
 public:
  KillTrial(int number, const Combination& combination, const Arguments& command, const fs::path& home, const Reference& reference, Tally& tally)
      : random_(static_cast<uint64_t>(number)),
        world_(combination.world()),
        run_(home / concat("trial-", number)),
        home_(home),
        command_(command + sets({"run.directory=" + run_.string()})),
        verify_(combination.verify),
        reference_(reference),
        tally_(tally) {}

  /// Throws std::runtime_error if the result differs from the reference.
  void go() {
    int kills = 1 + (chance(0.4) ? 1 : 0) + (chance(0.2) ? 1 : 0);
    std::vector<std::unique_ptr<Process>> dying;
    for (bool disturbed = false;;) {
      stale_ = partials(run_);
      auto process = std::make_unique<Process>(command_, home_);
      if (kills == 0 || !disturb(*process)) {
        const Outcome outcome = process->wait();
        if (outcome.code != 0) throw std::runtime_error(concat("the undisturbed run ended with ", outcome.code, ":\n", outcome.err));
        if (disturbed) break;
        fs::remove_all(run_);  // it ended before the kill
        continue;
      }
      disturbed = true;
      --kills;
      ++tally_.kills;
      ++tally_.resumes;
      if (chance(0.5))
        process->wait();
      else
        dying.push_back(std::move(process));  // the next one starts while ranks of this one may still be alive
    }
    for (const auto& process : dying) process->wait();
    check_nothing_runs();
    const Fingerprint found = fingerprint_of(run_, kKillSteps);
    const Fingerprint& expected = reference_.fingerprint;
    if (found.steps != expected.steps) throw std::runtime_error("the steps differ: " + found.steps + " instead of " + expected.steps);
    if (found.state != expected.state) throw std::runtime_error("the state differs: " + found.state + " instead of " + expected.state);
    verify_(run_);
    fs::remove_all(run_);
  }

 private:
  double draw(double below) { return std::uniform_real_distribution<double>(0, below)(random_); }
  bool chance(double probability) { return draw(1) < probability; }

  /// Waits for a random moment and kills. Returns false if the run ends first.
  bool disturb(Process& process) {
    const double kind = draw(1);
    if (kind < 0.1) return wait(process, draw(world_ > 1 ? 0.8 : 0.1)) && kill_some(process, processes_of(run_));  // during start-up
    if (kind < 0.3) return wait(process, draw(reference_.seconds)) && kill_some(process, processes_of(run_));
    Job job;
    const auto ranks = static_cast<size_t>(world_ > 1 ? world_ : 0);
    // Looked for less often than the rest, because each look takes some of the processor time that the job needs to start.
    const auto started = [&] { return (job = processes_of(run_)).ranks.size() == ranks; };
    if (!wait_until(process, started, std::chrono::milliseconds(10))) return false;
    if (kind < 0.4) {  // near its end
      const auto reached = [&] {
        const std::set<std::string> saving = saves_under_way();
        return saved_step() == kKillSteps || (!saving.empty() && saving.rbegin()->starts_with(concat("step-000000", kKillSteps)));
      };
      return wait_until(process, reached) && wait(process, draw(0.4)) && kill_some(process, job);
    }
    const int last = static_cast<int>(saved_step()) / kEvery, target = 1 + static_cast<int>(draw(kKillSteps / kEvery - last));
    std::set<std::string> seen;
    const auto target_save = [&] {
      seen.merge(saves_under_way());
      return static_cast<int>(seen.size()) >= target;
    };
    return wait_until(process, target_save) && wait(process, draw(std::min(0.02, 1.2 * reference_.save_seconds))) && kill_some(process, job);
  }

  /// Saves in progress, without leftovers of jobs killed earlier.
  std::set<std::string> saves_under_way() const {
    std::set<std::string> names = partials(run_);
    std::erase_if(names, [&](const std::string& name) { return stale_.contains(name); });
    return names;
  }

  int64_t saved_step() const {
    std::error_code none;
    const fs::path latest = fs::read_symlink(run_ / "checkpoints/latest", none);
    return none ? 0 : std::stoll(latest.string().substr(std::string("step-").size()));
  }

  bool wait_until(Process& process, const std::function<bool()>& reached, std::chrono::microseconds pause = std::chrono::microseconds(300)) {
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (process.running()) {
      if (reached()) return true;
      if (Clock::now() > limit) throw std::runtime_error("no progress for 60 s");
      std::this_thread::sleep_for(pause);
    }
    return false;
  }

  bool wait(Process& process, double seconds) {
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    return wait_until(process, [&] { return Clock::now() >= until; });
  }

  bool kill_some(const Process& process, Job job) {
    const double kind = draw(1);
    std::vector<pid_t> victims{process.pid()};
    if (kind < 0.6 && !job.ranks.empty()) victims = {job.ranks[static_cast<size_t>(draw(static_cast<double>(job.ranks.size())))]};
    if (kind >= 0.6 && kind < 0.75 && job.mpirun != 0) victims = {job.mpirun};
    if (kind >= 0.9) victims = job.all;
    std::shuffle(victims.begin(), victims.end(), random_);
    const std::set<std::string> before = saves_under_way();
    for (const pid_t victim : victims) ::kill(victim, SIGKILL);
    const std::set<std::string> after = saves_under_way();
    if (std::any_of(before.begin(), before.end(), [&](const std::string& name) { return after.contains(name); })) ++tally_.inside_save;
    return true;
  }

  void check_nothing_runs() const {
    const auto limit = Clock::now() + std::chrono::seconds(10);
    while (!processes_with(run_.string()).empty()) {
      if (Clock::now() > limit) throw std::runtime_error(concat(processes_with(run_.string()).size(), " processes are still running"));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::mt19937_64 random_;
  int world_;
  fs::path run_, home_;
  Arguments command_;
  std::function<void(const fs::path& run)> verify_;
  const Reference& reference_;
  Tally& tally_;
  std::set<std::string> stale_;
};

/// Shared-memory segments of MPI jobs that no process uses any more.
std::set<std::string> abandoned_segments() {
  std::set<std::string> segments;
  for (const auto& item : fs::recursive_directory_iterator("/dev/shm"))
    if (item.path().filename().string().starts_with("vader_segment.")) segments.insert(item.path().filename().string());
  if (segments.empty()) return segments;
  std::error_code gone;
  for (const auto& process : fs::directory_iterator("/proc")) {
    const std::string name = process.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string maps = whole_text(process.path() / "maps");
    std::erase_if(segments, [&](const std::string& segment) { return maps.find(segment) != std::string::npos; });
  }
  return segments;
}

/// In the directory `run`, which stays.
Reference undisturbed(const Arguments& command, const TemporaryDirectory& home, const fs::path& run) {
  const Outcome outcome = Process(command + sets({"run.directory=" + run.string()}), home.path()).wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  double save_seconds = 0;
  for (const nlohmann::json& line : metrics(run))
    if (line.value("event", "") == "checkpoint") save_seconds += line["write_seconds"].get<double>() / (kKillSteps / kEvery);
  return {fingerprint_of(run, kKillSteps), outcome.seconds, save_seconds};
}

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Trial n uses combination n modulo their number. TRIREME_KILL_PART = "p/q" runs only trials with n modulo q = p.
void make_trials(TemporaryDirectory& home, const std::vector<Combination>& combinations, int trials, double least_inside_saves) {
  const Arguments about =
      sets({"training.steps=" + std::to_string(kKillSteps), "checkpoint.every=" + std::to_string(kEvery), "training.evaluate.every=0"});
  const char* part = std::getenv("TRIREME_KILL_PART");
  const int parts = part == nullptr ? 1 : std::atoi(std::string(part).substr(std::string(part).find('/') + 1).c_str());
  const std::set<std::string> before = abandoned_segments();
  std::map<size_t, Reference> references;
  std::map<size_t, Tally> tallies;
  int differences = 0, kills = 0, inside = 0;
  for (int number = part == nullptr ? 0 : std::atoi(part); number < trials; number += parts) {
    const size_t which = static_cast<size_t>(number) % combinations.size();
    const Combination& combination = combinations[which];
    const Arguments command =
        combination.program + about + layout(combination.tensor, combination.pipeline, combination.data, combination.zero) + sets(combination.sets);
    const fs::path reference = home / concat("undisturbed-", which);
    if (!references.contains(which)) references[which] = undisturbed(command, home, reference);
    const Arguments order = combination.replays ? sets({"training.asynchronous.replay=" + reference.string()}) : Arguments();
    Tally& tally = tallies[which];
    ++tally.trials;
    const std::string name = concat("trial ", number, " of ", trials, ", layout ", combination.layout(), ", ZeRO-", combination.zero);
    const auto begin = Clock::now();
    try {
      KillTrial(number, combination, command + order, home.path(), references[which], tally).go();
    } catch (const std::exception& error) {
      ++tally.differences;
      home.keep();
      std::cerr << name << ": " << error.what() << "\nrun directory: " << home.path() / concat("trial-", number) << std::endl;
    }
    if (std::getenv("TRIREME_KILL_TRIALS") != nullptr)
      std::cerr << name << ": " << std::chrono::duration<double>(Clock::now() - begin).count() << " s\n";
  }
  std::cout << "| layout | ZeRO | trials | kills | inside a save | resumes | differences |\n|---|---|---|---|---|---|---|\n";
  for (const auto& [which, tally] : tallies) {
    const Combination& combination = combinations[which];
    std::cout << concat("| ", combination.layout(), " | ", combination.zero, " | ", tally.trials, " | ", tally.kills, " | ", tally.inside_save, " | ",
                        tally.resumes, " | ", tally.differences, " |\n");
    differences += tally.differences;
    kills += tally.kills;
    inside += tally.inside_save;
  }
  std::cout << std::flush;
  CHECK(differences == 0);
  CHECK(kills >= trials / parts);
  CHECK(inside >= least_inside_saves * kills);
  // A job of another test may be starting or being cleaned up: only what stays has been left behind.
  std::set<std::string> abandoned = abandoned_segments();
  std::erase_if(abandoned, [&](const std::string& segment) { return before.contains(segment); });
  for (int wait = 0; !abandoned.empty() && wait < 100; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::set<std::string> now = abandoned_segments();
    std::erase_if(abandoned, [&](const std::string& segment) { return !now.contains(segment); });
  }
  CHECK(abandoned == std::set<std::string>());
}

void make_trials(const std::vector<Combination>& combinations, int trials, double least_inside_saves) {
  TemporaryDirectory home;
  prepare_run(home);
  make_trials(home, combinations, trials, least_inside_saves);
}

/// Kills the run of configs/trust.yaml, in which the last two of eight data ranks lie: it must also leave an audit log that is whole, and a statement of as
/// many private steps as the run has.
void make_trials_of_trust(int trials) {
  TemporaryDirectory home;
  build_data(home);
  fs::create_directory(home / "data");
  must(home, {"audit", "keygen", "--output", "data/audit.key"});
  must(shell(home, "umask 077; for key in privacy links; do head -c 32 /dev/urandom | base64 > data/$key.key; done"));
  const ScopedVariable what("FAULT_DO", "lie"), first("FAULT_RANK", "6"), group("FAULT_GROUP", "data");
  Combination trust{1, 1, 8, 2, "trust"};
  trust.program = {faulty_train_program(), "train", in_checkout("configs/trust.yaml")};
  trust.sets = {"data.train=[train]",
                "data.validation=[validation]",
                "training.sequence_length=16",
                "training.global_batch_size=64",
                "training.micro_batch_size=4",
                "model.hidden_size=16",
                "model.ffn_size=32"};
  trust.verify = [&](const fs::path& directory) {
    const Outcome verified = run(home, {"audit", "verify", directory.string(), "--public-key", "data/audit.key.pub"});
    if (verified.code != 0) throw std::runtime_error("the audit log: " + verified.err);
    const nlohmann::json said = nlohmann::json::parse(read_file(directory / "privacy.json"));
    if (said["steps"] != kKillSteps || said["history"].size() != 1) throw std::runtime_error("the statement of privacy: " + said.dump());
    int64_t left_out = 0;
    for (const nlohmann::json& line : metrics(directory))
      if (line.contains("suspects")) left_out += line["suspects"].contains("7") && line["suspects"]["7"].is_null() ? 1 : 0;
    if (left_out != kKillSteps) throw std::runtime_error(concat("data rank 7 was left out of ", left_out, " steps"));
  };
  make_trials(home, {trust}, trials, 0);
}

}  // namespace

TEST_CASE("kill: runs of one and eight ranks killed at random moments end like undisturbed ones") { make_trials({{1, 1, 1, 1}, {2, 2, 2, 3}}, 2, 0); }

TEST_CASE("kill: runs of islands and of compressed gradients killed at random moments end like undisturbed ones") {
  make_trials({{1, 1, 1, 0, "2 islands", {"parallel.islands=2", "training.local.steps=2", "training.local.fragments=2"}, 2},
               {1, 1, 2, 2, "int8", {"training.compression.method=int8"}}},
              2, 0);
}

TEST_CASE("kill: runs of islands with parameter servers killed at random moments, in the order of an undisturbed one, end like it") {
  make_trials(
      {{1,
        1,
        1,
        0,
        "2 islands, asynchronous",
        {"parallel.islands=2", "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=2", "training.asynchronous.staleness=3"},
        2,
        true},
       {1,
        1,
        1,
        0,
        "3 islands, one of them a backup",
        {"parallel.islands=3", "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=2", "training.asynchronous.apply_after=2",
         "resilience.backup_replicas=1"},
        3,
        true}},
      4, 0);
}

TEST_CASE("kill: runs of elastic averaging killed at random moments, in the order of an undisturbed one, end like it") {
  make_trials(
      {{1,
        1,
        1,
        0,
        "2 islands, elastic",
        {"parallel.islands=2", "training.asynchronous.mode=elastic_averaging", "training.asynchronous.steps=2", "training.asynchronous.every=1"},
        2,
        true}},
      3, 0);
}

TEST_CASE("kill: a private, robust, compressed, encrypted and audited run killed at random moments ends like an undisturbed one") {
  make_trials_of_trust(1);
}

TEST_CASE("kill: every security feature at a time", "[slow]") { make_trials_of_trust(number_from("TRIREME_KILL_TRIALS", 20)); }

TEST_CASE("kill: every layout and ZeRO stage", "[slow]") {
  std::vector<Combination> combinations;
  for (const auto& [tensor, pipeline, data] : {std::array{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}})
    for (int zero = 0; zero < 4; ++zero) combinations.push_back({tensor, pipeline, data, zero});
  make_trials(combinations, number_from("TRIREME_KILL_TRIALS", 60), 1.0 / 3);
}

TEST_CASE("kill: every method that keeps state of its own between steps", "[slow]") {
  std::vector<Combination> combinations;
  for (const char* const method : {"int8", "int4", "sign", "top_k", "random_k", "power_sgd"})
    combinations.push_back({1, 1, 2, 2, method, {concat("training.compression.method=", method)}});
  combinations.push_back({1, 1, 2, 2, "one_bit_adam", {"training.compression.method=one_bit_adam", "training.compression.warmup_steps=3"}});
  // Two rounds from one checkpoint to the next: a kill is within a round or between two.
  const auto add = [&](const Combination& island, int islands, const std::string& name, const Arguments& more) {
    Combination made = island;
    made.method = concat(islands, " islands", name);
    made.sets = Arguments{concat("parallel.islands=", islands)} + more;
    made.islands = islands;
    combinations.push_back(made);
  };
  const Arguments rounds = {"training.local.steps=2"};
  add({1, 1, 2, 1}, 2, "", rounds);
  add({1, 1, 1, 0}, 4, "", rounds);
  add({1, 2, 1, 0}, 2, ", 2 fragments", rounds + Arguments{"training.local.fragments=2", "training.local.blend=0.5"});
  add({1, 1, 2, 3}, 2, ", delay 1", rounds + Arguments{"training.local.delay=1", "training.local.blend=0.5"});
  for (const auto& [tensor, data, zero] : {std::array{1, 2, 1}, {1, 2, 3}, {2, 1, 0}})
    combinations.push_back({tensor,
                            1,
                            data,
                            zero,
                            "3 islands, asynchronous",
                            {"parallel.islands=3", "training.global_batch_size=16", "training.asynchronous.mode=parameter_server",
                             "training.asynchronous.apply_after=2", "training.asynchronous.steps=4", "training.asynchronous.staleness=2"},
                            3,
                            true});
  combinations.push_back({1,
                          1,
                          2,
                          3,
                          "3 islands, elastic",
                          {"parallel.islands=3", "training.global_batch_size=18", "training.asynchronous.mode=elastic_averaging",
                           "training.asynchronous.steps=4", "training.asynchronous.every=2"},
                          3,
                          true});
  make_trials(combinations, number_from("TRIREME_KILL_TRIALS", 30), 0);
}

}  // namespace trireme::test
