// The update of Hogwild: one thread has the bits of sequential SGD, and several reach the optimum of a sparse convex problem.
#include "kernels/ops/hogwild.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include "kernels/ops/elementwise.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// Ridge regression on sparse rows: f(w) = mean over the rows of (a w - b)^2 / 2 + |w|^2 lambda / 2. A row has few of the columns, so threads seldom meet.
struct SparseProblem {
  static constexpr int64_t kRows = 3000, kColumns = 400, kNonZero = 5;
  static constexpr double kLambda = 1e-3;
  struct Row {
    std::array<int64_t, kNonZero> columns;
    std::array<float, kNonZero> values;
    float target;
  };
  std::vector<Row> rows;
  std::array<int64_t, kColumns> uses{};  ///< rows that have each column

  SparseProblem() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> truth(kColumns);
    for (float& w : truth) w = normal(random);
    for (int64_t r = 0; r < kRows; ++r) {
      Row row{};
      for (size_t k = 0; k < kNonZero; ++k) {
        do row.columns[k] = static_cast<int64_t>(random() % kColumns);
        while (std::find(row.columns.begin(), row.columns.begin() + static_cast<int64_t>(k), row.columns[k]) !=
               row.columns.begin() + static_cast<int64_t>(k));
        row.values[k] = normal(random);
        row.target += row.values[k] * truth[static_cast<size_t>(row.columns[k])];
        ++uses[static_cast<size_t>(row.columns[k])];
      }
      row.target += normal(random);  // noise, so the least loss is far from zero
      rows.push_back(row);
    }
  }

  double loss(const Tensor& weights) const {
    const float* const w = weights.data<float>();
    double sum = 0, squares = 0;
    for (const Row& row : rows) {
      double error = -row.target;
      for (size_t k = 0; k < kNonZero; ++k) error += static_cast<double>(row.values[k]) * static_cast<double>(w[row.columns[k]]);
      sum += error * error / 2;
    }
    for (int64_t i = 0; i < kColumns; ++i) squares += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    return sum / static_cast<double>(kRows) + kLambda * squares / 2;
  }

  /// The gradient of one row on its columns; the term of lambda is divided among the rows that have a column. `g` is zero elsewhere.
  void gradient(const Row& row, const float* w, float* g) const {
    float error = -row.target;
    for (size_t k = 0; k < kNonZero; ++k) error += row.values[k] * w[row.columns[k]];
    for (size_t k = 0; k < kNonZero; ++k) {
      const auto column = static_cast<size_t>(row.columns[k]);
      g[column] = row.values[k] * error + static_cast<float>(kLambda * kRows / static_cast<double>(uses[column])) * w[column];
    }
  }
};

/// One worker's share of an epoch of SGD.
template <class Step>
void descend(const SparseProblem& problem, const Tensor& shared, double rate, int64_t begin, int64_t end, const std::vector<size_t>& order,
             const Step& step) {
  Arena arena(Device::kCpu);
  Context ctx{Device::kCpu, &arena, 1};
  const auto tensor = [&] { return Tensor::zeros(ctx, {SparseProblem::kColumns}, DType::kF32, MemoryCategory::kWorkspace); };
  const Tensor own = tensor(), g = tensor(), scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  scalars.data<double>()[kGradScale] = 1;
  scalars.data<double>()[kAccepted] = 1;
  scalars.data<double>()[kLearningRate] = rate;
  const std::vector<UpdateSlice> slices{{.w = shared, .g = g, .state = {}}};
  for (int64_t i = begin; i < end; ++i) {
    const SparseProblem::Row& row = problem.rows[order[static_cast<size_t>(i)]];
    read_shared(ctx, shared, own);
    problem.gradient(row, own.data<float>(), g.data<float>());
    step(ctx, scalars, slices);
    for (const int64_t column : row.columns) g.data<float>()[column] = 0;
  }
}

void by_hogwild(Context& ctx, const Tensor& scalars, std::span<const UpdateSlice> slices) { hogwild_step(ctx, {}, scalars, slices); }
void in_sequence(Context& ctx, const Tensor& scalars, std::span<const UpdateSlice> slices) { update_step(ctx, Optimizer::kSgd, {}, scalars, slices); }

/// Epochs with a learning rate that shrinks, each divided among `threads`.
template <class Step>
Tensor trained(const SparseProblem& problem, int threads, int epochs, const Step& step) {
  Arena arena(Device::kCpu);
  Context ctx{Device::kCpu, &arena, 1};
  const Tensor shared = Tensor::zeros(ctx, {SparseProblem::kColumns}, DType::kF32, MemoryCategory::kWorkspace);
  std::vector<size_t> order(problem.rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(9);
  double rate = 0.05;
  for (int epoch = 0; epoch < epochs; ++epoch, rate *= 0.9) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t)
      workers.emplace_back(
          [&, t] { descend(problem, shared, rate, SparseProblem::kRows * t / threads, SparseProblem::kRows * (t + 1) / threads, order, step); });
    for (std::thread& worker : workers) worker.join();
  }
  return shared;
}

}  // namespace

TEST_CASE("hogwild: threads without a lock reach the optimum of sequential SGD on a sparse convex problem within 1 %") {
  const SparseProblem problem;
  const double sequential = problem.loss(trained(problem, 1, 40, in_sequence));
  CHECK(sequential > 0.3);  // of the noise, so that 1 % of it is no large distance
  for (const int threads : {2, 3, 4}) {
    const double loss = problem.loss(trained(problem, threads, 40, by_hogwild));
    INFO(threads << " threads: " << loss << ", sequential " << sequential);
    CHECK(loss == Approx(sequential).epsilon(0.01));
  }
}

TEST_CASE("hogwild: one thread has the bits of sequential SGD") {
  const SparseProblem problem;
  const Tensor hogwild = trained(problem, 1, 3, by_hogwild), sequential = trained(problem, 1, 3, in_sequence);
  CHECK(std::equal(hogwild.data<float>(), hogwild.data<float>() + SparseProblem::kColumns, sequential.data<float>()));
}

TEST_CASE("hogwild: no update is lost, whichever threads meet") {
  Arena arena(Device::kCpu);
  Context ctx{Device::kCpu, &arena, 1};
  const Tensor shared = Tensor::zeros(ctx, {2}, DType::kF32, MemoryCategory::kWorkspace);
  constexpr int kThreads = 4, kSteps = 20000, kTimes = 50;  // in a step, on the same element; the sums are below 2^24
  std::latch all(kThreads);
  std::vector<std::thread> workers;
  for (int t = 0; t < kThreads; ++t)
    workers.emplace_back([&] {
      Arena own(Device::kCpu);
      Context mine{Device::kCpu, &own, 1};
      const Tensor g = Tensor::zeros(mine, {2}, DType::kF32, MemoryCategory::kWorkspace);
      const Tensor scalars = Tensor::zeros(mine, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
      for (const int place : {kGradScale, kAccepted, kLearningRate}) scalars.data<double>()[place] = 1;
      g.data<float>()[0] = -1;
      const std::vector<UpdateSlice> slices(kTimes, {.w = shared, .g = g, .state = {}});
      all.arrive_and_wait();
      for (int step = 0; step < kSteps; ++step) hogwild_step(mine, {}, scalars, slices);
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(shared.data<float>()[0] == kThreads * kSteps * kTimes);
  CHECK(shared.data<float>()[1] == 0);
}

TEST_CASE("hogwild: a step with decay has the bits of SGD, a rejected one writes nothing, and weights are read and written whole") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto tensor = [&](double value) {
      const Tensor made = Tensor::zeros(ctx, {130}, dtype, MemoryCategory::kWorkspace);
      fill(ctx, value, made);
      return made;
    };
    const Tensor scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
    const Tensor shared = tensor(0.7), expected = tensor(0.7), g = tensor(0.3), own = tensor(0);
    const AdamW hyper{.weight_decay = 0.1};
    scalars.data<double>()[kGradScale] = 0.37;
    scalars.data<double>()[kLearningRate] = 0.11;
    const auto same = [&](const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0; };
    for (const double accepted : {0.0, 1.0}) {
      scalars.data<double>()[kAccepted] = accepted;
      const std::vector<UpdateSlice> there{{.w = shared, .g = g, .state = {}, .decay = true}},
          here{{.w = expected, .g = g, .state = {}, .decay = true}};
      hogwild_step(ctx, hyper, scalars, there);
      CHECK(same(shared, expected) == (accepted == 0));
      update_step(ctx, Optimizer::kSgd, hyper, scalars, here);
      CHECK(same(shared, expected));
    }
    read_shared(ctx, shared, own);
    CHECK(same(own, expected));
    const Tensor other = tensor(5);
    write_shared(ctx, own, other);
    CHECK(same(other, expected));
    CHECK_THROWS_AS(read_shared(ctx, shared.flat(0, 2), own), InternalError);
  }
}

TEST_CASE("hogwild: elements without a gradient decay as in SGD") {
  Arena arena(Device::kCpu);
  Context ctx{Device::kCpu, &arena, 1};
  const Tensor w = Tensor::zeros(ctx, {4}, DType::kF32, MemoryCategory::kWorkspace),
               g = Tensor::zeros(ctx, {4}, DType::kF32, MemoryCategory::kWorkspace);
  const Tensor scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  fill(ctx, 2, w);
  for (const int place : {kGradScale, kAccepted, kLearningRate}) scalars.data<double>()[place] = 1;
  const std::vector<UpdateSlice> slices{{.w = w.flat(0, 2), .g = g.flat(0, 2), .state = {}, .decay = true},
                                        {.w = w.flat(2, 2), .g = g.flat(2, 2), .state = {}}};
  hogwild_step(ctx, {.weight_decay = 0.25}, scalars, slices);
  const float* const values = w.data<float>();
  CHECK((values[0] == 1.5F && values[1] == 1.5F && values[2] == 2 && values[3] == 2));
}
