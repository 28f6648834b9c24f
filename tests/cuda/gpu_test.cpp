// Host code of one GPU on the simulated machine. Queued work runs only when a thread waits, and then in an adversarial order, so a staging buffer
// that is overwritten too early or a missing ordering shows as a wrong value.
#include "kernels/core/gpu.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cuda/loader.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/machine.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "tests/support/scoped_variable.h"

using namespace trireme;
using Catch::Matchers::Contains;
using cuda::Gpu;

namespace {

constexpr uint64_t kSeeds = 8;
constexpr int64_t kMebibyte = int64_t{1} << 20;
const cuda_sim::Options kImpatient{.stuck_seconds = 2};  // a host thread that waits behind a closed gate fails soon

std::vector<unsigned char> pattern(int64_t bytes, unsigned salt) {
  std::vector<unsigned char> values(static_cast<size_t>(bytes));
  unsigned state = salt * 2654435761U + 1;
  for (unsigned char& value : values) value = static_cast<unsigned char>((state = state * 1664525U + 1013904223U) >> 24);
  return values;
}

/// The file of a library of the system.
std::string path_of_library(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW);
  link_map* map = nullptr;
  REQUIRE((handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0));
  return map->l_name;
}

template <class T>
T downloaded(Gpu& gpu, const void* device) {
  T value{};
  gpu.download(device, &value, sizeof(value));
  return value;
}

/// An operation that becomes ready when `open` is set.
class Gate : public cuda_sim::Operation {
 public:
  explicit Gate(std::shared_ptr<std::atomic<bool>> open) : open_(std::move(open)) {}
  std::string name() const override { return "gate"; }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Gate>(open_); }
  bool ready() override { return *open_; }
  void run() override {}

 private:
  std::shared_ptr<std::atomic<bool>> open_;
};

/// Blocks the work queued behind it on the stream during its lifetime.
class ClosedGate {
 public:
  explicit ClosedGate(cuda::Stream stream) { REQUIRE(cuda_sim::enqueue(stream, std::make_unique<Gate>(open_)) == cudaSuccess); }
  ~ClosedGate() {
    *open_ = true;
    cuda_sim::changed();
  }
  ClosedGate(const ClosedGate&) = delete;
  ClosedGate& operator=(const ClosedGate&) = delete;

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

std::string refusal(const cuda_sim::Options& options, int index = 0) {
  cuda_sim::reset(0, options);
  std::string message;
  try {
    Gpu gpu(index, {});
  } catch (const ConfigError& error) {
    message = error.what();
  }
  CHECK(cuda_sim::statistics().allocations == 0);
  return message;
}

}  // namespace

TEST_CASE("uploads through the pinned ring copy the host data as of the call") {
  const int64_t sizes[] = {1, 0, 3, 255, 256, 257, kMebibyte - 1, kMebibyte, kMebibyte + 1, 5 * kMebibyte + 77, 18 * kMebibyte + 1, 2, 12345};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    cuda_sim::reset(seed);
    Gpu gpu(0, {});
    const int64_t total = std::accumulate(std::begin(sizes), std::end(sizes), int64_t{0});
    auto* const device = static_cast<unsigned char*>(gpu.allocate(total));
    std::vector<unsigned char> expected;
    unsigned salt = static_cast<unsigned>(seed) * 100;
    for (int64_t size : sizes) {
      std::vector<unsigned char> host = pattern(size, ++salt);
      gpu.upload(host.data(), device + expected.size(), size);
      expected.insert(expected.end(), host.begin(), host.end());
      std::fill(host.begin(), host.end(), static_cast<unsigned char>(0));  // the caller may overwrite it now
    }
    std::vector<unsigned char> actual(expected.size());
    gpu.download(device, actual.data(), total);
    CHECK((actual == expected));  // parentheses: 25 MB must not be printed
    gpu.release(device);
  }
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("small uploads do not wait for the device") {
  cuda_sim::reset(0, kImpatient);
  Gpu gpu(0, {});
  constexpr int kUploads = 20000;  // five pieces of the ring
  auto* const device = static_cast<int*>(gpu.allocate(kUploads * int64_t{sizeof(int)}));
  {
    const ClosedGate gate(gpu.compute());
    for (int i = 0; i < kUploads; ++i) gpu.upload(&i, device + i, sizeof(i));
  }
  std::vector<int> values(kUploads);
  gpu.download(device, values.data(), kUploads * int64_t{sizeof(int)});
  std::vector<int> expected(kUploads);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(values == expected);
  gpu.release(device);
}

TEST_CASE("a read-back does not wait and does not see work queued later") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    cuda_sim::reset(seed, kImpatient);
    Gpu gpu(0, {});
    auto* const device = static_cast<double*>(gpu.allocate(sizeof(double)));
    const double value = 2.5;
    Gpu::Readback readback;
    {
      const ClosedGate gate(gpu.compute());
      gpu.upload(&value, device, sizeof(value));
      readback = gpu.read_back(device, sizeof(value));
      CHECK_FALSE(readback.ready());
      CHECK(cudaGetLastError() == cudaSuccess);
    }
    gpu.fill_bytes(device, 0, sizeof(value));
    {
      const ClosedGate gate(gpu.compute());
      CHECK(*static_cast<const double*>(readback.wait()) == 2.5);  // although the stream cannot complete
      CHECK(readback.ready());
    }
    CHECK(downloaded<double>(gpu, device) == 0);
    CHECK_THROWS_AS(gpu.read_back(device, 4097), InternalError);
    gpu.release(device);
  }
}

TEST_CASE("read-backs: any number, dropped unread, and outliving their GPU") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    cuda_sim::reset(seed);
    std::vector<Gpu::Readback> held;
    {
      Gpu gpu(0, {});
      auto* const device = static_cast<int*>(gpu.allocate(sizeof(int)));
      for (int i = 0; i < 200; ++i) {  // three times the initial number of slots
        gpu.upload(&i, device, sizeof(i));
        const Gpu::Readback dropped = gpu.read_back(device, sizeof(i));
        held.push_back(gpu.read_back(device, sizeof(i)));
      }
      gpu.synchronize();
      gpu.release(device);
    }
    for (int i = 0; i < 200; ++i) CHECK(*static_cast<const int*>(held[static_cast<size_t>(i)].wait()) == i);
  }
}

namespace {

/// The value that a second stream reads after the compute stream has overwritten 0 by 1; `ordered`: an event orders the read after the write.
int read_on_another_stream(uint64_t seed, bool ordered) {
  cuda_sim::reset(seed);
  Gpu gpu(0, {});
  const cuda::Stream other = gpu.make_stream();
  auto* const device = static_cast<int*>(gpu.allocate(2 * sizeof(int)));
  gpu.fill_bytes(device, 0, sizeof(int));
  gpu.synchronize();
  const int one = 1;
  gpu.upload(&one, device, sizeof(int));
  const cuda::Event written = gpu.record(gpu.compute());
  if (ordered) gpu.order_after(other, written);
  gpu.recycle(written);  // the ordering remains
  REQUIRE(cudaMemcpyAsync(device + 1, device, sizeof(int), cudaMemcpyDeviceToDevice, other) == cudaSuccess);
  const cuda::Event read = gpu.record(other);
  CHECK(read == written);  // reused
  gpu.order_after(gpu.compute(), read);
  const int value = downloaded<int>(gpu, device + 1);
  CHECK(gpu.is_done(read));
  gpu.recycle(read);
  gpu.release(device);
  return value;
}

}  // namespace

TEST_CASE("events order streams, also when they are recycled immediately") {
  int early = 0;
  for (uint64_t seed = 0; seed < 4 * kSeeds; ++seed) {
    CHECK(read_on_another_stream(seed, true) == 1);
    early += read_on_another_stream(seed, false) != 1;
  }
  CHECK(early > 0);  // otherwise the simulated machine would not reveal a missing ordering
}

TEST_CASE("events can be queried without waiting") {
  cuda_sim::reset(0, kImpatient);
  Gpu gpu(0, {});
  std::vector<cuda::Event> events;
  {
    const ClosedGate gate(gpu.compute());
    for (int i = 0; i < 200; ++i) events.push_back(gpu.record(gpu.compute()));
    CHECK_FALSE(gpu.is_done(events.back()));
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  std::sort(events.begin(), events.end());
  CHECK(std::unique(events.begin(), events.end()) == events.end());
  gpu.synchronize();
  for (cuda::Event event : events) {
    CHECK(gpu.is_done(event));
    gpu.recycle(event);
  }
}

TEST_CASE("fills, copies and downloads run in compute stream order") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    cuda_sim::reset(seed);
    Gpu gpu(0, {});
    auto* const device = static_cast<unsigned char*>(gpu.allocate(32));
    CHECK(reinterpret_cast<uintptr_t>(device) % 256 == 0);
    gpu.fill_bytes(device, 3, 32);
    gpu.fill_bytes(device + 8, 7, 8);
    gpu.copy(device + 8, device, 4);
    gpu.copy(device, device + 30, 0);
    std::vector<unsigned char> values(32), expected(32, 3);
    gpu.download(device, values.data(), 32);
    std::fill_n(expected.begin(), 4, static_cast<unsigned char>(7));
    std::fill_n(expected.begin() + 8, 8, static_cast<unsigned char>(7));
    CHECK(values == expected);
    gpu.fill_bytes(device, 0, 32);
    gpu.release(device);  // must not happen before the fill
    gpu.synchronize();
    CHECK(cuda_sim::errors().empty());
  }
}

TEST_CASE("a destroyed GPU leaves no allocations") {
  cuda_sim::reset();
  for (int i = 0; i < 3; ++i) {
    Gpu gpu(i, {.tf32 = true});
    CHECK(gpu.index() == i);
    CHECK(gpu.options().tf32);
    CHECK(gpu.properties().major == 9);
    CHECK(gpu.properties().multiprocessors > 0);
    CHECK(gpu.free_bytes() < gpu.properties().memory);
    CHECK(gpu.scratch(Gpu::kScratchBytes) != nullptr);
    CHECK_THROWS_AS(gpu.scratch(Gpu::kScratchBytes + 1), InternalError);
    CHECK(cuda_sim::statistics().allocations > 0);
  }
  CHECK(cuda_sim::statistics().allocations == 0);
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("messages say why a GPU cannot be used") {
  CHECK_THAT(refusal({.driver_version = 0}), Contains("no CUDA driver is installed; allowed cpu"));
  CHECK_THAT(refusal({.driver_version = 12040}), Contains("the driver (12.4) is older than this build's CUDA (13.0)"));
  CHECK_THAT(refusal({.devices = 0}), Contains("no GPU found"));
  CHECK_THAT(refusal({.devices = 2}, 3), Contains("GPU 3 does not exist: 2 GPUs found"));
  CHECK_THAT(refusal({.devices = 1}, -1), Contains("GPU -1 does not exist: 1 GPU found"));
  CHECK_THAT(refusal({.major = 7, .minor = 5}), Contains("has compute capability 7.5; at least 8.0 is required"));
  CHECK(refusal({.major = 8, .minor = 0}).empty());
  CHECK_THAT(refusal({.failing_malloc = 1}), Contains("is out of memory"));
  CHECK_THAT(refusal({.failing_malloc = 2}), Contains("is out of memory"));
  CHECK_THAT(refusal({.memory = 1 << 20}), Contains("is out of memory"));
  cuda_sim::reset(0, {.driver_version = 0});
  CHECK_THROWS_AS(cuda::gpu_count(), ConfigError);
  cuda_sim::reset(0, {.devices = 5});
  CHECK(cuda::gpu_count() == 5);
  cuda_sim::reset();
}

TEST_CASE("a failed allocation reports requested and free bytes, and the GPU stays usable") {
  cuda_sim::reset(0, {.memory = size_t{256} << 20});
  Gpu gpu(0, {});
  const std::string free = std::to_string(gpu.free_bytes());
  CHECK_THROWS_WITH(gpu.allocate(int64_t{1} << 40), Contains("1099511627776 bytes requested") && Contains(free));
  void* const memory = gpu.allocate(1024);
  gpu.fill_bytes(memory, 1, 1024);
  CHECK(downloaded<unsigned char>(gpu, memory) == 1);
  gpu.release(memory);
  cuda_sim::reset();
}

TEST_CASE("a device error names the failing call") {
  cuda_sim::reset();
  {
    Gpu gpu(0, {});
    void* const memory = gpu.allocate(8);
    cuda_sim::fail(0, cudaErrorIllegalAddress, "planted");
    CHECK_THROWS_WITH(gpu.synchronize(), Contains("cudaStreamSynchronize: cudaErrorIllegalAddress"));
    CHECK_NOTHROW(gpu.release(memory));  // destructors call it while that error propagates
    CHECK(cuda_sim::errors().size() == 1);
  }
  cuda_sim::reset();
}

TEST_CASE("libraries are loaded by name, and missing files and symbols are named") {
  CHECK_THROWS_WITH(cuda::SharedLibrary("run.device=cuda", {"libtrireme_not_there.so.1", "libtrireme_not_there.so"}),
                    Contains("run.device=cuda: cannot load libtrireme_not_there.so.1") && Contains("LD_LIBRARY_PATH"));
  const cuda::SharedLibrary mathematics("the test", {"libm.so.not_there", "libm.so.6"});
  double (*cosine)(double) = nullptr;
  mathematics.load(cosine, "cos");
  CHECK(cosine(0) == 1);
  CHECK_THROWS_WITH(mathematics.load(cosine, "no_such_function"), Contains("libm.so.6 has no symbol no_such_function"));
}

TEST_CASE("the search for a library passes those that do not fit, and looks into the NVIDIA wheels of a Python environment") {
  const test::TemporaryDirectory directory;
  const auto place = [&](const std::string& folder, const char* library) {
    std::filesystem::create_directories(directory.path / folder);
    std::filesystem::create_symlink(path_of_library(library), directory.path / folder / "libtrireme_search.so");
  };
  place("toolkit/lib64", "libc.so.6");
  place("venv/lib/python3.11/site-packages/nvidia/cublas/lib", "libm.so.6");
  const std::string toolkit = directory.path / "toolkit", venv = directory.path / "venv";
  const test::ScopedVariable cuda_home("CUDA_HOME", toolkit.c_str()), conda("CONDA_PREFIX", nullptr);
  const auto open = [](const cuda::SharedLibrary::Refusal& refusal) { return cuda::SharedLibrary("a test", {"libtrireme_search.so"}, refusal); };
  double (*cosine)(double) = nullptr;
  const auto needs_cosine = [&](const cuda::SharedLibrary& library) {
    library.load(cosine, "cos");
    return std::string();
  };
  {
    const test::ScopedVariable none("VIRTUAL_ENV", nullptr);
    CHECK_NOTHROW(open({}));
    CHECK_THROWS_WITH(open(needs_cosine), Contains("a test: cannot load libtrireme_search.so; install it") &&
                                              Contains(toolkit + "/lib64/libtrireme_search.so has no symbol cos") &&
                                              Contains("/usr/local/cuda/lib64/libtrireme_search.so") && !Contains("site-packages"));
  }
  const test::ScopedVariable active("VIRTUAL_ENV", venv.c_str());
  open(needs_cosine).load(cosine, "cos");
  CHECK(cosine(0) == 1);
  CHECK_THROWS_WITH(open([](const cuda::SharedLibrary&) { return "version 12.8, but this build needs 13.x"; }),
                    Contains(toolkit + "/lib64/libtrireme_search.so: version 12.8, but this build needs 13.x") &&
                        Contains(venv + "/lib/python3.11/site-packages/nvidia/cublas/lib/libtrireme_search.so: version 12.8"));
}
