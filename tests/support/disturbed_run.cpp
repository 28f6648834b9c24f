#include "tests/support/disturbed_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>

#include "tests/support/thread_ranks.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/collectively.h"

namespace trireme::test {

FaultInjector::FaultInjector(std::optional<Fault> fault, int rank, std::function<int64_t()> now)
    : fault_(std::move(fault)), rank_(rank), now_(std::move(now)) {}

BufferObserver FaultInjector::observer() {
  return [this](Context&, const ObservedBuffer& traffic) {
    if (!fault_ || fault_->rank != rank_ || traffic.group != fault_->group || traffic.verb != fault_->verb) return;
    if (traffic.outgoing != fault_->outgoing || now_() != fault_->step) return;
    if (++seen_ != fault_->nth && !fault_->every) return;
    fault_->change(traffic.buffer);
    ++struck_;
  };
}

void FaultInjector::set(const std::optional<Fault>& fault) {
  fault_ = fault;
  seen_ = struck_ = 0;
}

namespace {

template <class T>
void scale(const Tensor& tensor, double factor) {
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<T>()[i] = static_cast<T>(tensor.data<T>()[i] * factor);
}

template <class T, class Bits>
void flip(const Tensor& tensor, int bit, int64_t element) {
  T* const values = tensor.data<T>();
  const auto size_below_two = [](T value) { return std::abs(value) < 2 ? std::abs(value) : 0; };
  if (element < 0)
    element = std::max_element(values, values + tensor.numel(), [&](T a, T b) { return size_below_two(a) < size_below_two(b); }) - values;
  Bits bits = 0;
  std::memcpy(&bits, values + element, sizeof bits);
  bits ^= Bits{1} << bit;
  std::memcpy(values + element, &bits, sizeof bits);
}

}  // namespace

std::function<void(const Tensor&)> scaled(double factor) {
  return [factor](const Tensor& tensor) {
    TRIREME_CHECK(tensor.dtype() == DType::kF64 || tensor.dtype() == DType::kF32, name_of(tensor.dtype()));
    tensor.dtype() == DType::kF64 ? scale<double>(tensor, factor) : scale<float>(tensor, factor);
  };
}

std::function<void(const Tensor&)> flipped(int bit, int64_t element) {
  return [bit, element](const Tensor& tensor) {
    TRIREME_CHECK(tensor.dtype() == DType::kF64 || tensor.dtype() == DType::kF32, name_of(tensor.dtype()));
    tensor.dtype() == DType::kF64 ? flip<double, uint64_t>(tensor, bit, element) : flip<float, uint32_t>(tensor, bit, element);
  };
}

std::function<void(const Tensor&)> not_a_number() {
  return [](const Tensor& tensor) { std::memset(tensor.raw(), 0xFF, static_cast<size_t>(tensor.bytes())); };  // in every floating-point format
}

std::string run_observed(const Config& config, const RunOptions& options,
                         const std::function<BufferObserver(int rank, const Progress& progress)>& observer_of) {
  const int ranks = mesh_shape(config.parallel).world();
  std::mutex mutex;
  std::string message;
  run_ranks(ranks, [&](Communicator& world) {
    Progress progress;
    const std::unique_ptr<Communicator> disturbed = observed(world, observer_of(world.rank(), progress));
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    try {
      run_training(ctx, *disturbed, resolve(config, ranks), options, progress);
    } catch (const AgreedError& error) {
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) message = error.what();
    }
  });
  return message;
}

std::string run_disturbed(const Config& config, const std::optional<Fault>& fault, const RunOptions& options) {
  std::deque<FaultInjector> injectors;
  std::mutex mutex;
  return run_observed(config, options, [&](int rank, const Progress& progress) {
    const std::lock_guard lock(mutex);
    return injectors.emplace_back(fault, rank, [&progress] { return progress.snapshot().step; }).observer();
  });
}

}  // namespace trireme::test
