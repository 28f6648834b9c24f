#pragma once
// Measures the figures of a CPU machine that a forecast needs.
#include <functional>
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/plan/fit.h"

namespace trireme::bench {

/// Number of figures that measure_machine measures, for a progress line.
int64_t machine_figures();

/// Measures all of MachineSamples except name, cores, memory and links: means over passes of medians over batches, in bf16 and fp32, with shapes of
/// models from the quickstart's to 100 million parameters. `done` is called after each figure.
MachineSamples measure_machine(const Context& ctx, const Effort& effort, const std::function<void()>& done);

/// Converts the output of `bench comm --json` on `ranks` ranks.
std::vector<LinkSample> link_samples(const nlohmann::json& comm, int64_t ranks);

}  // namespace trireme::bench
