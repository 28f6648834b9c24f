// Robust aggregation over threads: known answers through the exchange of copies, gradients that do not take part, momentum, bytes and tied copies.
#include "parallel/sharding/robust_reducer.h"

#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "parallel/sharding/grad_store.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

const std::vector<std::vector<double>> kSevenGradients = {{1, 2, 3},     {1.1, 1.9, 3.1}, {.9, 2.1, 2.9}, {1.2, 2, 3},
                                                          {1, 1.8, 3.2}, {.8, 2.2, 3},    {100, -50, 1e6}};
const std::vector<std::vector<double>> kEightGradients = {{1, 2, 3},     {1.1, 1.9, 3.1}, {.9, 2.1, 2.9},  {1.2, 2, 3},
                                                          {1, 1.8, 3.2}, {.8, 2.2, 3},    {100, -50, 1e6}, {0, 1, 2}};
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

AggregationOptions rule_options(AggregationRule rule, int64_t byzantine = 1, double momentum = 0) {
  AggregationOptions options;
  options.rule = rule;
  options.byzantine = byzantine;
  options.momentum = momentum;
  return options;
}

/// The ranks whose number is that of this rank.
std::unique_ptr<Communicator> group_of(Communicator& world, const char* name, const std::function<int(int rank)>& number) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank)
    if (number(rank) == number(world.rank())) ranks.push_back(rank);
  return world.group(ranks, name);
}

/// One data rank with a unit of three elements in its gradient store, which has `shards` shards.
struct DataRank {
  DataRank(Communicator& world, int shards, const AggregationOptions& options, bool resident = true, const TensorRank& at = {})
      : data(whole_world(world)),
        shard(group_of(world, "shard", [=](int rank) { return rank / shards; })),
        replicate(group_of(world, "replicate", [=](int rank) { return rank % shards; })) {
    const int replicas = world.size() / shards;
    unit.add({replicated("bias", {3, 1}, 1, at, Partial::kNone)});
    auto made = std::make_unique<RobustReducer>(ctx, std::vector<Unit*>{&unit}, options,
                                                CompressionOptions{.encoding = {.encoding = Encoding::kNone}}, DType::kF64);
    reducer = made.get();
    const ZeroPolicy policy{.replicate = replicas, .shard = shards, .gradients_resident = resident};
    grads = std::make_unique<GradStore>(ctx, std::vector<Unit*>{&unit}, policy, DType::kF64, std::move(made));
    scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  }
  void reduce(const std::vector<double>& gradient) {
    grads->acquire(ctx, 0);
    double* const to = unit.params().front()->grad_to_add_to(ctx).data<double>();
    for (size_t i = 0; i < gradient.size(); ++i) to[i] += gradient[i];
    grads->reduce(ctx, 0);
    grads->wait(ctx, 0);
  }
  /// A step with this gradient. Returns the distances of the data ranks.
  std::vector<double> step(const std::vector<double>& gradient, bool absent = false, bool accepted = true) {
    grads->begin_step(ctx, 0);
    reduce(gradient);
    return end_step(absent, accepted);
  }
  std::vector<double> end_step(bool absent = false, bool accepted = true) {
    grads->reduce_replicas(ctx, 0);
    grads->wait(ctx, 0);
    RobustReducer* const reducers[] = {reducer};
    const std::vector<double> distances = aggregate(ctx, reducers, *data, data->rank(), absent);
    scalars.data<double>()[kAccepted] = accepted ? 1 : 0;
    grads->settle(ctx, 0, scalars);
    return distances;
  }
  /// Checks the elements of the aggregated gradient that are in this rank's shard.
  void expect(const std::vector<double>& values, double tolerance, const std::string& what) {
    const Tensor own = grads->shard(0);
    for (int64_t i = 0; i < own.numel(); ++i) {
      const auto at = static_cast<size_t>(shard->rank() * own.numel() + i);
      if (at >= values.size()) break;
      const double found = own.data<double>()[i];
      const bool same = std::isnan(values[at]) ? std::isnan(found) : std::abs(found - values[at]) <= tolerance * std::max(1.0, std::abs(values[at]));
      TRIREME_CHECK(same, what, ", rank ", data->rank(), ", element ", at, ": ", found, " instead of ", values[at]);
    }
  }

  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  std::unique_ptr<Communicator> data, shard, replicate;
  Unit unit{"head", {shard.get(), replicate.get(), data.get()}};
  RobustReducer* reducer = nullptr;
  std::unique_ptr<GradStore> grads;
  Tensor scalars;
};

struct KnownAnswer {
  AggregationRule rule;
  std::vector<double> values;
};
const std::vector<KnownAnswer> kKnownAnswers = {{AggregationRule::kMedian, {1, 2, 3}},
                                                {AggregationRule::kTrimmedMean, {1.04, 1.96, 3.06}},
                                                {AggregationRule::kKrum, {1, 2, 3}},
                                                {AggregationRule::kMultiKrum, {1.05, 2, 3}},
                                                {AggregationRule::kBulyan, {0.966666666667, 1.966666666667, 2.966666666667}},
                                                {AggregationRule::kGeometricMedian, {1.01518284676164, 1.98994698508426, 3.04740773997649}},
                                                {AggregationRule::kCenteredClipping, {1.000016452, 1.999991359, 3.199416909}}};

/// Without the seventh, with f = 0 left: the mean of the six; Krum's nearest.
const std::vector<KnownAnswer> kAnswersOfSix = {{AggregationRule::kTrimmedMean, {1, 2, 18.2 / 6}},
                                                {AggregationRule::kMedian, {1, 2, 3}},
                                                {AggregationRule::kKrum, {1, 2, 3}},
                                                {AggregationRule::kBulyan, {1, 2, 18.2 / 6}}};

}  // namespace

TEST_CASE("robust: known answers over seven data ranks, sharded and replicated") {
  for (const auto& [rule, values] : kKnownAnswers)
    for (const int shards : {7, 1})
      for (const bool resident : {true, false})
        run_ranks(7, [&](Communicator& world) {
          DataRank rank(world, shards, rule_options(rule), resident);
          const std::vector<double> distances = rank.step(kSevenGradients[static_cast<size_t>(world.rank())]);
          rank.expect(values, 1e-9, concat("rule ", static_cast<int>(rule), ", ", shards, " shards"));
          TRIREME_CHECK(distances[0] == 0 && std::abs(distances[3] - 1) < 1e-9 && std::abs(distances[5] - std::sqrt(2)) < 1e-9,
                        "distances of 0, 0.2 and 0.2 sqrt(2), of which 0.2 is the median, are ", distances[0], ", ", distances[3], ", ",
                        distances[5]);
          for (int i = 0; i < 7; ++i)
            TRIREME_CHECK((distances[static_cast<size_t>(i)] > kSuspectDistance) == (i == 6), "data rank ", i, " is ",
                          distances[static_cast<size_t>(i)], " median distances away");
        });
}

TEST_CASE("robust: shards with replicas exchange the copies of all data ranks, and not a rule of rules") {
  // The medians of the even and of the odd data ranks have another median than all of them.
  for (const int shards : {1, 2, 4, 8})
    run_ranks(8, [&](Communicator& world) {
      DataRank rank(world, shards, rule_options(AggregationRule::kMedian));
      rank.step(kEightGradients[static_cast<size_t>(world.rank())]);
      rank.expect({1, 1.95, 3}, 1e-14, concat(shards, " shards"));
    });
}

TEST_CASE("robust: micro-batches that are reduced one by one add up before the rule") {
  run_ranks(8, [](Communicator& world) {
    DataRank rank(world, 4, rule_options(AggregationRule::kMedian), false);
    std::vector<double> half = kEightGradients[static_cast<size_t>(world.rank())];
    for (double& value : half) value /= 2;
    for (int step = 0; step < 2; ++step) {
      rank.grads->begin_step(rank.ctx, step);
      rank.reduce(half);
      rank.reduce(half);
      rank.end_step();
      rank.expect({1, 1.95, 3}, 1e-14, concat("step ", step));
    }
  });
}

TEST_CASE("robust: gradients that are not finite, or absent, count as wrong ones") {
  const auto with = [](int first, const std::vector<double>& value, int count) {
    std::vector<std::vector<double>> all = kSevenGradients;
    for (int i = first; i < first + count; ++i) all[static_cast<size_t>(i)] = value;
    return all;
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& wrong : {std::vector<double>{kNotANumber, 0, 0}, {0, kInf, 0}, {0, 0, -kInf}, {0, 0, 1e160}}) {
    run_ranks(7, [&](Communicator& world) {
      for (const auto& [rule, values] : kAnswersOfSix) {
        DataRank rank(world, 7, rule_options(rule));
        const std::vector<double> distances = rank.step(with(6, wrong, 1)[static_cast<size_t>(world.rank())]);
        rank.expect(values, 1e-12, concat("rule ", static_cast<int>(rule), " without one"));
        TRIREME_CHECK(std::isinf(distances[6]) && distances[0] < 2, "the distance of a data rank that does not take part is ", distances[6]);
      }
    });
    run_ranks(7, [&](Communicator& world) {
      DataRank rank(world, 1, rule_options(AggregationRule::kMedian));
      rank.step(with(5, wrong, 2)[static_cast<size_t>(world.rank())]);
      rank.expect({kNotANumber, kNotANumber, kNotANumber}, 0, "more than f are wrong");
      rank.step(kSevenGradients[static_cast<size_t>(world.rank())]);
      rank.expect({1, 2, 3}, 0, "the step after it");
    });
  }
  run_ranks(7, [&](Communicator& world) {
    DataRank rank(world, 7, rule_options(AggregationRule::kTrimmedMean));
    const std::vector<double> distances = rank.step(with(6, {0, 0, 0}, 1)[static_cast<size_t>(world.rank())], world.rank() == 6);
    rank.expect({1, 2, 18.2 / 6}, 1e-12, "an absent data rank");
    TRIREME_CHECK(std::isinf(distances[6]), "an absent data rank takes part");
  });
}

TEST_CASE("robust: without the first data rank, every rule combines the gradients of the others") {
  // A rule numbers the gradients that take part, which are then those of data ranks 1 to 6.
  const std::vector<double> outlier = kSevenGradients.back();
  for (const bool absent : {false, true}) {
    run_ranks(7, [&](Communicator& world) {
      for (const auto& [rule, values] : kAnswersOfSix) {
        DataRank rank(world, 7, rule_options(rule));
        const bool first = world.rank() == 0;
        const std::vector<double> wrong = absent ? outlier : std::vector<double>{kNotANumber, 0, 0};
        const std::vector<double> distances = rank.step(first ? wrong : kSevenGradients[static_cast<size_t>(world.rank() - 1)], first && absent);
        rank.expect(values, 1e-12, concat("rule ", static_cast<int>(rule), absent ? ", the first absent" : ", the first not finite"));
        TRIREME_CHECK(std::isinf(distances[0]) && distances[6] < 2, "the distance of a data rank that does not take part is ", distances[0]);
      }
    });
  }
}

TEST_CASE("robust: a copy of a parameter that counts in no norm takes no part if it is not finite") {
  constexpr TensorRank kSecond{1, 2};  // the first tensor rank has the primary copy
  run_ranks(7, [&](Communicator& world) {
    DataRank rank(world, 7, rule_options(AggregationRule::kTrimmedMean), true, kSecond);
    const bool last = world.rank() == 6;
    const std::vector<double> distances =
        rank.step(last ? std::vector<double>{0, kNotANumber, 0} : kSevenGradients[static_cast<size_t>(world.rank())]);
    rank.expect({1, 2, 18.2 / 6}, 1e-12, "without the seventh copy");
    TRIREME_CHECK(std::isinf(distances[6]), "the distance of a data rank that does not take part is ", distances[6]);
  });
}

TEST_CASE("robust: two wrong data ranks use up f together, whether they are finite or not") {
  // With f = 2 one NaN leaves f = 1 of six for the outlier.
  run_ranks(7, [](Communicator& world) {
    std::vector<std::vector<double>> all = kSevenGradients;
    all[0] = {kNotANumber, kNotANumber, kNotANumber};
    DataRank rank(world, 7, rule_options(AggregationRule::kTrimmedMean, 2));
    rank.step(all[static_cast<size_t>(world.rank())]);
    rank.expect({(.9 + 1 + 1.1 + 1.2) / 4, (1.8 + 1.9 + 2 + 2.1) / 4, (3 + 3 + 3.1 + 3.2) / 4}, 1e-14, "one trimmed on each side");
  });
}

TEST_CASE("robust: momentum is that of each data rank, and changes in accepted steps only") {
  run_ranks(7, [](Communicator& world) {
    DataRank rank(world, 7, rule_options(AggregationRule::kMedian, 1, 0.75));
    const double sign = world.rank() % 2 == 0 ? 1 : 2;
    const std::vector<double> gradient = {4 * sign, -8 * sign, 12};
    rank.step(gradient);
    rank.expect({1, -2, 3}, 1e-15, "a quarter of the first gradient");  // four ranks of seven have sign 1
    rank.step({400, 400, 400}, false, false);
    rank.step(gradient);
    rank.expect({1.75, -3.5, 5.25}, 1e-15, "after a rejected step");
    // A data rank that sends NaN keeps its momentum.
    rank.step(world.rank() == 0 ? std::vector<double>{kNotANumber, 0, 0} : gradient);
    rank.step(gradient);
    const double four = 4 * (1 - std::pow(0.75, 4));
    rank.expect({four, -2 * four, 3 * four}, 1e-14, "data rank 0 is one step behind, and the median is not its");
    const std::vector<Reducer::State> state = rank.reducer->state(0);
    TRIREME_CHECK(state.size() == 7 && state[3].worker == 3, "one momentum for each data rank");
    if (world.rank() == 0) {  // the first elements
      const double of_first = state[0].tensor.data<double>()[0], of_third = state[2].tensor.data<double>()[0];
      TRIREME_CHECK(std::abs(of_first - 4 * (1 - std::pow(0.75, 3))) < 1e-14, "momentum of data rank 0: ", of_first);
      TRIREME_CHECK(std::abs(of_third - four) < 1e-14, "momentum of data rank 2: ", of_third);
    }
  });
}

TEST_CASE("robust: bytes on the wire are those of the formulas in the header") {
  struct Case {
    int ranks, shards;
  };
  for (const auto& [ranks, shards] : {Case{7, 7}, Case{7, 1}, Case{8, 4}, Case{8, 2}}) {
    for (const AggregationRule rule : {AggregationRule::kMedian, AggregationRule::kKrum}) {
      INFO(ranks << " ranks, " << shards << " shards");
      std::vector<CommunicationRecord> records;
      std::vector<double> forecast(static_cast<size_t>(ranks));
      run_ranks(ranks,
                [&, ranks = ranks, shards = shards](Communicator& world) {
                  DataRank rank(world, shards, rule_options(rule));
                  rank.step({1, 2, static_cast<double>(world.rank())});
                  const int64_t owned = rank.unit.shard_numel();
                  forecast[static_cast<size_t>(world.rank())] = rank.reducer->sent_bytes(Reduction::Kind::kScatter, 0, owned, shards) +
                                                                rank.reducer->sent_bytes(Reduction::Kind::kReplicas, 0, owned, ranks / shards);
                },
                {.records = &records});
      const int64_t shard = Unit::shard_numel(3, shards), replicas = ranks / shards, largest = (shard + replicas - 1) / replicas;
      for (int r = 0; r < ranks; ++r) {
        double exchanged = 0, gathered = 0, reduced = 0;
        for (const auto& [key, entry] : records[static_cast<size_t>(r)].entries) {
          if (key.second == "all_to_all_v") exchanged += entry.wire_bytes;
          if (key.second == "all_gather") gathered += entry.wire_bytes;
          if (key.second == "all_reduce") reduced += entry.wire_bytes;
        }
        const int64_t begin = std::min<int64_t>(r / shards * largest, shard), own = std::min(largest, shard - begin);
        CHECK(exchanged == static_cast<double>(8 * (shard * shards - own)));
        CHECK(gathered == static_cast<double>(8 * (replicas - 1) * largest));
        CHECK(exchanged + gathered == forecast[static_cast<size_t>(r)]);
        const int scalars = ranks + (rule == AggregationRule::kKrum ? ranks * ranks : ranks);
        CHECK(reduced == Approx(2.0 * (ranks - 1) / ranks * 8 * scalars));
      }
    }
  }
}

TEST_CASE("robust: the two copies of a tied parameter are summed before the rule") {
  // Ranks 0 to 2 have the first stage, 3 to 5 the last one. The medians of the stages would add up to 3 + 30.
  run_ranks(6, [](Communicator& world) {
    const int stage = world.rank() / 3, place = world.rank() % 3;
    const std::unique_ptr<Communicator> data = world.group({3 * stage, 3 * stage + 1, 3 * stage + 2}, "data"),
                                        embedding = world.group({place, place + 3}, "embedding"), step = whole_world(world);
    DataRank rank(*data, 3, rule_options(AggregationRule::kMedian));
    const double first[] = {1, 3, 5}, last[] = {50, 10, 30};
    rank.grads->begin_step(rank.ctx, 0);
    rank.reduce({stage == 0 ? first[place] : last[place], 0, 0});
    rank.grads->reduce_tied(rank.ctx, 0, *embedding);
    rank.grads->wait(rank.ctx, 0);
    RobustReducer* const reducers[] = {rank.reducer};
    aggregate(rank.ctx, reducers, *step, place, false);
    rank.expect({35, 0, 0}, 0, "of 1+50, 3+10, 5+30");
  });
}
