// A batch whose sequences are assigned by cost trains what it trains in the order of the samples.
#include <algorithm>
#include <mutex>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/data/balance.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

/// Sequences of two documents that records which samples a rank reads.
struct RecordedDocuments final : Dataset {
  int64_t sequences() const override { return data.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data.read(sample, tokens, targets, segments);
    read_here.push_back(sample);
  }
  RaggedDataset data{29, 12, 61, true, true};
  mutable std::vector<int64_t> read_here;
};

/// What one step reads: the samples of the data ranks, in their order, and StepResult::cost_imbalance.
struct Assignment {
  std::vector<int64_t> samples;
  double imbalance = 0;
};

Assignment assignment_of(const ParityLayout& layout) {
  const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  Assignment assignment;
  assignment.samples.resize(12);
  std::mutex mutex;
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const RecordedDocuments data;
    const StepResult result = trainer.step(data, 0, 0);
    const Mesh& mesh = trainer.mesh();
    const auto share = static_cast<std::ptrdiff_t>(12 / mesh.shape.data());
    TRIREME_CHECK(std::ssize(data.read_here) >= share, "samples of a step");
    const std::lock_guard lock(mutex);
    assignment.imbalance = result.cost_imbalance;
    std::copy(data.read_here.end() - share, data.read_here.end(), assignment.samples.begin() + mesh.data->rank() * share);
  });
  return assignment;
}

}  // namespace

TEST_CASE("balance: a batch that is assigned by cost has the gradients and weights of one in the order of the samples") {
  std::vector<ParityLayout> layouts;
  for (int zero = 0; zero <= 3; ++zero) layouts.push_back({{.data = 3, .zero = zero, .micro_batch = 2}});
  for (int zero = 0; zero <= 3; ++zero)
    layouts.push_back({{.tensor = 2, .pipeline = 2, .data = 2, .zero = zero, .sequence_parallel = zero % 2 == 0}});
  layouts.push_back({{.pipeline = 2}});
  for (ParityLayout layout : layouts) {
    layout.documents = true;
    INFO(layout.str());
    const ParityModel model = ParityModel::kLlama;
    const RunRecord plain = train_on_threads(parity_config(model, layout, "fp64"), 3, Device::kReference, true);
    layout.balance = true;
    const RunRecord balanced = train_on_threads(parity_config(model, layout, "fp64"), 3, Device::kReference, true);
    CHECK(difference(plain, balanced, 1e-10) == "");
    CHECK(difference(balanced, train_on_threads(parity_config(model, layout, "fp64"), 3, Device::kReference), 0) == "");
  }
}

TEST_CASE("balance: ranks read the samples of the batch once, by cost, and the step reports their imbalance") {
  for (ParityLayout layout :
       {ParityLayout{{.data = 3, .zero = 1, .micro_batch = 2}}, ParityLayout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}}}) {
    layout.documents = true;
    INFO(layout.str());
    const Assignment plain = assignment_of(layout);
    layout.balance = true;
    const Assignment balanced = assignment_of(layout);
    CHECK(plain.imbalance == 0);  // not computed
    CHECK(plain.samples != balanced.samples);
    CHECK(std::multiset<int64_t>(plain.samples.begin(), plain.samples.end()) ==
          std::multiset<int64_t>(balanced.samples.begin(), balanced.samples.end()));
    const int64_t width = parity_config(ParityModel::kLlama, layout, "fp64").model.hidden_size;
    std::vector<int64_t> costs, own;  // by place in the order of the samples, and in that of the ranks
    const RecordedDocuments data;
    for (const auto& [samples, into] : {std::pair(&plain.samples, &costs), std::pair(&balanced.samples, &own)})
      for (const int64_t sample : *samples) {
        std::vector<int32_t> tokens(12), targets(12);
        std::vector<int64_t> segments;
        data.read(sample, tokens.data(), targets.data(), segments);
        into->push_back(sequence_cost(segments, width));
      }
    const std::vector<int64_t> places = balanced_places(costs, layout.data, 12 / layout.data / layout.micro_batch);
    for (size_t i = 0; i < places.size(); ++i) CHECK(own[i] == costs[static_cast<size_t>(places[i])]);
    CHECK(balanced.imbalance == cost_imbalance(costs, places, layout.data));
  }
}

}  // namespace trireme::test
