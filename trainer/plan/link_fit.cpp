#include "trainer/plan/link_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "kernels/core/check.h"
#include "trainer/config/cluster_visit.h"

namespace trireme {
namespace {

constexpr size_t kFewestSamples = 3, kMostRanges = 4;
constexpr double kTolerance = 0.1;

using Samples = std::vector<SizeSample>;

double model_of(const SizeRange& range, const SizeSample& sample) { return range.alpha + range.beta * sample.bytes; }

/// The line through samples[begin, end). Errors are relative to the model of the previous round: relative to the measurement they would favour the
/// fastest samples.
SizeRange line_through(const Samples& samples, size_t begin, size_t end) {
  constexpr int kRounds = 8;
  SizeRange range{.first = samples[begin].bytes, .last = samples[end - 1].bytes, .samples = static_cast<int64_t>(end - begin)};
  for (int round = 0; round < kRounds; ++round) {
    double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;  // normal equations of sum ((alpha + beta x - t) / scale)^2
    for (size_t i = begin; i < end; ++i) {
      const double scale = round == 0 ? samples[i].seconds : std::max(model_of(range, samples[i]), samples[i].seconds / 4);
      const double a = 1 / scale, b = samples[i].bytes / scale, t = samples[i].seconds / scale;
      aa += a * a;
      ab += a * b;
      bb += b * b;
      a1 += a * t;
      b1 += b * t;
    }
    const double determinant = aa * bb - ab * ab;
    range.alpha = (a1 * bb - b1 * ab) / determinant;
    range.beta = (b1 * aa - a1 * ab) / determinant;
    if (range.alpha < 0) {
      range.alpha = 0;
      range.beta = b1 / bb;
    } else if (range.beta < 0) {
      range.beta = 0;
      range.alpha = a1 / aa;
    }
  }
  for (size_t i = begin; i < end; ++i) range.worst = std::max(range.worst, std::abs(model_of(range, samples[i]) / samples[i].seconds - 1));
  return range;
}

double squared_error(const SizeRange& range, const Samples& samples, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += std::pow(std::log(model_of(range, samples[i]) / samples[i].seconds), 2);
  return sum;
}

/// The best split into `count` ranges, by dynamic programming over the place at which the last range begins.
std::vector<SizeRange> split_into(const Samples& samples, size_t count) {
  const size_t n = samples.size();
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(n + 1, kImpossible));
  std::vector<std::vector<size_t>> begins(count + 1, std::vector<size_t>(n + 1, 0));
  least[0][0] = 0;
  for (size_t k = 1; k <= count; ++k)
    for (size_t end = k * kFewestSamples; end <= n; ++end)
      for (size_t begin = (k - 1) * kFewestSamples; begin + kFewestSamples <= end; ++begin) {
        const double error = least[k - 1][begin] + squared_error(line_through(samples, begin, end), samples, begin, end);
        if (error >= least[k][end]) continue;
        least[k][end] = error;
        begins[k][end] = begin;
      }
  std::vector<SizeRange> ranges;
  for (size_t k = count, end = n; k > 0; end = begins[k--][end]) ranges.push_back(line_through(samples, begins[k][end], end));
  std::ranges::reverse(ranges);
  return ranges;
}

double worst_of(const std::vector<SizeRange>& ranges) { return std::ranges::max_element(ranges, {}, &SizeRange::worst)->worst; }

/// Rounds to four significant digits.
double four_digits(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

LinkRanges* ranges_of(const std::string& operation, LinkConfig& link) {
  if (operation == "all_reduce") return &link.all_reduce;
  if (operation == "all_gather") return &link.all_gather;
  if (operation == "reduce_scatter") return &link.reduce_scatter;
  return operation == "send_receive" ? &link.send : nullptr;
}

}  // namespace

std::vector<SizeRange> fit_ranges(Samples samples) {
  if (samples.size() < kFewestSamples)
    throw ConfigError(concat("a fit needs timings of at least ", kFewestSamples, " sizes; ", samples.size(), " were given"));
  std::ranges::sort(samples, {}, &SizeSample::bytes);
  std::vector<SizeRange> ranges;
  for (size_t count = 1; count <= std::min(kMostRanges, samples.size() / kFewestSamples); ++count) {
    ranges = split_into(samples, count);
    if (worst_of(ranges) <= kTolerance) break;
  }
  return ranges;
}

double range_seconds(const std::vector<SizeRange>& ranges, double bytes) {
  const SizeRange* chosen = &ranges.front();
  for (const SizeRange& range : ranges)
    if (range.first <= bytes) chosen = &range;
  return chosen->alpha + chosen->beta * bytes;
}

LinkRanges link_ranges(const std::string& operation, int64_t ranks, const std::vector<SizeRange>& ranges) {
  const auto n = static_cast<double>(ranks);
  const bool message = operation == "send_receive";
  const double passes = operation == "all_reduce" ? 2 : 1;
  const double hops = message ? 1 : passes * (n - 1), wire = message ? 1 : passes * (n - 1) / n;
  LinkRanges link;
  link.from.emplace();
  link.latency.emplace();
  link.bandwidth.emplace();
  for (const SizeRange& range : ranges) {
    link.from->push_back(static_cast<int64_t>(range.first));
    link.latency->push_back(std::min(1.0, four_digits(range.alpha / hops)));
    link.bandwidth->push_back(range.beta > 0 ? std::clamp(four_digits(wire / range.beta), 1.0, kMostBytes) : kMostBytes);
  }
  return link;
}

nlohmann::ordered_json fit_comm(nlohmann::ordered_json& rows, int64_t ranks, LinkConfig& link) {
  std::map<std::string, Samples> samples;
  for (const auto& row : rows)
    if (ranges_of(row["operation"], link) != nullptr)
      samples[row["operation"]].push_back({row["bytes"].get<double>(), row["low"].get<double>() / 1e6});
  std::map<std::string, std::vector<SizeRange>> fits;
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const auto& [operation, of_operation] : samples) {
    const std::vector<SizeRange>& ranges = fits[operation] = fit_ranges(of_operation);
    LinkRanges& fitted = *ranges_of(operation, link) = link_ranges(operation, ranks, ranges);
    for (size_t i = 0; i < ranges.size(); ++i)
      table.push_back({{"operation", operation},
                       {"from", (*fitted.from)[i]},
                       {"to", static_cast<int64_t>(ranges[i].last)},
                       {"samples", ranges[i].samples},
                       {"latency", (*fitted.latency)[i]},
                       {"bandwidth", (*fitted.bandwidth)[i]},
                       {"worst_error", ranges[i].worst}});
  }
  for (auto& row : rows) {
    const auto fit = fits.find(row["operation"]);
    const double measured = row["low"];
    const double model = fit == fits.end() ? 0 : 1e6 * range_seconds(fit->second, row["bytes"]);
    row["model_microseconds"] = fit == fits.end() ? nlohmann::ordered_json() : nlohmann::ordered_json(model);
    row["error"] = fit == fits.end() ? nlohmann::ordered_json() : nlohmann::ordered_json(model / measured - 1);
  }
  return table;
}

}  // namespace trireme
