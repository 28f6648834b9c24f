#include "tests/parity/layouts.h"

#include <set>

namespace trireme::test {
namespace {

constexpr ParityModel kModels[] = {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout};

bool is_distinct(const Layout& layout) {
  if (layout.zero == 0 && layout.replicate > 1) return false;  // ZeRO-0 is all replicas already
  if (layout.zero < 2 && layout.accumulation == "sharded") return false;
  return layout.zero == 3 || layout.reshard == "after_use";
}

/// The options of a case, each as (which option, which value), for counting pairs.
std::vector<std::pair<int, int>> values_of(const ParityCase& c) {
  const Layout& l = c.layout;
  return {{0, static_cast<int>(c.model)},
          {1, l.tensor},
          {2, l.pipeline},
          {3, l.data},
          {4, l.zero},
          {5, l.replicate},
          {6, l.sequence_parallel},
          {7, l.schedule == "gpipe"},
          {8, l.accumulation == "auto"   ? 0
              : l.accumulation == "full" ? 1
                                         : 2},
          {9, l.reshard == "after_step"},
          {10, l.prefetch},
          {11, l.micro_batch},
          {12, static_cast<int>(!l.layers_per_stage.empty())}};
}

/// The finer options of the n-th case: mixed-radix digits of a stride that is prime to all of them, dropped where they do not apply.
Layout with_finer_options(Layout layout, ParityModel model, size_t n) {
  size_t digits = n * 37;
  const auto next = [&](size_t radix) {
    const size_t digit = digits % radix;
    digits /= radix;
    return digit;
  };
  Layout fine = layout;
  fine.accumulation = std::vector<std::string>{"auto", "full", "sharded"}[next(3)];
  fine.reshard = next(2) ? "after_step" : "after_use";
  fine.prefetch = static_cast<int>(next(3));
  fine.micro_batch = std::vector<int>{1, 2, 3, 4}[next(4)];
  if (layout.pipeline > 1 && next(2)) {  // uneven on purpose: the last stage takes the rest
    fine.layers_per_stage.assign(static_cast<size_t>(layout.pipeline), 1);
    fine.layers_per_stage.back() = 5 - (layout.pipeline - 1);
  }
  if (fine.zero < 2 && fine.accumulation == "sharded") fine.accumulation = "auto";
  if (fine.zero != 3) fine.reshard = "after_use";
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
                for (const char* schedule : {"gpipe", "1f1b"}) {
                  Layout layout;
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

std::vector<ParityCase> pairwise_parity_cases() {
  const std::vector<ParityCase> all = all_parity_cases();
  using Pair = std::pair<std::pair<int, int>, std::pair<int, int>>;
  std::vector<std::vector<Pair>> pairs_of;
  std::set<Pair> missing;
  for (const ParityCase& c : all) {
    const auto values = values_of(c);
    auto& pairs = pairs_of.emplace_back();
    for (size_t i = 0; i < values.size(); ++i)
      for (size_t j = i + 1; j < values.size(); ++j) pairs.push_back({values[i], values[j]});
    missing.insert(pairs.begin(), pairs.end());
  }
  std::vector<ParityCase> chosen;
  while (!missing.empty()) {
    size_t best = 0, most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      size_t gain = 0;
      for (const Pair& pair : pairs_of[i]) gain += missing.count(pair);
      if (gain > most) {
        most = gain;
        best = i;
      }
    }
    for (const Pair& pair : pairs_of[best]) missing.erase(pair);
    chosen.push_back(all[best]);
  }
  return chosen;
}

}  // namespace trireme::test
