#include "parallel/param.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"

namespace trireme {

ParamSpec replicated(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, Partial partial_over) {
  ParamSpec spec;
  spec.name = std::move(name);
  spec.dims = dims;
  spec.shape = shape;
  spec.box = {{0, 0}, shape};
  spec.local = shape;
  spec.is_primary_copy = at.rank == 0;
  spec.partial_over = partial_over;
  return spec;
}

ParamSpec split_rows(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, int parts) {
  const int copies = at.size / parts;
  const int64_t rows = (shape[0] + parts - 1) / parts;
  const int64_t begin = std::min(at.rank / copies * rows, shape[0]);
  ParamSpec spec;
  spec.name = std::move(name);
  spec.dims = dims;
  spec.shape = shape;
  spec.box = {{begin, 0}, {std::min(rows, shape[0] - begin), shape[1]}};
  spec.local = {rows, shape[1]};
  spec.split = Split::kRows;
  spec.parts = parts;
  spec.is_primary_copy = at.rank % copies == 0;
  spec.partial_over = copies > 1 ? Partial::kKv : Partial::kNone;
  return spec;
}

ParamSpec split_columns(std::string name, std::array<int64_t, 2> shape, const TensorRank& at) {
  TRIREME_CHECK(shape[1] % at.size == 0, name, ": ", shape[1], " columns are not divisible by ", at.size, " tensor ranks");
  const int64_t columns = shape[1] / at.size;
  ParamSpec spec;
  spec.name = std::move(name);
  spec.shape = shape;
  spec.box = {{0, at.rank * columns}, {shape[0], columns}};
  spec.local = {shape[0], columns};
  spec.split = Split::kColumns;
  spec.parts = at.size;
  return spec;
}

ParamSpec on_rank(const ParamSpec& spec, const TensorRank& at) {
  switch (spec.split) {
    case Split::kNone: return replicated(spec.name, spec.shape, spec.dims, at, spec.partial_over);
    case Split::kRows: return split_rows(spec.name, spec.shape, spec.dims, at, spec.parts);
    case Split::kColumns: return split_columns(spec.name, spec.shape, at);
  }
  throw InternalError("unknown split");
}

Tensor Param::grad_to_add_to(Context& ctx) {
  if (!must_add_to_grad()) fill(ctx, 0, grad);
  return grad;
}

int64_t Param::numel() const {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) sum += spec.numel();
  return sum;
}

Shape Param::local_shape() const {
  int64_t rows = 0;
  for (const ParamSpec& spec : specs) rows += spec.local[0];
  return specs.front().dims == 1 ? Shape{rows} : Shape{rows, specs.front().local[1]};
}

std::vector<BoxRange> boxes_of(const ParamSpec& spec, int64_t begin, int64_t end) {
  const int64_t columns = spec.local[1];
  end = std::min(end, spec.box.extent[0] * columns);  // rows beyond are padding
  std::vector<BoxRange> ranges;
  while (begin < end) {
    const int64_t row = begin / columns;
    const int64_t column = begin % columns;
    // Whole rows if the range starts at a row and covers it, else the rest of this row.
    const bool whole = column == 0 && end - begin >= columns;
    const int64_t rows = whole ? (end - begin) / columns : 1;
    const int64_t width = whole ? columns : std::min(columns - column, end - begin);
    ranges.push_back({{{spec.box.start[0] + row, spec.box.start[1] + column}, {rows, width}}, begin});
    begin += rows * width;
  }
  return ranges;
}

}  // namespace trireme
