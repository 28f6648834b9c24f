#include "kernels/ops/norm.h"

#include <cmath>
#include <map>

#include "kernels/core/rng.h"
#include "tests/kernels/dtypes.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, columns;
};
constexpr Case kCases[] = {{1, 1}, {3, 5}, {7, 17}, {33, 130}, {2, 257}, {129, 31}};
constexpr Case kManyRows = {301, 200};  // large enough for several threads
// Every GPU variant: one warp or one block per row; 1, 2, 4 or 8 accesses per thread, or a row that is read again in every pass.
constexpr Case kWidths[] = {{9, 3},    {5, 8},    {6, 33},   {3, 127},  {9, 128},  {3, 255},  {5, 264},  {2, 1000},
                            {2, 1023}, {3, 1024}, {2, 1032}, {1, 2056}, {2, 4097}, {2, 4104}, {1, 8200}, {1, 16392}};
constexpr Case kWideRows = {9, 12296};
// Sums over rows: many slices, and slices of more rows than are in flight.
constexpr Case kTall[] = {{1031, 1}, {9001, 3}}, kTallAndWide = {2500, 264};
constexpr double kEpsilon = 1e-5;

// Statistics over at most 257 fp32 terms. Layer normalisation of a single column divides rounding errors by sqrt(epsilon), so the tolerance is not
// tighter.
constexpr double kTolerance = 4e-6;

/// The mean of normal values is nearly zero: its error is relative to the terms of the sum.
Operand mean_of_rows(int64_t rows) {
  Operand mean = wide(assigned("mean", {rows}));
  mean.floor = 0.1;
  return mean;
}

/// A row of one column equals its mean, so its dx cancels to nearly zero: errors are relative to the terms, which are of order one.
Operand activation_gradient(const Case& c) {
  Operand dx = assigned("dx", {c.rows, c.columns});
  dx.floor = 1;
  return dx;
}

Operation rmsnorm(const Case& c, double offset = 0) {
  return {"rmsnorm_forward",
          {input("x", {c.rows, c.columns}), input("w", {c.columns}), assigned("y", {c.rows, c.columns}), wide(assigned("rstd", {c.rows}))},
          [=](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_forward(ctx, t[0], t[1], kEpsilon, t[2], t[3], offset); }};
}
Operation rmsnorm_input(const Case& c, double offset = 0) {
  return {"rmsnorm_backward_input",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("rstd", {c.rows})),
           activation_gradient(c)},
          [=](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward_input(ctx, t[0], t[1], t[2], t[3], {}, t[4], offset); }};
}
Operation rmsnorm_weight(const Case& c) {
  return {"rmsnorm_backward_weight",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), wide(input("rstd", {c.rows})), wide(added_to("dw", {c.columns}))},
          [](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward_weight(ctx, t[0], t[1], t[2], t[3]); }};
}
Operation layernorm(const Case& c) {
  return {"layernorm_forward",
          {input("x", {c.rows, c.columns}), input("w", {c.columns}), input("b", {c.columns}), assigned("y", {c.rows, c.columns}),
           mean_of_rows(c.rows), wide(assigned("rstd", {c.rows}))},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_forward(ctx, t[0], t[1], t[2], kEpsilon, t[3], t[4], t[5]); }};
}
Operation layernorm_input(const Case& c) {
  return {"layernorm_backward_input",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("mean", {c.rows})),
           wide(input("rstd", {c.rows})), activation_gradient(c)},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward_input(ctx, t[0], t[1], t[2], t[3], t[4], {}, t[5]); }};
}
Operation layernorm_weight(const Case& c) {
  return {"layernorm_backward_weight",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), wide(input("mean", {c.rows})), wide(input("rstd", {c.rows})),
           wide(added_to("dw", {c.columns})), wide(added_to("db", {c.columns}))},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward_weight(ctx, t[0], t[1], t[2], t[3], t[4], t[5]); }};
}

/// Devices without a fused kernel store the gradient of the branch in bf16 and then add the residual: the result may differ by the rounding of the
/// branch.
constexpr double kTwiceRounded = 0x1p-8;

Operation rmsnorm_input_and_residual(const Case& c, double offset = 0) {
  return {"rmsnorm_backward_input with residual",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("rstd", {c.rows})),
           input("residual", {c.rows, c.columns}), activation_gradient(c)},
          [=](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward_input(ctx, t[0], t[1], t[2], t[3], t[4], t[5], offset); },
          false,
          kTwiceRounded};
}
Operation layernorm_input_and_residual(const Case& c) {
  return {"layernorm_backward_input with residual",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("mean", {c.rows})),
           wide(input("rstd", {c.rows})), input("residual", {c.rows, c.columns}), activation_gradient(c)},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward_input(ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6]); },
          false,
          kTwiceRounded};
}
Operation rmsnorm_both(const Case& c, double offset = 0) {
  return {"rmsnorm_backward",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("rstd", {c.rows})),
           input("residual", {c.rows, c.columns}), activation_gradient(c), wide(added_to("dw", {c.columns}))},
          [=](Context& ctx, const std::vector<Tensor>& t) { rmsnorm_backward(ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], offset); },
          false,
          kTwiceRounded};
}
Operation layernorm_both(const Case& c) {
  return {"layernorm_backward",
          {input("dy", {c.rows, c.columns}), input("x", {c.rows, c.columns}), input("w", {c.columns}), wide(input("mean", {c.rows})),
           wide(input("rstd", {c.rows})), input("residual", {c.rows, c.columns}), activation_gradient(c), wide(added_to("dw", {c.columns})),
           wide(added_to("db", {c.columns}))},
          [](Context& ctx, const std::vector<Tensor>& t) { layernorm_backward(ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]); },
          false,
          kTwiceRounded};
}
/// Small integers and powers of two as summands, so that the sum is exact in bf16 and the check needs no allowance for its rounding.
std::vector<double> exact_summand(const std::string& name, const Case& c) {
  const uint64_t key = random_key(7, name);
  std::vector<double> values;
  for (int64_t i = 0; i < c.rows * c.columns; ++i) values.push_back(static_cast<double>(random_bits(key, static_cast<uint64_t>(i)) % 65) / 16 - 2);
  return values;
}
Operation add_rmsnorm(const Case& c, double offset = 0) {
  return {"add_rmsnorm_forward",
          {input("a", {c.rows, c.columns}, exact_summand("a", c)), input("b", {c.rows, c.columns}, exact_summand("b", c)), input("w", {c.columns}),
           assigned("sum", {c.rows, c.columns}), assigned("y", {c.rows, c.columns}), wide(assigned("rstd", {c.rows}))},
          [=](Context& ctx, const std::vector<Tensor>& t) { add_rmsnorm_forward(ctx, t[0], t[1], t[2], kEpsilon, t[3], t[4], t[5], offset); }};
}
Operation add_layernorm(const Case& c) {
  return {"add_layernorm_forward",
          {input("a", {c.rows, c.columns}, exact_summand("a", c)), input("b", {c.rows, c.columns}, exact_summand("b", c)), input("w", {c.columns}),
           input("bias", {c.columns}), assigned("sum", {c.rows, c.columns}), assigned("y", {c.rows, c.columns}), mean_of_rows(c.rows),
           wide(assigned("rstd", {c.rows}))},
          [](Context& ctx, const std::vector<Tensor>& t) { add_layernorm_forward(ctx, t[0], t[1], t[2], t[3], kEpsilon, t[4], t[5], t[6], t[7]); }};
}

void check_rows(const Case& c, const DTypes& dtypes = kAllDTypes) {
  check_engines(rmsnorm(c), kTolerance, dtypes);
  check_engines(following(rmsnorm_input_and_residual(c), rmsnorm(c)), kTolerance, dtypes);
  check_engines(layernorm(c), kTolerance, dtypes);
  check_engines(following(layernorm_input_and_residual(c), layernorm(c)), kTolerance, dtypes);
  check_engines(following(rmsnorm_both(c), rmsnorm(c)), kTolerance, dtypes);
  check_engines(following(layernorm_both(c), layernorm(c)), kTolerance, dtypes);
  check_engines(add_rmsnorm(c), kTolerance, dtypes);
  check_engines(add_layernorm(c), kTolerance, dtypes);
}
/// The kernels of check_rows, without the residual that they add.
void check_without_residual(const Case& c) {
  check_engines(following(rmsnorm_input(c), rmsnorm(c)), kTolerance);
  check_engines(following(layernorm_input(c), layernorm(c)), kTolerance);
}
void check_sums_over_rows(const Case& c, const DTypes& dtypes = kAllDTypes) {
  check_engines(following(rmsnorm_weight(c), rmsnorm(c)), kTolerance, dtypes);
  check_engines(following(layernorm_weight(c), layernorm(c)), kTolerance, dtypes);
}

/// The kernels that read a weight, with 1 added to it.
void check_offset(const Case& c) {
  check_engines(rmsnorm(c, 1), kTolerance);
  check_engines(following(rmsnorm_input(c, 1), rmsnorm(c, 1)), kTolerance);
  check_engines(following(rmsnorm_input_and_residual(c, 1), rmsnorm(c, 1)), kTolerance);
  check_engines(following(rmsnorm_both(c, 1), rmsnorm(c, 1)), kTolerance);
  check_engines(add_rmsnorm(c, 1), kTolerance);
}

/// The values that `operation` writes, on `device`; operands keep their values from the declaration, so equal names have equal values.
std::map<std::string, std::vector<double>> results_of(const Operation& operation, Device device, DType dtype, Alignment alignment) {
  const Values values = run(operation, device, dtype, 1, alignment);
  std::map<std::string, std::vector<double>> results;
  for (size_t i = 0; i < values.size(); ++i)
    if (operation.operands[i].role != Role::kInput) results[operation.operands[i].name] = values[i];
  return results;
}

/// On every device, a fused backward has the bits of the two operations that it replaces, whatever the alignment of their operands.
void check_backwards(const Case& c, const DTypes& dtypes = kAllDTypes) {
  const auto check = [&](const Operation& forward, const Operation& fused, const std::vector<Operation>& parts) {
    const Operation both = following(fused, forward);
    std::vector<Operation> behind;
    for (const Operation& part : parts) behind.push_back(following(part, forward));
    for (const Device device : devices()) {
      for (const DType dtype : dtypes) {
        INFO(c.rows << " x " << c.columns << " in " << name_of(dtype) << " on " << static_cast<int>(device));
        const auto expected = results_of(both, device, dtype, Alignment::kVector);
        for (const Operation& part : behind)
          for (const Alignment alignment : {Alignment::kVector, Alignment::kElement})
            for (const auto& [name, values] : results_of(part, device, dtype, alignment))
              if (alignment == Alignment::kVector || name != "dx") CHECK((values == expected.at(name)));
      }
    }
  };
  check(rmsnorm(c), rmsnorm_both(c), {rmsnorm_input_and_residual(c), rmsnorm_weight(c)});
  check(layernorm(c), layernorm_both(c), {layernorm_input_and_residual(c), layernorm_weight(c)});
}

/// On every device, a fused add and norm must be bit-identical to the norm of the sum that it stores, because the backward uses that sum.
void check_fused(const Case& c) {
  for (const Device device : devices()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Alignment alignment : {Alignment::kElement, Alignment::kVector}) {
        INFO(c.rows << " x " << c.columns << " in " << name_of(dtype));
        Operation fused = add_layernorm(c), plain = layernorm(c);
        fused.operands[0] = input("a", {c.rows, c.columns});
        fused.operands[1] = input("b", {c.rows, c.columns});
        const Values both = run(fused, device, dtype, 1, alignment);
        plain.operands[0].values = both[4];
        plain.operands[1].values = fused.operands[2].values;
        plain.operands[2].values = fused.operands[3].values;
        const Values apart = run(plain, device, dtype, 1, alignment);
        CHECK(both[5] == apart[3]);
        CHECK(both[6] == apart[4]);
        CHECK(both[7] == apart[5]);
        fused = add_rmsnorm(c), plain = rmsnorm(c);
        fused.operands[0] = input("a", {c.rows, c.columns});
        fused.operands[1] = input("b", {c.rows, c.columns});
        const Values both_rms = run(fused, device, dtype, 1, alignment);
        plain.operands[0].values = both_rms[3];
        plain.operands[1].values = fused.operands[2].values;
        const Values apart_rms = run(plain, device, dtype, 1, alignment);
        CHECK(both_rms[4] == apart_rms[2]);
        CHECK(both_rms[5] == apart_rms[3]);
      }
    }
  }
}

}  // namespace

TEST_CASE("normalisations: engines agree") {
  for (const Case& c : kCases) {
    check_rows(c);
    check_without_residual(c);
    check_sums_over_rows(c);
  }
  check_rows(kManyRows);
  check_without_residual(kManyRows);
  check_sums_over_rows(kManyRows);
}

TEST_CASE("normalisations: engines agree on weights with an offset") {
  for (const Case& c : {kCases[2], kCases[4], kManyRows, kWidths[6], kWidths[15]}) check_offset(c);
}

TEST_CASE("normalisations: engines agree at every third width") {
  for (size_t i = 0; i < std::size(kWidths); i += 3) {
    check_rows(kWidths[i], dtypes_in_turn(i));
    check_sums_over_rows(kWidths[i], dtypes_in_turn(i));
  }
}

TEST_CASE("normalisations: engines agree at every width in every precision", "[slow]") {
  for (const Case& c : kWidths) {
    check_rows(c);
    check_sums_over_rows(c);
    check_backwards(c);
  }
}

TEST_CASE("normalisations: engines agree on several wide rows, and a fused backward on many", "[slow]") {
  check_backwards(kTallAndWide);
  check_rows(kWideRows);
  check_sums_over_rows(kWideRows);
  check_fused(kWideRows);
  check_backwards(kWideRows);
}

TEST_CASE("normalisations: sums over many rows") {
  for (const Case& c : kTall) check_sums_over_rows(c);
  check_sums_over_rows(kTallAndWide);
}

TEST_CASE("normalisations: operands of different alignment") {
  constexpr Case kAligned = {3, 264};
  for (const Operation& operation : {rmsnorm(kAligned), rmsnorm_input_and_residual(kAligned), rmsnorm_weight(kAligned), layernorm(kAligned),
                                     layernorm_input_and_residual(kAligned), layernorm_weight(kAligned), rmsnorm_both(kAligned),
                                     layernorm_both(kAligned), add_rmsnorm(kAligned), add_layernorm(kAligned)}) {
    check_misaligned(operation, kTolerance);
  }
}

TEST_CASE("normalisations: a fused add and norm is bit-identical to the norm of the stored sum") {
  for (const Case& c : kCases) check_fused(c);
  for (const Case& c : kWidths) check_fused(c);
}

TEST_CASE("normalisations: a fused backward is bit-identical to its two parts") {
  for (const Case& c : kCases) check_backwards(c);
  for (size_t i = 1; i < std::size(kWidths); i += 3) check_backwards(kWidths[i], dtypes_in_turn(i));
  for (const Case& c : kTall) check_backwards(c);
}

TEST_CASE("normalisations: gradients") {
  for (const Case& c : kCases) {
    if (c.columns == 1) continue;  // with one column the function is too curved near x = 0 for the step of the difference
    for (const double offset : {0, 1}) check_gradients(rmsnorm(c, offset), "y", rmsnorm_input(c, offset), "dy", {{"x", "dx"}});
    check_gradients(rmsnorm(c), "y", rmsnorm_weight(c), "dy", {{"w", "dw"}});
    check_gradients(layernorm(c), "y", layernorm_input(c), "dy", {{"x", "dx"}});
    check_gradients(layernorm(c), "y", layernorm_weight(c), "dy", {{"w", "dw"}, {"b", "db"}});
  }
}

TEST_CASE("a normalised row matches values computed by hand") {
  Operation operation = layernorm({1, 2});
  operation.operands[0].values = {1, 5};  // mean 3, variance 4
  operation.operands[1].values = {1, 10};
  operation.operands[2].values = {0.5, 0};
  const Values values = run(operation, Device::kReference, DType::kF64);
  CHECK(normalised_error(values[3], {-0.5, 10}) < 1e-5);  // epsilon moves the sixth digit
  CHECK(values[4] == std::vector<double>{3});
  CHECK(values[5][0] == Approx(1 / std::sqrt(4 + kEpsilon)).epsilon(1e-14));
}

TEST_CASE("the weight of RMSNorm may lack an offset of 1") {
  Operation operation = rmsnorm({1, 2}, 1);
  operation.operands[0].values = {3, 4};  // mean of squares 12.5
  operation.operands[1].values = {-0.5, 1};
  const double rstd = 1 / std::sqrt(12.5 + kEpsilon);
  CHECK(normalised_error(run(operation, Device::kReference, DType::kF64)[2], {3 * rstd * 0.5, 4 * rstd * 2}) < 1e-15);
}
