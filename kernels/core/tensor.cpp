#include "kernels/core/tensor.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/gpu.h"

namespace trireme {
namespace {

/// Null stays null: the meta device has no memory.
void* advance(void* base, int64_t bytes) { return base == nullptr ? nullptr : static_cast<char*>(base) + bytes; }

}  // namespace

Shape::Shape(std::initializer_list<int64_t> extents) : dims_(static_cast<int>(extents.size())) {
  TRIREME_CHECK(extents.size() <= extents_.size(), "a shape has at most ", extents_.size(), " dimensions, got ", extents.size());
  std::copy(extents.begin(), extents.end(), extents_.begin());
  TRIREME_CHECK(std::all_of(extents.begin(), extents.end(), [](int64_t extent) { return extent >= 0; }), "negative extent in ", str());
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int dim = 0; dim < dims_; ++dim) product *= (*this)[dim];
  return product;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int dim = 0; dim < dims_; ++dim) text += concat(dim == 0 ? "" : ", ", (*this)[dim]);
  return text + "]";
}

Tensor Tensor::empty(const Context& ctx, const Shape& shape, DType dtype, MemoryCategory category) {
  TRIREME_CHECK(ctx.arena != nullptr, "the context has no arena to allocate a tensor of ", shape.str());
  Tensor tensor;
  tensor.storage_ = ctx.arena->allocate(shape.numel() * size_of(dtype), category);
  tensor.data_ = tensor.storage_.get();
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.defined_ = true;
  return tensor;
}

Tensor Tensor::zeros(const Context& ctx, const Shape& shape, DType dtype, MemoryCategory category) {
  Tensor tensor = empty(ctx, shape, dtype, category);
  if (tensor.data_ == nullptr) return tensor;
  if (ctx.device == Device::kCuda) {
    ctx.gpu->fill_bytes(tensor.data_, 0, tensor.bytes());
  } else {
    std::memset(tensor.data_, 0, static_cast<size_t>(tensor.bytes()));
  }
  return tensor;
}

Tensor Tensor::view(const Shape& shape) const {
  TRIREME_CHECK(shape.numel() == numel(), "cannot view ", shape_.str(), " as ", shape.str());
  return flat_view(0, shape);
}

Tensor Tensor::flat(int64_t begin, int64_t count) const { return flat_view(begin, {count}); }

Tensor Tensor::flat_view(int64_t begin, const Shape& shape) const {
  TRIREME_CHECK(defined_, "view ", shape.str(), " of an undefined tensor");
  TRIREME_CHECK(begin >= 0 && begin + shape.numel() <= numel(), "view ", shape.str(), " from element ", begin, " exceeds ", shape_.str());
  Tensor part = *this;
  part.data_ = advance(data_, begin * size_of(dtype_));
  part.shape_ = shape;
  return part;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  TRIREME_CHECK(shape_.dims() > 0 && begin >= 0 && count >= 0 && begin + count <= shape_[0], "rows ", begin, " to ", begin + count, " exceed ",
                shape_.str());
  switch (shape_.dims()) {
    case 1: return flat_view(begin, {count});
    case 2: return flat_view(begin * shape_[1], {count, shape_[1]});
    case 3: return flat_view(begin * shape_[1] * shape_[2], {count, shape_[1], shape_[2]});
    default: return flat_view(begin * shape_[1] * shape_[2] * shape_[3], {count, shape_[1], shape_[2], shape_[3]});
  }
}

}  // namespace trireme
