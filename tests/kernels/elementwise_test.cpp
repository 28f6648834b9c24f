#include "kernels/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/rng.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kCases[] = {0, 1, 3, 17, 33, 1000, 4103, 70001};

// One or two roundings.
constexpr double kTolerance = 3e-7;

const DropoutMask kMask{random_key(7, "dropout:test"), 5, (uint64_t{1} << 32) - 9, 0.3};  // indices cross 32 bits

Operation filled(int64_t count) {
  return {"fill", {free_rows(assigned("out", {count}))}, [](Context& ctx, const std::vector<Tensor>& t) { fill(ctx, 0.1, t[0]); }};
}
Operation copied(int64_t count) {
  return {"copy", {input("from", {count}), assigned("to", {count})}, [](Context& ctx, const std::vector<Tensor>& t) { copy(ctx, t[0], t[1]); }};
}
Operation added(int64_t count) {
  return {"add", {input("a", {count}), input("b", {count}), assigned("out", {count})}, [](Context& ctx, const std::vector<Tensor>& t) {
            add(ctx, t[0], t[1], t[2]);
          }};
}
Operation added_in_place(int64_t count) {
  return {
      "add in place", {in_place("a", {count}), input("b", {count})}, [](Context& ctx, const std::vector<Tensor>& t) { add(ctx, t[0], t[1], t[0]); }};
}
Operation scaled(int64_t count) {
  return {"scale", {input("x", {count}), assigned("y", {count})}, [](Context& ctx, const std::vector<Tensor>& t) { scale(ctx, t[0], 8.25, t[1]); }};
}
Operation scaled_in_place(int64_t count) {
  return {"scale in place", {free_rows(in_place("x", {count}))}, [](Context& ctx, const std::vector<Tensor>& t) { scale(ctx, t[0], 0.5, t[0]); }};
}
Operation accumulated(int64_t count) {
  return {
      "accumulate", {input("x", {count}), added_to("out", {count})}, [](Context& ctx, const std::vector<Tensor>& t) { accumulate(ctx, t[0], t[1]); }};
}
Operation accumulated_wide(int64_t count) {
  return {"accumulate into the accumulator", {input("x", {count}), wide(added_to("out", {count}))}, [](Context& ctx, const std::vector<Tensor>& t) {
            accumulate(ctx, t[0], t[1]);
          }};
}
Operation largest_of(int64_t count, const std::vector<double>& values = {}, double before = 0.25) {
  return {"max_absolute",
          {free_rows(input("x", {count}, values)), always_f64(in_place("largest", {1}, {before}))},
          [](Context& ctx, const std::vector<Tensor>& t) { max_absolute(ctx, t[0], t[1]); }};
}
Operation copied_wide(int64_t count) {
  return {"copy into the accumulator", {input("from", {count}), wide(assigned("to", {count}))}, [](Context& ctx, const std::vector<Tensor>& t) {
            copy(ctx, t[0], t[1]);
          }};
}
Operation copied_narrow(int64_t count) {
  return {"copy from the accumulator", {wide(input("from", {count})), assigned("to", {count})}, [](Context& ctx, const std::vector<Tensor>& t) {
            copy(ctx, t[0], t[1]);
          }};
}
Operation dropped(int64_t count, const DropoutMask& mask) {
  return {"dropout", {input("x", {count}), assigned("y", {count})}, [mask](Context& ctx, const std::vector<Tensor>& t) {
            dropout(ctx, t[0], mask, t[1]);
          }};
}
Operation gradient_dropped(int64_t count, const DropoutMask& mask) {
  return {
      "dropout of dy", {free_rows(in_place("dy", {count}))}, [mask](Context& ctx, const std::vector<Tensor>& t) { dropout(ctx, t[0], mask, t[0]); }};
}

constexpr int64_t kRows = 7, kColumns = 11;
Operation initialised(const Shape& shape, int64_t row_begin, int64_t column_begin) {
  return {"fill_normal", {free_rows(assigned("out", shape))}, [=](Context& ctx, const std::vector<Tensor>& t) {
            fill_normal(ctx, 42, 0.5, kColumns, row_begin, column_begin, t[0]);
          }};
}

}  // namespace

TEST_CASE("elementwise: engines agree") {
  for (int64_t count : kCases) {
    for (const Operation& operation :
         {filled(count), copied(count), added(count), added_in_place(count), scaled(count), scaled_in_place(count), accumulated(count),
          accumulated_wide(count), copied_wide(count), copied_narrow(count), dropped(count, kMask), gradient_dropped(count, kMask)}) {
      check_engines(operation, kTolerance);
    }
  }
  check_engines(initialised({kRows, kColumns}, 0, 0), kTolerance);
  check_engines(initialised({2, 3}, 4, 8), kTolerance);
  check_engines(initialised({4}, 0, 5), kTolerance);
}

TEST_CASE("elementwise: gradients") { check_gradients(dropped(33, kMask), "y", gradient_dropped(33, kMask), "dy", {{"x", "dy"}}); }

TEST_CASE("copy converts, and accumulate widens") {
  for (Device device : devices()) {
    Operation widen = copied(33);
    widen.operands[1].dtype = DType::kF64;
    const Values wide = run(widen, device, DType::kF32);
    CHECK(wide[1] == wide[0]);
    Operation narrow = copied(33);
    narrow.operands[0].dtype = DType::kF64;
    const Values values = run(narrow, device, DType::kF32);
    CHECK(std::equal(values[0].begin(), values[0].end(), values[1].begin(), [](double from, double to) { return to == static_cast<float>(from); }));
    Operation tokens = copied(3);
    tokens.operands[0] = integers("from", {3}, {5, -1, 70000});
    tokens.operands[1].dtype = DType::kI32;
    CHECK(run(tokens, device, DType::kF32)[1] == std::vector<double>{5, -1, 70000});

    Operation sum = accumulated(1);
    sum.operands[1] = always_f64(added_to("out", {1}, {1e9}));
    sum.operands[0].values = {0.25};
    CHECK(run(sum, device, DType::kF32)[1] == std::vector<double>{1e9 + 0.25});  // fp32 would lose it
    sum.operands[0].dtype = DType::kF64;
    sum.operands[1].dtype = DType::kF32;
    CHECK_THROWS_AS(run(sum, device, DType::kF32), InternalError);
  }
}

TEST_CASE("copy between fp32, bf16 and fp16 rounds each number once, to nearest") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Ties and their neighbours, the ends of each range, subnormal numbers, in any place of a vector.
  std::vector<double> values = {0.0,       -0.0,  1.0,   -1.0,    1 + 0x1p-8, 1 + 0x1.8p-7, 1 + 0x1p-11, 1 + 0x1.8p-10, 65504, 65519.996,
                                65520,     65536, 1e-8,  0x1p-24, 0x1p-25,    0x1.8p-24,    0x1p-14,     -0x1p-15,      3e38,  0x1.ffp127,
                                kInfinity, 1e-40, -3e-8, -65520,  1e30,       0x1p-126,     -kInfinity,  std::nan("")};
  for (uint64_t i = 0; i < 500; ++i) values.push_back(std::ldexp(random_normal(11, i), static_cast<int>(i % 60) - 30));
  const auto as = [](DType dtype, double value) -> double {
    double converted = 0;
    dispatch_float(dtype, [&]<class T>(T) { converted = static_cast<double>(static_cast<T>(static_cast<float>(value))); });
    return converted;
  };
  const auto same = [](double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); };
  const auto check = [&](Device device, Isa isa, DType from, DType to) {
    INFO(name_of(from) << " to " << name_of(to) << " on " << name_of(isa));
    Operation operation = copied(static_cast<int64_t>(values.size()));
    operation.operands[0].values = values;
    operation.operands[0].dtype = from;
    operation.operands[1].dtype = to;
    const std::vector<double> after = run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[1];
    for (size_t i = 0; i < values.size(); ++i) {
      INFO(values[i] << " became " << after[i]);
      CHECK(same(as(to, as(from, values[i])), after[i]));
    }
  };
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      check(Device::kReference, best_isa(), from, to);
      for (int level = 0; level <= static_cast<int>(best_isa()); ++level) check(Device::kCpu, static_cast<Isa>(level), from, to);
    }
  }
}

TEST_CASE("max_absolute: engines agree, in any place and dtype, negative or not, and keep a larger value from before") {
  for (const int64_t count : kCases) check_engines(largest_of(count), kTolerance);
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const auto found = [](Device device, DType dtype, std::vector<double> values, double before, Alignment alignment) {
    return run(largest_of(static_cast<int64_t>(values.size()), values, before), device, dtype, 1, alignment)[1][0];
  };
  for (const Device device : devices()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Alignment alignment : {Alignment::kElement, Alignment::kVector}) {
        for (const size_t place : {0, 1, 500, 4101, 4102}) {
          std::vector<double> values(4103, 0.5);
          values[place] = -3;
          CHECK(found(device, dtype, values, 2, alignment) == 3);
          CHECK(found(device, dtype, values, 4, alignment) == 4);
          values[(place + 7) % values.size()] = -kInfinity;
          CHECK(found(device, dtype, values, 4, alignment) == kInfinity);
          values[(place + 11) % values.size()] = kNan;
          CHECK(std::isnan(found(device, dtype, values, kInfinity, alignment)));
        }
        CHECK(std::isnan(found(device, dtype, {1, 2}, kNan, alignment)));
        CHECK(found(device, dtype, {0x1p-24, -0x1p-14}, 0, alignment) == 0x1p-14);  // subnormal in fp16
      }
    }
  }
  CHECK(found(Device::kReference, DType::kF64, {1, -1e300}, 0, Alignment::kElement) == 1e300);
}

TEST_CASE("a dropout mask does not depend on how the tensor is split") {
  constexpr int64_t kCount = 1000;
  for (Device device : devices()) {
    const Operation whole = dropped(kCount, kMask);
    const std::vector<double> expected = run(whole, device, DType::kF32)[1];
    std::vector<double> joined;
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 130}, {131, 869}}) {
      DropoutMask mask = kMask;
      mask.first_index += static_cast<uint64_t>(begin);
      Operation part = dropped(count, mask);
      part.operands[0].values.assign(whole.operands[0].values.begin() + begin, whole.operands[0].values.begin() + begin + count);
      const std::vector<double> y = run(part, device, DType::kF32)[1];
      joined.insert(joined.end(), y.begin(), y.end());
    }
    CHECK(joined == expected);
    DropoutMask next_step = kMask;
    ++next_step.step;
    CHECK(run(dropped(kCount, next_step), device, DType::kF32)[1] != expected);
  }
}

TEST_CASE("dropout keeps an element whose draw equals the probability, and drops it for the next larger probability") {
  constexpr int64_t kCount = 16;
  for (uint64_t i = 0; i < kCount; ++i) {
    DropoutMask mask = kMask;
    mask.probability = random_uniform32(mask.key, mask.first_index + i, mask.step);
    DropoutMask above = mask;
    above.probability = std::nextafter(mask.probability, 1.0);
    const auto check = [&](Device device, Isa isa) {
      CHECK(run(dropped(kCount, mask), device, DType::kF32, 1, Alignment::kElement, isa)[1][i] != 0);
      CHECK(run(dropped(kCount, above), device, DType::kF32, 1, Alignment::kElement, isa)[1][i] == 0);
    };
    for (Device device : devices()) check(device, best_isa());
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) check(Device::kCpu, static_cast<Isa>(level));
  }
}

TEST_CASE("every engine draws the same mask, in every dtype") {
  for (double probability : {0.0, 1e-300, 0.1, 0.5, 1 - 0x1p-53}) {
    DropoutMask mask = kMask;
    mask.probability = probability;
    const std::vector<double> expected = run(dropped(1000, mask), Device::kReference, DType::kF32)[1];
    const auto check = [&](const std::vector<double>& y) {
      CHECK(std::equal(y.begin(), y.end(), expected.begin(), [](double a, double b) { return (a == 0) == (b == 0); }));
    };
    for (Device device : devices()) {
      for (const Alignment alignment : {Alignment::kElement, Alignment::kVector})
        check(run(dropped(1000, mask), device, DType::kF32, 1, alignment)[1]);
    }
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        check(run(dropped(1000, mask), Device::kCpu, dtype, 1, Alignment::kElement, static_cast<Isa>(level))[1]);
    }
  }
}

TEST_CASE("dropout writes zeros over non-finite values") {
  Operation operation = dropped(1000, kMask);
  for (size_t i = 0; i < operation.operands[0].values.size(); ++i)
    operation.operands[0].values[i] = i % 2 == 0 ? std::nan("") : -std::numeric_limits<double>::infinity();
  for (const Device device : {Device::kReference, Device::kCpu}) {
    const std::vector<double> y = run(operation, device, DType::kF32)[1];
    const auto zeros = std::count_if(y.begin(), y.end(), [](double value) { return value == 0 && !std::signbit(value); });
    CHECK(zeros > 200);  // about 300 are dropped
    CHECK(std::none_of(y.begin(), y.end(), [](double value) { return value != 0 && std::isfinite(value); }));
  }
}

TEST_CASE("fill supports every dtype") {
  const auto filled_on = [](Device device, DType dtype, int64_t count, double value, Alignment alignment) {
    Operation operation = filled(count);
    operation.operands[0].dtype = dtype;
    operation.run = [value](Context& ctx, const std::vector<Tensor>& t) { fill(ctx, value, t[0]); };
    return run(operation, device, DType::kF32, 1, alignment)[0];
  };
  for (const Device device : devices()) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8}) {
      for (const int64_t count : {0, 1, 15, 16, 1000, 70001}) {
        for (const double value : {0.0, 100.0, 7.0}) {
          for (const Alignment alignment : {Alignment::kElement, Alignment::kVector})
            CHECK(filled_on(device, dtype, count, value, alignment) == std::vector<double>(static_cast<size_t>(count), value));
        }
      }
    }
    const std::vector<double> zeros = filled_on(device, DType::kF32, 5, -0.0, Alignment::kElement);
    CHECK(std::all_of(zeros.begin(), zeros.end(), [](double value) { return std::signbit(value); }));
    for (const DType dtype : {DType::kI64, DType::kI32}) CHECK(filled_on(device, dtype, 5, -3, Alignment::kElement) == std::vector<double>(5, -3.0));
  }
}

TEST_CASE("dropout keeps a fraction 1-p of the elements, and the mean") {
  constexpr int64_t kCount = 40000;
  for (double probability : {0.0, 0.1, 0.5}) {
    DropoutMask mask = kMask;
    mask.probability = probability;
    Operation operation = dropped(kCount, mask);
    std::fill(operation.operands[0].values.begin(), operation.operands[0].values.end(), 1.0);
    const std::vector<double> y = run(operation, Device::kCpu, DType::kF32)[1];
    const double kept = static_cast<double>(std::count_if(y.begin(), y.end(), [](double value) { return value != 0; })) / kCount;
    CHECK(std::abs(kept - (1 - probability)) <= 0.01);  // four standard deviations at p = 0.5
    CHECK(normalised_error({*std::max_element(y.begin(), y.end())}, {1 / (1 - probability)}) < 1e-7);
  }
}

TEST_CASE("initial values are a function of the global index") {
  const std::vector<double> whole = run(initialised({kRows, kColumns}, 0, 0), Device::kReference, DType::kF64)[0];
  for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == 0.5 * random_normal(42, i));
  const std::vector<double> block = run(initialised({2, 3}, 4, 8), Device::kReference, DType::kF64)[0];
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t c = 0; c < 3; ++c) CHECK(block[r * 3 + c] == whole[(4 + r) * kColumns + 8 + c]);
  }
  const std::vector<double> row = run(initialised({4}, 0, 5), Device::kReference, DType::kF64)[0];
  CHECK(std::equal(row.begin(), row.end(), whole.begin() + 5));
}
