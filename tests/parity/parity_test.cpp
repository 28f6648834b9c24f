// The layout never changes the mathematics: the same model, data and seed under any layout against one rank.
#include <cmath>
#include <map>

#include "tests/parity/layouts.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

constexpr int kSteps = 10;
// In double precision only the order of sums differs between layouts: a few thousand roundings of 1e-16, amplified by ten AdamW steps.
constexpr double kDoubleTolerance = 1e-10;
// In fp32 the same roundings are 6e-8; ten steps amplify them to 3e-5 of a tensor's largest element at worst.
constexpr double kSingleTolerance = 1e-4;

const RunRecord& one_rank(ParityModel model, const std::string& precision, Device device) {
  static std::map<std::pair<ParityModel, std::string>, RunRecord> records;
  auto& record = records[{model, precision}];
  if (record.loss.empty()) record = train_on_threads(parity_config(model, {}, precision), kSteps, device);
  return record;
}

void check(const std::vector<ParityCase>& cases, const std::string& precision, Device device, double tolerance, bool poison) {
  for (const ParityCase& c : cases) {
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord record = train_on_threads(parity_config(c.model, c.layout, precision), kSteps, device, poison);
    CHECK(difference(one_rank(c.model, precision, device), record, tolerance) == "");
  }
}

}  // namespace

TEST_CASE("every pair of options trains the model of one rank, in double precision, with in-flight buffers poisoned") {
  const std::vector<ParityCase> cases = pairwise_parity_cases();
  CHECK(cases.size() > 30);
  check(cases, "fp64", Device::kReference, kDoubleTolerance, true);
}

TEST_CASE("a third of those trains the model of one rank on the fast kernels in fp32") {
  std::vector<ParityCase> cases;
  const std::vector<ParityCase> all = pairwise_parity_cases();
  for (size_t i = 0; i < all.size(); i += 3) cases.push_back(all[i]);
  check(cases, "fp32", Device::kCpu, kSingleTolerance, false);
}

TEST_CASE("in bf16 layouts that split no sum of a layer train the model of one rank") {
  // Data, pipeline and ZeRO only reorder fp32 sums of gradients; one bit of bf16 that turns over is 2^-8 of an element, and ten steps amplify it.
  constexpr double kTolerance = 2e-2;
  for (const ParityCase& c : pairwise_parity_cases()) {
    if (c.layout.tensor > 1) continue;
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord record = train_on_threads(parity_config(c.model, c.layout, "bf16"), kSteps, Device::kCpu, true);
    CHECK(difference(one_rank(c.model, "bf16", Device::kCpu), record, kTolerance) == "");
  }
}

TEST_CASE("in bf16 every pair of options is as near to the exact gradient as one rank is") {
  // Tensor parallelism rounds each partial sum: as many roundings again as one rank has, so at most twice its error. A sum left out is all of it.
  for (const ParityCase& c : pairwise_parity_cases()) {
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord& exact = one_rank(c.model, "fp64", Device::kReference);
    const RunRecord& serial = one_rank(c.model, "bf16", Device::kCpu);
    const RunRecord record = train_on_threads(parity_config(c.model, c.layout, "bf16"), 1, Device::kCpu);
    const double unit = gradient_error(exact, serial);
    CHECK(unit < 0.1);  // some 25 roundings of 2^-9 one behind the other
    CHECK(gradient_error(exact, record) < 2 * unit);
    CHECK(std::abs(record.loss[0] - exact.loss[0]) < 1e-2 * exact.loss[0]);
  }
}

TEST_CASE("gradients on the wire in bf16 are rounded once for each rank, and no more") {
  Layout layout;
  layout.data = 4;
  for (const auto& [zero, replicate] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{2, 1}, std::pair{3, 2}}) {
    layout.zero = zero;
    layout.replicate = replicate;
    Config config = parity_config(ParityModel::kGpt2, layout, "fp32");
    config.training.reduce_dtype = "bf16";
    INFO(layout.str());
    const RunRecord record = train_on_threads(config, 1, Device::kCpu, true);
    const double error = gradient_error(one_rank(ParityModel::kGpt2, "fp32", Device::kCpu), record);
    CHECK(error > 1e-4);  // it is really narrow
    CHECK(error < 1e-2);  // four roundings of 2^-9, and those of their sums
  }
}

TEST_CASE("64 micro-batches give the gradient of one: bf16 gradients are added in fp32") {
  Config config = parity_config(ParityModel::kLlama, {}, "bf16");
  config.training.global_batch_size = 64;
  const auto gradient_of = [&](int64_t micro_batch) {
    config.training.micro_batch_size = micro_batch;
    return train_on_threads(config, 1, Device::kCpu);
  };
  CHECK(gradient_error(gradient_of(64), gradient_of(1)) < 3e-3);  // sums of 64 terms in bf16 would lose 2^-9 of the sum at each of them
}

TEST_CASE("every legal layout of up to eight ranks, in double precision", "[slow]") {
  const std::vector<ParityCase> cases = all_parity_cases();
  WARN(cases.size() << " layouts");
  check(cases, "fp64", Device::kReference, kDoubleTolerance, false);
}

TEST_CASE("every legal layout of up to eight ranks, in fp32 on the fast kernels", "[slow]") {
  check(all_parity_cases(), "fp32", Device::kCpu, kSingleTolerance, false);
}

TEST_CASE("a rerun and the other schedule give the same bits") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2Dropout}) {
    for (const auto& [precision, device] : {std::pair{"fp64", Device::kReference}, std::pair{"fp32", Device::kCpu}}) {
      Layout layout;
      layout.tensor = 2;
      layout.pipeline = 2;
      layout.data = 2;
      layout.zero = 3;
      layout.sequence_parallel = true;
      INFO(name_of(model) << " " << precision);
      const RunRecord first = train_on_threads(parity_config(model, layout, precision), kSteps, device);
      CHECK(first == train_on_threads(parity_config(model, layout, precision), kSteps, device));
      layout.schedule = "gpipe";
      CHECK(first == train_on_threads(parity_config(model, layout, precision), kSteps, device));
    }
  }
}

TEST_CASE("training learns: the loss of the parity models falls") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout}) {
    const RunRecord& record = one_rank(model, "fp64", Device::kReference);
    CHECK(record.loss.back() < record.loss.front() - 0.05);
  }
}

}  // namespace trireme::test
