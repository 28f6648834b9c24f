// Memory: poison, limits, accesses of host and kernels, and copies that happen when they run.
#include <cmath>
#include <csignal>
#include <cstring>

#include "tests/cuda_sim/test_device.h"

using namespace cuda_sim;
namespace kernels = kernels_under_test;

TEST_CASE("Host code cannot access device memory") {
  CHECK(run_in_child([] {
          float* x = nullptr;
          CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 400));
          volatile float value = *x;
          (void)value;
          return cudaSuccess;
        }) == cudaErrorIllegalAddress);
  CHECK(run_in_child([] {  // also not after operations ran
          TestStream stream;
          float* x = nullptr;
          CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 400));
          CUDA_OK(kernels::set(x, 100, 1, stream));
          CUDA_OK(cudaStreamSynchronize(stream));
          volatile float value = *x;
          (void)value;
          return cudaSuccess;
        }) == cudaErrorIllegalAddress);
  CHECK(run_in_child([] { return cudaSuccess; }) == cudaSuccess);
}

TEST_CASE("Kernels cannot access pageable host memory or other devices") {
  reset();
  TestStream stream;
  float host[4] = {};
  (void)kernels::set(host, 4, 1, stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK_THAT(errors().at(0), Catch::Contains("host memory"));
  reset();
  CUDA_OK(cudaSetDevice(1));
  float* other = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&other), 64));
  CUDA_OK(cudaSetDevice(0));
  TestStream mine;
  (void)kernels::set(other, 4, 1, mine);
  CHECK(cudaStreamSynchronize(mine) == cudaErrorIllegalAddress);
  CHECK(host[0] == 0);
  reset();
}

TEST_CASE("Fresh device and pinned memory is poisoned") {
  reset();
  const DeviceArray<float> x(1000);
  for (const float value : x.host()) REQUIRE(std::isnan(value));
  float* pinned = nullptr;
  CUDA_OK(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4000, cudaHostAllocDefault));
  CHECK(std::isnan(pinned[0]));
  CHECK(std::isnan(pinned[999]));
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_CASE("Memory is limited and counted, and can be freed only once") {
  Options options;
  options.memory = 1 << 20;
  options.failing_malloc = 3;
  reset(0, options);
  float *a = nullptr, *b = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&a), 600 << 10));
  CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
  CHECK(cudaMalloc(reinterpret_cast<void**>(&b), 600 << 10) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(reinterpret_cast<void**>(&b), 1000) == cudaErrorMemoryAllocation);  // the third cudaMalloc
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&b), 1000));
  size_t free_bytes = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  CHECK(total == 1 << 20);
  CHECK(free_bytes == (1 << 20) - (600 << 10) - 1024);
  CHECK(statistics().allocations == 2);
  CHECK(cudaFree(b + 1) == cudaErrorInvalidValue);
  CUDA_OK(cudaFree(b));
  CHECK(cudaFree(b) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(a) == cudaErrorInvalidValue);
  CUDA_OK(cudaFree(a));
  CUDA_OK(cudaFree(nullptr));
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes == total);
}

TEST_CASE("Writes past the end of an allocation are detected") {
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer stops at the write
  reset();
  TestStream stream;
  float* x = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 100));
  CUDA_OK(kernels::launch_defective(kernels::Defect::kBehindGlobal, x, 25, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  reset();
  REQUIRE(errors().size() == 1);
  CHECK_THAT(errors()[0], Catch::Contains("past the end of an allocation"));
  reset();
  CHECK(errors().empty());
#endif
}

TEST_CASE("Operations queued on freed memory fault") {
  for (const int what : {0, 1, 2}) {
    Options options;
    int faults = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      reset(seed, options);
      TestStream stream;
      float* x = nullptr;
      float host[16];
      CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 64));
      if (what == 0) CUDA_OK(kernels::set(x, 16, 1, stream));
      if (what == 1) CUDA_OK(cudaMemsetAsync(x, 0, 64, stream));
      if (what == 2) CUDA_OK(cudaMemcpyAsync(host, x, 64, cudaMemcpyDeviceToHost, stream));
      CUDA_OK(cudaFree(x));
      if (cudaStreamSynchronize(stream) != cudaErrorIllegalAddress) continue;
      ++faults;
      CHECK_THAT(errors().at(0), Catch::Contains("freed allocation of 64 bytes"));
    }
    CHECK(faults >= 3);
  }
  reset();
}

TEST_CASE("Stream-ordered memory lives until the operations queued before its release are over") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    reset(seed);
    TestStream stream;
    const DeviceArray<float> y(16);
    float* x = nullptr;
    CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&x), 64, stream));
    CUDA_OK(kernels::set(x, 16, 1, stream));
    CUDA_OK(kernels::copy(x, y.get(), 16, stream));
    CUDA_OK(cudaFreeAsync(x, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(y.host() == std::vector<float>(16, 1.0f));
    CHECK(statistics().allocations == 1);
    CHECK(cudaFreeAsync(x, stream) == cudaErrorInvalidValue);
    CHECK(cudaFreeAsync(y.get(), stream) == cudaErrorInvalidValue);  // memory of cudaMalloc
    CHECK(errors().empty());
    (void)kernels::copy(x, y.get(), 16, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    REQUIRE(errors().size() == 1);
    CHECK_THAT(errors()[0], Catch::Contains("copy_kernel") && Catch::Contains("freed allocation of 64 bytes"));
  }
  reset();
}

TEST_CASE("Large memory that is filled with copies of a pattern takes pages where it is written") {
  Options options;
  options.memory = size_t{64} << 30;
  reset(0, options);
  TestStream stream;
  constexpr size_t kBytes = size_t{20} << 30;
  std::vector<unsigned char> pattern(1025 * kPageBytes);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<unsigned char>(i / 4 % 251);
  unsigned char *x = nullptr, *fresh = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), kBytes));
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&fresh), kBytes));
  fill_with_copies(x, kBytes, pattern);
  CHECK(written_pages(x, kBytes).empty());
  unsigned char host[8];
  const size_t far = kBytes - 8;
  CUDA_OK(cudaMemcpyAsync(host, x + far, 8, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < 8; ++i) CHECK(host[i] == pattern[(far + i) % pattern.size()]);
  CHECK(written_pages(x, kBytes).empty());
  for (unsigned char* const memory : {x, fresh}) {
    CUDA_OK(kernels::set(reinterpret_cast<float*>(memory + 5 * kPageBytes), 3, 1, stream));
    CUDA_OK(kernels::set(reinterpret_cast<float*>(memory + far), 2, 1, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(written_pages(memory, kBytes) == std::vector<size_t>{5 * kPageBytes, kBytes - kPageBytes});
  }
  reset();
  CHECK(errors().empty());
}

TEST_CASE("Copies are checked against allocations and directions") {
  reset();
  TestStream stream;
  const DeviceArray<float> x(10);
  float host[20] = {};
  CHECK(cudaMemcpyAsync(x.get(), host, 44, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(x.get() - 1, host, 8, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(x.get(), host, 40, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(x.get(), host, 40, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(host, x.get() + 5, 24, cudaMemcpyDefault, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(x.get() + 9, 0, 8, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(host, 0, 8, stream) == cudaErrorInvalidValue);
  CUDA_OK(cudaMemcpyAsync(x.get() + 5, host, 20, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
}

TEST_CASE("Pinned memory is read when the copy runs, pageable memory at the call") {
  int overtaken = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    TestStream stream;
    DeviceArray<float> x(1), y(1);
    float* pinned = nullptr;
    CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4));
    float pageable = 1;
    *pinned = 1;
    CUDA_OK(cudaMemcpyAsync(x.get(), pinned, 4, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(y.get(), &pageable, 4, cudaMemcpyHostToDevice, stream));
    *pinned = pageable = 2;
    CUDA_OK(cudaStreamSynchronize(stream));
    overtaken += x.host()[0] == 2;
    CHECK(y.host()[0] == 1);
    // A result may be missing until it was waited for.
    *pinned = -1;
    CUDA_OK(cudaMemcpyAsync(pinned, y.get(), 4, cudaMemcpyDeviceToHost, stream));
    overtaken += *pinned == -1;
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK(*pinned == 1);
    CUDA_OK(cudaFreeHost(pinned));
  }
  CHECK(overtaken >= 12);
}

TEST_CASE("Copies between devices, and pointer attributes") {
  reset(4);
  DeviceArray<float> here(std::vector<float>{1, 2, 3});
  CUDA_OK(cudaSetDevice(1));
  float* there = nullptr;
  float host[3];
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&there), 12));
  CUDA_OK(cudaMemcpy(there, here.get(), 12, cudaMemcpyDefault));
  CUDA_OK(cudaMemcpy(host, there, 12, cudaMemcpyDefault));
  CHECK(host[2] == 3);
  cudaPointerAttributes attributes;
  CUDA_OK(cudaPointerGetAttributes(&attributes, here.get() + 1));
  CHECK((attributes.type == cudaMemoryTypeDevice && attributes.device == 0));
  CUDA_OK(cudaPointerGetAttributes(&attributes, host));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CUDA_OK(cudaSetDevice(0));
}

TEST_CASE("A machine without a driver, without GPUs, or with old GPUs") {
  Options options;
  options.driver_version = 0;
  reset(0, options);
  int count = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  CHECK(count == -1);
  options = {};
  options.devices = 0;
  reset(0, options);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  options = {};
  options.devices = 2;
  options.major = 7;
  reset(0, options);
  CUDA_OK(cudaGetDeviceCount(&count));
  CHECK(count == 2);
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, 1));
  CHECK(properties.major == 7);
  CHECK(cudaGetDeviceProperties(&properties, 2) == cudaErrorInvalidDevice);
  reset();
  (void)cudaGetLastError();
}
