#include "trainer/privacy/history.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "parallel/crypto/sodium.h"
#include "trainer/files/strict_json.h"

namespace trireme::privacy {
namespace {

PrivateSteps steps_of(const Segment& segment, int64_t steps) { return {segment.mechanism.sampling_rate, segment.mechanism.noise, steps}; }

/// The segment of `history` with the lineage and place of `segment`, or end().
History::iterator find(History& history, const Segment& segment) {
  return std::ranges::find_if(history, [&](const Segment& one) {
    return one.lineage == segment.lineage && one.first == segment.first && one.mechanism == segment.mechanism;
  });
}

double number_member(const nlohmann::json& object, const char* key, double most, const std::string& where) {
  const nlohmann::json& value = member(object, key, where);
  if (!value.is_number() || !(value.get<double>() >= 0) || !(value.get<double>() <= most))
    throw DataError(concat(where, ": \"", key, "\": is not a number from 0 to ", most));
  return value.get<double>();
}

}  // namespace

std::vector<PrivateSteps> steps_of(const History& history) {
  std::vector<PrivateSteps> all;
  for (const Segment& segment : history) all.push_back(steps_of(segment, segment.steps));
  return all;
}

int64_t count_of(std::span<const PrivateSteps> steps) {
  int64_t sum = 0;
  for (const PrivateSteps& one : steps) sum += one.steps;
  return sum;
}

/// The texts are told apart by the length of the first.
std::string lineage_of(std::string_view before, std::string_view changes) {
  const crypto::Hash hash = crypto::sha256(concat("privacy lineage ", before.size(), "\n", before, changes));
  return crypto::hex({hash.data(), 16});
}

bool continues(const History& saved, const Mechanism& now, std::string_view changes) {
  return !saved.empty() && changes.empty() && saved.back().mechanism == now;
}

History continued(const History& saved, const History& known, int64_t step, const Mechanism& now, std::string_view changes) {
  History history = saved;
  for (const Segment& segment : known) {
    const auto same = find(history, segment);
    if (same == history.end())
      history.insert(history.begin(), segment);
    else
      same->steps = std::max(same->steps, segment.steps);
  }
  if (continues(saved, now, changes)) return history;
  const std::string what = concat(step, "\n", now.key, "\n", nlohmann::json({now.sampling_rate, now.noise}).dump(), "\n", changes);
  Segment next{lineage_of(saved.empty() ? "" : saved.back().lineage, what), now, step, 0};
  if (const auto same = find(history, next); same != history.end()) {
    next = *same;
    history.erase(same);
  }
  history.push_back(next);
  return history;
}

void release(History& history, int64_t step) {
  TRIREME_CHECK(!history.empty() && step >= history.back().first, "step ", step, " before its segment");
  history.back().steps = std::max(history.back().steps, step - history.back().first);
}

nlohmann::ordered_json to_json(const History& history) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Segment& segment : history)
    list.push_back({{"lineage", segment.lineage},
                    {"key", segment.mechanism.key},
                    {"sampling_rate", segment.mechanism.sampling_rate},
                    {"noise", segment.mechanism.noise},
                    {"first", segment.first},
                    {"steps", segment.steps}});
  return list;
}

History parse_history(const nlohmann::json& list, const std::string& where) {
  constexpr int64_t kMost = int64_t{1} << 53;
  if (!list.is_array()) throw DataError(where + ": is not a list");
  History history;
  for (const nlohmann::json& value : list) {
    require_known_keys(value, {"lineage", "key", "sampling_rate", "noise", "first", "steps"}, where);
    Segment segment;
    segment.lineage = string_member(value, "lineage", where);
    segment.mechanism = {number_member(value, "sampling_rate", 1, where), number_member(value, "noise", 1e300, where),
                         string_member(value, "key", where)};
    segment.first = integer_member(value, "first", where, 0, kMost);
    segment.steps = integer_member(value, "steps", where, 0, kMost);
    history.push_back(segment);
  }
  return history;
}

}  // namespace trireme::privacy
