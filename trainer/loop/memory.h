#pragma once
#include <array>
#include <string>

#include "kernels/core/context.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"

namespace trireme {

/// What a rank takes on its device, in bytes: counted by running its first steps and an evaluation on the meta device, so by the program that will ask.
struct MemoryForecast {
  std::array<int64_t, kMemoryCategories> peak{};  ///< of each category by itself
  int64_t peak_total = 0;
  int64_t arena_bytes = 0;  ///< with the arena's rounding: what it must hold so that the run asks the system for nothing more
};

/// `config` is resolved.
MemoryForecast forecast_memory(const Config& config, int rank, int world_size);

/// The forecast, and the GPU's part of it taken at once: what does not fit is told before the first step. Collective.
/// Errors: ConfigError on all ranks, with the table of what was wanted.
MemoryForecast reserve_memory(Context& ctx, Communicator& world, const Config& config);

/// One line a category, and the total.
std::string memory_table(const MemoryForecast& forecast);

}  // namespace trireme
