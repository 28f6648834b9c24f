// Sums of gradients as two factors: equal to one power iteration on the sum of all matrices, however the data ranks are divided into shards and replicas.
#include "parallel/sharding/low_rank_reducer.h"

#include <cmath>
#include <limits>
#include <map>
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

constexpr int64_t kRank = 2;

struct DataSplit {
  int shards, replicas;
};
constexpr DataSplit kSplits[] = {{1, 6}, {6, 1}, {2, 3}, {3, 2}, {2, 1}, {1, 2}, {1, 1}};

/// A parameter of the unit: rows x columns, of which `padding` rows behind them belong to no parameter.
struct Shape2 {
  const char* name;
  int64_t rows, columns, padding;
  bool compressed;
};
constexpr Shape2 kShapes[] = {
    {"table", 53, 16, 3, true}, {"bias", 7, 1, 0, false}, {"weight", 24, 40, 0, true}, {"key", 30, 20, 0, false}, {"small", 6, 5, 0, false}};
constexpr int64_t kNumel = 56 * 16 + 7 + 24 * 40 + 30 * 20 + 6 * 5;

/// The gradient of an element on a rank in a step.
double full_gradient(int rank, int64_t step, int64_t element) {
  return random_normal(static_cast<uint64_t>(1000 * step + rank), static_cast<uint64_t>(element));
}
using RankGradient = double (*)(int rank, int64_t step, int64_t element);

/// A gradient store of one unit on one of shards x replicas ranks.
struct LowRankStore {
  LowRankStore(Communicator& world, const DataSplit& split, const CompressionOptions& options)
      : rank(world.rank()),
        ranks(world.size()),
        data(world.group(every(0, 1, world.size()), "data")),
        shard(world.group(every(rank / split.shards * split.shards, 1, split.shards), "shard")),
        replicate(world.group(every(rank % split.shards, split.shards, split.replicas), "replicate")) {
    for (const Shape2& shape : kShapes) {
      ParamSpec spec = replicated(shape.name, {shape.rows, shape.columns}, shape.columns == 1 ? 1 : 2, TensorRank{}, Partial::kNone);
      if (spec.name == "key") spec.partial_over = Partial::kKv;
      spec.local[0] += shape.padding;
      unit.add({spec});
    }
    const ZeroPolicy policy{.replicate = split.replicas, .shard = split.shards};
    const std::vector<Unit*> units{&unit};
    auto made = std::make_unique<LowRankReducer>(ctx, units, options, DType::kF64, DType::kF64);
    reducer = made.get();
    grads = std::make_unique<GradStore>(ctx, units, policy, DType::kF64, std::move(made));
    scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  }
  static std::vector<int> every(int first, int stride, int count) {
    std::vector<int> members;
    for (int i = 0; i < count; ++i) members.push_back(first + i * stride);
    return members;
  }
  /// Sums the gradients of a step over all ranks. Returns the sum of the whole unit, of which every rank has only its shard.
  std::vector<double> sum(int64_t step, RankGradient gradient = full_gradient, bool accepted = true, double poison = 0) {
    grads->begin_step(ctx, step);
    grads->acquire(ctx, 0);
    int64_t element = 0;
    for (const auto& param : unit.params()) {
      double* const values = param->grad_to_add_to(ctx).data<double>();
      for (int64_t i = 0; i < param->numel(); ++i) values[i] += gradient(rank, step, element++) + poison;
    }
    grads->reduce(ctx, 0);
    grads->wait(ctx, 0);
    grads->reduce_replicas(ctx, 0);
    grads->wait(ctx, 0);
    scalars.data<double>()[kAccepted] = accepted ? 1 : 0;
    const Tensor all = Tensor::empty(ctx, {grads->shard(0).numel() * shard->size()}, DType::kF64, MemoryCategory::kWorkspace);
    shard->all_gather(ctx, grads->shard(0), all).wait(ctx);
    grads->settle(ctx, 0, scalars);
    return {all.data<double>(), all.data<double>() + kNumel};
  }
  std::vector<double> state_values() const {
    std::vector<double> values;
    for (const Reducer::State& state : reducer->state(0))
      values.insert(values.end(), state.tensor.data<double>(), state.tensor.data<double>() + state.tensor.numel());
    return values;
  }

  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  int rank, ranks;
  std::unique_ptr<Communicator> data, shard, replicate;
  Unit unit{"block", {shard.get(), replicate.get(), data.get()}};
  LowRankReducer* reducer;
  std::unique_ptr<GradStore> grads;
  Tensor scalars;
};

/// The same on one rank in plain loops: M is the sum over the ranks of their gradients and errors.
class Serial {
 public:
  explicit Serial(const CompressionOptions& options) : feedback_(options.error_feedback), error_(kNumel) {
    for (const Shape2& shape : kShapes) {
      Matrix basis(kRank, std::vector<double>(static_cast<size_t>(shape.columns)));
      const uint64_t key = random_key(options.seed, std::string("compression:") + shape.name);
      for (size_t k = 0; k < kRank; ++k)
        for (size_t n = 0; n < basis[k].size(); ++n) basis[k][n] = random_normal(key, k * basis[k].size() + n);
      bases_.push_back(basis);
    }
  }
  std::vector<double> sum(int ranks, int64_t step, RankGradient gradient = full_gradient) {
    std::vector<double> m(kNumel), sent(kNumel);
    for (int64_t i = 0; i < kNumel; ++i) {
      m[static_cast<size_t>(i)] = error_[static_cast<size_t>(i)];
      for (int rank = 0; rank < ranks; ++rank) m[static_cast<size_t>(i)] += gradient(rank, step, i);
    }
    int64_t begin = 0;
    for (size_t s = 0; s < std::size(kShapes); ++s) {
      const Shape2& shape = kShapes[s];
      const auto count = static_cast<size_t>(shape.rows * shape.columns);
      if (shape.compressed && ranks > 1) {
        approximate(m.data() + begin, shape, bases_[s], sent.data() + begin);
      } else {
        std::copy_n(m.data() + begin, count, sent.data() + begin);
      }
      for (size_t i = 0; i < count && feedback_; ++i) {
        const size_t at = static_cast<size_t>(begin) + i;
        error_[at] = m[at] - sent[at];
      }
      begin += (shape.rows + shape.padding) * shape.columns;
    }
    return sent;
  }

 private:
  using Matrix = std::vector<std::vector<double>>;  ///< [r][n]
  static double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  static void approximate(const double* m, const Shape2& shape, Matrix& basis, double* sent) {
    const auto rows = static_cast<size_t>(shape.rows), columns = static_cast<size_t>(shape.columns);
    std::fill_n(sent, rows * columns, 0.0);
    Matrix left;
    for (std::vector<double>& q : basis) {
      std::vector<double> p(rows);
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) p[r] += m[r * columns + c] * q[c];
      for (const std::vector<double>& other : left) {
        const double part = dot(other, p);
        for (size_t r = 0; r < rows; ++r) p[r] -= part * other[r];
      }
      const double norm = std::sqrt(dot(p, p));
      if (norm == 0) continue;
      for (double& x : p) x /= norm;
      std::ranges::fill(q, 0.0);
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) q[c] += p[r] * m[r * columns + c];
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) sent[r * columns + c] += p[r] * q[c];
      left.push_back(p);
    }
  }

  bool feedback_;
  std::vector<double> error_;
  std::vector<Matrix> bases_;
};

CompressionOptions low_rank(bool feedback = true) {
  return {.encoding = {.encoding = Encoding::kLowRank}, .error_feedback = feedback, .seed = 3, .rank = kRank};
}

void for_splits(const CompressionOptions& options, const std::function<void(LowRankStore&, const DataSplit&)>& body,
                std::vector<CommunicationRecord>* records = nullptr) {
  for (const DataSplit& split : kSplits) {
    const auto run = [&](Communicator& world) {
      LowRankStore store(world, split, options);
      body(store, split);
    };
    run_ranks(split.shards * split.replicas, run, {.poison = false, .records = records});
  }
}

std::string place(const LowRankStore& store, int64_t step, size_t element) {
  return concat(store.shard->size(), " shards, ", store.replicate->size(), " replicas, rank ", store.rank, ", step ", step, ", element ", element,
                ": ");
}

}  // namespace

TEST_CASE("low-rank sums are one power iteration on the sum of all matrices") {
  for (const bool feedback : {true, false}) {
    for_splits(low_rank(feedback), [&](LowRankStore& store, const DataSplit&) {
      Serial serial(low_rank(feedback));
      for (int64_t step = 0; step < 6; ++step) {
        const std::vector<double> expected = serial.sum(store.ranks, step), actual = store.sum(step);
        if (store.ranks == 1) continue;  // sends nothing: test below
        for (size_t i = 0; i < kNumel; ++i)
          TRIREME_CHECK(std::abs(actual[i] - expected[i]) < 1e-11, place(store, step, i), actual[i], " instead of ", expected[i]);
      }
      const bool keeps_error = std::ranges::any_of(store.reducer->state(0), [](const Reducer::State& state) { return state.spec == nullptr; });
      TRIREME_CHECK(keeps_error == (feedback && store.ranks > 1), "an error is kept if and only if it is fed back");
    });
  }
}

TEST_CASE("low-rank sums: sent and kept are the gradients, and what is not compressed is exact") {
  for_splits(low_rank(), [](LowRankStore& store, const DataSplit&) {
    constexpr int64_t kSteps = 10;
    std::vector<double> sent(kNumel);
    for (int64_t step = 0; step < kSteps; ++step) {
      const std::vector<double> actual = store.sum(step);
      size_t i = 0;
      for (const Shape2& shape : kShapes) {
        for (int64_t k = 0; k < (shape.rows + shape.padding) * shape.columns; ++k, ++i) {
          sent[i] += actual[i];
          const bool padding = k >= shape.rows * shape.columns;
          double exact = 0;
          for (int rank = 0; rank < store.ranks && !padding; ++rank) exact += full_gradient(rank, step, static_cast<int64_t>(i));
          if (!shape.compressed || padding || store.ranks == 1)
            TRIREME_CHECK(padding ? actual[i] == 0 || store.ranks == 1 : std::abs(actual[i] - exact) < 1e-13, place(store, step, i), "not exact");
        }
      }
    }
    const Tensor kept = Tensor::zeros(store.ctx, {kNumel}, DType::kF64, MemoryCategory::kWorkspace);
    for (const Reducer::State& state : store.reducer->state(0))
      if (state.spec == nullptr) std::copy_n(state.tensor.data<double>(), kNumel, kept.data<double>());
    store.data->all_reduce(store.ctx, kept, ReduceOp::kSum).wait(store.ctx);
    size_t i = 0;
    for (const Shape2& shape : kShapes) {
      for (int64_t k = 0; k < (shape.rows + shape.padding) * shape.columns; ++k, ++i) {
        double exact = 0;
        for (int64_t step = 0; step < kSteps; ++step)
          for (int rank = 0; rank < store.ranks; ++rank) exact += full_gradient(rank, step, static_cast<int64_t>(i));
        if (k >= shape.rows * shape.columns) {
          TRIREME_CHECK(kept.data<double>()[i] == 0, place(store, kSteps, i), "padding is kept");
        } else {
          TRIREME_CHECK(std::abs(sent[i] + kept.data<double>()[i] - exact) < 1e-10, place(store, kSteps, i), "lost");
          TRIREME_CHECK(shape.compressed || kept.data<double>()[i] == 0, place(store, kSteps, i), "kept although it was sent");
        }
      }
    }
  });
}

TEST_CASE("low-rank sums: equal bits for every division into shards and replicas") {
  std::mutex mutex;
  std::map<int, std::vector<std::vector<double>>> first;  // by number of ranks
  for_splits(low_rank(), [&](LowRankStore& store, const DataSplit&) {
    std::vector<std::vector<double>> steps;
    for (int64_t step = 0; step < 4; ++step) steps.push_back(store.sum(step));
    const std::lock_guard lock(mutex);
    const auto& expected = first.try_emplace(store.ranks, steps).first->second;
    TRIREME_CHECK(steps == expected, place(store, 3, 0), "another division into shards and replicas has other sums");
  });
}

TEST_CASE("low-rank sums: exact for gradients up to the rank, also after steps without any") {
  // All ranks have matrices of rank 2 with the same columns; in the first two steps they are zero.
  const RankGradient narrow = [](int rank, int64_t step, int64_t element) {
    if (step < 2) return 0.0;
    const auto x = static_cast<double>(element % 16), y = static_cast<double>(element % 40);
    const double row = static_cast<double>(element < 56 * 16 ? element / 16 : (element - 56 * 16 - 7) / 40);
    return (rank + 1) * std::sin(1 + row) * (element < 56 * 16 ? x : y) + std::cos(row * static_cast<double>(step)) * (rank - 2.5);
  };
  for_splits(low_rank(), [&](LowRankStore& store, const DataSplit&) {
    for (int64_t step = 0; step < 5; ++step) {
      const std::vector<double> actual = store.sum(step, narrow);
      int64_t begin = 0;
      for (const Shape2& shape : kShapes) {
        for (int64_t k = 0; k < shape.rows * shape.columns; ++k) {
          double exact = 0;
          for (int rank = 0; rank < store.ranks; ++rank) exact += narrow(rank, step, begin + k);
          TRIREME_CHECK(std::abs(actual[static_cast<size_t>(begin + k)] - exact) < 1e-11, place(store, step, static_cast<size_t>(begin + k)),
                        actual[static_cast<size_t>(begin + k)], " instead of ", exact);
        }
        begin += (shape.rows + shape.padding) * shape.columns;
      }
    }
  });
}

TEST_CASE("low-rank sums: a rejected step leaves errors and bases as they were") {
  for_splits(low_rank(), [](LowRankStore& store, const DataSplit&) {
    store.sum(0);
    const std::vector<double> before = store.state_values();
    const std::vector<double> bad = store.sum(1, full_gradient, false, store.rank == 0 ? std::numeric_limits<double>::quiet_NaN() : 0);
    TRIREME_CHECK(std::ranges::any_of(bad, [](double x) { return !std::isfinite(x); }), "a gradient that is not finite was hidden");
    TRIREME_CHECK(store.state_values() == before, "a rejected step changed errors or bases");
    store.sum(2);
    TRIREME_CHECK(store.ranks == 1 || store.state_values() != before, "an accepted step changed nothing");
  });
}

TEST_CASE("low-rank sums: bytes on the wire, and plain sums in a warm-up") {
  std::vector<CommunicationRecord> records;
  for (const int64_t warmup : {0, 2}) {
    CompressionOptions options = low_rank();
    options.warmup_steps = warmup;
    for (const DataSplit& split : kSplits) {
      const int ranks = split.shards * split.replicas;
      std::vector<double> forecast(static_cast<size_t>(ranks));
      run_ranks(ranks,
                [&](Communicator& world) {
                  LowRankStore store(world, split, options);
                  for (int64_t step = 0; step < 3; ++step) {
                    const std::vector<double> actual = store.sum(step);
                    if (step >= warmup) continue;
                    for (size_t i = 0; i < kNumel; ++i) {
                      double exact = 0;
                      for (int rank = 0; rank < ranks; ++rank) exact += full_gradient(rank, step, static_cast<int64_t>(i));
                      TRIREME_CHECK(std::abs(actual[i] - exact) < 1e-13, place(store, step, i), "the warm-up sends the gradients as they are");
                    }
                  }
                  const int64_t owned = store.grads->shard(0).numel();
                  forecast[static_cast<size_t>(store.rank)] = store.reducer->sent_bytes(Reduction::Kind::kScatter, 0, owned, split.shards) +
                                                              store.reducer->sent_bytes(Reduction::Kind::kReplicas, 0, owned, split.replicas);
                },
                {.poison = false, .records = &records});
      for (int rank = 0; rank < ranks; ++rank) {
        CAPTURE(warmup, split.shards, split.replicas, rank);
        // Factors of 53 x 16 and 24 x 40, and 7 + 600 + 30 elements as they are.
        const double elements = kRank * (53 + 16 + 24 + 40) + 7 + 600 + 30, once = ranks == 1 ? 0 : 8 * elements * 2 * (ranks - 1) / ranks;
        const CommunicationRecord& record = records[static_cast<size_t>(rank)];
        CHECK(forecast[static_cast<size_t>(rank)] == Approx(once).epsilon(1e-12));
        CHECK(record.wire_bytes("data") == Approx(static_cast<double>(3 - warmup) * once).epsilon(1e-12));
        CHECK((record.entry("shard", "reduce_scatter").wire_bytes > 0) == (warmup > 0 && split.shards > 1));
        CHECK((record.entry("replicate", "all_reduce").wire_bytes > 0) == (warmup > 0 && split.replicas > 1));
      }
    }
  }
}

TEST_CASE("low-rank sums: which parameters have factors") {
  const auto spec = [](int64_t rows, int64_t columns) { return replicated("w", {rows, columns}, 2, TensorRank{}, Partial::kNone); };
  CHECK(has_low_rank(spec(24, 40), 7));  // 2 * 7 * 64 < 960
  CHECK(!has_low_rank(spec(24, 40), 8));
  CHECK(!has_low_rank(spec(16, 16), 4));  // half of its elements would be sent
  CHECK(has_low_rank(spec(17, 16), 4) == (2 * 4 * 33 < 17 * 16));
  CHECK(!has_low_rank(replicated("b", {4000, 1}, 1, TensorRank{}, Partial::kNone), 1));
  CHECK(!has_low_rank(replicated("p", {24, 40}, 2, TensorRank{}, Partial::kTensor), 1));
}
