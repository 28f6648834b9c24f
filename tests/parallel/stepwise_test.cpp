// Collectives by lists of steps, executed over the messages of rank threads.
#include "parallel/comm/stepwise.h"

#include <algorithm>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"

namespace trireme {
namespace {

const MessageCosts kCosts{.ranges = {{0, 2e-6, 4e9}}, .sums = {{0, 0, 3e9}}};

StepwiseOptions by(std::optional<CollectiveAlgorithm> algorithm) { return {.algorithm = algorithm, .within = kCosts, .between = kCosts}; }

/// Each algorithm, and the choice of the fastest.
std::vector<std::optional<CollectiveAlgorithm>> choices() {
  std::vector<std::optional<CollectiveAlgorithm>> all(kCollectiveAlgorithms.begin(), kCollectiveAlgorithms.end());
  all.emplace_back();
  return all;
}

std::string text_of(const std::optional<CollectiveAlgorithm>& algorithm) { return algorithm ? name_of(*algorithm) : "the fastest"; }

struct Rank {
  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  Tensor empty(int64_t count, DType dtype) { return Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication); }
};

/// All three verbs on integers whose sums are exact.
void check_exact(Communicator& world, int64_t count) {
  Rank rank;
  const int64_t n = world.size(), part = (count + n - 1) / n;
  const auto value = [](int64_t of, int64_t i) { return (of + 1) * 1000003 + i * i % 7919 + of * i; };
  const auto total = [&](int64_t i) { return n * (n + 1) / 2 * 1000003 + n * (i * i % 7919) + n * (n - 1) / 2 * i; };
  const Tensor sum = rank.empty(count, DType::kI64), whole = rank.empty(n * part, DType::kI64), own = rank.empty(part, DType::kI64);
  for (int64_t i = 0; i < count; ++i) sum.data<int64_t>()[i] = value(world.rank(), i);
  for (int64_t i = 0; i < n * part; ++i) whole.data<int64_t>()[i] = value(world.rank(), i);
  world.all_reduce(rank.ctx, sum, ReduceOp::kSum).wait(rank.ctx);
  for (int64_t i = 0; i < count; ++i) TRIREME_CHECK(sum.data<int64_t>()[i] == total(i), "all_reduce of ", count, ", element ", i);
  world.reduce_scatter(rank.ctx, whole, own, ReduceOp::kSum).wait(rank.ctx);
  for (int64_t i = 0; i < part; ++i) TRIREME_CHECK(own.data<int64_t>()[i] == total(world.rank() * part + i), "reduce_scatter, element ", i);
  world.all_gather(rank.ctx, own, whole).wait(rank.ctx);
  for (int64_t i = 0; i < n * part; ++i) TRIREME_CHECK(whole.data<int64_t>()[i] == total(i), "all_gather, element ", i);
}

/// The bits of sums and maxima of random numbers.
std::string bits_of(Communicator& world, DType dtype, int64_t count) {
  Rank rank;
  std::string bits;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const Tensor x = rank.empty(count, dtype);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t drawn = random_bits(random_key(static_cast<uint64_t>(world.rank()), "stepwise"), static_cast<uint64_t>(i));
      float value = static_cast<float>(static_cast<double>(drawn % 2000003) * 1e-6 - 1);
      if (op != ReduceOp::kSum) value = drawn % 2 == 0 ? 0.0F : -0.0F;  // equal, so that the order of the operands decides
      if (dtype == DType::kF32) x.data<float>()[i] = value;
      if (dtype == DType::kBF16) x.data<bfloat16>()[i] = bfloat16(value);
    }
    world.all_reduce(rank.ctx, x, op).wait(rank.ctx);
    bits.append(static_cast<const char*>(x.raw()), static_cast<size_t>(x.bytes()));
  }
  return bits;
}

TEST_CASE("stepwise: a world of threads satisfies the contract with every algorithm") {
  for (const auto& algorithm : choices())
    for (const int n : {2, 3, 4, 8}) {
      INFO(text_of(algorithm) << " on " << n << " ranks");
      CHECK_NOTHROW(run_ranks(n, check_communicator, {.collectives = by(algorithm)}));
      if (n == 3) CHECK_NOTHROW(run_ranks(n, check_communicator, {.poison = true, .collectives = by(algorithm)}));
    }
}

TEST_CASE("stepwise: sums are exact for any number of ranks and any size") {
  for (const auto& algorithm : choices())
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      INFO(text_of(algorithm) << " on " << n << " ranks");
      CHECK_NOTHROW(run_ranks(n,
                              [](Communicator& world) {
                                for (const int64_t count : {0, 1, 5, 10007}) check_exact(world, count);
                              },
                              {.collectives = by(algorithm)}));
    }
}

TEST_CASE("stepwise: sums of a million numbers are exact") {
  for (const auto& algorithm : choices())
    for (const int n : {3, 4}) {
      INFO(text_of(algorithm) << " on " << n << " ranks");
      CHECK_NOTHROW(run_ranks(n, [](Communicator& world) { check_exact(world, 1 << 20); }, {.collectives = by(algorithm)}));
    }
}

TEST_CASE("stepwise: sums of ten million numbers are exact", "[slow]") {
  for (const auto& algorithm : choices())
    for (const int n : {2, 5, 8}) {
      INFO(text_of(algorithm) << " on " << n << " ranks");
      CHECK_NOTHROW(run_ranks(n, [](Communicator& world) { check_exact(world, 10'000'019); }, {.collectives = by(algorithm)}));
    }
}

TEST_CASE("stepwise: all ranks hold equal bits, and a rerun repeats them") {
  for (const auto& algorithm : choices())
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 16})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        INFO(text_of(algorithm) << " on " << n << " ranks in " << name_of(dtype));
        std::vector<std::string> bits(static_cast<size_t>(n)), again(bits.size());
        for (std::vector<std::string>* run : {&bits, &again})
          run_ranks(n, [&](Communicator& world) { (*run)[static_cast<size_t>(world.rank())] = bits_of(world, dtype, 3001); },
                    {.collectives = by(algorithm)});
        for (const std::string& one : bits) CHECK(one == bits[0]);
        CHECK(again == bits);
      }
}

TEST_CASE("stepwise: a wait for one operation takes others further") {
  // Rank 0 waits for a message that rank 1 sends only after its all_reduce, which needs rank 0.
  for (const auto& algorithm : choices())
    CHECK_NOTHROW(run_ranks(2,
                            [](Communicator& world) {
                              Rank rank;
                              const Tensor sum = rank.empty(64, DType::kF32), token = rank.empty(1, DType::kF32);
                              std::fill_n(sum.data<float>(), 64, 1.0F);
                              *token.data<float>() = 7;
                              Work reduction = world.all_reduce(rank.ctx, sum, ReduceOp::kSum);
                              if (world.rank() == 0) {
                                world.exchange(rank.ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kRecv, token, 1}}).wait(rank.ctx);
                                reduction.wait(rank.ctx);
                              } else {
                                reduction.wait(rank.ctx);
                                world.exchange(rank.ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kSend, token, 0}}).wait(rank.ctx);
                              }
                              TRIREME_CHECK(sum.data<float>()[63] == 2 && *token.data<float>() == 7, "wrong values");
                            },
                            {.collectives = by(algorithm)}));
}

TEST_CASE("stepwise: lists in flight together do not mix, whatever the order of the waits") {
  for (const auto& algorithm : choices())
    for (const int n : {2, 3, 5}) {
      INFO(text_of(algorithm) << " on " << n << " ranks");
      CHECK_NOTHROW(run_ranks(
          n,
          [](Communicator& world) {
            Rank rank;
            const int64_t ranks = world.size();
            std::vector<Tensor> sums, messages;
            std::vector<Work> works;
            for (const int64_t count : {64, 7, 1000, 64, 1, 333}) {
              sums.push_back(rank.empty(count, DType::kI32));
              std::fill_n(sums.back().data<int32_t>(), count, static_cast<int32_t>(count) + world.rank());
              works.push_back(world.all_reduce(rank.ctx, sums.back(), ReduceOp::kSum));
              // Messages of the caller between the same ranks.
              messages.push_back(rank.empty(2, DType::kI32));
              std::fill_n(messages.back().data<int32_t>(), 2, static_cast<int32_t>(count));
              const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
              works.push_back(world.exchange(rank.ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kSend, messages.back().flat(0, 1), next},
                                                                                 {PointToPoint::Kind::kRecv, messages.back().flat(1, 1), previous}}));
            }
            if (world.rank() % 2 == 1) std::reverse(works.begin(), works.end());
            if (world.rank() % 3 == 2) std::rotate(works.begin(), works.begin() + 5, works.end());
            for (Work& work : works) work.wait(rank.ctx);
            for (const Tensor& sum : sums)
              for (int64_t i = 0; i < sum.numel(); ++i)
                TRIREME_CHECK(sum.data<int32_t>()[i] == ranks * sum.numel() + ranks * (ranks - 1) / 2, "sum of ", sum.numel(), ", element ", i);
            for (const Tensor& message : messages) TRIREME_CHECK(message.data<int32_t>()[0] == message.data<int32_t>()[1], "message");
          },
          {.collectives = by(algorithm)}));
    }
}

TEST_CASE("stepwise: a start does not wait, and a deadlock names what each rank waits for") {
  std::string error;
  try {
    run_ranks(2,
              [](Communicator& world) {
                Rank rank;
                const Tensor sum = rank.empty(8, DType::kF32);
                if (world.rank() == 0) world.all_reduce(rank.ctx, sum, ReduceOp::kSum).wait(rank.ctx);
              },
              {.collectives = by(CollectiveAlgorithm::kRing)});
  } catch (const InternalError& thrown) {
    error = thrown.what();
  }
  CHECK(error == "deadlock; rank 0 waits in exchange of group 'world'; rank 1 has exited");
}

TEST_CASE("stepwise: ranks that disagree about the size get an error that names both") {
  std::string error;
  try {
    run_ranks(2,
              [](Communicator& world) {
                Rank rank;
                const Tensor sum = rank.empty(world.rank() == 0 ? 8 : 9, DType::kF32);
                world.all_reduce(rank.ctx, sum, ReduceOp::kSum).wait(rank.ctx);
              },
              {.collectives = by(CollectiveAlgorithm::kRecursiveDoubling)});
  } catch (const InternalError& thrown) {
    error = thrown.what();
  }
  CHECK(error.find("a message of 8 F32") != error.npos);
  CHECK(error.find("a message of 9 F32") != error.npos);
}

TEST_CASE("stepwise: the fastest algorithm is chosen by the link of the group's ranks") {
  // On one host messages cost only their latency: a ring, with most messages, would be the slowest. Between hosts they cost only their bytes.
  StepwiseOptions options = by({});
  options.within = {.ranges = {{0, 1.0, 1e15}}, .sums = {}};
  options.between = {.ranges = {{0, 0.0, 1.0}}, .sums = {}};
  options.hosts = {0, 0, 0, 1, 1, 1};
  const auto first_value = [&](const std::vector<int>& ranks) {
    float first = 0;
    run_ranks(6,
              [&](Communicator& world) {
                if (std::ranges::find(ranks, world.rank()) == ranks.end()) return;
                const auto group = world.group(ranks, "some");
                Rank rank;
                const Tensor x = rank.empty(3, DType::kF32);
                const float values[] = {1e8F, -1e8F, 1.0F};
                std::fill_n(x.data<float>(), 3, values[group->rank()]);
                group->all_reduce(rank.ctx, x, ReduceOp::kSum).wait(rank.ctx);
                if (group->rank() == 0) first = x.data<float>()[0];
              },
              {.collectives = options});
    return first;
  };
  CHECK(first_value({0, 1, 2}) == 1.0F);  // recursive doubling: (1e8 - 1e8) + 1
  CHECK(first_value({0, 1, 4}) == 0.0F);  // ring: (-1e8 + 1) + 1e8
}

}  // namespace
}  // namespace trireme
