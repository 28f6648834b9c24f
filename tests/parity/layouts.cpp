#include "tests/parity/layouts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <random>

namespace trireme::test {
namespace {

constexpr ParityModel kModels[] = {ParityModel::kLlamaGrouped, ParityModel::kLlama,   ParityModel::kGpt2,
                                   ParityModel::kGpt2Dropout,  ParityModel::kGptNeoX, ParityModel::kGemma3};

bool is_distinct(const ParityLayout& layout) {
  if (layout.zero == 0 && layout.replicate > 1) return false;  // ZeRO-0 replicates over all data ranks
  if (layout.zero < 2 && layout.gradient_accumulation == GradientAccumulation::kSharded) return false;
  if (layout.secondary > 0 && (layout.zero != 3 || layout.reshard != Reshard::kAfterUse || layout.data / layout.replicate != 4)) return false;
  return layout.zero == 3 || layout.reshard == Reshard::kAfterUse;
}

/// The other options of the n-th case: mixed-radix digits with a stride coprime to all of them, dropped where they do not apply.
ParityLayout with_finer_options(ParityLayout layout, ParityModel model, size_t n) {
  size_t digits = n * 37;
  const auto next = [&](size_t radix) {
    const size_t digit = digits % radix;
    digits /= radix;
    return digit;
  };
  ParityLayout fine = layout;
  fine.gradient_accumulation = static_cast<GradientAccumulation>(next(3));
  fine.reshard = next(2) ? Reshard::kAfterStep : Reshard::kAfterUse;
  fine.prefetch = static_cast<int>(next(3));
  fine.micro_batch = std::vector<int>{1, 2, 3, 4}[next(4)];
  if (layout.pipeline > 1 && next(2)) {  // uneven on purpose: the last stage takes the rest
    fine.layers_per_stage.assign(static_cast<size_t>(layout.pipeline), 1);
    fine.layers_per_stage.back() = 5 - (layout.pipeline - 1);
  }
  if (fine.zero < 2 && fine.gradient_accumulation == GradientAccumulation::kSharded) fine.gradient_accumulation = GradientAccumulation::kAuto;
  if (fine.zero != 3) fine.reshard = Reshard::kAfterUse;
  while (!is_legal(model, fine)) fine.micro_batch = fine.micro_batch == 1 ? 4 : fine.micro_batch - 1;
  return fine;
}

}  // namespace

std::vector<ParityCase> all_parity_cases() {
  std::vector<ParityCase> cases;
  for (const ParityModel model : kModels)
    for (int tensor = 1; tensor <= 4; ++tensor)
      for (int pipeline = 1; pipeline <= 4; ++pipeline)
        for (int data = 1; data <= 4; ++data)
          for (int zero = 0; zero <= 3; ++zero)
            for (int replicate = 1; replicate <= data; ++replicate)
              for (const bool sequence_parallel : {false, true})
                for (ScheduleKind schedule : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
                  ParityLayout layout;
                  layout.tensor = tensor;
                  layout.pipeline = pipeline;
                  layout.data = data;
                  layout.zero = zero;
                  layout.replicate = replicate;
                  layout.sequence_parallel = sequence_parallel;
                  layout.schedule = schedule;
                  if (layout.world() > 8 || data % replicate != 0 || !is_distinct(layout) || !is_legal(model, layout)) continue;
                  cases.push_back({model, with_finer_options(layout, model, cases.size())});
                }
  return cases;
}

namespace {

/// Indices of the options in a Choice.
enum Option {
  kModel,
  kTensor,
  kPipeline,
  kData,
  kZero,
  kReplicate,
  kSequenceParallel,
  kOrder,
  kAccumulation,
  kReshard,
  kPrefetch,
  kMicroBatch,
  kUneven,
  kRecompute,
  kBucket,
  kOptimizer,
  kAverage,
  kWindow,
  kCollectives,
  kIslands,
  kBalance,
  kRebalance,
  kSecondary,
  kBlock,
  kFrozen,
  kAdapter,
};
constexpr Choice kValues = {6, 4, 4, 4, 4, 4, 2, 8, 3, 2, 3, 4, 5, 5, 2, 3, 2, 3, 7, 3, 3, 3, 2, 3, 2, 2};  ///< number of values per option
constexpr int kUnset = -1;
constexpr int kElastic = 2;  ///< value of kRebalance

/// Values of kUneven.
enum Split { kEvenSplit, kUnevenSplit, kEmptyFirst, kEmptyLast, kEmptyEnds };

constexpr Optimizer kOptimizersTried[] = {Optimizer::kAdamW, Optimizer::kLion, Optimizer::kMuon};

struct Order {
  ScheduleKind schedule;
  int virtual_stages;
};
struct Recomputation {
  RecomputeMode mode;
  int every;
  bool elementwise = true;
};
constexpr Order kOrders[] = {{ScheduleKind::kGPipe, 1},
                             {ScheduleKind::k1F1B, 1},
                             {ScheduleKind::kZbH1, 1},
                             {ScheduleKind::kZbH2, 1},
                             {ScheduleKind::kInterleaved1F1B, 1},
                             {ScheduleKind::kInterleaved1F1B, 2},
                             {ScheduleKind::kInterleaved1F1B, 3},
                             {ScheduleKind::kZbV, 2}};
constexpr int kInterleavedTwice = 5, kInterleavedThrice = 6;
constexpr Recomputation kRecomputes[] = {{RecomputeMode::kNone, 1},
                                         {RecomputeMode::kSelective, 1},
                                         {RecomputeMode::kFull, 1},
                                         {RecomputeMode::kFull, 2},
                                         {RecomputeMode::kNone, 1, false}};

/// At least one layer per stage; the rest is added in lumps to stages drawn by `seed`.
std::vector<int64_t> uneven_layers(int64_t layers, int64_t stages, uint64_t seed) {
  std::vector<int64_t> split(static_cast<size_t>(stages), 1);
  std::mt19937_64 random(seed);
  for (int64_t rest = layers - stages; rest > 0;) {
    const int64_t lump = std::min<int64_t>(rest, 1 + static_cast<int64_t>(random() % 4));
    split[random() % split.size()] += lump;
    rest -= lump;
  }
  return split;
}

/// The first stage, the last, or both have no layer.
std::vector<int64_t> layers_with_empty_ends(int split, int64_t layers, int64_t stages, uint64_t seed) {
  const bool first = split != kEmptyLast, last = split != kEmptyFirst;
  std::vector<int64_t> of_stages = uneven_layers(layers, stages - (first && last ? 2 : 1), seed);
  if (first) of_stages.insert(of_stages.begin(), 0);
  if (last) of_stages.push_back(0);
  return of_stages;
}

/// Stages without which the layers cannot be split in this way.
int64_t least_stages(int split) { return split <= kEvenSplit ? 1 : split == kEmptyEnds ? 3 : 2; }

/// Completes `part` to a legal choice, if there is one: options that are not set get the value that restricts the set ones least.
Choice completed(Choice part) {
  const auto set = [&](Option option, int value) {
    if (part[option] == kUnset) part[option] = value;
  };
  set(kTensor, 0);
  set(kModel, part[kTensor] == 3 ? 0 : 1);  // 4 tensor ranks share 2 kv heads; 1, 2 or 3 ranks split 6 heads evenly
  if (part[kRebalance] == kElastic) {       // 4 data ranks with micro-batches of 2 sequences, 3 with 3, 2 with 4
    set(kData, part[kMicroBatch] > 0 ? 4 - part[kMicroBatch] : part[kSecondary] == 1 ? 3 : std::max(part[kReplicate], 1));
    set(kMicroBatch, 4 - part[kData]);
  }
  set(kReplicate, 0);
  set(kData, part[kSecondary] == 1 ? 3 : part[kRebalance] == 1 ? std::max(part[kReplicate], 1) : part[kReplicate]);
  // Virtual stages add stages without ranks.
  const auto stages = static_cast<int>(least_stages(part[kUneven]));
  const int interleaved = stages == 3 ? kInterleavedThrice : kInterleavedTwice;
  set(kOrder, stages > 1 && part[kPipeline] + 1 < stages ? interleaved : 1);
  set(kPipeline, (stages - 1) / kOrders[part[kOrder]].virtual_stages);
  set(kZero, 3);
  for (int option = 0; option < kOptions; ++option) set(static_cast<Option>(option), 0);
  return part;
}

/// The combinations of values of some options that are not covered yet.
struct Combinations {
  std::vector<int> options;
  std::vector<char> missing;

  /// Index in `missing` of the values of `choice`; -1 if one is not set.
  int64_t place(const Choice& choice) const {
    int64_t at = 0;
    for (const int option : options) {
      const auto o = static_cast<size_t>(option);
      if (choice[o] == kUnset) return -1;
      at = at * kValues[o] + choice[o];
    }
    return at;
  }
  bool misses(const Choice& choice) const {
    const int64_t at = place(choice);
    return at >= 0 && missing[static_cast<size_t>(at)] != 0;
  }
};

class Cover {
 public:
  explicit Cover(int strength) {
    Choice empty;
    empty.fill(kUnset);
    for (unsigned subset = 0; subset < 1U << kOptions; ++subset) {
      if (std::popcount(subset) != strength) continue;
      Combinations& set = sets_.emplace_back();
      for (int option = 0; option < kOptions; ++option)
        if ((subset >> option & 1U) != 0) set.options.push_back(option);
      add_legal(set, empty, 0);
    }
    for (size_t s = 0; s < sets_.size(); ++s)
      for (const int option : sets_[s].options) sets_of_[static_cast<size_t>(option)].push_back(s);
  }

  std::vector<Choice> choices() {
    constexpr int kCandidates = 30;
    std::vector<Choice> chosen;
    while (!uncovered_.empty()) {
      Choice best{};
      int64_t most = 0;
      for (int candidate = 0; candidate < kCandidates; ++candidate) {
        const Choice choice = grown(uncovered_[random_() % uncovered_.size()]);
        const int64_t gain = std::count_if(sets_.begin(), sets_.end(), [&](const Combinations& set) { return set.misses(choice); });
        if (gain > most) {
          most = gain;
          best = choice;
        }
      }
      chosen.push_back(best);
      for (Combinations& set : sets_) set.missing[static_cast<size_t>(set.place(best))] = 0;
      std::erase_if(uncovered_, [&](const Choice& part) {
        return std::equal(part.begin(), part.end(), best.begin(), [](int wanted, int value) { return wanted == kUnset || wanted == value; });
      });
    }
    return chosen;
  }

 private:
  void add_legal(Combinations& set, Choice part, size_t next) {
    if (next == set.options.size()) {
      const bool legal = is_legal(completed(part));
      set.missing.push_back(legal);
      if (legal) uncovered_.push_back(part);
      return;
    }
    const auto option = static_cast<size_t>(set.options[next]);
    for (int value = 0; value < kValues[option]; ++value) {
      part[option] = value;
      add_legal(set, part, next + 1);
    }
  }

  /// `part` with the other options set one by one, in random order, each to the value that covers most.
  Choice grown(Choice part) {
    std::vector<size_t> order;
    for (size_t option = 0; option < kOptions; ++option)
      if (part[option] == kUnset) order.push_back(option);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
    for (const size_t option : order) {
      int best = kUnset;
      int64_t most = -1;
      const uint64_t turn = random_();
      for (int v = 0; v < kValues[option]; ++v) {
        part[option] = static_cast<int>((static_cast<uint64_t>(v) + turn) % static_cast<uint64_t>(kValues[option]));
        if (!is_legal(completed(part))) continue;
        const auto& sets = sets_of_[option];
        const int64_t gain = std::count_if(sets.begin(), sets.end(), [&](size_t s) { return sets_[s].misses(part); });
        if (gain > most) {
          most = gain;
          best = part[option];
        }
      }
      part[option] = best;
    }
    return part;
  }

  std::vector<Combinations> sets_;
  std::array<std::vector<size_t>, kOptions> sets_of_;  ///< by option
  std::vector<Choice> uncovered_;
  std::mt19937_64 random_{1};
};

}  // namespace

ParityCase case_of(const Choice& choice) {
  const Order& order = kOrders[choice[kOrder]];
  const Recomputation& recompute = kRecomputes[choice[kRecompute]];
  ParityLayout layout;
  layout.layers = 13;
  layout.tensor = 1 + choice[kTensor];
  layout.pipeline = 1 + choice[kPipeline];
  layout.data = 1 + choice[kData];
  layout.zero = choice[kZero];
  layout.replicate = 1 + choice[kReplicate];
  layout.sequence_parallel = choice[kSequenceParallel] == 1;
  layout.schedule = order.schedule;
  layout.virtual_stages = order.virtual_stages;
  layout.gradient_accumulation = static_cast<GradientAccumulation>(choice[kAccumulation]);
  layout.reshard = choice[kReshard] == 1 ? Reshard::kAfterStep : Reshard::kAfterUse;
  layout.prefetch = choice[kPrefetch];
  layout.micro_batch = 1 + choice[kMicroBatch];
  layout.recompute = recompute.mode;
  layout.recompute_every = recompute.every;
  layout.recompute_elementwise = recompute.elementwise;
  layout.bucket_blocks = 1 + choice[kBucket];
  layout.optimizer = kOptimizersTried[choice[kOptimizer]];
  layout.ema = choice[kAverage] == 1 ? 0.2 : 0;  // below the warm-up's decay from the third step on
  layout.window = choice[kWindow] > 0 ? 4 : 0;   // of 12 tokens
  layout.window_on_all = choice[kWindow] != 2;
  layout.collectives = static_cast<Collectives>(choice[kCollectives]);
  layout.islands = choice[kIslands] > 0 ? 2 : 1;
  layout.fragments = choice[kIslands] > 1 ? 3 : 1;
  layout.documents = choice[kBalance] > 0;
  layout.balance = choice[kBalance] == 2;
  layout.rebalance = choice[kRebalance] == 1;
  layout.elastic = choice[kRebalance] == kElastic;
  layout.secondary = choice[kSecondary] == 1 ? 2 : 0;
  layout.block = static_cast<ParityBlock>(choice[kBlock]);
  layout.frozen = choice[kFrozen] == 1;
  layout.adapter = choice[kAdapter] == 1;
  uint64_t seed = 0;
  for (const int value : choice) seed = seed * 8 + static_cast<uint64_t>(value);
  const int64_t stages = layout.stages();
  if (choice[kUneven] == kUnevenSplit) layout.layers_per_stage = uneven_layers(layout.layers, stages, seed);
  if (choice[kUneven] > kUnevenSplit && stages >= least_stages(choice[kUneven]))
    layout.layers_per_stage = layers_with_empty_ends(choice[kUneven], layout.layers, stages, seed);
  return {kModels[choice[kModel]], layout};
}

bool is_legal(const Choice& choice) {
  if ((1 + choice[kPipeline]) * kOrders[choice[kOrder]].virtual_stages < least_stages(choice[kUneven])) return false;
  const auto& [model, layout] = case_of(choice);
  return layout.world() <= 8 && is_distinct(layout) && is_legal(model, layout);
}

std::vector<Choice> covering_choices(int strength) { return Cover(strength).choices(); }

std::vector<ParityCase> covering_parity_cases(int strength) {
  std::vector<ParityCase> cases;
  for (const Choice& choice : covering_choices(strength)) cases.push_back(case_of(choice));
  return cases;
}

std::vector<Choice> random_choices(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Choice> choices;
  while (choices.size() < count) {
    Choice choice;
    for (size_t option = 0; option < kOptions; ++option) choice[option] = static_cast<int>(random() % static_cast<uint64_t>(kValues[option]));
    if (is_legal(choice)) choices.push_back(choice);
  }
  return choices;
}

}  // namespace trireme::test
