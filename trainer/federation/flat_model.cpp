#include "trainer/federation/flat_model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <sstream>

#include "kernels/ops/transfer.h"
#include "trainer/machine/collectively.h"

namespace trireme::federation {
namespace {

/// Shapes of all tensors of the model; a rank by itself knows only those of its stages. Collective.
std::map<std::string, std::array<int64_t, 2>> shapes_of(Trainer& trainer) {
  std::set<std::string> own;
  for (const OwnedBox& owned : trainer.owned_boxes()) own.insert(concat(owned.spec->name, " ", owned.spec->shape[0], " ", owned.spec->shape[1]));
  std::map<std::string, std::array<int64_t, 2>> shapes;
  for (const std::string& line : union_of_names(trainer.mesh().world, own)) {
    std::istringstream words(line);
    std::string name;
    std::array<int64_t, 2> shape{};
    words >> name >> shape[0] >> shape[1];
    shapes[name] = shape;
  }
  return shapes;
}

double element(const Tensor& tensor, int64_t i) {
  return tensor.dtype() == DType::kF64 ? tensor.data<double>()[i] : static_cast<double>(tensor.data<float>()[i]);
}

}  // namespace

std::pair<std::map<std::string, int64_t>, int64_t> numbered(const std::map<std::string, std::array<int64_t, 2>>& shapes) {
  std::map<std::string, int64_t> first;
  int64_t count = 0;
  for (const auto& [name, shape] : shapes) {
    first[name] = count;
    count += shape[0] * shape[1];
  }
  return {first, count};
}

FlatModel::FlatModel(Trainer& trainer) : trainer_(trainer), dtype_(precision_of(trainer.config().training).master) {
  const auto [first, count] = numbered(shapes_of(trainer));
  numel_ = count;
  for (OwnedBox& owned : trainer.owned_boxes()) {
    const bool is_primary = trainer.represents_shard() && owned.spec->is_primary_copy;
    const Tensor begin = host_tensor(owned.weight.shape(), dtype_), now = to_host(trainer.context(), owned.weight);
    std::memcpy(begin.raw(), now.raw(), static_cast<size_t>(now.bytes()));
    const int64_t number = first.at(owned.spec->name);
    parts_.push_back({std::move(owned), number, is_primary, begin});
  }
}

/// Calls `visit` for the runs of a box that are contiguous in the order: its rows, or all of them if they are whole.
void FlatModel::visit_runs(const Part& part, const std::function<void(int64_t, int64_t, int64_t)>& visit) const {
  const Box& box = part.owned.box;
  const int64_t columns = part.owned.spec->shape[1];
  if (box.extent[1] == columns) return visit(part.first + box.start[0] * columns, 0, box.numel());
  for (int64_t row = 0; row < box.extent[0]; ++row)
    visit(part.first + (box.start[0] + row) * columns + box.start[1], row * box.extent[1], box.extent[1]);
}

/// Keeps those of the elements from number `first` on that this rank owns.
void FlatModel::keep(int64_t first, std::span<const std::byte> values) {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  const int64_t end = first + std::ssize(values) / size;
  for (const Part& part : parts_) {
    visit_runs(part, [&](int64_t run, int64_t place, int64_t count) {
      const int64_t from = std::max(first, run), to = std::min(end, run + count);
      if (from < to)
        std::memcpy(static_cast<std::byte*>(part.begin.raw()) + (place + from - run) * size, values.data() + (from - first) * size,
                    static_cast<size_t>((to - from) * size));
    });
  }
}

bool FlatModel::receive(int64_t longest, const std::function<std::string(int64_t)>& next) {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  for (int64_t done = 0; done < numel_ * size;) {
    const std::string piece = next(std::min(longest, numel_ * size - done));
    if (piece.empty()) return false;
    keep(done / size, std::as_bytes(std::span(piece)));
    done += std::ssize(piece);
  }
  return true;
}

void FlatModel::apply() {
  for (const Part& part : parts_) from_host(trainer_.context(), part.begin, part.owned.weight);
  trainer_.weights_replaced();
}

void FlatModel::visit_update(int64_t longest, const Visit& visit) const {
  std::vector<double> values;
  for (const Part& part : parts_) {
    if (!part.is_primary) continue;
    const Tensor now = to_host(trainer_.context(), part.owned.weight);
    visit_runs(part, [&](int64_t first, int64_t place, int64_t count) {
      for (int64_t done = 0; done < count; done += longest) {
        values.resize(static_cast<size_t>(std::min(longest, count - done)));
        for (size_t i = 0; i < values.size(); ++i) {
          const int64_t at = place + done + static_cast<int64_t>(i);
          values[i] = element(part.begin, at) - element(now, at);
        }
        visit(first + done, values);
      }
    });
  }
}

double FlatModel::update_squares() const {
  double squares = 0;
  visit_update(1 << 20, [&](int64_t, std::span<const double> values) {
    for (const double value : values) squares += value * value;
  });
  return all_reduce_scalar(trainer_.mesh().world, squares, ReduceOp::kSum);
}

void FlatModel::visit_boxes(const std::function<void(const OwnedBox&, std::span<const int64_t>)>& visit) const {
  for (const Part& part : parts_) {
    std::vector<int64_t> numbers(static_cast<size_t>(part.owned.box.numel()));
    visit_runs(part,
               [&](int64_t first, int64_t place, int64_t count) { std::iota(numbers.begin() + place, numbers.begin() + place + count, first); });
    visit(part.owned, numbers);
  }
}

std::vector<std::byte> FlatModel::weights() const {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  std::vector<std::byte> all(static_cast<size_t>(numel_ * size));
  for (const Part& part : parts_) {
    if (!part.is_primary) continue;
    const Tensor now = to_host(trainer_.context(), part.owned.weight);
    visit_runs(part, [&](int64_t first, int64_t place, int64_t count) {
      std::memcpy(all.data() + first * size, static_cast<const std::byte*>(now.raw()) + place * size, static_cast<size_t>(count * size));
    });
  }
  return all;
}

}  // namespace trireme::federation
