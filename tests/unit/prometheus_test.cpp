// The figures for Prometheus, the server that answers /metrics, and the file for node_exporter.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <list>
#include <memory>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "tests/support/strangers.h"
#include "trainer/run/metrics_server.h"
#include "trainer/run/prometheus_figures.h"
#include "trainer/run/sinks.h"

namespace trireme {
std::unique_ptr<EventSink> make_prometheus_file_sink(const SinkSettings& settings);
std::unique_ptr<EventSink> make_prometheus_server_sink(const SinkSettings& settings);
}  // namespace trireme

using namespace trireme;
using namespace trireme::test;

namespace {

/// A TCP connection to the server, as a client that may misbehave.
class HttpConnection {
 public:
  explicit HttpConnection(int port) : HttpConnection("127.0.0.1", port) { REQUIRE(connected); }
  HttpConnection(const char* host, int port) : file_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, host, &address.sin_addr);
    const timeval limit{20, 0};
    ::setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    connected = ::connect(file_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~HttpConnection() { ::close(file_); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void send(const std::string& bytes) const { ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Everything up to the end of the connection.
  std::string receive() const {
    std::string all;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(file_, bytes, sizeof bytes, 0)) > 0;) all.append(bytes, static_cast<size_t>(count));
    return all;
  }
  bool connected = false;

 private:
  int file_;
};

std::string exchange(int port, const std::string& request) {
  const HttpConnection connection(port);
  connection.send(request);
  return connection.receive();
}

const std::string kGet = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string status_of(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }

}  // namespace

TEST_CASE("prometheus: the exposition of the latest figures", "[metrics]") {
  PrometheusFigures figures("a \"b\"\\c\nd", 9);
  const std::string run = R"({run="a \"b\"\\c\nd")";
  const auto family = [](const std::string& name, const std::string& help, const std::string& type = "gauge") {
    return "# HELP trireme_" + name + " " + help + "\n# TYPE trireme_" + name + " " + type + "\n";
  };
  const auto figure = [&](const std::string& name, const std::string& value) {
    return family(name, "The latest " + name + " of metrics.jsonl.") + "trireme_" + name + run + "} " + value + "\n";
  };
  const std::string steps = family("run_steps", "The number of steps of the complete run.") + "trireme_run_steps" + run + "} 9\n";
  CHECK(figures.text() == steps);
  const auto before = figures.version();
  const auto time = WallClock::time_point(std::chrono::milliseconds(1750000000500));
  figures.take({"step", 1, {{"loss", 3.5}, {"mfu", 0.5}}, "", time});
  figures.take(
      {"step", 2, {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"learning_rate", 1e-5}, {"tokens", 256}, {"mfu", nullptr}}, "", time});
  figures.take(
      {"evaluation", 2, {{"validation_loss", std::numeric_limits<double>::infinity()}, {"validation", {{"prose", 3.0}, {"code", 2.0}}}}, "", time});
  figures.take({"rejected_step", 2, {{"parameter", "a"}}, "text", time});
  figures.take({"rejected_step", 3, {}, "text", time});
  figures.take({"", {}, {}, "only a text", time});
  CHECK(figures.version() == before + 5);
  CHECK(figures.text() == family("events_total", "Number of events since the start of this process.", "counter") + "trireme_events_total" + run +
                              ",event=\"rejected_step\"} 2\n" + figure("learning_rate", "1e-05") + figure("loss", "NaN") + figure("mfu", "0.5") +
                              steps + family("step", "The last completed step.") + "trireme_step" + run + "} 2\n" +
                              family("step_time_seconds", "When the last step ended, in seconds since 1970.") + "trireme_step_time_seconds" + run +
                              "} 1750000000.5\n" + figure("tokens", "256") + family("validation", "The latest validation of metrics.jsonl.") +
                              "trireme_validation" + run + ",part=\"code\"} 2\ntrireme_validation" + run + ",part=\"prose\"} 3\n" +
                              figure("validation_loss", "+Inf"));
}

TEST_CASE("metrics server: answers GET and HEAD of /metrics, and refuses everything else", "[metrics]") {
  std::atomic<int> asked = 0;
  const MetricsServer server("127.0.0.1", 0, [&] {
    ++asked;
    return std::string("a 1\n");
  });
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 4\r\nConnection: close\r\n\r\n";
  CHECK(exchange(server.port(), kGet) == head + "a 1\n");
  CHECK(exchange(server.port(), "GET /metrics?x=1 HTTP/1.0\n\n") == head + "a 1\n");
  CHECK(exchange(server.port(), "HEAD /metrics HTTP/1.1\r\n\r\n") == head);
  CHECK(asked == 3);
  const std::pair<std::string, std::string> refused[] = {
      {"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"},
      {"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"},
      {"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed"},
      {"GET /metrics\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {std::string("\0\xFF\n\n", 4), "HTTP/1.1 400 Bad Request"},
      {"GET /metrics SMTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"GET /metrics HTTP/1.1\r\nA: " + std::string(20000, 'a'), "HTTP/1.1 431 Request Header Fields Too Large"},
  };
  for (const auto& [request, status] : refused) {
    CAPTURE(request.substr(0, 40));
    CHECK(status_of(exchange(server.port(), request)) == status);
  }
  CHECK(asked == 3);
}

TEST_CASE("metrics server: whole answers to requests that it refuses, and the longest that it reads", "[metrics]") {
  const MetricsServer server("127.0.0.1", 0, [] { return std::string("a 1\n"); });
  const auto refusal = [](const std::string& status, const std::string& more = "") {
    return concat("HTTP/1.1 ", status, "\r\nContent-Type: text/plain\r\nContent-Length: ", status.size() + 1, "\r\nConnection: close\r\n", more,
                  "\r\n", status, "\n");
  };
  for (const char* method : {"POST", "PUT", "DELETE", "get"})
    CHECK(exchange(server.port(), concat(method, " /metrics HTTP/1.1\r\n\r\n")) == refusal("405 Method Not Allowed", "Allow: GET, HEAD\r\n"));
  for (const char* target : {"/", "/metrics2", "/metric", "/?/metrics"})
    CHECK(exchange(server.port(), concat("GET ", target, " HTTP/1.1\r\n\r\n")) == refusal("404 Not Found"));
  CHECK(exchange(server.port(), "GET  /metrics HTTP/1.1\n\n") == refusal("400 Bad Request"));  // an empty target, and no version behind it
  const std::string begin = "GET /metrics HTTP/1.1\r\nA: ";
  const std::string longest = begin + std::string(8191 - begin.size() - 4, 'a') + "\r\n\r\n";
  CHECK(longest.size() == 8191);
  CHECK(status_of(exchange(server.port(), longest)) == "HTTP/1.1 200 OK");
  CHECK(exchange(server.port(), begin + std::string(8192 - begin.size(), 'a')) == refusal("431 Request Header Fields Too Large"));
}

TEST_CASE("metrics server: a request in single bytes, and a large answer to a slow reader, arrive whole", "[metrics]") {
  const std::string large(8 << 20, 'x');
  const MetricsServer server("127.0.0.1", 0, [&] { return large; });
  const HttpConnection connection(server.port());
  for (const char byte : kGet) connection.send({byte});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the answer does not fit into the buffers of the kernel
  connection.send("more");                                      // left unread at the end, it would make the kernel discard what is not yet sent
  const std::string answer = connection.receive();
  CHECK(answer.size() == answer.find("\r\n\r\n") + 4 + large.size());
}

TEST_CASE("metrics server: clients that send nothing, garbage or half a request neither stop it nor keep others out for long", "[metrics]") {
  const MetricsServer server("127.0.0.1", 0, [] { return std::string("a 1\n"); });
  uint64_t seed = 7;
  for (int trial = 0; trial < 300; ++trial) {
    const HttpConnection connection(server.port());
    std::string bytes;
    for (uint64_t length = random_key(seed++, "length") % 2000; bytes.size() < length;) bytes += static_cast<char>(random_key(seed++, "byte"));
    connection.send(bytes);  // and gone
  }
  CHECK(status_of(exchange(server.port(), kGet)) == "HTTP/1.1 200 OK");
  std::list<HttpConnection> silent;  // more than the server serves at a time
  for (int i = 0; i < 70; ++i) silent.emplace_back(server.port()).send("GET /met");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(status_of(exchange(server.port(), kGet)) == "HTTP/1.1 200 OK");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(seconds > 0.5);  // 64 places were taken, of which the oldest was given up after a second
  CHECK(seconds < 4.5);
  for (const HttpConnection& one : silent) CHECK(one.receive().empty());
}

namespace {

void check_strangers_at_server(int count) {
  const MetricsServer server("127.0.0.1", 0, [] { return std::string("a 1\n"); });
  const Footprint before = footprint_of(::getpid());
  const std::string forged = "GET /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n";
  Strangers strangers(server.port(), {forged, kGet + kGet, "PUT /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"});
  while (strangers.opened() < count) {
    strangers.connect(40);
    strangers.drip();
    const auto begin = std::chrono::steady_clock::now();
    CHECK(status_of(exchange(server.port(), kGet)) == "HTTP/1.1 200 OK");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  }
  const Footprint most = footprint_of(::getpid());
  CHECK(most.descriptors < before.descriptors + 700);  // of which 500 are the strangers' own
  CHECK(most.bytes < before.bytes + (int64_t{48} << 20));
  CHECK(strangers.open(30) == 0);
}

}  // namespace

TEST_CASE("metrics server: hostile connections of every kind do not keep clients out", "[metrics]") { check_strangers_at_server(400); }
TEST_CASE("metrics server: 10,000 hostile connections do not keep clients out", "[metrics][slow]") { check_strangers_at_server(10'000); }

TEST_CASE("metrics server: it is reached at its address and at no other one of the host", "[metrics]") {
  const auto body = [] { return std::string(); };
  const MetricsServer one("127.0.0.1", 0, body), all("0.0.0.0", 0, body);
  CHECK(HttpConnection("127.0.0.1", one.port()).connected);
  CHECK_FALSE(HttpConnection("127.0.0.2", one.port()).connected);
  CHECK(HttpConnection("127.0.0.2", all.port()).connected);
  try {
    const MetricsServer v6("::1", 0, body);
    CHECK_FALSE(HttpConnection("127.0.0.1", v6.port()).connected);
  } catch (const IoError& error) {  // a host without IPv6
    CHECK(std::string(error.what()).starts_with("cannot listen on ::1 port 0: "));
  }
}

TEST_CASE("metrics server: an address in use, and one that is none of this host's, are errors", "[metrics]") {
  const auto body = [] { return std::string(); };
  const MetricsServer first("127.0.0.1", 0, body);
  CHECK_THROWS_WITH(MetricsServer("127.0.0.1", first.port(), body),
                    concat("cannot listen on 127.0.0.1 port ", first.port(), ": Address already in use"));
  CHECK_THROWS_WITH(MetricsServer("192.0.2.1", 0, body), Catch::Matchers::StartsWith("cannot listen on 192.0.2.1 port 0: "));
  CHECK_THROWS_AS(MetricsServer("localhost", 0, body), IoError);
}

TEST_CASE("prometheus: the file for node_exporter is replaced within seconds and has the last figures at the end", "[metrics]") {
  const Scratch scratch;
  Config config;
  config.observe.prometheus.textfile = scratch / "run.prom";
  auto sink = make_prometheus_file_sink({config, {}, 9, {}, nullptr, nullptr});
  CHECK(slurp(scratch / "run.prom").ends_with("\ntrireme_run_steps{run=\"run\"} 9\n"));
  const auto has = [&](const std::string& words) { return slurp(scratch / "run.prom").find(words) != std::string::npos; };
  sink->write({"step", 1, {{"loss", 3.5}}});
  for (int wait = 0; wait < 100 && !has("} 3.5\n"); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(has("trireme_loss{run=\"run\"} 3.5\n"));
  sink->write({"step", 2, {{"loss", 2.5}}});
  sink.reset();
  CHECK(has("trireme_loss{run=\"run\"} 2.5\n"));
  CHECK(scratch.names() == std::vector<std::string>{"run.prom"});

  config.observe.prometheus.textfile = scratch / "missing/run.prom";
  CHECK_THROWS_WITH(make_prometheus_file_sink({config, {}, 9, {}, nullptr, nullptr}), Catch::Matchers::Contains("no such directory"));
}

TEST_CASE("prometheus: a file that cannot be replaced is an error until it can be again", "[metrics]") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "a");
  Config config;
  config.observe.prometheus.textfile = scratch / "a/run.prom";
  const auto sink = make_prometheus_file_sink({config, {}, 9, {}, nullptr, nullptr});
  std::filesystem::rename(scratch / "a", scratch / "b");
  const auto wait_until = [&](bool failed) {
    for (int wait = 0; wait < 100 && sink->write_error().empty() == failed; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return sink->write_error();
  };
  sink->write({"step", 1, {{"loss", 3.5}}});
  CHECK(wait_until(true).find("no such directory") != std::string::npos);
  std::filesystem::rename(scratch / "b", scratch / "a");
  CHECK(wait_until(false).empty());
  CHECK(slurp(scratch / "a/run.prom").find("} 3.5\n") != std::string::npos);
}

TEST_CASE("prometheus: the sink serves what the run reports", "[metrics]") {
  Config config;
  CHECK(make_prometheus_server_sink({config, {}, 9, {}, nullptr, nullptr}) == nullptr);
  CHECK(make_prometheus_file_sink({config, {}, 9, {}, nullptr, nullptr}) == nullptr);
  int port = 0;
  {
    port = MetricsServer("127.0.0.1", 0, [] { return std::string(); }).port();
  }
  config.observe.prometheus.port = port;
  const auto sink = make_prometheus_server_sink({config, {}, 9, {}, nullptr, nullptr});
  sink->write({"step", 1, {{"loss", 3.5}}});
  CHECK(exchange(port, kGet).find("trireme_loss{run=\"run\"} 3.5\n") != std::string::npos);
}
