// The likely cause of a difference.
#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "trainer/report/comparison_words.h"

namespace trireme::report {
namespace {

/// The differing keys of some aspects, the first three in words.
std::string keys_text(const std::vector<KeyValues>& keys, const std::set<Aspect>& aspects, const std::set<std::string>& except = {}) {
  constexpr size_t kMost = 3;
  std::vector<std::string> texts;
  for (const KeyValues& one : keys)
    if (one.counts && aspects.contains(one.decides) && !except.contains(one.key)) texts.push_back(key_text(one));
  const size_t more = texts.size() > kMost ? texts.size() - kMost : 0;
  texts.resize(texts.size() - more);
  return joined(texts, ", ") + (more > 0 ? concat(" and ", more, " more") : "");
}

const Part& part(const Comparison& all, const std::string& name) { return *std::ranges::find(all.parts, name, &Part::name); }

std::string damage_cause(const TensorDifference& damaged) {
  std::vector<std::string> sides;
  for (size_t run = 0; run < 2; ++run)
    if (!damaged.damage[run].empty()) sides.push_back(std::string("run ") + kRunNames[run]);
  const bool one_bit = damaged.elements && damaged.elements->bits == 1;
  return concat("the file of ", joined(sides, " and "), " has changed since it was saved: ", one_bit ? "one flipped bit" : "damage", " in ",
                damaged.tensor, " of step ", damaged.step);
}

std::string data_text(const Comparison& all) {
  if (all.checkpoints.tokenizer[0] != all.checkpoints.tokenizer[1]) return "another tokenizer";
  const auto train = std::ranges::find(all.keys, std::string("data.train"), &KeyValues::key);
  return train == all.keys.end() ? "another data set under the same path" : "another data set: " + key_text(*train);
}

/// What explains that training took another course: mathematics first, then what changes only the last bits.
std::string training_cause(const Comparison& all) {
  std::vector<std::string> causes;
  const auto seed = std::ranges::find(all.keys, std::string("run.seed"), &KeyValues::key);
  if (seed != all.keys.end()) causes.push_back(concat("another seed: ", key_text(*seed)));
  if (part(all, "data").result == Result::kDifferent) causes.push_back(data_text(all));
  if (const std::string keys = keys_text(all.keys, {Aspect::kMathematics}, {"run.seed", "data.train"}); !keys.empty())
    causes.push_back("changed keys: " + keys);
  if (!causes.empty()) return joined(causes, "; ");
  if (part(all, "code").result == Result::kDifferent) causes.push_back("another version of the program: " + part(all, "code").detail);
  if (const std::string keys = keys_text(all.keys, {Aspect::kExecution, Aspect::kLayout}); !keys.empty())
    causes.push_back(concat("another order of sums, which changes the last bits: ", keys));
  if (all.splits_from && *all.splits_from <= (all.step ? all.step->step : all.tensor->step))
    causes.push_back(concat("another order of sums, as micro-batches are ", part(all, "micro-batches").detail, " (resilience.rebalance)"));
  const int64_t first = all.step ? all.step->step : all.tensor->step;
  const auto of_layout = std::ranges::find_if(all.jobs, [](const JobDifference& one) { return !one.layout.empty(); });
  if (of_layout != all.jobs.end() && of_layout->step <= first)
    causes.push_back(concat("another order of sums, as the jobs that trained step ", of_layout->step, " differ: ", of_layout->layout));
  if (part(all, "hardware").result == Result::kDifferent) causes.push_back("other hardware: " + part(all, "hardware").detail);
  const auto of_hosts = std::ranges::find_if(all.jobs, [](const JobDifference& one) { return !one.hosts.empty(); });
  if (causes.empty() && of_hosts != all.jobs.end() && of_hosts->step <= first)
    causes.push_back(
        concat("other hosts from step ", of_hosts->step, " on, ", of_hosts->hosts, ", or, if they are alike, a fault of memory or hardware"));
  if (const std::string keys = keys_text(all.keys, {Aspect::kOperation}); causes.empty() && !keys.empty()) causes.push_back("changed keys: " + keys);
  if (!causes.empty()) return joined(causes, "; ");
  if (part(all, "data").result == Result::kUnknown) return "the data, which are not recorded, or a fault of memory or hardware";
  return "nothing that is recorded differs, so a fault of memory or hardware, or a program that is not what its version says";
}

/// Why runs of equal results differ.
std::string circumstantial_cause(const Comparison& all) {
  const std::string keys = keys_text(all.keys, {Aspect::kMathematics, Aspect::kExecution, Aspect::kLayout, Aspect::kOperation}, {"data.train"});
  if (part(all, "steps").result == Result::kDifferent)
    return concat("one run has trained further than the other (steps ", part(all, "steps").detail, ")",
                  keys.empty() ? "" : ", and changed keys: " + keys);
  std::vector<std::string> causes;
  if (!keys.empty()) causes.push_back("changed keys: " + keys);
  if (part(all, "data").result == Result::kDifferent) causes.push_back(data_text(all));
  if (part(all, "code").result == Result::kDifferent) causes.push_back("another version of the program: " + part(all, "code").detail);
  if (part(all, "hardware").result == Result::kDifferent) causes.push_back("other hardware: " + part(all, "hardware").detail);
  if (!all.checkpoints.unreadable.empty()) causes.push_back("a checkpoint that cannot be read: " + all.checkpoints.unreadable.front());
  return joined(causes, "; ") + "; the results that both runs have are equal";
}

}  // namespace

std::string cause_of(const Comparison& all) {
  if (all.equal()) return "";
  const bool tensors_trained_apart =
      std::ranges::any_of(all.checkpoints.tensors, [](const TensorDifference& one) { return one.damage[0].empty() && one.damage[1].empty(); });
  if (all.step || tensors_trained_apart) return training_cause(all);
  if (!all.checkpoints.damaged.empty()) return damage_cause(all.checkpoints.damaged.front());
  return circumstantial_cause(all);
}

}  // namespace trireme::report
