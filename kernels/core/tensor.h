#pragma once
#include <array>
#include <initializer_list>
#include <memory>
#include <string>

#include "kernels/core/context.h"
#include "kernels/core/dtype.h"

namespace trireme {

/// Up to four extents, row-major.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  int dims() const { return dims_; }
  int64_t operator[](int dim) const { return extents_[static_cast<size_t>(dim)]; }
  int64_t numel() const;
  bool operator==(const Shape& other) const = default;
  std::string str() const;  ///< "[2, 3]"

 private:
  std::array<int64_t, 4> extents_{};
  int dims_ = 0;
};

/// A handle to contiguous row-major memory; copies share the memory. const applies to the handle, not to the memory.
class Tensor {
 public:
  Tensor() = default;
  static Tensor empty(const Context& ctx, const Shape& shape, DType dtype, MemoryCategory category);
  static Tensor zeros(const Context& ctx, const Shape& shape, DType dtype, MemoryCategory category);

  bool defined() const { return defined_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int d) const { return shape_[d]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  void* raw() const { return data_; }
  template <class T>
  T* data() const {
    TRIREME_CHECK(dtype_of<T>() == dtype_, "the tensor's dtype is ", name_of(dtype_));
    return static_cast<T*>(data_);
  }

  Tensor view(const Shape& shape) const;                      ///< same elements, other extents
  Tensor flat(int64_t begin, int64_t count) const;            ///< [count], elements begin..begin+count
  Tensor flat_view(int64_t begin, const Shape& shape) const;  ///< shape.numel() elements from begin
  Tensor rows(int64_t begin, int64_t count) const;            ///< rows of dimension 0
  void reset() { *this = Tensor(); }

 private:
  std::shared_ptr<void> storage_;
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kF32;
  bool defined_ = false;
};

}  // namespace trireme
