#include "tests/kernels/guarded_tensor.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops/transfer.h"
#include "tests/support/catch.h"
#ifdef TRIREME_CUDA
#include "tests/support/gpu.h"
#endif

namespace trireme::testing {
namespace {

constexpr int64_t kOddGuard = 17;     // elements: buffers are aligned to their element only
constexpr int64_t kVectorGuard = 32;  // a multiple of 16 bytes in every dtype
constexpr unsigned char kNanByte = 0xFF;
// Guards of inputs are NaN. Guards of outputs are finite: otherwise an operation could overwrite one with a NaN that it read from another guard.
constexpr unsigned char kFiniteByte = 0xA5;

cuda::Gpu* gpu_of(Device device) {
#ifdef TRIREME_CUDA
  if (device == Device::kCuda) return &test_gpu();
#endif
  TRIREME_CHECK(device != Device::kCuda, "this build has no GPU support");
  return nullptr;
}

void write(const Tensor& tensor, const std::vector<double>& values) {
  TRIREME_CHECK(static_cast<int64_t>(values.size()) == tensor.numel(), values.size(), " values for a tensor of ", tensor.shape().str());
  for (size_t i = 0; i < values.size(); ++i) {
    switch (tensor.dtype()) {
      case DType::kF64: tensor.data<double>()[i] = values[i]; break;
      case DType::kF32: tensor.data<float>()[i] = static_cast<float>(values[i]); break;
      case DType::kBF16: tensor.data<bfloat16>()[i] = static_cast<bfloat16>(values[i]); break;
      case DType::kF16: tensor.data<float16>()[i] = static_cast<float16>(values[i]); break;
      case DType::kI64: tensor.data<int64_t>()[i] = static_cast<int64_t>(values[i]); break;
      case DType::kI32: tensor.data<int32_t>()[i] = static_cast<int32_t>(values[i]); break;
      case DType::kU8: tensor.data<uint8_t>()[i] = static_cast<uint8_t>(values[i]); break;
    }
  }
}

double element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF64: return tensor.data<double>()[i];
    case DType::kF32: return tensor.data<float>()[i];
    case DType::kBF16: return tensor.data<bfloat16>()[i];
    case DType::kF16: return tensor.data<float16>()[i];
    case DType::kI64: return static_cast<double>(tensor.data<int64_t>()[i]);
    case DType::kI32: return tensor.data<int32_t>()[i];
    case DType::kU8: return tensor.data<uint8_t>()[i];
  }
  return 0;
}

}  // namespace

TestDevice::TestDevice(Device device, int threads, Isa isa)
    : arena_(device == Device::kCuda ? Arena(*gpu_of(device), /*poison=*/true, /*caching=*/false) : Arena(device, /*poison=*/true)),
      ctx_{device, &arena_, threads, gpu_of(device), isa} {}

TestDevice::~TestDevice() {
  if (ctx_.gpu == nullptr) return;
  try {
    ctx_.gpu->synchronize();
  } catch (const std::exception& error) {
    WARN("error while waiting for an operation: " << error.what());  // the call that threw has already failed the test
  }
}

GuardedTensor::GuardedTensor(Context& ctx, const Operand& operand, DType dtype, Alignment alignment)
    : ctx_(&ctx),
      guard_(alignment == Alignment::kVector ? kVectorGuard : kOddGuard),
      filler_(operand.role == Role::kInput ? kNanByte : kFiniteByte),
      whole_(Tensor::empty(ctx, {operand.shape.numel() + 2 * guard_}, dtype, MemoryCategory::kWorkspace)),
      tensor_(whole_.flat_view(guard_, operand.shape)),
      host_(host_tensor(whole_.shape(), dtype)) {
  std::memset(host_.raw(), filler_, static_cast<size_t>(host_.bytes()));
  const Tensor inner = host_.flat_view(guard_, operand.shape);
  if (operand.role == Role::kAssigned) {
    std::memset(inner.raw(), kNanByte, static_cast<size_t>(inner.bytes()));
  } else {
    write(inner, operand.values);
  }
  from_host(ctx, host_, whole_);
}

void GuardedTensor::read() { host_ = to_host(*ctx_, whole_); }

bool GuardedTensor::guards_intact() const {
  const auto* bytes = static_cast<const unsigned char*>(host_.raw());
  const int64_t margin = guard_ * size_of(host_.dtype());
  const auto untouched = [this](unsigned char byte) { return byte == filler_; };
  return std::all_of(bytes, bytes + margin, untouched) && std::all_of(bytes + host_.bytes() - margin, bytes + host_.bytes(), untouched);
}

std::vector<unsigned char> GuardedTensor::bytes() const {
  const Tensor inner = host_.flat_view(guard_, tensor_.shape());
  const auto* first = static_cast<const unsigned char*>(inner.raw());
  return {first, first + inner.bytes()};
}

std::vector<double> GuardedTensor::values() const {
  const Tensor inner = host_.flat_view(guard_, tensor_.shape());
  std::vector<double> values(static_cast<size_t>(inner.numel()));
  for (int64_t i = 0; i < inner.numel(); ++i) values[static_cast<size_t>(i)] = element(inner, i);
  return values;
}

}  // namespace trireme::testing
