#include "trainer/loop/histograms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/ops/transfer.h"

namespace trireme {
namespace {

constexpr size_t kKinds = 2;  // weights, gradients

/// Finds the bin of a value.
class BinSearch {
 public:
  BinSearch() : limits_(histogram_limits()), first_(kEntries) {
    for (uint32_t entry = 0; entry < kEntries; ++entry) {
      const auto value = static_cast<double>(std::bit_cast<float>(entry << 16));
      if (std::isfinite(value)) first_[entry] = static_cast<uint16_t>(std::ranges::upper_bound(limits_, value) - limits_.begin());
    }
  }
  size_t operator()(double value) const {
    constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());  // above it is no limit but the largest double
    const auto near = static_cast<float>(std::clamp(value, -kMost, kMost));
    size_t bin = first_[std::bit_cast<uint32_t>(near) >> 16];
    while (bin > 0 && value < limits_[bin - 1]) --bin;
    while (bin + 1 < limits_.size() && value >= limits_[bin]) ++bin;
    return bin;
  }

 private:
  static constexpr uint32_t kEntries = 1U << 16;

  const std::vector<double>& limits_;
  /// Where the search begins: by sign, exponent and the first bits of the significand of a float. At most one limit follows in the same entry.
  std::vector<uint16_t> first_;
};

const BinSearch& bin_search() {
  static const BinSearch search;
  return search;
}

template <class T>
void count(const T* values, int64_t number, double factor, double* counts) {
  const BinSearch& bin_of = bin_search();
  for (int64_t i = 0; i < number; ++i) {
    const double value = static_cast<double>(values[i]) * factor;
    if (std::isfinite(value)) ++counts[bin_of(value)];
  }
}

}  // namespace

const std::vector<double>& histogram_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

size_t histogram_bin(double value) { return bin_search()(value); }

std::vector<Histogram> parameter_histograms(Trainer& trainer, double loss_scale) {
  const std::vector<std::string> groups = layer_groups(trainer.config().model);
  std::map<std::string, size_t> places;
  for (const std::string& group : groups) places.emplace(group, places.size());
  const size_t bins = histogram_limits().size();
  const Tensor counts = host_tensor({static_cast<int64_t>(kKinds * groups.size() * bins)}, DType::kF64);  // exact up to 2^53
  std::fill_n(counts.data<double>(), counts.numel(), 0.0);
  Context& ctx = trainer.context();
  const auto add = [&](const Tensor& shard, double factor, size_t kind, size_t group) {
    const Tensor values = to_host(ctx, shard);
    dispatch_float(values.dtype(), [&]<class T>(T) {
      count(values.data<T>(), values.numel(), factor, counts.data<double>() + (kind * groups.size() + group) * bins);
    });
  };
  for (const auto& stage : trainer.stages()) {
    if (!trainer.counts_shard()) break;
    const ParamStore& params = stage->params();
    for (size_t u = 0; u < params.units().size(); ++u) {
      const int unit = static_cast<int>(u);
      const Unit& of = *params.units()[u];
      for (const Unit::Segment& segment : counted_segments(of)) {
        const size_t group = places.at(layer_group(segment.spec->name));
        add(of.slice(params.master(unit), segment), 1, 0, group);
        if (of.trainable()) add(of.slice(stage->grads().shard(unit), segment), 1 / loss_scale, 1, group);
      }
    }
  }
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  trainer.mesh().step.all_reduce(host, counts, ReduceOp::kSum).wait(host);
  const std::vector<std::string> trained = trainable_layer_groups(trainer.config().model);
  std::vector<Histogram> histograms;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (size_t group = 0; group < groups.size(); ++group) {
      if (kind > 0 && std::ranges::find(trained, groups[group]) == trained.end()) continue;
      const double* const from = counts.data<double>() + (kind * groups.size() + group) * bins;
      histograms.push_back({(kind == 0 ? "weights/" : "gradients/") + groups[group], {}});
      std::transform(from, from + bins, std::back_inserter(histograms.back().counts), [](double count) { return static_cast<int64_t>(count); });
    }
  }
  return histograms;
}

}  // namespace trireme
