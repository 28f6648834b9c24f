#include "kernels/ops/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/core/operation_log.h"
#include "kernels/core/rng.h"
#include "kernels/ops/optimizer.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> scalars(double grad_scale, bool accepted) {
  return {grad_scale, accepted ? 1.0 : 0.0, 1e-2, 1, 1, 3, 1, 0, kInfinity, kInfinity, kInfinity, kInfinity};
}

Operation momentum(int64_t count, bool accepted, bool narrow) {
  Operand update = wide(assigned("u", {count}));
  if (narrow) update = assigned("u", {count});
  return {"muon_momentum",
          {always_f64(input("scalars", {kStepScalars}, scalars(0.7, accepted))), wide(input("g", {count})), wide(in_place("m", {count})), update},
          [](Context& ctx, const std::vector<Tensor>& t) { muon_momentum(ctx, 0.9, t[0], t[1], t[2], t[3]); }};
}

Operation orthogonalize(int64_t rows, int64_t columns, const std::vector<double>& values) {
  return {"newton_schulz", {in_place("x", {rows, columns}, values)}, [](Context& ctx, const std::vector<Tensor>& t) { newton_schulz(ctx, t[0], 1); }};
}

std::vector<double> orthogonalized(int64_t rows, int64_t columns, const std::vector<double>& values) {
  return run(orthogonalize(rows, columns, values), Device::kReference, DType::kF64).front();
}

std::vector<double> random_values(int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random_normal(7, static_cast<uint64_t>(i)));
  return values;
}

std::vector<double> transposed(const std::vector<double>& values, int64_t rows, int64_t columns) {
  std::vector<double> turned;
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) turned.push_back(values[static_cast<size_t>(r * columns + c)]);
  return turned;
}

}  // namespace

TEST_CASE("muon_momentum: every engine agrees with the reference") {
  for (const int64_t count : {0, 1, 7, 130, 4097})
    for (const bool accepted : {true, false}) check_engines(momentum(count, accepted, false), 1e-6);
}

TEST_CASE("muon_momentum: Nesterov's form, with the clip factor on the gradient, and a rejected step keeps the state") {
  for (const bool accepted : {true, false}) {
    Operation one = momentum(2, accepted, false);
    one.operands[1].values = {1, -2};
    one.operands[2].values = {10, 20};
    const Values after = run(one, Device::kReference, DType::kF64);
    CHECK(after[2][0] == Approx(accepted ? 0.9 * 10 + 0.7 : 10).epsilon(1e-15));
    CHECK(after[2][1] == Approx(accepted ? 0.9 * 20 - 1.4 : 20).epsilon(1e-15));
    CHECK(after[3][0] == Approx(0.7 + 0.9 * (0.9 * 10 + 0.7)).epsilon(1e-15));
    CHECK(after[3][1] == Approx(-1.4 + 0.9 * (0.9 * 20 - 1.4)).epsilon(1e-15));
  }
}

TEST_CASE("divide_by_norm and weighted_sum: every engine agrees with the reference") {
  for (const int64_t count : {1, 7, 130, 4097}) {
    check_engines({"divide_by_norm",
                   {always_f64(input("squares", {1}, {6.25})), free_rows(in_place("x", {count}))},
                   [](Context& ctx, const std::vector<Tensor>& t) { divide_by_norm(ctx, t[0], t[1]); }},
                  1e-6);
    check_engines({"weighted_sum",
                   {input("x", {count}), input("y", {count}), assigned("out", {count})},
                   [](Context& ctx, const std::vector<Tensor>& t) { weighted_sum(ctx, -4.775, t[0], 2.0315, t[1], t[2]); }},
                  1e-6);
    check_engines({"weighted_sum in place",
                   {in_place("x", {count}), input("y", {count})},
                   [](Context& ctx, const std::vector<Tensor>& t) { weighted_sum(ctx, 3.4445, t[0], 1, t[1], t[0]); }},
                  1e-6);
  }
}

TEST_CASE("newton_schulz: a matrix whose result is known") {
  const std::vector<double> known = {-.680660990, .825539610, .741295418, .259440027};
  const std::vector<double> result = orthogonalized(2, 2, {1, 2, 3, 4});
  for (size_t i = 0; i < known.size(); ++i) CHECK(std::abs(result[i] - known[i]) < 1e-9);
  // The singular values are 1.128395 and .698833; the determinant of the matrix is negative.
  CHECK(result[0] * result[3] - result[1] * result[2] == Approx(-1.128395 * .698833).epsilon(1e-6));
}

/// A diagonal matrix goes through the iteration entry by entry: after division by the norm, five times s (a + b s^2 + c s^4).
TEST_CASE("newton_schulz: singular values follow the map of the paper, whatever they begin as") {
  const auto mapped = [](double s) {
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    return s;
  };
  for (const auto& [from, to] : {std::pair{1.0, .696436}, {0.1, .712120}, {0.01, .698917}, {0.001, .470544}})
    CHECK(mapped(from) == Approx(to).epsilon(1e-5));
  CHECK(orthogonalized(1, 1, {3}).front() == Approx(mapped(3 / (3 + 1e-7))).epsilon(1e-12));
  std::vector<double> diagonal(9);
  diagonal[0] = 2, diagonal[4] = 1, diagonal[8] = 0.05;
  const double norm = std::sqrt(4 + 1 + 0.0025) + 1e-7;
  const std::vector<double> result = orthogonalized(3, 3, diagonal);
  for (const size_t i : {0, 4, 8}) CHECK(result[i] == Approx(mapped(diagonal[i] / norm)).epsilon(1e-12));
  for (const size_t i : {1, 2, 3, 5, 6, 7}) CHECK(result[i] == 0);
}

TEST_CASE("newton_schulz: the transpose gives the transpose, a factor changes nothing, zeros stay zero") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{4, 9}, {9, 4}, {6, 6}, {1, 5}, {5, 1}}) {
    const std::vector<double> values = random_values(rows * columns), plain = orthogonalized(rows, columns, values);
    const std::vector<double> turned = orthogonalized(columns, rows, transposed(values, rows, columns));
    std::vector<double> larger = values;
    for (double& value : larger) value *= 1000;
    const std::vector<double> scaled = orthogonalized(rows, columns, larger);
    for (size_t i = 0; i < plain.size(); ++i) {
      CHECK(std::abs(transposed(turned, columns, rows)[i] - plain[i]) < 1e-13);
      CHECK(std::abs(scaled[i] - plain[i]) < 1e-6);
    }
  }
  for (const double value : orthogonalized(3, 5, std::vector<double>(15))) CHECK(value == 0);
}

TEST_CASE("newton_schulz: every engine agrees with the reference") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 48}, {48, 16}, {32, 32}, {24, 40}}) {
    const Operation operation = orthogonalize(rows, columns, random_values(rows * columns));
    const std::vector<double> expected = run(operation, Device::kReference, DType::kF64).front();
    for (const Device device : devices()) {
      INFO(rows << " x " << columns << " on " << static_cast<int>(device));
      CHECK(normalised_error(run(operation, device, DType::kF32).front(), expected) < 1e-5);
      CHECK(normalised_error(run(operation, device, DType::kBF16).front(), expected) < 0.05);
    }
  }
}

TEST_CASE("muon_scale: the length of AdamW's update, or that of the shape") {
  CHECK(muon_scale(MuonScale::kRms, {100, 400}) == Approx(4).epsilon(1e-15));
  CHECK(muon_scale(MuonScale::kRms, {400, 100}) == Approx(4).epsilon(1e-15));
  CHECK(muon_scale(MuonScale::kSpectral, {400, 100}) == Approx(2).epsilon(1e-15));
  CHECK(muon_scale(MuonScale::kSpectral, {100, 400}) == 1);
}

TEST_CASE("newton_schulz: memory and operations on the meta device are what the header says") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{128, 512}, {512, 128}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Arena arena(Device::kMeta);
      OperationLog log;
      Context ctx{.device = Device::kMeta, .arena = &arena, .log = &log};
      const Tensor x = Tensor::empty(ctx, {rows, columns}, dtype, MemoryCategory::kWorkspace);
      const int64_t before = arena.peak_bytes();
      newton_schulz(ctx, x, 1);
      const int64_t least = std::min(rows, columns), element = size_of(dtype);
      const int64_t wide = dtype == DType::kBF16 && rows > columns ? least * least * 4 : 0;
      CHECK(arena.peak_bytes() - before >= (2 * least * least + rows * columns) * element);
      CHECK(arena.peak_bytes() - before <= (2 * least * least + rows * columns) * element + wide + 1024);
      double flops = 0;
      for (const OperationRecord& record : log.take()) flops += record.kind == OperationKind::kProduct ? record.flops() : 0;
      CHECK(flops == newton_schulz_flops({rows, columns}));
    }
  }
}
