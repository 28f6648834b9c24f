#pragma once
// What a forecast must know of a CPU machine, measured on it.
#include <functional>
#include <nlohmann/json.hpp>

#include "trainer/bench/measure.h"
#include "trainer/plan/fit.h"

namespace trireme::bench {

/// Figures that measure_machine takes, for a progress line.
int64_t machine_figures();

/// All of MachineSamples but name, cores, memory and the links: means over passes of medians over batches, in bf16 and fp32, of shapes as in models
/// from a quickstart's to 100 million parameters. `done` is called after each figure.
MachineSamples measure_machine(const Context& ctx, const Effort& effort, const std::function<void()>& done);

/// What `bench comm --json` has measured between `ranks` ranks.
std::vector<LinkSample> link_samples(const nlohmann::json& comm, int64_t ranks);

}  // namespace trireme::bench
