// Federations of processes: a coordinator and members that train on data of their own, which never leave them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "parallel/comm/self.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/config/load.h"
#include "trainer/federation/flat_model.h"
#include "trainer/federation/role.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/run/run_data.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const std::string kMarker = "PLANTED-MARKER-of-a-patient";

std::string name_of_member(int member) { return "site-" + std::to_string(member); }

/// Different text for each member, full of the marker.
void build_member_data(const TemporaryDirectory& directory, int member) {
  std::string text;
  for (int i = 0; text.size() < 9000; ++i)
    text += kMarker + " " + std::to_string(i * (member + 3)) + " of " + name_of_member(member) + " has " + std::to_string(i * i % 37) + " entries.\n";
  for (const auto& [name, part] : {std::pair{"", text}, {"-held", text.substr(2000, 600)}}) {
    const std::string at = name_of_member(member) + name;
    write_file(directory / (at + ".txt"), part);
    must(directory, {"data", "build", "--tokenizer", "bytes", "--output", at, at + ".txt"});
  }
}

/// run.yaml of a federation of `members`, its keys and roster, and data of each member.
void prepare_federation(const TemporaryDirectory& directory, int members, const std::string& precision = "fp32") {
  write_file(directory / "run.yaml",
             "run: {directory: run, device: cpu}\n"
             "model: {layers: 2, hidden_size: 16, heads: 4, kv_heads: 2, ffn_size: 32, dropout: 0.1}\n"
             "training:\n"
             "  steps: 6\n  sequence_length: 16\n  global_batch_size: 8\n  precision: " +
                 precision +
                 "\n"
                 "  optimizer: {learning_rate: 1.0e-2}\n"
                 "  local: {steps: 2}\n"
                 "data: {train: [nothing]}\n"
                 "checkpoint: {every: 2, keep: 20}\n"
                 "observe: {print_every: 1}\n"
                 "security:\n"
                 "  federation: {members: " +
                 std::to_string(members) + ", roster: roster, identity_key_file: coordinator.key, wait_seconds: 1, round_seconds: 40}\n");
  std::string roster;
  std::vector<std::string> names{"coordinator"};
  for (int member = 0; member < members; ++member) {
    names.push_back(name_of_member(member));
    build_member_data(directory, member);
  }
  for (const std::string& name : names) {
    must(directory, {"audit", "keygen", "--output", name + ".key"});
    roster += name + " " + read_file(directory / (name + ".key.pub"));
  }
  write_file(directory / "roster", roster);
}

/// A process whose output goes to files.
class LoggedProcess {
 public:
  LoggedProcess(const TemporaryDirectory& directory, const std::string& name, const Arguments& command)
      : err_(directory / (name + ".err")),
        process_(logged(command, directory / (name + ".out"), err_), directory.path(), std::chrono::seconds(240)) {}
  std::string err() const { return fs::exists(err_) ? read_file(err_) : ""; }
  /// False if the process ends first.
  bool wait_for_error(const std::string& text) const {
    while (!(err().find(text) != std::string::npos)) {
      if (!process_.running()) return (err().find(text) != std::string::npos);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  int wait() { return process_.wait().code; }
  void kill() const { process_.signal(SIGKILL); }
  void signal(int number) const { process_.signal(number); }

 private:
  static Arguments logged(const Arguments& command, const fs::path& out, const fs::path& err) {
    std::string line = "exec";
    for (const std::string& word : command) line += " '" + word + "'";
    fs::remove(err);
    return {"sh", "-c", line + " > '" + out.string() + "' 2> '" + err.string() + "'"};
  }
  fs::path err_;
  Process process_;
};

std::unique_ptr<LoggedProcess> start_coordinator(const TemporaryDirectory& directory, const Arguments& more = {}) {
  return std::make_unique<LoggedProcess>(directory, "coordinator",
                                         Arguments{kBinary, "train", "run.yaml"} + sets({"security.federation.port=0"}) + more);
}

int port_of(const LoggedProcess& coordinator) {
  const bool listens = coordinator.wait_for_error("members at port ");
  INFO(coordinator.err());
  REQUIRE(listens);
  const std::string err = coordinator.err(), mark = "members at port ";
  return std::stoi(err.substr(err.find(mark) + mark.size()));
}

/// A port that is free now.
int unused_port() {
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  REQUIRE(::bind(file, reinterpret_cast<sockaddr*>(&at), size) == 0);
  REQUIRE(::getsockname(file, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  ::close(file);
  return ntohs(at.sin_port);
}

Arguments member_command(int member, int port, const Arguments& more = {}) {
  const std::string name = name_of_member(member);
  return Arguments{kBinary, "join", "127.0.0.1:" + std::to_string(port), "run.yaml"} +
         sets({"run.directory=" + name + ".run", "data.train=[" + name + "]", "data.validation=[" + name + "-held]",
               "security.federation.identity_key_file=" + name + ".key"}) +
         more;
}
std::unique_ptr<LoggedProcess> start_member(const TemporaryDirectory& directory, int member, int port, const Arguments& more = {}) {
  return std::make_unique<LoggedProcess>(directory, name_of_member(member), member_command(member, port, more));
}

/// Waits until all members have ended, and checks that each did so without an error.
void await_members(const std::vector<std::unique_ptr<LoggedProcess>>& members) {
  for (const auto& member : members) {
    const int code = member->wait();
    INFO(member->err());
    REQUIRE(code == 0);
  }
}

using Weights = std::map<std::string, std::vector<double>>;

/// `kind`: "weight", or a state of the optimizer.
Weights weights_of_checkpoint(const fs::path& checkpoint, const std::string& kind = "weight") {
  CheckpointReader reader(checkpoint);
  Weights weights;
  for (const auto& [name, stored] : reader.tensors()) {
    if (!name.starts_with(kind + "/")) continue;
    std::vector<double>& values = weights[name.substr(kind.size() + 1)];
    values.resize(static_cast<size_t>(stored.shape[0] * stored.shape[1]));
    reader.read(name, {{0, 0}, stored.shape}, DType::kF64, values.data());
  }
  return weights;
}
Weights last_weights(const TemporaryDirectory& directory, const std::string& run) {
  return weights_of_checkpoint(directory / (run + "/checkpoints/step-00000006"));
}

std::vector<nlohmann::json> rounds_of(const fs::path& run) {
  std::vector<nlohmann::json> found;
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (const nlohmann::json event = nlohmann::json::parse(line); event.value("event", "") == "round") found.push_back(event);
  return found;
}

/// The federation by hand: each member is a trainer on one rank, and the outer step is that of DiLoCo in doubles.
Weights emulated(const TemporaryDirectory& directory, int members, int rounds, const std::vector<double>& weight) {
  struct Site {
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Context> ctx;
    std::unique_ptr<SelfCommunicator> world;
    std::unique_ptr<Trainer> trainer;
    std::unique_ptr<RunData> data;
    std::unique_ptr<federation::FlatModel> model;
  };
  fs::current_path(directory.path());
  std::vector<Site> sites;
  Config config;
  for (int member = 0; member < members; ++member) {
    const LoadedConfig loaded = load_config((directory / "run.yaml").string(), {"data.train=[" + name_of_member(member) + "]"});
    config = resolve(federation::member_config(loaded));
    Site site{std::make_unique<Arena>(Device::kCpu, true), {}, std::make_unique<SelfCommunicator>("world"), {}, {}, {}};
    site.ctx = std::make_unique<Context>(Context{Device::kCpu, site.arena.get(), 1});
    site.trainer = std::make_unique<Trainer>(*site.ctx, *site.world, config, true);
    site.trainer->initialise();
    site.data = std::make_unique<RunData>(open_run_data(config));
    site.model = std::make_unique<federation::FlatModel>(*site.trainer);
    sites.push_back(std::move(site));
  }
  const auto values_of = [](const std::vector<std::byte>& bytes) {
    std::vector<double> values(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  std::vector<double> theta = values_of(sites[0].model->weights()), momentum(theta.size(), 0);
  const auto take = [&](const Site& site) {
    const std::string bytes(reinterpret_cast<const char*>(theta.data()), theta.size() * sizeof(double));
    CHECK(site.model->receive(static_cast<int64_t>(bytes.size()), [&](int64_t) { return bytes; }));
    site.model->apply();
  };
  double total = 0;
  for (const double one : weight) total += one;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> mean(theta.size(), 0);
    for (int member = 0; member < members; ++member) {
      Site& site = sites[static_cast<size_t>(member)];
      take(site);
      for (int64_t step = 2 * round + 1; step <= 2 * round + 2; ++step)
        site.trainer->step(site.data->train, step - 1, learning_rate(config.training.schedule, config.training.optimizer, 8, step, 6));
      const std::vector<double> now = values_of(site.model->weights());
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += weight[static_cast<size_t>(member)] / total * (theta[i] - now[i]);
    }
    for (size_t i = 0; i < theta.size(); ++i) {
      momentum[i] = 0.9 * momentum[i] + mean[i];
      theta[i] -= 0.7 * (mean[i] + 0.9 * momentum[i]);
    }
  }
  take(sites[0]);
  Weights weights;
  for (const OwnedBox& owned : sites[0].trainer->owned_boxes()) {
    std::vector<double>& all = weights[owned.spec->name];
    all.insert(all.end(), owned.weight.data<double>(), owned.weight.data<double>() + owned.weight.numel());
  }
  return weights;
}

double largest_difference(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (const auto& [name, values] : a) {
    REQUIRE(b.at(name).size() == values.size());
    for (size_t i = 0; i < values.size(); ++i) largest = std::max(largest, std::abs(values[i] - b.at(name)[i]));
  }
  return largest;
}

/// Passes the bytes of all connections on to a coordinator, and records them, as somebody on the way would.
class Wiretap {
 public:
  explicit Wiretap(int to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = local(0);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(listener_, 16) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Wiretap() {
    is_over_ = true;
    thread_.join();
    for (const auto& [from, to] : pairs_) ::close(from);
    ::close(listener_);
  }
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;
  int port() const { return port_; }
  /// All that has passed, by connection and direction.
  std::vector<std::string> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  static sockaddr_in local(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(port));
    return at;
  }
  void serve() {
    while (!is_over_) {
      std::vector<pollfd> sources{{listener_, POLLIN, 0}};
      for (const auto& [from, to] : pairs_) sources.push_back({from, POLLIN, 0});
      ::poll(sources.data(), sources.size(), 50);
      if ((sources[0].revents & POLLIN) != 0) connect();
      for (size_t i = 1; i < sources.size(); ++i)
        if (sources[i].revents != 0) pass_on(sources[i].fd);
    }
  }
  void connect() {
    const int from = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in at = local(to_);
    if (::connect(to, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
      ::close(from);
      ::close(to);
      return;
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [one, other] : {std::pair{from, to}, {to, from}}) {
      pairs_[one] = other;
      record_of_[one] = recorded_.size();
      recorded_.emplace_back();
    }
  }
  void pass_on(int from) {
    const auto found = pairs_.find(from);
    if (found == pairs_.end()) return;
    const int to = found->second;
    std::array<char, 65536> bytes;
    const ssize_t count = ::recv(from, bytes.data(), bytes.size(), 0);
    if (count <= 0) {
      pairs_.erase(from);
      pairs_.erase(to);
      ::close(from);
      ::close(to);
      return;
    }
    for (ssize_t done = 0; done < count;) {
      const ssize_t sent = ::send(to, bytes.data() + done, static_cast<size_t>(count - done), MSG_NOSIGNAL);
      if (sent <= 0) return;
      done += sent;
    }
    const std::lock_guard lock(mutex_);
    recorded_[record_of_[from]].append(bytes.data(), static_cast<size_t>(count));
  }

  int to_, listener_, port_ = 0;
  std::map<int, int> pairs_;
  std::atomic<bool> is_over_ = false;
  std::mutex mutex_;
  std::map<int, size_t> record_of_;  ///< by descriptor
  std::vector<std::string> recorded_;
  std::thread thread_;
};

/// What the frames of a direction of a connection contain (parallel/comm/link.h), behind its hello and signature.
std::string contents_of_frames(const std::string& recorded, bool from_coordinator) {
  std::string contents;
  size_t at = sizeof(crypto::Hello) + (from_coordinator ? 80 : 84);
  while (at + 4 <= recorded.size()) {
    uint32_t length = 0;
    std::memcpy(&length, recorded.data() + at, sizeof length);
    contents += recorded.substr(at + 4, length);
    at += 4 + length;
  }
  return contents;
}

/// The marker as tokens of `bytes_per_token` bytes.
std::string as_tokens(const std::string& text, size_t bytes_per_token) {
  std::string all;
  for (const char c : text) all += c + std::string(bytes_per_token - 1, '\0');
  return all;
}

/// Chi-square of the bytes against a uniform distribution, in standard deviations: what is compressed or structured is far above.
double distance_from_uniform(const std::string& bytes) {
  std::array<double, 256> counts{};
  for (const char c : bytes) counts[static_cast<uint8_t>(c)] += 1;
  const double expected = static_cast<double>(bytes.size()) / 256;
  double chi = 0;
  for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
  return (chi - 255) / std::sqrt(2.0 * 255);
}

}  // namespace

TEST_CASE("federation: members in different layouts train what trainers by hand do, and all end with the weights of the coordinator") {
  TemporaryDirectory directory;
  prepare_federation(directory, 3, "fp64");
  const Arguments precise = sets({"model.dropout=0"});
  const std::vector<Arguments> layouts = {layout(1, 1, 1, 0), layout(2, 1, 1, 0), layout(1, 1, 2, 3)};
  std::map<bool, Weights> results;
  for (const bool secure : {true, false}) {
    const Arguments more =
        precise + sets({std::string("security.federation.secure=") + (secure ? "true" : "false"), "security.federation.minimum=3"});
    const auto coordinator = start_coordinator(directory, more);
    const int port = port_of(*coordinator);
    std::vector<std::unique_ptr<LoggedProcess>> members;
    for (int member = 0; member < 3; ++member) members.push_back(start_member(directory, member, port, more + layouts[static_cast<size_t>(member)]));
    INFO(coordinator->err());
    await_members(members);
    REQUIRE(coordinator->wait() == 0);
    results[secure] = last_weights(directory, "run");
    for (int member = 0; member < 3; ++member) CHECK(last_weights(directory, name_of_member(member) + ".run") == results[secure]);
    const std::vector<nlohmann::json> rounds = rounds_of(directory / "run");
    REQUIRE(rounds.size() == 3);
    for (const nlohmann::json& round : rounds) CHECK(round["members"] == nlohmann::json({"site-0", "site-1", "site-2"}));
    for (const std::string run : {"run", "site-0.run", "site-1.run", "site-2.run"}) fs::remove_all(directory / run);
  }
  CHECK(results[true] == results[false]);  // to the bit
  const std::string yaml = read_file(directory / "run.yaml");
  write_file(directory / "run.yaml", yaml.substr(0, yaml.find(", dropout: 0.1")) + yaml.substr(yaml.find(", dropout: 0.1") + 14));
  CHECK(largest_difference(results[true], emulated(directory, 3, 3, {1, 1, 1})) < 1e-10);
}

TEST_CASE("federation: a member that was killed comes back, its data are never on the wire, and strangers change nothing") {
  TemporaryDirectory directory;
  prepare_federation(directory, 4);
  const Arguments more = sets({"training.steps=40"});
  const auto coordinator = start_coordinator(directory, more + sets({"checkpoint.every=40"}));
  Wiretap wire(port_of(*coordinator));
  std::vector<std::unique_ptr<LoggedProcess>> members;
  for (int member = 0; member < 4; ++member) members.push_back(start_member(directory, member, wire.port(), more));
  REQUIRE(coordinator->wait_for_error("round 2 of 20"));
  members[2]->kill();
  REQUIRE(coordinator->wait_for_error("member site-2 has left"));
  REQUIRE(coordinator->wait_for_error(": 3 members"));
  members[2] = start_member(directory, 2, wire.port(), more);
  INFO(coordinator->err());
  await_members(members);
  REQUIRE(coordinator->wait() == 0);
  const auto weights = [&](const std::string& run) { return weights_of_checkpoint(directory / (run + "/checkpoints/step-00000040")); };
  for (int member = 0; member < 4; ++member) CHECK(weights(name_of_member(member) + ".run") == weights("run"));
  const std::vector<nlohmann::json> rounds = rounds_of(directory / "run");
  REQUIRE(rounds.size() == 20);
  CHECK(rounds.back()["members"].size() == 4);

  std::string seen, contents;
  const std::vector<std::string> recorded = wire.recorded();
  CHECK(recorded.size() == 10);  // of five connections, because a member has come back
  for (size_t i = 0; i < recorded.size(); ++i) {
    seen += recorded[i];
    contents += contents_of_frames(recorded[i], i % 2 == 1);
  }
  CHECK(contents.size() > 5'000'000);
  for (const std::string& form : {kMarker, as_tokens(kMarker, 2), as_tokens(kMarker, 4)}) CHECK(count(seen, form) == 0);
  CHECK(std::abs(distance_from_uniform(contents)) < 5);  // neither compressed nor in any other form
}

TEST_CASE("federation: a coordinator that was killed or stopped continues, never repeats a round, and its members come back by themselves") {
  TemporaryDirectory directory;
  prepare_federation(directory, 2);
  const int port = unused_port();
  const Arguments more = sets({"training.steps=60"}), at_port = sets({"security.federation.port=" + std::to_string(port)});
  const auto start = [&] {
    return std::make_unique<LoggedProcess>(directory, "coordinator", Arguments{kBinary, "train", "run.yaml"} + more + at_port);
  };
  auto coordinator = start();
  const auto first = start_member(directory, 0, port, more), second = start_member(directory, 1, port, more);
  REQUIRE(coordinator->wait_for_error("round 3 of 30"));
  coordinator->kill();
  coordinator->wait();
  coordinator = start();
  const bool resumes = coordinator->wait_for_error("resuming from ");
  CAPTURE(coordinator->err());
  REQUIRE(resumes);
  REQUIRE(coordinator->wait_for_error(" of 30: 2 members"));
  coordinator->signal(SIGTERM);
  const int stopped = coordinator->wait();
  INFO(coordinator->err());
  CHECK(stopped == 75);
  CHECK(count(coordinator->err(), "stopped on request after step ") == 1);
  coordinator = start();
  CHECK(first->wait() == 0);
  CHECK(second->wait() == 0);
  REQUIRE(coordinator->wait() == 0);
  CHECK(count(first->err(), "lost the coordinator") == 2);
  const auto weights = [&](const std::string& run) { return weights_of_checkpoint(directory / (run + "/checkpoints/step-00000060")); };
  CHECK(weights("site-0.run") == weights("run"));
  CHECK(weights("site-1.run") == weights("run"));
  const std::vector<nlohmann::json> rounds = rounds_of(directory / "run");
  for (size_t i = 1; i < rounds.size(); ++i) CHECK(rounds[i]["round"] > rounds[i - 1]["round"]);
  CHECK(rounds.size() >= 28);
  double before = 100;
  for (const nlohmann::json& line : metrics(directory / "run")) {
    if (!line.contains("validation_loss")) continue;
    CHECK(line["validation_loss"].get<double>() < before + 0.5);  // the weights continue, too: those of the beginning have 5.5
    before = line["validation_loss"].get<double>();
  }
  CHECK(rounds.back()["round"] == 30);

  // Members that missed the end get the last weights of a run that is finished.
  for (const std::string run : {"site-0.run", "site-1.run"}) fs::remove_all(directory / run);
  coordinator = std::make_unique<LoggedProcess>(
      directory, "coordinator", Arguments{kBinary, "train", "run.yaml"} + more + at_port + sets({"security.federation.wait_seconds=30"}));
  const auto late = start_member(directory, 0, port, more), later = start_member(directory, 1, port, more);
  CHECK(late->wait() == 0);
  CHECK(later->wait() == 0);
  CHECK(coordinator->wait() == 0);
  CHECK(weights("site-1.run") == weights("run"));
}

TEST_CASE("federation: rounds that make held-out losses worse, or whose update is too large, are refused and leave the weights and the momentum") {
  TemporaryDirectory directory;
  prepare_federation(directory, 2);
  for (const auto& [limit, reason] : {std::pair{"security.federation.max_update_norm=1.0e-6", "the norm of the update is "},
                                      {"security.federation.max_loss_increase=0", "the held-out loss grows by "}}) {
    const Arguments more =
        sets({limit, "training.schedule.name=constant", "training.local.outer_learning_rate=50", "training.local.outer_momentum=0.9"});
    const auto coordinator = start_coordinator(directory, more);
    const int port = port_of(*coordinator);
    const auto first = start_member(directory, 0, port, more), second = start_member(directory, 1, port, more);
    INFO(coordinator->err());
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
    REQUIRE(coordinator->wait() == 0);
    CHECK(count(coordinator->err(), reason) == 3);
    for (const nlohmann::json& round : rounds_of(directory / "run")) CHECK(round["accepted"] == false);
    const Weights momentum = weights_of_checkpoint(directory / "run/checkpoints/step-00000006", "outer_momentum");
    CHECK(momentum.size() == last_weights(directory, "run").size());
    for (const auto& [name, values] : momentum) CHECK(std::ranges::count(values, 0) == std::ssize(values));
    fs::rename(directory / "run", directory / "refused");
    write_file(directory / "plain.yaml", read_file(directory / "run.yaml").substr(0, read_file(directory / "run.yaml").find("security:")));
    must(directory,
         Arguments{"train", "plain.yaml"} + sets({"training.local.steps=null", "data.train=[site-0]", "training.optimizer.learning_rate=1.0e-30",
                                                  "training.steps=6", "training.optimizer.weight_decay=0"}));
    CHECK(largest_difference(last_weights(directory, "run"), last_weights(directory, "refused")) == 0);
    for (const std::string run : {"run", "refused", "site-0.run", "site-1.run"}) fs::remove_all(directory / run);
  }
}

TEST_CASE("federation: clip and noise bound what a round tells about a member, and every sum counts for epsilon") {
  TemporaryDirectory directory;
  prepare_federation(directory, 2);
  const auto train = [&](const Arguments& more) {
    for (const std::string run : {"run", "site-0.run", "site-1.run"}) fs::remove_all(directory / run);
    const auto coordinator = start_coordinator(directory, more);
    const int port = port_of(*coordinator);
    const auto first = start_member(directory, 0, port, more), second = start_member(directory, 1, port, more + layout(1, 1, 2, 3));
    INFO(coordinator->err());
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
    REQUIRE(coordinator->wait() == 0);
    return rounds_of(directory / "run");
  };
  for (const nlohmann::json& round : train(sets({"security.federation.clip=0.01"}))) {
    CHECK(round["update_norm"].get<double>() < 0.01 + 1e-6);  // of the mean of two that have this norm
    CHECK(round["update_norm"].get<double>() > 0.003);
    CHECK(!round.contains("epsilon"));
  }
  // Noise far above the updates: its norm is that of as many normals as there are parameters.
  const std::vector<nlohmann::json> rounds =
      train(sets({"security.federation.clip=1.0e-3", "security.federation.noise=1", "security.federation.delta=1.0e-5",
                  "security.federation.max_update_norm=1.0e-9", "security.audit.enabled=true"}));
  REQUIRE(rounds.size() == 3);
  constexpr double kParameters = 8784;
  for (const nlohmann::json& round : rounds) {
    CHECK(round["accepted"] == false);  // refused rounds have been released to the coordinator as well
    CHECK(std::abs(round["update_norm"].get<double>() / (std::sqrt(2) * 1e-3 / 2 * std::sqrt(kParameters)) - 1) < 0.05);
  }
  CHECK(std::abs(rounds[0].at("epsilon").get<double>() - 4.752728337) < 1e-8);  // one step of a Gaussian mechanism
  CHECK(rounds[2].at("epsilon").get<double>() > rounds[1].at("epsilon").get<double>());
  CHECK(nlohmann::json::parse(read_file(directory / "run/federation.json"))["sums"] == 3);
  must(directory, {"audit", "verify", "run"});
  CHECK(count(read_file(directory / "run/audit.jsonl"), "\"event\":\"round\"") == 3);
}

TEST_CASE("federation: what cannot be meant is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_federation(directory, 2);
  const auto before = directory.listing();
  const auto refused = [&](const Arguments& command, int code, const std::string& words) {
    const Outcome outcome = run(directory, command);
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK(says(outcome, words));
    CHECK(directory.changes_since(before) == "");
  };
  const Arguments join = {"join", "127.0.0.1:1", "run.yaml"};
  const Arguments own = sets({"data.train=[site-0]", "security.federation.identity_key_file=site-0.key"});
  refused(join + own + sets({"security.federation.members=0", "training.local.steps=2"}), 64, "");
  refused(join + sets({"data.train=[site-0]"}), 64, "is not the key of a member in roster");
  refused({"train", "run.yaml", "--set", "security.federation.identity_key_file=site-1.key"}, 64, "is not the key of the coordinator in roster");
  refused(join + own + sets({"security.federation.members=3"}), 64, "has 2 members, and security.federation.members is 3");
  refused(join + own + sets({"security.federation.roster=nowhere"}), 66, "no such file");
  refused(join + own + sets({"security.federation.roster=run.yaml"}), 65, "run.yaml, line 1: expected a name and a public key");
  refused(join + sets({"data.train=[nowhere]", "security.federation.identity_key_file=site-0.key"}), 66, "nowhere");
}

}  // namespace trireme::test
