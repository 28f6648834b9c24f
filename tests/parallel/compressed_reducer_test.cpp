// Sums of compressed gradients over shards and replicas: what the ranks have sent and what they still keep add up to the gradients.
#include "parallel/sharding/compressed_reducer.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "parallel/sharding/grad_store.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

constexpr int64_t kMatrix = 13 * 41, kVector = 7, kPartial = 15, kElements = kMatrix + kVector + kPartial;
constexpr Encoding kLossy[] = {Encoding::kInt8, Encoding::kInt4, Encoding::kSign, Encoding::kTopK, Encoding::kRandomK};

struct Degrees {
  int shards, replicas;
};
constexpr Degrees kDegrees[] = {{2, 1}, {1, 2}, {2, 2}, {3, 2}, {1, 3}, {5, 1}, {1, 1}};

/// The gradient of an element on a rank in a step: an integer from -31 to 31.
double gradient_of(int rank, int64_t step, int64_t element) {
  const uint64_t bits = random_bits(static_cast<uint64_t>(rank), static_cast<uint64_t>(element), static_cast<uint64_t>(step));
  return static_cast<double>(bits % 63) - 31;
}

/// A gradient store of one unit on one of shards x replicas ranks: a matrix, a vector and a matrix whose gradient is partial, in this order.
struct Store {
  Store(Communicator& world, const Degrees& degrees, const CompressionOptions& options)
      : rank(world.rank()),
        ranks(world.size()),
        shard(world.group(range(rank / degrees.shards * degrees.shards, 1, degrees.shards), "shard")),
        replicate(world.group(range(rank % degrees.shards, degrees.shards, degrees.replicas), "replicate")) {
    ParamSpec partial = replicated("key", {kPartial, 1}, 2, TensorRank{}, Partial::kNone);
    partial.partial_over = Partial::kKv;
    unit.add({replicated("weight", {13, 41}, 2, TensorRank{}, Partial::kNone)});
    unit.add({replicated("bias", {kVector, 1}, 1, TensorRank{}, Partial::kNone)});
    unit.add({partial});
    const ZeroPolicy policy{.replicate = degrees.replicas, .shard = degrees.shards};
    auto made = std::make_unique<CompressedReducer>(ctx, std::vector<Unit*>{&unit}, options, DType::kF64, DType::kF64);
    reducer = made.get();
    grads = std::make_unique<GradStore>(ctx, std::vector<Unit*>{&unit}, policy, DType::kF64, std::move(made));
    scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  }
  static std::vector<int> range(int first, int stride, int count) {
    std::vector<int> ranks_of;
    for (int i = 0; i < count; ++i) ranks_of.push_back(first + i * stride);
    return ranks_of;
  }
  /// Sums the gradients of a step over all ranks. Returns this rank's shard.
  std::vector<double> sum(int64_t step, bool accepted = true, double poison = 0) {
    grads->begin_step(ctx, step);
    grads->acquire(ctx, 0);
    int64_t element = 0;
    for (const auto& param : unit.params()) {
      double* const gradient = param->grad_to_add_to(ctx).data<double>();
      for (int64_t i = 0; i < param->numel(); ++i) gradient[i] += gradient_of(rank, step, element++) + poison;
    }
    grads->reduce(ctx, 0);
    grads->wait(ctx, 0);
    grads->reduce_replicas(ctx, 0);
    grads->wait(ctx, 0);
    scalars.data<double>()[kAccepted] = accepted ? 1 : 0;
    const Tensor own = grads->shard(0);
    std::vector<double> result(own.data<double>(), own.data<double>() + own.numel());
    grads->settle(ctx, 0, scalars);
    return result;
  }
  int64_t first() const { return shard->rank() * grads->shard(0).numel(); }
  /// What this rank keeps for an element, over all its errors.
  double kept(int64_t element) const {
    double total = 0;
    for (const Reducer::State& state : reducer->state(0))
      if (element >= state.begin && element < state.begin + state.tensor.numel()) total += state.tensor.data<double>()[element - state.begin];
    return total;
  }

  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  int rank, ranks;
  std::unique_ptr<Communicator> shard, replicate;
  Unit unit{"block", {shard.get(), replicate.get()}};
  CompressedReducer* reducer;
  std::unique_ptr<GradStore> grads;
  Tensor scalars;
};

double exact_sum(int ranks, int64_t step, int64_t element) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += gradient_of(rank, step, element);
  return sum;
}

/// Runs `body` for all degrees, on their ranks.
void for_degrees(const CompressionOptions& options, const std::function<void(Store&, Communicator&)>& body,
                 std::vector<CommunicationRecord>* records = nullptr) {
  for (const Degrees& degrees : kDegrees) {
    const auto run = [&](Communicator& world) {
      Store store(world, degrees, options);
      body(store, world);
    };
    run_ranks(degrees.shards * degrees.replicas, run, {.poison = false, .records = records});
  }
}

std::string at(const Store& store, const char* what, int64_t element) {
  return concat(what, ": ", store.shard->size(), " shards, ", store.replicate->size(), " replicas, rank ", store.rank, ", element ", element);
}

}  // namespace

TEST_CASE("compressed sums without an encoding are the sums") {
  for_degrees({.encoding = {.encoding = Encoding::kNone}}, [](Store& store, Communicator&) {
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<double> own = store.sum(step);
      for (int64_t k = 0; k < std::ssize(own); ++k) {
        const int64_t i = store.first() + k;
        TRIREME_CHECK(own[static_cast<size_t>(k)] == (i < kElements ? exact_sum(store.ranks, step, i) : 0), at(store, "sum", i));
      }
    }
  });
}

TEST_CASE("compressed sums: sent and kept are the gradients, for every encoding") {
  constexpr int64_t kSteps = 12;
  for (const Encoding encoding : kLossy) {
    for_degrees({.encoding = {.encoding = encoding, .block = 64, .ratio = 0.05}}, [](Store& store, Communicator& world) {
      std::vector<double> sent(static_cast<size_t>(store.grads->shard(0).numel()));
      bool lossy = false;
      for (int64_t step = 0; step < kSteps; ++step) {
        const std::vector<double> own = store.sum(step);
        for (size_t k = 0; k < own.size(); ++k) {
          sent[k] += own[k];
          const int64_t i = store.first() + static_cast<int64_t>(k);
          const double exact = i < kElements ? exact_sum(store.ranks, step, i) : 0;
          if (i >= kMatrix) TRIREME_CHECK(own[k] == exact, at(store, "vectors, partial gradients and padding are exact", i));
          lossy = lossy || own[k] != exact;
        }
      }
      TRIREME_CHECK(lossy == (store.ranks > 1) || all_reduce_scalar(world, lossy ? 1 : 0, ReduceOp::kMax) > 0, "nothing was compressed");
      // Every rank knows what it keeps for each element of the unit; the owners know what was sent.
      const Tensor kept = Tensor::zeros(store.ctx, {kElements}, DType::kF64, MemoryCategory::kWorkspace);
      for (int64_t i = 0; i < kElements; ++i) kept.data<double>()[i] = store.kept(i);
      world.all_reduce(store.ctx, kept, ReduceOp::kSum).wait(store.ctx);
      for (size_t k = 0; k < sent.size(); ++k) {
        const int64_t i = store.first() + static_cast<int64_t>(k);
        if (i >= kElements) continue;
        double exact = 0;
        for (int64_t step = 0; step < kSteps; ++step) exact += exact_sum(store.ranks, step, i);
        TRIREME_CHECK(std::abs(sent[k] + kept.data<double>()[i] - exact) < 1e-9, at(store, "mass", i), ": ", sent[k], " sent, ",
                      kept.data<double>()[i], " kept, ", exact, " in all");
      }
    });
  }
}

TEST_CASE("compressed sums: replicas hold equal bits, and a rerun repeats them") {
  for (const Encoding encoding : kLossy) {
    for (const bool feedback : {true, false}) {
      for_degrees({.encoding = {.encoding = encoding, .block = 64, .ratio = 0.05}, .error_feedback = feedback}, [](Store& store, Communicator&) {
        for (int64_t step = 0; step < 3; ++step) {
          const std::vector<double> own = store.sum(step);
          const Tensor low = Tensor::empty(store.ctx, {std::ssize(own)}, DType::kF64, MemoryCategory::kWorkspace);
          const Tensor high = Tensor::empty(store.ctx, {std::ssize(own)}, DType::kF64, MemoryCategory::kWorkspace);
          std::ranges::copy(own, low.data<double>());
          std::ranges::copy(own, high.data<double>());
          store.replicate->all_reduce(store.ctx, low, ReduceOp::kMin).wait(store.ctx);
          store.replicate->all_reduce(store.ctx, high, ReduceOp::kMax).wait(store.ctx);
          for (int64_t k = 0; k < std::ssize(own); ++k)
            TRIREME_CHECK(low.data<double>()[k] == high.data<double>()[k], at(store, "replicas differ", k));
        }
      });
    }
  }
}

TEST_CASE("compressed sums: random elements differ between steps") {
  for_degrees({.encoding = {.encoding = Encoding::kRandomK, .ratio = 0.05}, .error_feedback = false}, [](Store& store, Communicator& world) {
    std::vector<bool> sent[2];
    for (int64_t step = 0; step < 2; ++step)
      for (const double x : store.sum(step)) sent[step].push_back(x != 0);
    const double differ = all_reduce_scalar(world, sent[0] != sent[1] ? 1 : 0, ReduceOp::kMax);
    TRIREME_CHECK(store.ranks == 1 || differ == 1, "the same elements were sent twice");
  });
}

TEST_CASE("compressed sums: a rejected step leaves the errors as they were") {
  for (const Encoding encoding : kLossy) {
    for_degrees({.encoding = {.encoding = encoding, .block = 64, .ratio = 0.05}}, [](Store& store, Communicator& world) {
      store.sum(0);
      const auto errors = [&] {
        std::vector<double> all;
        for (int64_t i = 0; i < kElements; ++i) all.push_back(store.kept(i));
        return all;
      };
      const std::vector<double> before = errors();
      const std::vector<double> bad = store.sum(1, false, world.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 0);
      const bool finite = std::ranges::all_of(bad, [](double x) { return std::isfinite(x); });
      TRIREME_CHECK(all_reduce_scalar(world, finite ? 0 : 1, ReduceOp::kMax) == 1, "a gradient that is not finite was hidden");
      TRIREME_CHECK(errors() == before, "a rejected step changed the errors");
      store.sum(2);
      TRIREME_CHECK(store.ranks == 1 || errors() != before || world.size() == 1, "an accepted step changed nothing");
    });
  }
}

TEST_CASE("compressed sums: bytes on the wire, and plain sums in a warm-up or over the other axis") {
  const auto message = [](const Store& store, int64_t begin, int64_t count, const EncodingOptions& options, bool plain) {
    int64_t bytes = 0;
    for (const Unit::Segment& segment : store.unit.segments(begin, begin + count)) {
      const bool compressed = segment.spec->name == "weight" && !plain;
      bytes += (compressed ? encoded_bytes(options, segment.count) + 7 : 8 * segment.count) / 8 * 8;
    }
    return bytes;
  };
  for (const Encoding encoding : kLossy) {
    const EncodingOptions options{.encoding = encoding, .block = 64, .ratio = 0.05};
    for (const bool replicas_only : {false, true}) {
      std::vector<CommunicationRecord> records;
      for (const int64_t warmup : {0, 1}) {
        for (const Degrees& degrees : kDegrees) {
          std::vector<std::string> wrong(static_cast<size_t>(degrees.shards * degrees.replicas));
          std::vector<double> scatter(wrong.size()), replicas(wrong.size());
          run_ranks(degrees.shards * degrees.replicas,
                    [&](Communicator& world) {
                      Store store(world, degrees, {.encoding = options, .replicas_only = replicas_only, .warmup_steps = warmup});
                      store.sum(0);
                      const auto rank = static_cast<size_t>(world.rank());
                      const int64_t owned = store.grads->shard(0).numel(), first = store.first();
                      for (int r = 0; r < degrees.shards; ++r)
                        if (r != store.shard->rank()) scatter[rank] += static_cast<double>(message(store, r * owned, owned, options, warmup > 0));
                      if (replicas_only) scatter[rank] = static_cast<double>(8 * owned * (degrees.shards - 1));
                      int64_t largest = 0;
                      const int64_t piece = (owned + degrees.replicas - 1) / degrees.replicas;
                      for (int r = 0; r < degrees.replicas; ++r) {
                        const int64_t begin = std::min(r * piece, owned),
                                      bytes = message(store, first + begin, std::min(piece, owned - begin), options, warmup > 0);
                        largest = std::max(largest, bytes);
                        if (r != store.replicate->rank()) replicas[rank] += static_cast<double>(bytes);
                      }
                      replicas[rank] += static_cast<double>(largest * (degrees.replicas - 1));
                      if (warmup > 0) return;
                      const Reducer& reducer = store.grads->reducer();
                      TRIREME_CHECK(degrees.shards == 1 || reducer.sent_bytes(Reduction::Kind::kScatter, 0, owned, degrees.shards) == scatter[rank],
                                    "the bytes that a sum over shards is said to send");
                      TRIREME_CHECK(
                          degrees.replicas == 1 || reducer.sent_bytes(Reduction::Kind::kReplicas, 0, owned, degrees.replicas) == replicas[rank],
                          "the bytes that a sum over replicas is said to send");
                    },
                    {.poison = false, .records = &records});
          for (size_t rank = 0; rank < records.size(); ++rank) {
            CAPTURE(static_cast<int>(encoding), replicas_only, warmup, degrees.shards, degrees.replicas, rank);
            CHECK(records[rank].wire_bytes("shard") == scatter[rank]);
            CHECK(records[rank].wire_bytes("replicate") == replicas[rank]);
          }
        }
      }
    }
  }
}
