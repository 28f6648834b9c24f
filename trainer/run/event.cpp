#include "trainer/run/event.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace trireme {
namespace {

void add_list(const std::string& name, const nlohmann::ordered_json& list, std::vector<Figure>& figures) {
  std::vector<double> values;
  for (const auto& value : list)
    if (value.is_number()) values.push_back(value.get<double>());
  if (values.empty()) return;
  double sum = 0;
  for (const double value : values) sum += value;
  figures.push_back({name, "min", std::ranges::min(values)});
  figures.push_back({name, "mean", sum / static_cast<double>(values.size())});
  figures.push_back({name, "max", std::ranges::max(values)});
}

}  // namespace

std::vector<Figure> figures_of(const Event& event) {
  constexpr std::array<std::string_view, 4> kMeasurements = {"step", "evaluation", "ranks", "exposed"};
  std::vector<Figure> figures;
  const auto kind = std::ranges::find(kMeasurements, event.kind);
  if (kind == kMeasurements.end() || !event.step) return figures;
  const std::string prefix = kind < kMeasurements.begin() + 2 ? "" : event.kind + "/";
  for (const auto& [key, value] : event.fields.items()) {
    if (value.is_number()) figures.push_back({prefix + key, "", value.get<double>()});
    if (value.is_array()) add_list(prefix + key, value, figures);
    if (!value.is_object()) continue;
    for (const auto& [part, inner] : value.items())
      if (inner.is_number()) figures.push_back({prefix + key, part, inner.get<double>()});
  }
  return figures;
}

}  // namespace trireme
