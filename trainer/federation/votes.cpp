#include "trainer/federation/votes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trireme::federation {

std::optional<double> upper_median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  for (double& value : values)
    if (!std::isfinite(value)) value = std::numeric_limits<double>::infinity();
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::optional<double> agreed_loss(const Losses& losses) {
  std::vector<double> values;
  for (const auto& [member, loss] : losses) values.push_back(loss);
  return upper_median(std::move(values));
}

std::optional<double> agreed_increase(const Losses& before, const Losses& after) {
  std::vector<double> increases;
  for (const auto& [member, loss] : after)
    if (const auto found = before.find(member); found != before.end() && std::isfinite(found->second)) increases.push_back(loss - found->second);
  return upper_median(std::move(increases));
}

int64_t whole_weight(std::span<const int64_t> sequences) {
  if (sequences.empty()) return 1;
  const int64_t most = std::ranges::max(sequences), others = std::reduce(sequences.begin(), sequences.end()) - most;
  return others > 0 ? std::min(most, others) : most;
}

double weight_of(int64_t sequences, int64_t whole) { return std::min(1.0, static_cast<double>(sequences) / static_cast<double>(whole)); }

}  // namespace trireme::federation
