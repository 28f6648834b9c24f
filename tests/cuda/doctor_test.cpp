// What `trireme doctor` finds on a host with GPUs.
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/support/catch.h"
#include "trainer/doctor/judge.h"
#include "trainer/doctor/probe_host.h"

namespace trireme::doctor {
namespace {

JobFacts job_with(const cuda_sim::Options& machine, int local_rank) {
  cuda_sim::reset(0, machine);
  JobFacts job;
  job.ranks = {probe_host({}, {.local_rank = local_rank, .local_size = 2}, 0, true)};
  Needs needs;
  needs.gpu = true;
  needs.ranks = 2;
  job.needs = needs;
  return job;
}

Finding gpus_of(const JobFacts& job) { return judge_gpus(job, job.ranks.front()); }

}  // namespace

TEST_CASE("doctor on GPUs: their number, memory and libraries, and nothing is left allocated") {
  const JobFacts job = job_with({.devices = 2}, 1);
  const DeviceFacts& devices = job.ranks.front().devices;
  REQUIRE(devices.gpus.size() == 2);
  CHECK(devices.gpus[0].memory == static_cast<double>(size_t{16} << 30));
  CHECK(devices.gpus[0].capability == 90);
  CHECK(devices.gpus[0].driver == 13000);
  CHECK(devices.opening == "");
  CHECK(devices.libraries.find("cuBLASLt") != std::string::npos);
  CHECK(devices.free > 0);
  CHECK(devices.free < devices.gpus[0].memory);
  CHECK(gpus_of(job).grade == Grade::kGood);
  CHECK(cuda_sim::statistics().allocations == 0);
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("doctor on GPUs: no driver, an old one, and an old GPU") {
  const JobFacts none = job_with({.driver_version = 0}, 0);
  CHECK(none.ranks.front().devices.gpus.empty());
  CHECK(gpus_of(none).grade == Grade::kBad);
  CHECK(gpus_of(none).text.find("run.device=cuda: ") == std::string::npos);
  const JobFacts old = job_with({.major = 7, .minor = 5}, 0);
  CHECK(gpus_of(old).grade == Grade::kBad);
  CHECK(gpus_of(old).text.find("compute capability 7.5") != std::string::npos);
  cuda_sim::reset();
}

}  // namespace trireme::doctor
