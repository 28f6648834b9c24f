// The Reducer interface: every sum of a GradStore goes through its Reducer, and the plain sum is one implementation of it.
#include "parallel/sharding/reducer.h"

#include <string>
#include <vector>

#include "kernels/core/operation_log.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/null.h"
#include "parallel/sharding/grad_store.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

constexpr int64_t kShard = 64, kElements = 67;  // of two shards, the second has three elements and padding

struct Calls {
  std::vector<Reduction> started;
  std::vector<int> finished;
};

/// Three times the sum, from an all-gather and a loop over the ranks in reversed order.
class TripleReducer final : public Reducer {
 public:
  explicit TripleReducer(Calls& calls) : calls_(calls) {}
  std::vector<State> state(int unit) const override { return {{"gathered", gathered_.at(unit)}}; }
  double sent_bytes(Reduction::Kind, int, int64_t, int) const override { return 0; }

 private:
  void begin(Context& ctx, const Reduction& reduction) override {
    calls_.started.push_back(reduction);
    const Tensor& in = reduction.kind == Reduction::Kind::kScatter ? reduction.whole : reduction.shard;
    gathered_[reduction.unit] = Tensor::empty(ctx, {in.numel() * reduction.comm->size()}, in.dtype(), MemoryCategory::kCommunication);
    work_ = reduction.comm->all_gather(ctx, in, gathered_[reduction.unit]);
  }
  void end(Context& ctx, const Reduction& reduction) override {
    calls_.finished.push_back(reduction.unit);
    work_.wait(ctx);
    const bool scatter = reduction.kind == Reduction::Kind::kScatter;
    const int64_t n = reduction.shard.numel(), stride = scatter ? n * reduction.comm->size() : n, own = scatter ? n * reduction.comm->rank() : 0;
    auto* const out = reduction.shard.data<float>();
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int64_t rank = reduction.comm->size() - 1; rank >= 0; --rank) sum += gathered_[reduction.unit].data<float>()[rank * stride + own + i];
      out[i] = 3 * sum + (reduction.accumulate ? out[i] : 0);
    }
  }

  Calls& calls_;
  std::map<int, Tensor> gathered_;
  Work work_;
};

/// A gradient store of one unit on one of four ranks: two replicas of two shards.
struct Store {
  Store(Communicator& world, bool resident, std::unique_ptr<Reducer> reducer)
      : rank(world.rank()),
        shard(world.group({rank / 2 * 2, rank / 2 * 2 + 1}, "shard")),
        replicate(world.group({rank % 2, rank % 2 + 2}, "replicate")),
        embedding(world.group({0, 1, 2, 3}, "embedding")) {
    unit.add({replicated("bias", {kElements, 1}, 1, TensorRank{}, Partial::kNone)});
    const ZeroPolicy policy{.replicate = 2, .shard = 2, .gradients_resident = resident};
    grads = std::make_unique<GradStore>(ctx, std::vector<Unit*>{&unit}, policy, DType::kF32, std::move(reducer));
    grads->begin_step(ctx, 0);
  }
  /// Adds to each element i a gradient that depends on the micro-batch, the rank and i.
  void backward(float microbatch) {
    grads->acquire(ctx, 0);
    float* const gradient = unit.params().front()->grad_to_add_to(ctx).data<float>();
    for (int64_t i = 0; i < kElements; ++i) gradient[i] += microbatch + static_cast<float>(10 * rank + i);
  }
  /// Checks this rank's shard of the sum: element i of the unit must be value(i).
  void expect(const char* what, const std::function<float(int64_t)>& value) {
    const Tensor own = grads->shard(0);
    for (int64_t k = 0; k < own.numel(); ++k) {
      const int64_t i = shard->rank() * own.numel() + k;
      const float found = own.data<float>()[k], wanted = i < kElements ? value(i) : 0;
      TRIREME_CHECK(found == wanted, what, ", rank ", rank, ", element ", i, ": ", found, " instead of ", wanted);
    }
  }

  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  int rank;
  std::unique_ptr<Communicator> shard, replicate, embedding;
  Unit unit{"head", {shard.get(), replicate.get()}};
  std::unique_ptr<GradStore> grads;
};

/// Two micro-batches, then the sums over replicas and tied copies, each `factor` times the sum.
void check_sums(Store& store, bool resident, float factor) {
  const auto f = [](int64_t i) { return static_cast<float>(i); };
  GradStore& grads = *store.grads;
  store.backward(100);
  if (!resident) {
    grads.reduce(store.ctx, 0);
    TRIREME_CHECK(!store.unit.params().front()->grad.defined(), "a gradient that is being reduced is still bound");
    grads.wait(store.ctx, 0);
  }
  store.backward(200);
  grads.reduce(store.ctx, 0);
  grads.wait(store.ctx, 0);
  const float first = static_cast<float>(store.rank / 2 * 2), pair = 10 * (first + first + 1);  // of the two ranks of this shard group
  store.expect("scattered", [&](int64_t i) { return factor * (600 + 2 * pair + 4 * f(i)); });
  grads.reduce_replicas(store.ctx, 0);
  grads.wait(store.ctx, 0);
  const auto replicas = [&](int64_t i) { return factor * factor * (1200 + 2 * 60 + 8 * f(i)); };
  store.expect("summed over replicas", replicas);
  grads.reduce_tied(store.ctx, 0, *store.embedding);  // here over all ranks, element k of one shard with element k of the other
  grads.wait(store.ctx, 0);
  for (int64_t k = 0; k < kShard; ++k) {
    const float found = grads.shard(0).data<float>()[k], wanted = factor * 2 * (replicas(k) + (k + kShard < kElements ? replicas(k + kShard) : 0));
    TRIREME_CHECK(found == wanted, "tied, rank ", store.rank, ", element ", k, ": ", found, " instead of ", wanted);
  }
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the plain sum over shards, replicas and tied copies") {
  for (const bool resident : {true, false}) {
    run_ranks(4, [&](Communicator& world) {
      Store store(world, resident, std::make_unique<SumReducer>(DType::kF32));
      check_sums(store, resident, 1);
      TRIREME_CHECK(store.grads->reducer().state(0).empty(), "the plain sum has no state");
    });
  }
}

TEST_CASE("every sum of gradients goes through the reducer of the store") {
  for (const bool resident : {true, false}) {
    std::vector<CommunicationRecord> records;
    run_ranks(4,
              [&](Communicator& world) {
                Calls calls;
                Store store(world, resident, std::make_unique<TripleReducer>(calls));
                check_sums(store, resident, 3);
                using enum Reduction::Kind;
                const std::vector kinds = resident ? std::vector{kScatter, kReplicas, kTied} : std::vector{kScatter, kScatter, kReplicas, kTied};
                TRIREME_CHECK(calls.started.size() == kinds.size() && calls.finished.size() == kinds.size(), calls.started.size(), " reductions");
                for (size_t k = 0; k < kinds.size(); ++k) {
                  const Reduction& reduction = calls.started[k];
                  const Communicator* const comm = kinds[k] == kScatter    ? store.shard.get()
                                                   : kinds[k] == kReplicas ? store.replicate.get()
                                                                           : store.embedding.get();
                  TRIREME_CHECK(reduction.kind == kinds[k] && reduction.comm == comm && reduction.unit == 0, "reduction ", k);
                  TRIREME_CHECK(reduction.accumulate == (kinds[k] == kScatter && !resident), "reduction ", k);
                }
                TRIREME_CHECK(store.grads->reducer().state(0).front().tensor.numel() == 4 * kShard, "the state of the reducer");
              },
              {.poison = false, .records = &records});
    for (const CommunicationRecord& record : records) {
      for (const auto& [key, entry] : record.entries) CHECK((key.second == "all_gather" || entry.calls == 0));
      CHECK(record.entry("shard", "all_gather").calls == (resident ? 1 : 2));
    }
  }
}

TEST_CASE("a step's first product writes the gradient, and what nothing was added to is zero") {
  constexpr int64_t kOutputs = 3, kInputs = 5, kBias = 7, kUnused = 2, kSteps = 3, kMicrobatches = 2;
  for (const bool resident : {true, false}) {
    run_ranks(2, [&](Communicator& world) {
      Arena arena(Device::kReference, true);
      OperationLog log;
      Context ctx{.device = Device::kReference, .arena = &arena, .threads = 1, .log = &log};
      const auto alone = world.group({world.rank()}, "replicate");
      Unit unit("head", {&world, alone.get()});
      const auto declared = [&](const char* name, std::array<int64_t, 2> shape, int dims) {
        return unit.add({replicated(name, shape, dims, TensorRank{}, Partial::kNone)});
      };
      Param *const weight = declared("weight", {kOutputs, kInputs}, 2), *const bias = declared("bias", {kBias, 1}, 1);
      declared("unused", {kUnused, 1}, 1);
      GradStore grads(ctx, {&unit}, {.shard = 2, .gradients_resident = resident}, DType::kF32, std::make_unique<SumReducer>(DType::kF32));
      const auto filled = [&](const Shape& shape, double value) {
        const Tensor tensor = Tensor::empty(ctx, shape, DType::kF32, MemoryCategory::kWorkspace);
        fill(ctx, value, tensor);
        return tensor;
      };
      for (int64_t step = 0; step < kSteps; ++step) {
        grads.begin_step(ctx, 0);
        std::vector<bool> added;
        for (int64_t m = 0; m < kMicrobatches; ++m) {
          grads.acquire(ctx, 0);
          const Tensor dy = filled({2, kOutputs}, static_cast<double>(m + 1)), x = filled({2, kInputs}, 1), part = filled({kBias}, 1);
          log.take();
          linear_backward_weight(ctx, dy, x, weight->grad, weight->must_add_to_grad());
          added.push_back(log.take().front().accumulates);
          accumulate(ctx, part, bias->grad_to_add_to(ctx));
          if (resident && m + 1 < kMicrobatches) continue;
          grads.reduce(ctx, 0);
          grads.wait(ctx, 0);
        }
        TRIREME_CHECK((added == std::vector<bool>{false, resident}), "step ", step, ": a product adds to a gradient that it could write");
        const Tensor own = grads.shard(0);
        for (int64_t k = 0; k < own.numel(); ++k) {
          const int64_t i = world.rank() * own.numel() + k;
          const float wanted = i < kOutputs * kInputs ? 12.0F : i < kOutputs * kInputs + kBias ? 4.0F : 0.0F;  // of two ranks
          TRIREME_CHECK(own.data<float>()[k] == wanted, "step ", step, ", element ", i, ": ", own.data<float>()[k], " instead of ", wanted);
        }
      }
    });
  }
}

TEST_CASE("a reduction is started before it is finished, once, with tensors of its kind") {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena, 1};
  NullCommunicator pair(0, 2, "shard");
  const auto empty = [&](int64_t count) { return Tensor::empty(ctx, {count}, DType::kF32, MemoryCategory::kGradients); };
  const Tensor whole = empty(6), shard = empty(3);
  using enum Reduction::Kind;
  SumReducer reducer(DType::kBF16);
  CHECK(says(error_of([&] { reducer.finish(ctx, 0); }), "no reduction of unit 0 was started"));
  reducer.start(ctx, {kScatter, 0, &pair, whole, shard});
  CHECK(says(error_of([&] { reducer.start(ctx, {kReplicas, 0, &pair, {}, shard}); }), "unit 0 starts before its previous one is finished"));
  reducer.start(ctx, {kReplicas, 1, &pair, {}, shard});  // of another unit
  CHECK(says(error_of([&] { reducer.finish(ctx, 2); }), "no reduction of unit 2 was started"));
  reducer.finish(ctx, 0);
  CHECK(says(error_of([&] { reducer.finish(ctx, 0); }), "no reduction of unit 0 was started"));
  reducer.finish(ctx, 1);

  CHECK(says(error_of([&] { reducer.start(ctx, {kScatter, 0, &pair, empty(5), shard}); }), "shards of 3 elements over 2 ranks"));
  CHECK(says(error_of([&] { reducer.start(ctx, {kTied, 0, &pair, whole, shard}); }), "reduced in place"));
  CHECK(says(error_of([&] { reducer.start(ctx, {kReplicas, 0, &pair, {}, shard, true}); }), "reduced in place"));
  CHECK(says(error_of([&] { reducer.start(ctx, {kReplicas, 0, nullptr, {}, shard}); }), "without communicator"));
}

TEST_CASE("a narrower wire dtype needs a copy of the gradient in flight, but not in a group of one rank or for tied copies") {
  using enum Reduction::Kind;
  for (const int ranks : {1, 2}) {
    Arena arena(Device::kMeta);
    Context ctx{Device::kMeta, &arena, 1};
    NullCommunicator comm(0, ranks, "replicate");
    const Tensor shard = Tensor::empty(ctx, {1024}, DType::kF32, MemoryCategory::kGradients);
    SumReducer reducer(DType::kBF16);
    for (const Reduction::Kind kind : {kReplicas, kTied}) {
      const int64_t before = arena.current_bytes(MemoryCategory::kCommunication);
      reducer.start(ctx, {kind, 0, &comm, {}, shard});
      CHECK(arena.current_bytes(MemoryCategory::kCommunication) - before == (ranks > 1 && kind == kReplicas ? 2048 : 0));
      reducer.finish(ctx, 0);
      CHECK(arena.current_bytes(MemoryCategory::kCommunication) == before);
    }
  }
}
