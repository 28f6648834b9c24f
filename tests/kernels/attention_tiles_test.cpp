// Attention on simulated AMX tiles: the same source, compiled for a simulation in plain C++ (simulated_tiles.h). On a processor with AMX every
// attention test also runs at the level amx.
#ifdef TRIREME_FAST_CPU
#define TRIREME_ISA simulated_amx
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa/attention_backward.h"
#include "kernels/cpu/isa/attention_forward.h"
#include "tests/kernels/attention_operations.h"
#include "tests/kernels/simulated_tiles.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

namespace simulated = cpu::TRIREME_ISA;
using Engine = simulated::AmxEngine<SimulatedTiles>;
constexpr cpu::TypedAttention<bfloat16> kKernels{simulated::attention_forward<Engine, bfloat16>, simulated::attention_backward<Engine, bfloat16>,
                                                 simulated::forward_workspace<Engine>, simulated::backward_workspace<Engine>};

Operation forward_on_tiles(const AttentionShape& s) {
  Operation operation = forward(s);
  operation.run = [s](Context& ctx, const std::vector<Tensor>& t) { cpu::attention_forward(ctx, kKernels, t[0], s, {}, t[1], t[2]); };
  return of_narrow(operation, DType::kBF16);
}
Operation backward_on_tiles(const AttentionShape& s) {
  Operation operation = following(backward(s), forward(s));
  operation.run = [s](Context& ctx, const std::vector<Tensor>& t) { cpu::attention_backward(ctx, kKernels, t[0], t[1], t[2], t[3], s, {}, t[4]); };
  return of_narrow(operation, DType::kBF16);
}

/// Compares results on tiles with the fp64 reference; any number of threads must give the same bits.
void check(const Operation& on_tiles, Operation exact) {
  for (size_t i = 0; i < exact.operands.size(); ++i) exact.operands[i].values = on_tiles.operands[i].values;
  const Values expected = run(exact, Device::kReference, DType::kF64);
  const Values values = run(on_tiles, Device::kCpu, DType::kBF16);
  for (size_t i = 0; i < values.size(); ++i) {
    const Operand& operand = exact.operands[i];
    INFO(exact.name << ": " << operand.name << " " << operand.shape.str());
    CHECK(normalised_error(values[i], expected[i], operand.floor, operand.wide ? 0 : 0x1p-8) <= kTolerance + kRoundedProbabilities);
  }
  for (const int threads : {2, 3}) CHECK(run(on_tiles, Device::kCpu, DType::kBF16, threads) == values);
}

}  // namespace

TEST_CASE("attention on tiles: agrees with the reference") {
  const int64_t before = TileMachine::dots;
  for (const AttentionShape& s :
       {AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 3, 3, 1, 5}, AttentionShape{2, 33, 3, 3, 80}, AttentionShape{1, 64, 2, 1, 64},
        AttentionShape{1, 65, 4, 2, 10}, AttentionShape{1, 97, 1, 1, 96}, AttentionShape{1, 130, 3, 1, 64}, AttentionShape{1, 200, 2, 1, 128},
        AttentionShape{1, 200, 2, 1, 64, 70, 0.2}, AttentionShape{1, 130, 2, 2, 40, 1}, AttentionShape{2, 150, 2, 1, 32, 33}}) {
    INFO("B " << s.batch << ", T " << s.sequence << ", N " << s.heads << ", K " << s.kv_heads << ", H " << s.head_size << ", window " << s.window);
    check(forward_on_tiles(s), forward(s));
    check(backward_on_tiles(s), backward(s));
  }
  CHECK(TileMachine::dots > before);
  CHECK(TileMachine::faults == 0);
  CHECK_FALSE(tile_machine().configured());  // tiles are released for other users on this thread
}

// 16 blocks of queries; all but the first attend to two blocks of keys, one of them the diagonal: 27 of 132 blocks of products.
TEST_CASE("attention on tiles: with a window, only blocks of the band are computed") {
  const auto dots_of = [](const Operation& operation, int threads) {
    const int64_t before = TileMachine::dots;
    run(operation, Device::kCpu, DType::kBF16, threads);
    return TileMachine::dots - before;
  };
  const AttentionShape whole{1, 1024, 1, 1, 32}, windowed{1, 1024, 1, 1, 32, 64};
  CHECK(dots_of(forward_on_tiles(windowed), 1) * 132 == dots_of(forward_on_tiles(whole), 1) * 27);
  for (const int threads : {1, 3}) {  // three threads share the blocks of one head
    INFO(threads << " threads");
    CHECK(dots_of(backward_on_tiles(windowed), threads) * 132 == dots_of(backward_on_tiles(whole), threads) * 27);
  }
}

// Small integers: every product and every sum is exact, so a single misplaced operand is detected.
TEST_CASE("attention on tiles: a product of integers is exact") {
  constexpr int64_t kA = 48, kB = 112, kC = 80;  // strides, in words
  for (const int64_t m : {32, 64}) {
    for (const int64_t n : {32, 64, 96}) {
      for (const int64_t k : {32, 64, 96}) {
        std::vector<float> a(m * kA * 2), b(k / 2 * kB * 2), sums(m * (kC + 32)), expected;  // elements of a row of a; of b, pairs of a row of k
        auto small = [seed = 1U]() mutable { return static_cast<float>((seed = seed * 1664525 + 1013904223) >> 28) - 8; };
        for (std::vector<float>* values : {&a, &b, &sums}) std::generate(values->begin(), values->end(), small);
        const auto packed = [](const std::vector<float>& values) {
          std::vector<uint32_t> words(values.size() / 2);
          for (size_t i = 0; i < words.size(); ++i)
            words[i] = static_cast<uint32_t>(bfloat16(values[2 * i]).bits) | static_cast<uint32_t>(bfloat16(values[2 * i + 1]).bits) << 16;
          return words;
        };
        const int64_t c_stride = kC + 32;
        for (const bool accumulate : {false, true}) {
          expected = sums;
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              float sum = accumulate ? sums[i * c_stride + j] : 0;
              for (int64_t p = 0; p < k; ++p) sum += a[i * kA * 2 + p] * b[p / 2 * kB * 2 + 2 * j + p % 2];
              expected[i * c_stride + j] = sum;
            }
          }
          std::vector<float> c = sums;
          const Engine::Session session;
          Engine::product(m, n, k / 2, packed(a).data(), kA, packed(b).data(), kB, c.data(), c_stride, accumulate);
          INFO(m << " x " << n << " x " << k << (accumulate ? ", accumulated" : ""));
          CHECK(c == expected);
        }
      }
    }
  }
}

TEST_CASE("attention on tiles: the simulation reports the faults of a processor") {
  const int before = TileMachine::faults;
  auto faults = [&, counted = before]() mutable { return TileMachine::faults - std::exchange(counted, TileMachine::faults); };
  TileMachine machine;
  machine.zero(0);
  CHECK(faults() == 1);  // not configured
  simulated::TileConfiguration configuration;
  machine.configure(&configuration);
  CHECK(faults() == 0);
  machine.dot(0, 4, 6);
  CHECK(faults() == 0);
  machine.dot(0, 0, 6);
  CHECK(faults() == 1);  // a tile that is its own operand
  configuration.rows[6] = 8;
  machine.configure(&configuration);
  machine.dot(0, 4, 6);
  CHECK(faults() == 1);  // rows of b are not the pairs of a
  configuration.row_bytes[6] = 128;
  machine.configure(&configuration);
  CHECK(faults() == 1);
  configuration = {};
  configuration.palette = 0;
  machine.configure(&configuration);
  CHECK(faults() == 1);
  TileMachine::faults = before;
}
#endif
