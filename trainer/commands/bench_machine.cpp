#include "trainer/commands/bench_machine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/comm/self.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/bench/machine.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/temporary_file.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/strict_json.h"
#include "trainer/job/launcher.h"
#include "trainer/job/world.h"
#include "trainer/machine/environment.h"
#include "trainer/machine/machine.h"

namespace trireme {
namespace {

/// Starts `ranks` ranks on this machine and measures collectives between them.
std::vector<LinkSample> measure_links(const LaunchEnvironment& environment, int ranks, double seconds, const TemporaryFile& file) {
  const int code = launch(
      environment, ranks,
      {"bench", "comm", "--device", "cpu", "--sizes", "4096,65536,1048576,8388608", "--seconds", std::to_string(seconds), "--output", file.path()},
      {.resumable = false});
  if (code != 0) throw InternalError(concat("bench machine: measuring ", ranks, " ranks ended with exit code ", code));
  return bench::link_samples(parse_value(read_text(file.path()), file.path()), ranks);
}

/// Rounds to four significant digits, the accuracy of the measurements.
double rounded(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

void round_figures(ClusterConfig& c) {
  DeviceConfig& d = c.device;
  for (Auto<double>* figure : {&d.memory, &d.memory_bandwidth, &d.elementwise_bandwidth, &d.peak_flops, &d.peak_flops_fp32, &d.gemm_efficiency,
                               &d.gemm_half_depth, &d.attention_efficiency, &d.attention_half_length, &d.kernel_seconds, &d.core_scaling,
                               &c.node_link.bandwidth, &c.node_link.latency, &c.network.bandwidth, &c.network.latency})
    *figure = rounded(**figure);
}

}  // namespace

int bench_machine(const LaunchEnvironment& environment, double seconds, const std::string& file, bool allow_busy) {
  if (environment.is_rank()) throw ConfigError("bench machine: starts its own ranks; start it without mpirun or srun");
  const std::vector<int> worlds = {2, 4, 8};
  std::optional<DurableFile> output;
  if (!file.empty()) output.emplace(file);  // fails before the measurements if it cannot be written
  const TemporaryFile links(environment.temporary_directory.value_or(""));
  MachineSamples samples;
  const double share_before = bench::foreign_share_during([] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); });
  if (!allow_busy) bench::refuse_busy_machine(share_before);
  const double share = bench::foreign_share_during([&] {
    ProgressLine progress("measuring", ProgressUnit::kItems, bench::machine_figures() + static_cast<int64_t>(worlds.size()));
    {
      Config config;
      config.run.device = DeviceType::kCpu;
      Machine machine(std::make_unique<SelfCommunicator>("world"), single_process_place(environment), config);
      const bench::Effort effort{.batch_seconds = std::min(0.02, seconds / 3), .seconds = seconds, .world = nullptr};
      samples = bench::measure_machine(machine.ctx(), effort, [&] { progress.advance(1); });
    }
    for (const int ranks : worlds) {
      for (const LinkSample& sample : measure_links(environment, ranks, seconds, links)) samples.links.push_back(sample);
      progress.advance(1);
    }
  });
  if (!allow_busy) bench::refuse_busy_machine(share);
  samples.name = host_name();
  samples.cores = usable_cores();
  samples.memory = host_memory();
  FittedMachine fitted = fit_machine(samples);
  round_figures(fitted.cluster);
  std::cerr << residual_text(fitted.residuals);
  const std::string disturbed = concat("# Measured while other processes used ", std::lround(100 * share), " % of the cores.\n");
  const std::string text = (share > bench::kBusyMachine ? disturbed : "") + to_yaml(fitted.cluster);
  if (output) {
    output->write(text);
    output->commit();
  } else {
    std::cout << text;
  }
  finish_output();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace trireme
