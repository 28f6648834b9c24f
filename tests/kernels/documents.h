#pragma once
// Operands "starts" and "ends" of kernels/ops/documents.h.
#include <cstdint>
#include <vector>

#include "kernels/ops/documents.h"
#include "tests/kernels/harness.h"

namespace trireme::testing {

/// Bounds of documents of these lengths, which fill sequences of `sequence` rows; those of `rows` rows from `first_row` on, by default of all.
inline std::vector<Operand> bounds_of(const std::vector<int64_t>& lengths, int64_t sequence, int64_t first_row = 0, int64_t rows = -1) {
  std::vector<double> starts, ends;
  for (const int64_t length : lengths) {
    const auto start = static_cast<double>(starts.size() % static_cast<size_t>(sequence));
    starts.insert(starts.end(), static_cast<size_t>(length), start);
    ends.insert(ends.end(), static_cast<size_t>(length), start + static_cast<double>(length));
  }
  const auto count = static_cast<size_t>(rows < 0 ? static_cast<int64_t>(starts.size()) - first_row : rows);
  const auto part = [&](const std::vector<double>& all) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(first_row);
    return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(count));
  };
  return {integers("starts", {static_cast<int64_t>(count)}, part(starts)), integers("ends", {static_cast<int64_t>(count)}, part(ends))};
}

/// The documents of an operation whose operands end with bounds_of(), or none.
inline Documents documents_of(const std::vector<Tensor>& tensors, bool has_documents) {
  return has_documents ? Documents{tensors[tensors.size() - 2], tensors.back()} : Documents{};
}

}  // namespace trireme::testing
