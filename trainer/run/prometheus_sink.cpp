// Figures for Prometheus: the server of observe.prometheus.port and the file of observe.prometheus.textfile.
#include <pthread.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/run/metrics_server.h"
#include "trainer/run/prometheus_figures.h"
#include "trainer/run/sinks.h"

namespace trireme {
namespace {

class PrometheusServerSink final : public EventSink {
 public:
  PrometheusServerSink(const SinkSettings& settings, int port)
      : figures_(settings.config.run.name, settings.steps),
        server_(settings.config.observe.prometheus.address, port, [this] { return figures_.text(); }) {}
  void write(const Event& event) override { figures_.take(event); }

 private:
  PrometheusFigures figures_;
  MetricsServer server_;
};

/// Replaces the file from a thread of its own, because a shared file system may take seconds.
class PrometheusFileSink final : public EventSink {
 public:
  PrometheusFileSink(const SinkSettings& settings, std::filesystem::path path)
      : figures_(settings.config.run.name, settings.steps), path_(std::move(path)) {
    replace();
    if (!error_.empty()) throw IoError(error_);
    thread_ = std::thread([this] { run(); });
  }
  ~PrometheusFileSink() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  PrometheusFileSink(const PrometheusFileSink&) = delete;
  PrometheusFileSink& operator=(const PrometheusFileSink&) = delete;

  void write(const Event& event) override { figures_.take(event); }
  std::string write_error() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void run() {
    ::pthread_setname_np(::pthread_self(), "metrics file");
    for (bool ending = false; !ending;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ending_; });
        ending = ending_;
      }
      if (written_ != figures_.version()) replace();
    }
  }

  void replace() {
    std::string error;
    const uint64_t version = figures_.version();
    try {
      write_durably(path_, figures_.text());
      written_ = version;
    } catch (const std::exception& failure) {
      error = printable(failure);
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
  }

  PrometheusFigures figures_;
  const std::filesystem::path path_;
  uint64_t written_ = 0;  ///< version of the figures in the file; of the thread
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::string error_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<EventSink> make_prometheus_server_sink(const SinkSettings& settings) {
  const std::optional<int64_t> port = settings.config.observe.prometheus.port;
  return port ? std::make_unique<PrometheusServerSink>(settings, static_cast<int>(*port)) : nullptr;
}

std::unique_ptr<EventSink> make_prometheus_file_sink(const SinkSettings& settings) {
  const std::optional<std::string>& path = settings.config.observe.prometheus.textfile;
  return path ? std::make_unique<PrometheusFileSink>(settings, *path) : nullptr;
}

}  // namespace trireme
