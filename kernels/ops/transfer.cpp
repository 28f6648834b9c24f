#include "kernels/ops/transfer.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops/dispatch.h"

namespace trireme {

Tensor host_tensor(const Shape& shape, DType dtype) {
  Arena arena(Device::kReference);  // a tensor may outlive its arena
  return Tensor::empty({Device::kReference, &arena, 1, nullptr}, shape, dtype, MemoryCategory::kData);
}

Tensor to_host(Context& ctx, const Tensor& tensor) {
  if (ctx.device != Device::kCuda) return tensor;
  const Tensor copy = host_tensor(tensor.shape(), tensor.dtype());
  ctx.gpu->download(tensor.raw(), copy.raw(), tensor.bytes());
  return copy;
}

void from_host(Context& ctx, const Tensor& from, const Tensor& out) {
  expect("from_host", {{"from", from, from.shape(), out.dtype()}});
  TRIREME_CHECK(from.numel() == out.numel(), "from_host: cannot copy ", from.shape().str(), " to ", out.shape().str());
  if (ctx.device == Device::kMeta || from.bytes() == 0) return;
  if (ctx.device == Device::kCuda) return ctx.gpu->upload(from.raw(), out.raw(), from.bytes());
  std::memmove(out.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

double read_scalar(Context& ctx, const Tensor& scalar) {
  expect("read_scalar", {{"scalar", scalar, {1}, DType::kF64}});
  return ctx.device == Device::kMeta ? 0 : *to_host(ctx, scalar).data<double>();
}

void write_scalar(Context& ctx, double value, const Tensor& scalar) {
  const Tensor host = host_tensor({1}, DType::kF64);
  *host.data<double>() = value;
  from_host(ctx, host, scalar);
}

ScalarReadback::ScalarReadback(Context& ctx, const std::vector<Tensor>& scalars) {
  for (const Tensor& scalar : scalars) {
    expect("ScalarReadback", {{"scalar", scalar, {1}, DType::kF64}});
    if (ctx.device == Device::kCuda) {
      pending_.push_back(ctx.gpu->read_back(scalar.raw(), scalar.bytes()));
    } else {
      values_.push_back(read_scalar(ctx, scalar));
    }
  }
}

bool ScalarReadback::ready() const {
  return std::all_of(pending_.begin(), pending_.end(), [](const cuda::Gpu::Readback& readback) { return readback.ready(); });
}

std::vector<double> ScalarReadback::wait() const {
  std::vector<double> values = values_;
  for (const cuda::Gpu::Readback& readback : pending_) values.push_back(*static_cast<const double*>(readback.wait()));
  return values;
}

}  // namespace trireme
