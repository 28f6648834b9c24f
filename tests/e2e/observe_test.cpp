// Runs with every sink: their files and the endpoint agree with metrics.jsonl, also after a kill, and nothing that they suffer changes the run.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>

#include "tests/e2e/harness.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/run/tensorboard_records.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// A port of the loopback address that is in use while this object exists.
class OccupiedPort {
 public:
  OccupiedPort() : file_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    REQUIRE(::bind(file_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(file_, 1) == 0);
    REQUIRE(::getsockname(file_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number = ntohs(address.sin_port);
  }
  ~OccupiedPort() { ::close(file_); }
  OccupiedPort(const OccupiedPort&) = delete;
  OccupiedPort& operator=(const OccupiedPort&) = delete;
  int number;

 private:
  int file_;
};

int free_port() { return OccupiedPort().number; }

/// The answer to GET /metrics; empty if there is none.
std::string scrape(int port) {
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const timeval limit{10, 0};
  ::setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::string answer;
  if (::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ::send(file, request.data(), request.size(), MSG_NOSIGNAL);
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(file, bytes, sizeof bytes, 0)) > 0;) answer.append(bytes, static_cast<size_t>(count));
  }
  ::close(file);
  return answer;
}

/// Reads the fields of a message of Protocol Buffers.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = static_cast<int>(key / 8);
    switch (key % 8) {
      case 0: number = varint(); return true;
      case 1: value = take(8); return true;
      case 2: value = take(varint()); return true;
      case 5: value = take(4); return true;
      default: FAIL("wire type " << key % 8); return false;
    }
  }
  template <class T>
  T as() const {
    T result;
    REQUIRE(value.size() == sizeof result);
    std::memcpy(&result, value.data(), sizeof result);
    return result;
  }
  int field = 0;
  uint64_t number = 0;
  std::string_view value;

 private:
  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      result |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return result;
    }
  }
  std::string_view take(size_t count) {
    REQUIRE(count <= rest_.size());
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view rest_;
};

/// The curves of a directory of event files as TensorBoard reads them: by tag and step.
struct Curves {
  explicit Curves(const fs::path& directory) {
    for (const std::string& name : names_in(directory)) {  // sorted, as TensorBoard does
      const std::string file = read_file(directory / name);
      for (size_t at = 0; at < file.size();) {
        uint64_t length = 0;
        REQUIRE(at + 16 <= file.size());
        std::memcpy(&length, file.data() + at, sizeof length);
        REQUIRE(at + 16 + length <= file.size());
        const std::string data = file.substr(at + 12, length);
        REQUIRE(tf_record(data) == file.substr(at, 16 + length));
        read(data);
        at += 16 + length;
      }
      ++files;
    }
  }
  std::map<std::string, std::map<int64_t, float>> values;
  int files = 0;

 private:
  void read(const std::string& event) {
    int64_t step = 0;
    for (Fields fields(event); fields.next();) {
      if (fields.field == 2) step = static_cast<int64_t>(fields.number);
      if (fields.field == 7)  // the start of a session
        for (auto& [tag, curve] : values) curve.erase(curve.lower_bound(step), curve.end());
      if (fields.field != 5) continue;
      for (Fields summary(fields.value); summary.next();) {
        std::string tag;
        for (Fields one(summary.value); one.next();) {
          if (one.field == 1) tag = one.value;
          if (one.field == 2) CHECK(values[tag].emplace(step, one.as<float>()).second);  // each step once
        }
      }
    }
  }
};

/// Checks that the curves contain every number of every step and evaluation of metrics.jsonl, and nothing else.
void check_curves(const Curves& curves, const fs::path& run) {
  size_t figures = 0, points = 0;
  for (const json& line : metrics(run)) {
    if (line.contains("event")) continue;
    for (const auto& [key, value] : line.items()) {
      if (!value.is_number() || key == "step") continue;
      CAPTURE(key, line["step"]);
      REQUIRE(curves.values.contains(key));
      REQUIRE(curves.values.at(key).contains(line["step"]));
      CHECK(curves.values.at(key).at(line["step"]) == value.get<float>());
      ++figures;
    }
  }
  for (const auto& [tag, curve] : curves.values)
    if (!tag.starts_with("ranks/")) points += curve.size();
  CHECK(curves.values.contains("ranks/busy_seconds/max"));
  CHECK(points == figures);
  CHECK(figures > 40);
}

double figure_of(const std::string& exposition, const std::string& name) {
  const std::string start = "\ntrireme_" + name + "{run=\"run\"} ";
  const size_t found = exposition.find(start);
  REQUIRE(found != std::string::npos);
  return std::strtod(exposition.c_str() + found + start.size(), nullptr);
}

}  // namespace

TEST_CASE("observe: every sink on two ranks, killed and resumed, with the bits of a run without sinks") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = layout(1, 1, 2, 3) + sets({"training.steps=60", "checkpoint.every=7", "training.evaluate.every=10"});
  must(directory, kTrain + command + in((directory / "plain").string()));

  const int port = free_port();
  const Arguments sinks =
      sets({"observe.tensorboard=true", "observe.prometheus.port=" + std::to_string(port), "observe.prometheus.textfile=run.prom"});
  {
    LiveJob job(directory, "run", command + sinks + sets({"resilience.restarts=0"}));
    REQUIRE(job.wait_for_step(11));  // by then all sinks have step 10
    const std::string answer = scrape(port);
    CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(figure_of(answer, "step") >= 10);
    CHECK(figure_of(answer, "run_steps") == 60);
    for (const auto& [rank, process] : job.ranks(2)) ::kill(process, SIGKILL);
    CHECK(job.wait().code != 0);
  }
  const size_t killed_at = metrics(directory / "run").size();
  REQUIRE(killed_at > 10);
  must(directory, kTrain + command + sinks + in((directory / "run").string()));

  CHECK(losses(directory / "run", 60) == losses(directory / "plain", 60));
  for (const std::string rank : {"0", "1"}) {
    const std::string shard = "checkpoints/step-00000060/rank-0000" + rank + ".safetensors";
    CHECK(read_file(directory / "run" / shard) == read_file(directory / "plain" / shard));
  }
  const Curves curves(directory / "run/tensorboard");
  CHECK(curves.files == 2);
  check_curves(curves, directory / "run");
  const std::string last = read_file(directory / "run.prom");
  CHECK(figure_of("\n" + last, "step") == 60);
  CHECK(figure_of("\n" + last, "loss") == losses(directory / "run", 60).back());
  CHECK(scrape(port).empty());  // the run is over
}

TEST_CASE("observe: a port in use, and paths that cannot be written, are one message each, and the run is the same") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainOnly + in((directory / "plain").string()));
  write_file(directory / "occupied", "");
  const OccupiedPort port;
  const Outcome outcome =
      must(directory, kTrainOnly + sets({"observe.tensorboard=occupied/board", "observe.prometheus.port=" + std::to_string(port.number),
                                         "observe.prometheus.textfile=missing/run.prom"}));
  const std::string end = "; the run continues without it\n";
  CHECK(count(outcome.err, "warning: observe.tensorboard: cannot create occupied/board: Not a directory" + end) == 1);
  CHECK(count(outcome.err, "warning: observe.prometheus.port: cannot listen on 127.0.0.1 port " + std::to_string(port.number) +
                               ": Address already in use" + end) == 1);
  CHECK(count(outcome.err, "warning: observe.prometheus.textfile: cannot write missing/run.prom: no such directory: missing" + end) == 1);
  CHECK(count(outcome.err, "warning: ") == 3);
  CHECK(losses(directory / "run", 6) == losses(directory / "plain", 6));
}

TEST_CASE("observe: a disk that is full from some moment on is one message of each sink, and the run is the same") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainOnly + sets({"training.steps=40"});
  must(directory, command + in((directory / "plain").string()));
  fs::create_directories(directory / "sinks/board");
  const Arguments environment{"env",
                              "LD_PRELOAD=" + shim("io"),
                              "ASAN_OPTIONS=verify_asan_link_order=0",
                              "TRIREME_SHIM_DIRECTORY=" + fs::canonical(directory / "sinks").string(),
                              "TRIREME_SHIM_FAIL_AT=20",
                              "TRIREME_SHIM_FAIL_FROM=1",
                              "TRIREME_SHIM_ERRNO=ENOSPC"};
  const Outcome outcome = must(
      Process(environment + Arguments{kBinary} + command + sets({"observe.tensorboard=sinks/board", "observe.prometheus.textfile=sinks/run.prom"}),
              directory.path())
          .wait());
  CHECK(count(outcome.err, "warning: observe.tensorboard: cannot write sinks/board/events.out.tfevents.") == 1);
  CHECK(count(outcome.err, "No space left on device; the run continues, and what could not be written is tried again\n") ==
        count(outcome.err, "warning: "));
  CHECK(count(outcome.err, "warning: ") <= 2);  // the file for node_exporter is replaced once a second: perhaps only after the last step
  CHECK(losses(directory / "run", 40) == losses(directory / "plain", 40));
  const Curves curves(directory / "sinks/board");  // whole records up to the full disk
  CHECK(curves.files == 1);
  CHECK(curves.values.at("loss").size() > 3);
  CHECK(curves.values.at("loss").size() < 40);
}

TEST_CASE("observe: settings of sinks that cannot be meant are refused before anything starts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const auto refused = [&](const std::string& setting, const std::string& words) {
    CAPTURE(setting);
    check_error(run(directory, kTrain + sets({setting})), 64, words);
  };
  refused("observe.tensorbord=true", "unknown key; did you mean observe.tensorboard?");
  refused("observe.tensorboard=yes", "not a boolean; allowed true | false | path; nearest valid true");
  refused("observe.prometheus.port=70000",
          "observe.prometheus.port=70000: out of range; allowed integer from 1 to 65535, or null; nearest valid 65535");
  refused("observe.prometheus.port=http", "not an integer");
  refused("observe.prometheus.textfile=run.txt", "nearest valid run.txt.prom");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
