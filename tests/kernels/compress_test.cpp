#include "kernels/ops/compress.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/transfer.h"
#include "tests/kernels/guarded_tensor.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr Encoding kAll[] = {Encoding::kNone, Encoding::kInt8, Encoding::kInt4, Encoding::kSign, Encoding::kTopK, Encoding::kRandomK};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A sender with error feedback and its receiver.
struct Link {
  explicit Link(const EncodingOptions& encoding, bool with_feedback = true, Device device = Device::kReference)
      : options(encoding), feedback(with_feedback), machine(device, 1), ctx(machine.context()) {}

  /// `offset`: elements before it, by which it misses the alignment of its allocation.
  template <class T>
  Tensor tensor(const std::vector<T>& values, int64_t offset = 0) {
    const Tensor host = host_tensor({std::ssize(values)}, dtype_of<T>());
    std::ranges::copy(values, host.data<T>());
    const Tensor t = Tensor::empty(ctx, {offset + host.numel()}, dtype_of<T>(), MemoryCategory::kWorkspace).flat(offset, host.numel());
    from_host(ctx, host, t);
    return t;
  }
  template <class T>
  std::vector<T> values(const Tensor& t) {
    const Tensor host = to_host(ctx, t);
    return {host.data<T>(), host.data<T>() + host.numel()};
  }
  /// Sends one gradient and returns what the receiver decodes.
  template <class T>
  std::vector<T> send(const std::vector<T>& gradient) {
    const Tensor g = tensor(gradient), out = tensor(std::vector<T>(gradient.size()));
    if (!error.defined() && feedback) error = tensor(std::vector<T>(gradient.size()));
    const Tensor message = Tensor::empty(ctx, {encoded_bytes(options, g.numel(), g.dtype())}, DType::kU8, MemoryCategory::kWorkspace);
    const EncodingDraw draw{7, step++};
    encode(ctx, options, draw, g, error, message, error);
    decode(ctx, options, draw, message, out);
    return values<T>(out);
  }

  EncodingOptions options;
  bool feedback;
  TestDevice machine;
  Context& ctx;
  Tensor error;
  uint64_t step = 0;
};

template <class T>
std::vector<T> normal(int64_t count, uint64_t key) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<T>(random_normal(key, static_cast<uint64_t>(i)));
  return values;
}

template <class T>
double energy(const std::vector<T>& v) {
  double sum = 0;
  for (const T x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

/// Energy of what one message lacks, relative to that of the gradient.
double error_ratio(const EncodingOptions& options, const std::vector<double>& gradient) {
  Link link(options);
  link.send(gradient);
  return energy(link.values<double>(link.error)) / energy(gradient);
}

}  // namespace

TEST_CASE("compress: top-1 with error feedback sends the known elements") {
  Link link({.encoding = Encoding::kTopK, .ratio = 1.0 / 3});
  CHECK(link.send<double>({3, 1, -2}) == std::vector<double>{3, 0, 0});
  CHECK(link.send<double>({1, 1, 1}) == std::vector<double>{0, 2, 0});
  CHECK(link.send<double>({0, 2, -1}) == std::vector<double>{0, 2, 0});  // 2 and -2 are equally large: the first is sent
  CHECK(link.send<double>({1, 0, 1}) == std::vector<double>{2, 0, 0});
  CHECK(link.values<double>(link.error) == std::vector<double>{0, 0, -1});
}

TEST_CASE("compress: what was sent and the error add up to the gradients") {
  for (const Encoding encoding : kAll) {
    for (const int64_t count : {1, 2, 7, 255, 256, 257, 1000}) {
      CAPTURE(static_cast<int>(encoding), count);
      Link link({.encoding = encoding, .ratio = 0.1});
      std::vector<double> sum(static_cast<size_t>(count)), sent(sum.size());
      for (uint64_t step = 0; step < 20; ++step) {
        std::vector<double> gradient = normal<double>(count, step);
        for (size_t i = 0; i < sum.size(); ++i) {
          gradient[i] = std::round(8 * gradient[i]);
          sum[i] += gradient[i];
        }
        const std::vector<double> decoded = link.send(gradient);
        for (size_t i = 0; i < sum.size(); ++i) sent[i] += decoded[i];
      }
      const std::vector<double> error = link.values<double>(link.error);
      // Integers stay integers where elements are sent as they are; quantised ones are multiples of an fp32 scale, with some roundings of fp64.
      const bool exact = encoding == Encoding::kNone || encoding == Encoding::kTopK || encoding == Encoding::kRandomK;
      for (size_t i = 0; i < sum.size(); ++i) REQUIRE(std::abs(sent[i] + error[i] - sum[i]) <= (exact ? 0 : 1e-12));
    }
  }
}

TEST_CASE("compress: integer codes lose no bit of a gradient and its error") {
  for (const Device device : devices()) {
    for (const Encoding encoding : {Encoding::kInt8, Encoding::kInt4}) {
      for (const int64_t count : {1, 7, 255, 300, 5000}) {
        Link link({.encoding = encoding, .block = 64}, true, device);
        for (uint64_t step = 0; step < 5; ++step) {
          const std::vector<float> gradient = normal<float>(count, step);
          std::vector<float> whole = gradient;  // gradient + error, as the sender adds them
          if (link.error.defined()) {
            const std::vector<float> kept = link.values<float>(link.error);
            for (size_t i = 0; i < whole.size(); ++i) whole[i] += kept[i];
          }
          const std::vector<float> decoded = link.send(gradient), error = link.values<float>(link.error);
          for (size_t i = 0; i < whole.size(); ++i) REQUIRE(decoded[i] + error[i] == whole[i]);
        }
      }
    }
  }
}

TEST_CASE("compress: CPU kernels write the messages of the reference") {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    for (const Encoding encoding : {Encoding::kInt8, Encoding::kInt4, Encoding::kSign}) {
      for (const int64_t count : {1, 2, 7, 63, 64, 65, 300, 5000}) {
        for (const bool feedback : {true, false}) {
          const EncodingOptions options{.encoding = encoding, .block = count == 5000 ? 1024 : 64};
          Link slow(options, feedback), fast(options, feedback, Device::kCpu);
          fast.ctx.isa = isa;
          fast.ctx.threads = 3;
          for (uint64_t step = 0; step < 3; ++step) {
            std::vector<float> gradient = normal<float>(count, step);
            if (count > 2) gradient[2] = 0;
            const std::vector<float> a = slow.send(gradient), b = fast.send(gradient);
            // The order of the sum of magnitudes differs, so the scale of signs may have another last bit.
            for (size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) <= (encoding == Encoding::kSign ? 1e-6F * std::abs(a[i]) : 0));
            if (encoding == Encoding::kSign) break;
          }
          if (feedback && encoding != Encoding::kSign) CHECK(slow.values<float>(slow.error) == fast.values<float>(fast.error));
        }
      }
    }
  }
}

namespace {

Operand single(Operand operand) {
  operand.dtype = DType::kF32;
  return operand;
}

/// Encodes and decodes: next_error is what the message lacks, and sum what it contains. The message is an operand of neither, as its bytes have no dtype of a run.
Operation sent(const EncodingOptions& options, int64_t count) {
  return {"encode and decode",
          {single(input("gradient", {count})), single(input("error", {count})), single(assigned("next_error", {count})),
           free_rows(single(added_to("sum", {count})))},
          [options](Context& ctx, const std::vector<Tensor>& t) {
            const Tensor message = Tensor::empty(ctx, {encoded_bytes(options, t[0].numel())}, DType::kU8, MemoryCategory::kWorkspace);
            encode(ctx, options, {7, 3}, t[0], t[1], message, t[2]);
            decode(ctx, options, {7, 3}, message, t[3]);
          }};
}

double tolerance_of(Encoding encoding) { return encoding == Encoding::kSign ? 1e-6 : 0; }  // the scale is a sum in another order

}  // namespace

TEST_CASE("compress: engines agree") {
  for (const Encoding encoding : kAll)
    for (const int64_t count : {1, 300, 2500})
      check_engines(sent({.encoding = encoding, .block = count == 2500 ? 512 : 64, .ratio = 0.1}, count), tolerance_of(encoding));
}

TEST_CASE("compress: operands of different alignment") {
  for (const Encoding encoding : kAll) {
    Operation operation = sent({.encoding = encoding, .block = 32, .ratio = 0.1}, 256);
    check_misaligned(operation, tolerance_of(encoding));
  }
}

#ifdef TRIREME_CUDA
TEST_CASE("compress: a GPU writes messages and errors with the bits of the reference") {
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4, Encoding::kTopK, Encoding::kRandomK}) {
    for (const int64_t count : {1, 2, 7, 63, 64, 65, 300, 5000}) {
      for (const int64_t block : {8, 24, 256, 4096}) {
        if (block != 256 && encoding != Encoding::kInt8 && encoding != Encoding::kInt4) continue;
        for (const bool feedback : {true, false}) {
          CAPTURE(static_cast<int>(encoding), count, block, feedback);
          const EncodingOptions options{.encoding = encoding, .block = block, .ratio = 0.1, .unbiased = !feedback};
          // With ties, zeros, a largest element far behind, and in blocks of 256 ones that are not finite.
          std::vector<float> gradient = normal<float>(count, 21), past = normal<float>(count, 22);
          for (size_t i = 0; i < gradient.size(); i += 3) gradient[i] = i % 2 == 0 ? 2 : -2, past[i] = 0;
          if (count > 2) gradient[1] = past[1] = 0;
          if (count > 3000) gradient[3000] = 9;
          const bool gradient_has_nan = count > 64 && block == 256;
          if (gradient_has_nan) gradient[40] = kNaN, gradient[64] = -std::numeric_limits<float>::infinity();
          Link slow(options, feedback), fast(options, feedback, Device::kCuda);
          const auto bits = [&](Link& link, int64_t offset) {
            const Tensor g = link.tensor(gradient, offset), error = feedback ? link.tensor(past, offset) : Tensor();
            const Tensor message = link.tensor(std::vector<uint8_t>(static_cast<size_t>(encoded_bytes(options, count)), 0x55), 4 * offset);
            const Tensor next = feedback ? link.tensor(past, offset) : Tensor();
            encode(link.ctx, options, {7, 9}, g, error, message, next);
            std::vector<uint8_t> all = link.values<uint8_t>(message);
            if (feedback) {
              const std::vector<float> errors = link.values<float>(next);
              const auto* const bytes = reinterpret_cast<const uint8_t*>(errors.data());
              all.insert(all.end(), bytes, bytes + 4 * errors.size());
            }
            // A NaN is sent as one, but which of its bits are set differs between processors.
            for (size_t at = 0; gradient_has_nan && at + 4 <= all.size(); at += 4) {
              float word;
              std::memcpy(&word, &all[at], sizeof word);
              if (std::isnan(word)) std::memcpy(&all[at], &kNaN, sizeof kNaN);
            }
            return all;
          };
          const std::vector<uint8_t> expected = bits(slow, 0);
          CHECK(bits(fast, 0) == expected);
          CHECK(bits(fast, 1) == expected);
        }
      }
    }
  }
}
#endif

#ifdef TRIREME_CUDA
// More elements than the blocks of one launch count at once (kernels/cuda/compress_top.cu).
TEST_CASE("compress: a GPU finds the largest of 300,000 elements that the reference finds") {
  constexpr int64_t kCount = 300'000;
  const EncodingOptions options{.encoding = Encoding::kTopK, .ratio = 0.001};
  std::vector<float> gradient = normal<float>(kCount, 23);
  gradient.back() = 50;
  gradient[270'000] = -60;
  Link slow(options), fast(options, true, Device::kCuda);
  for (int step = 0; step < 2; ++step) {
    const std::vector<float> sent = fast.send(gradient);
    CHECK(sent == slow.send(gradient));
    CHECK((step > 0 || (sent.back() == 50 && sent[270'000] == -60)));
    CHECK(fast.values<float>(fast.error) == slow.values<float>(slow.error));
  }
}
#endif

TEST_CASE("compress: contraction of each encoding") {
  const std::vector<double> gaussian = normal<double>(100'000, 3), equal(1000, -2.0);
  // Shares of the energy of a Gaussian: 8.5 % in the largest 1 %, 43.9 % in the largest 10 %.
  CHECK(std::abs(error_ratio({.encoding = Encoding::kTopK, .ratio = 0.01}, gaussian) - (1 - 0.085)) < 0.002);
  CHECK(std::abs(error_ratio({.encoding = Encoding::kTopK, .ratio = 0.1}, gaussian) - (1 - 0.439)) < 0.003);
  CHECK(std::abs(error_ratio({.encoding = Encoding::kTopK, .ratio = 0.01}, equal) - 0.99) < 1e-12);  // the bound 1 - k/d is reached
  CHECK(std::abs(error_ratio({.encoding = Encoding::kRandomK, .ratio = 0.1}, gaussian) - 0.9) < 0.01);
  // 1 - rho^2 with rho = |v|_1 / (sqrt(d) |v|_2), which is sqrt(2 / pi) for a Gaussian.
  CHECK(std::abs(error_ratio({.encoding = Encoding::kSign, .block = 100'000}, gaussian) - 0.3634) < 0.002);
  std::vector<double> one_hot(100);
  one_hot[17] = 1;
  CHECK(std::abs(error_ratio({.encoding = Encoding::kSign, .block = 104}, one_hot) - 0.99) < 1e-6);  // the root mean square would give 1.8
  for (const int limit : {127, 7}) {
    Link link({.encoding = limit == 127 ? Encoding::kInt8 : Encoding::kInt4});
    const std::vector<double> decoded = link.send(gaussian);
    for (size_t block = 0; block < gaussian.size(); block += 256) {
      const size_t end = std::min(gaussian.size(), block + 256);
      double largest = 0;
      for (size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(gaussian[i]));
      for (size_t i = block; i < end; ++i)
        REQUIRE(std::abs(decoded[i] - gaussian[i]) <= largest / (2 * limit) * (1 + 0x1p-16));  // the scale has 17 digits
    }
  }
}

TEST_CASE("compress: bytes of a message") {
  constexpr int64_t kCount = 1 << 20;
  const auto factor = [](const EncodingOptions& options) { return 4.0 * kCount / static_cast<double>(encoded_bytes(options, kCount)); };
  CHECK(std::abs(factor({.encoding = Encoding::kInt8}) - 3.94) < 0.005);
  CHECK(std::abs(factor({.encoding = Encoding::kInt4}) - 7.76) < 0.005);
  CHECK(std::abs(factor({.encoding = Encoding::kSign}) - 28.4) < 0.05);
  CHECK(std::abs(factor({.encoding = Encoding::kTopK}) - 50) < 0.01);  // an element of a hundred, with its index
  CHECK(std::abs(factor({.encoding = Encoding::kRandomK}) - 100) < 0.01);
  for (const Encoding encoding : kAll) {
    CHECK(encoded_bytes({.encoding = encoding}, 0) == 0);
    for (const int64_t count : {1, 3, 8, 255, 257}) CHECK(encoded_bytes({.encoding = encoding}, count) % 4 == 0);
  }
}

TEST_CASE("compress: error feedback reaches the minimum where the sign does not") {
  // Karimireddy et al. 2019: |x1 + x2| / 2 + |x1 - x2| from (1, 1). The sign of a subgradient is always along (1, -1), so the sum of x never changes.
  const auto minimise = [](bool feedback) {
    Link link({.encoding = Encoding::kSign, .block = 8}, feedback);
    double x1 = 1, x2 = 1;
    for (int step = 0; step < 100'000; ++step) {
      const double plus = x1 + x2 >= 0 ? 0.5 : -0.5, minus = x1 - x2 >= 0 ? 1 : -1, rate = 0.1 / std::sqrt(1.0 + step);
      const std::vector<double> sent = link.send<double>({plus + minus, plus - minus});
      x1 -= rate * sent[0];
      x2 -= rate * sent[1];
    }
    return std::abs(x1 + x2) / 2 + std::abs(x1 - x2);
  };
  CHECK(minimise(false) >= 1 - 1e-9);
  CHECK(minimise(true) < 2e-3);
}

TEST_CASE("compress: random elements are drawn one in each stretch, anew for each draw, and unbiased if asked") {
  const std::vector<double> gradient = normal<double>(100, 5);
  Link link({.encoding = Encoding::kRandomK, .ratio = 0.1, .unbiased = true}, false);
  std::vector<double> mean(gradient.size());
  constexpr int kDraws = 20'000;
  bool differ = false;
  std::vector<double> before;
  for (int draw = 0; draw < kDraws; ++draw) {
    const std::vector<double> sent = link.send(gradient);
    for (size_t stretch = 0; stretch < 10; ++stretch)
      REQUIRE(std::count_if(sent.begin() + static_cast<ptrdiff_t>(10 * stretch), sent.begin() + static_cast<ptrdiff_t>(10 * stretch + 10),
                            [](double x) { return x != 0; }) == 1);
    differ = differ || (!before.empty() && before != sent);
    before = sent;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += sent[i] / kDraws;
  }
  CHECK(differ);
  // The standard deviation of an element's mean is |g| * sqrt((d/k - 1) / draws).
  for (size_t i = 0; i < mean.size(); ++i) CHECK(std::abs(mean[i] - gradient[i]) < 5 * std::abs(gradient[i]) * std::sqrt(9.0 / kDraws));
}

TEST_CASE("compress: zeros, tiny values and ones that are not finite") {
  for (const Encoding encoding : kAll) {
    CAPTURE(static_cast<int>(encoding));
    const EncodingOptions options{.encoding = encoding, .ratio = 0.1};
    for (const Device device : devices()) CHECK(Link(options, true, device).send(std::vector<float>(300)) == std::vector<float>(300));
    Link tiny(options);
    const std::vector<float> least(300, std::numeric_limits<float>::denorm_min());
    for (const float x : tiny.send(least)) REQUIRE(std::abs(x) <= least[0]);
    const auto full = std::bit_cast<float>(0x7FFFFFFFU);  // the NaN that GPUs make
    for (const float bad : {kNaN, full, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (const size_t at : {0UL, 131UL, 299UL}) {
        std::vector<float> gradient = normal<float>(300, 9);
        gradient[at] = bad;
        for (const Device device : devices()) {
          const std::vector<float> decoded = Link(options, true, device).send(gradient);
          CHECK_FALSE(std::ranges::all_of(decoded, [](float x) { return std::isfinite(x); }));
        }
      }
    }
  }
}

TEST_CASE("compress: a message of any bytes writes nothing outside, and what it points to outside is not finite") {
  for (const Encoding encoding : kAll) {
    for (const Device device : devices()) {
      for (uint64_t key = 0; key < 20; ++key) {
        CAPTURE(static_cast<int>(encoding), key);
        Link link({.encoding = encoding, .ratio = 0.1}, true, device);
        std::vector<uint8_t> bytes(static_cast<size_t>(encoded_bytes(link.options, 300)));
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random_bits(key, i));
        const Tensor message = link.tensor(bytes), around = link.tensor(std::vector<float>(900, 5));
        decode(link.ctx, link.options, {7, 0}, message, around.flat(300, 300));
        const std::vector<float> found = link.values<float>(around);
        CHECK(std::all_of(found.begin(), found.begin() + 300, [](float x) { return x == 5; }));
        CHECK(std::all_of(found.begin() + 600, found.end(), [](float x) { return x == 5; }));
      }
    }
  }
  for (const int32_t outside : {-1, 300, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    for (const Device device : devices()) {
      CAPTURE(outside);
      Link link({.encoding = Encoding::kTopK, .ratio = 2.0 / 300}, true, device);
      const std::vector<float> numbers = {std::bit_cast<float>(4), std::bit_cast<float>(outside), 1, 2};  // two indices and their values
      std::vector<uint8_t> bytes(16);
      std::memcpy(bytes.data(), numbers.data(), bytes.size());
      const Tensor message = link.tensor(bytes), out = link.tensor(std::vector<float>(300));
      decode(link.ctx, link.options, {7, 0}, message, out);
      const std::vector<float> found = link.values<float>(out);
      CHECK(std::isnan(found[0]));
      CHECK(found[4] == 1);
    }
  }
}

TEST_CASE("compress: the error may be written in place of the gradient") {
  for (const Encoding encoding : kAll) {
    Link link({.encoding = encoding, .ratio = 0.1});
    const std::vector<float> gradient = normal<float>(300, 11), past = normal<float>(300, 12);
    const Tensor g = link.tensor(gradient), error = link.tensor(past), apart = link.tensor(std::vector<float>(300));
    const Tensor message = Tensor::empty(link.ctx, {encoded_bytes(link.options, 300)}, DType::kU8, MemoryCategory::kWorkspace);
    encode(link.ctx, link.options, {}, g, error, message, apart);
    CHECK(link.values<float>(g) == gradient);
    CHECK(link.values<float>(error) == past);
    encode(link.ctx, link.options, {}, g, error, message, g);
    CHECK(link.values<float>(g) == link.values<float>(apart));
  }
}
