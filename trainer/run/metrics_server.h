#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "trainer/files/descriptor.h"

namespace trireme {

/// A small HTTP server with one thread and one resource: GET and HEAD of /metrics. Every answer closes its connection. What a client can demand is
/// bounded: 64 connections at a time, 8 KiB of request, five seconds for a request and its answer, one second if more clients wait in the kernel's queue.
/// Clients without a valid request are counted in a warning on standard error.
class MetricsServer {
 public:
  /// Listens on `address` (IPv4 or IPv6, in digits) and `port`. `body` is called on the server's thread for each request.
  /// Errors: IoError, e.g. if the port is in use.
  MetricsServer(const std::string& address, int port, std::function<std::string()> body);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// The port that the kernel has chosen, if `port` was 0.
  int port() const { return port_; }

 private:
  void serve();

  std::function<std::string()> body_;
  const Descriptor listening_;
  const Descriptor stop_;  ///< an eventfd: readable as soon as the thread has to end
  const int port_;
  std::thread thread_;
};

}  // namespace trireme
