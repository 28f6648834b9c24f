// Figures of single ranks: how they are merged, and what is read of the host and of a GPU.
#include "trainer/run/rank_figures.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

using namespace trireme;
using nlohmann::ordered_json;

TEST_CASE("rank figures: numbers become lists by rank, objects means, and the imbalance is the spread of busy seconds", "[metrics]") {
  const ordered_json merged = merge_rank_figures({
      {{"step_seconds", 2.0}, {"busy_seconds", 1.0}, {"wait_seconds", {{"shard", 1.0}, {"world", 0.0}}}, {"gpu_power_watts", 700.5}},
      {{"step_seconds", 2.0}, {"busy_seconds", 2.0}, {"wait_seconds", {{"shard", 0.0}}}},
      {{"step_seconds", 2.5}, {"busy_seconds", 1.5}, {"wait_seconds", {{"shard", 0.5}, {"world", 0.75}}}, {"gpu_power_watts", 300}},
  });
  CHECK(merged.dump() == R"({"step_seconds":[2.0,2.0,2.5],"busy_seconds":[1.0,2.0,1.5],"imbalance":0.6666666666666666,)"
                         R"("wait_seconds":{"shard":0.5,"world":0.25},"gpu_power_watts":[700.5,null,300]})");
  CHECK(merge_rank_figures({{{"busy_seconds", 0.5}}})["imbalance"] == 0.0);
}

TEST_CASE("rank figures: what rank 0 lacks is merged too, and ranks that were never busy are balanced", "[metrics]") {
  const ordered_json merged = merge_rank_figures({
      {{"step_seconds", 2.0}, {"wait_seconds", {{"world", 1.0}}}},
      {{"step_seconds", 2.0}, {"busy_seconds", 1.0}, {"wait_seconds", {{"shard", 3.0}}}, {"gpu_power_watts", 300}},
      {{"busy_seconds", 3.0}, {"extra", {{"a", 6.0}}}},
  });
  CHECK(merged.dump() == R"({"step_seconds":[2.0,2.0,null],"wait_seconds":{"world":0.3333333333333333,"shard":1.0},)"
                         R"("busy_seconds":[null,1.0,3.0],"imbalance":1.0,"gpu_power_watts":[null,300,null],"extra":{"a":2.0}})");
  CHECK(merge_rank_figures({{{"busy_seconds", 0.0}}, {{"busy_seconds", 0.0}}})["imbalance"] == 0.0);
  CHECK(merge_rank_figures({{{"busy_seconds", nullptr}}})["imbalance"] == 0.0);
}

TEST_CASE("rank figures: memory of the process and of the host", "[metrics]") {
  const HostMemoryUse before = host_memory_use();
  constexpr size_t kBytes = 64 << 20;  // mapped, because the heap may have as much left of earlier tests
  void* const block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  REQUIRE(block != MAP_FAILED);
  const HostMemoryUse after = host_memory_use();
  ::munmap(block, kBytes);
  CHECK(after.resident - before.resident >= static_cast<int64_t>(kBytes) * 9 / 10);
  CHECK(before.available > 0);
  CHECK(static_cast<double>(before.available) <
        1.01 * static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE)));
}

TEST_CASE("gpu sensors: figures of NVML, without those that it does not have", "[metrics]") {
  const std::string stub = test::shim("nvml");
  const GpuSensors sensors("0000:65:00", stub);
  const auto read_until = [&](const auto& done) {
    for (int wait = 0; wait < 1000 && !done(sensors.latest()); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return sensors.latest();
  };
  const ordered_json first = read_until([](const ordered_json& figures) { return !figures.empty(); });
  CHECK(first.dump() == R"({"gpu_sm_clock_mhz":1980,"gpu_memory_clock_mhz":2619,"gpu_power_watts":698.5,"gpu_temperature_celsius":60,)"
                        R"("gpu_throttle_reasons":68})");
  const ordered_json later = read_until([](const ordered_json& figures) { return figures["gpu_temperature_celsius"] >= 62; });
  CHECK(later["gpu_temperature_celsius"] >= 62);

  const GpuSensors other("0000:66:00", stub), without("0000:65:00", "libno-such-library.so.1");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(other.latest().empty());
  CHECK(without.latest().empty());
}
