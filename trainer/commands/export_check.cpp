#include "trainer/commands/export_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/rng.h"
#include "trainer/commands/checkpoint_model.h"

namespace trireme {
namespace {

constexpr int64_t kMostTokens = 64;

struct Loaded {
  Loaded(const std::string& path, WeightKind kind, Adapters adapters, const RankPlace& place) : model(path, kind, adapters) {
    Config& config = model.config();
    config.run.device = DeviceType::kCpu;
    config.kernels = {};  // the same for both
    config.training.precision = Arithmetic::kFp32;
    config.training.micro_batch_size = config.training.global_batch_size = 1;
    length = config.training.sequence_length = std::min(kMostTokens, *config.model.max_positions);
    trainer = &model.load(place);
  }

  std::vector<int32_t> tokens() {
    const uint64_t key = random_key(0, "export check");
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i)
      ids.push_back(static_cast<int32_t>(random_bits(key, static_cast<uint64_t>(i)) % static_cast<uint64_t>(*model.config().model.vocab_size)));
    return ids;
  }

  template <class T>
  void round_weights() {
    for (const OwnedBox& owned : trainer->owned_boxes()) {
      auto* weight = owned.weight.data<float>();
      std::transform(weight, weight + owned.weight.numel(), weight, [](float value) { return static_cast<float>(T(value)); });
    }
    trainer->weights_changed();
  }

  CheckpointModel model;
  Trainer* trainer = nullptr;
  int64_t length = 0;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest) && std::memcmp(&a[i], &b[i], sizeof(double)) != 0) largest = difference;
    if (std::isnan(largest)) break;
  }
  return largest;
}

}  // namespace

ExportCheck check_export(const std::string& source, WeightKind kind, const std::string& folder, DType dtype, const RankPlace& place) {
  ExportCheck check;
  std::vector<double> exact, expected;
  bool merges = false;
  {
    Loaded original(source, kind, Adapters::kMerged, place);
    check.tokens = original.tokens();
    merges = original.model.merges_adapters();
    exact = expected = original.trainer->logits(check.tokens);
    if (dtype != DType::kF32) {
      dispatch_float(dtype, [&](auto type) { original.round_weights<decltype(type)>(); });
      expected = original.trainer->logits(check.tokens);
    }
  }
  check.logits = Loaded(folder, WeightKind::kTrained, Adapters::kApart, place).trainer->logits(check.tokens);
  check.error = largest_difference(check.logits, expected);
  check.equal = check.logits.size() == expected.size() && std::memcmp(check.logits.data(), expected.data(), expected.size() * sizeof(double)) == 0;
  check.rounding = largest_difference(expected, exact);
  if (merges) check.merging = largest_difference(exact, Loaded(source, kind, Adapters::kApart, place).trainer->logits(check.tokens));
  return check;
}

}  // namespace trireme
