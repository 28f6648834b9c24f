// The trace of every GPU operation of a training step: no race, ideal requests and the bytes of its operands, apart from the entries of exceptions.h.
#include <algorithm>
#include <cstdio>
#include <set>

#include "kernels/core/operation_log.h"
#include "tests/cuda/training.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/trace/exceptions.h"
#include "tests/trace/operations.h"
#include "tests/trace/trace.h"

using namespace trireme;
using namespace trireme::testing;

namespace cuda_trace {
namespace {

struct Traced {
  std::string operation;
  DType dtype;
  int64_t formula_bytes = 0;  ///< of the operation's record (kernels/core/operation_log.h); without one, of all operands
  std::vector<Launch> launches;

  std::string name() const { return operation + " " + name_of(dtype); }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Launch& launch : launches) sum += launch.bytes_read + launch.bytes_written;
    return sum;
  }
};

Traced traced(const Operation& operation, DType dtype) {
  Traced result{operation.name, dtype, 0, {}};
  Operation logged = operation;
  logged.run = [&](Context& ctx, const std::vector<Tensor>& tensors) {
    OperationLog log;
    ctx.gpu->synchronize();
    ctx.log = &log;
    start();
    operation.run(ctx, tensors);
    ctx.gpu->synchronize();
    result.launches = stop();
    ctx.log = nullptr;
    for (const OperationRecord& record : log.take()) result.formula_bytes += record.bytes;
  };
  run(logged, Device::kCuda, dtype, 1, Alignment::kVector);
  if (result.formula_bytes == 0)  // a kernel called without its operation
    for (const Operand& operand : operation.operands)
      result.formula_bytes += (operand.role == Role::kAddedTo ? 2 : 1) * operand.shape.numel() * size_of(operand.dtype_in(dtype));
  CHECK(gpu_errors().empty());
  return result;
}

const std::vector<Traced>& all() {
  static const std::vector<Traced> results = [] {
    std::vector<Traced> list;
    for (const Case& c : operations()) {
      const OptionsScope scope([&](cuda_sim::Options& options) { options.major = c.compute_capability; });
      for (const DType dtype : c.dtypes) list.push_back(traced(c.operation, dtype));
    }
    return list;
  }();
  return results;
}

/// Name of the kernel, without template arguments.
std::string name_of_kernel(const Launch& launch) {
  static const std::string prefix = "(anonymous namespace)::";
  const size_t found = launch.kernel.find(prefix), begin = found == std::string::npos ? 0 : found + prefix.size();
  return launch.kernel.substr(begin, launch.kernel.find_first_of("<(", begin) - begin);
}

/// The races of all launches, one for each pair of places.
std::string races_of(const std::vector<Launch>& launches) {
  std::set<std::pair<const void*, const void*>> told;
  std::string text;
  for (const Launch& launch : launches)
    for (const Race& race : launch.races)
      if (told.insert({race.earlier, race.later}).second) text += name_of_kernel(launch) + ": " + text_of(race) + "\n";
  return text;
}

double ratio(int64_t a, int64_t b) { return b == 0 ? 1 : static_cast<double>(a) / static_cast<double>(b); }

double figure_of(const Launch& launch, Figure figure) {
  switch (figure) {
    case Figure::kLoadSectors: return launch.of(Kind::kGlobalLoad).excess();
    case Figure::kStoreSectors: return launch.of(Kind::kGlobalStore).excess();
    case Figure::kLoadBanks: return launch.of(Kind::kSharedLoad).excess();
    case Figure::kStoreBanks: return launch.of(Kind::kSharedStore).excess();
    case Figure::kReloads: return ratio(launch.of(Kind::kGlobalLoad).bytes, launch.bytes_read);
    case Figure::kRestores: return ratio(launch.of(Kind::kGlobalStore).bytes, launch.bytes_written);
  }
  return 0;
}

}  // namespace

TEST_CASE("no kernel of an operation has a race or a conflict between blocks", "[operations]") {
  for (const Traced& result : all()) {
    INFO(result.name());
    CHECK(!result.launches.empty());
    CHECK(races_of(result.launches) == "");
  }
}

TEST_CASE("sectors, banks and repeated loads of each kernel are ideal, or a stated exception", "[operations]") {
  std::set<const Exception*> used;
  for (const Traced& result : all())
    for (const Launch& launch : result.launches)
      for (size_t f = 0; f < std::size(kFigures); ++f) {
        const auto figure = static_cast<Figure>(f);
        const std::string kernel = name_of_kernel(launch);
        const auto* const exception = std::find_if(std::begin(kExceptions), std::end(kExceptions),
                                                   [&](const Exception& e) { return e.kernel == kernel && e.figure == figure; });
        const double value = figure_of(launch, figure);
        const double ideal = figure == Figure::kReloads ? 1 + kScalars : 1;
        if (exception != std::end(kExceptions) && value > ideal) used.insert(exception);
        INFO(result.name() << ", " << kernel << ": " << kFigures[f]);
        CHECK(value <= (exception == std::end(kExceptions) ? ideal : exception->most));
      }
  for (const Exception& exception : kExceptions) {
    INFO(exception.kernel << ": " << kFigures[static_cast<size_t>(exception.figure)]);
    CHECK(used.count(&exception) == 1);  // otherwise it can go
  }
}

TEST_CASE("operations move the bytes of their records, apart from stated exceptions", "[operations]") {
  std::set<const BytesException*> used;
  for (const Traced& result : all()) {
    const auto* const exception = std::find_if(std::begin(kBytesExceptions), std::end(kBytesExceptions),
                                               [&](const BytesException& e) { return e.operation == result.operation; });
    INFO(result.name() << ": " << result.bytes() << " bytes, record " << result.formula_bytes);
    const double value = ratio(result.bytes(), result.formula_bytes);
    if (exception == std::end(kBytesExceptions)) {
      CHECK(result.bytes() == result.formula_bytes);
      continue;
    }
    if (value != 1) used.insert(exception);
    CHECK(value >= exception->least);
    CHECK(value <= exception->most);
  }
  for (const BytesException& exception : kBytesExceptions) {
    INFO(exception.operation);
    CHECK(used.count(&exception) == 1);
  }
}

TEST_CASE("a norm's backward in 16 bits loads each operand once per row", "[operations]") {
  constexpr int64_t kRows = 64, kColumns = 512, kWarps = 2;
  for (const Traced& result : all()) {
    if (result.dtype != DType::kBF16 || result.operation.find("norm_backward_input") == std::string::npos) continue;
    INFO(result.name());
    REQUIRE(result.launches.size() == 1);
    const int64_t statistics = result.operation.front() == 'l' ? 2 : 1;
    CHECK(result.launches[0].of(Kind::kGlobalLoad).bytes == kRows * (4 * kColumns * 2 + statistics * kWarps * 4));  // dy, x, w, residual
  }
}

TEST_CASE("a norm's fused backward in 16 bits loads each operand once, and the weight once per block", "[operations]") {
  constexpr int64_t kRows = 64, kColumns = 512, kBlocks = 8, kWarps = 2;
  int found = 0;
  for (const Traced& result : all()) {
    if (result.dtype != DType::kBF16 || !result.operation.ends_with("norm_backward")) continue;
    INFO(result.name());
    REQUIRE(result.launches.size() == 2);
    const int64_t statistics = result.operation.front() == 'l' ? 2 : 1;
    CHECK(result.launches[0].of(Kind::kGlobalLoad).bytes == kRows * (3 * kColumns * 2 + statistics * kWarps * 4) + kBlocks * kColumns * 2);
    ++found;
  }
  CHECK(found == 2);
}

TEST_CASE("the forward of the cross-entropy loads each logit once", "[operations]") {
  constexpr int64_t kRows = 64, kColumns = 512;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    int64_t loaded = 0;
    for (const Traced& result : all()) {
      const bool forward =
          result.operation.starts_with("cross_entropy_") && !result.operation.ends_with("loss") && !result.operation.ends_with("backward");
      if (result.dtype != dtype || !forward) continue;
      for (const Launch& launch : result.launches) loaded += launch.of(Kind::kGlobalLoad).bytes;
    }
    INFO(name_of(dtype));
    CHECK(loaded == kRows * ((kColumns + 1) * size_of(dtype) + 4 * 4));  // the target's logit again, targets, maxima and both sums
  }
}

TEST_CASE("the kernels of training steps have no race, and each of them is traced above", "[operations]") {
  std::set<std::string> known, seen;
  for (const Traced& result : all())
    for (const Launch& launch : result.launches) known.insert(name_of_kernel(launch));
  const auto step = [&](const Config& of) {
    start();
    static_cast<void>(test::train_on_gpus(of, 1));
    const std::vector<Launch> launches = stop();
    CHECK(!launches.empty());
    CHECK(races_of(launches) == "");
    for (const Launch& launch : launches) seen.insert(name_of_kernel(launch));
  };
  const auto config = [](test::ParityModel model, const std::string& precision) {
    test::ParityLayout layout;
    layout.layers = 1;
    layout.micro_batch = 2;
    Config small = test::parity_config(model, layout, precision);
    small.training.global_batch_size = 4;
    return small;
  };
  step(config(test::ParityModel::kGpt2Dropout, "fp32"));  // awkward sizes, which need accesses of one element
  step(config(test::ParityModel::kLlamaGrouped, "bf16"));
  Config documents = config(test::ParityModel::kGpt2, "bf16");
  documents.data.document_mask = true;
  step(documents);
  Config wide = config(test::ParityModel::kLlama, "bf16");
  wide.model.hidden_size = 128;
  wide.model.ffn_size = 64;
  wide.model.vocab_size = 64;
  wide.model.head_size = 64;
  wide.model.heads = 2;
  wide.model.kv_heads = 2;
  step(wide);
  wide.data.document_mask = true;
  step(wide);
  for (const std::string& kernel : seen) {
    INFO(kernel);
    CHECK(known.count(kernel) == 1);
  }
}

TEST_CASE("figures of all traced kernels", "[.][slow]") {
  for (const Traced& result : all()) {
    std::printf("%s: %lld bytes, record %lld (%.4f)\n", result.name().c_str(), static_cast<long long>(result.bytes()),
                static_cast<long long>(result.formula_bytes), ratio(result.bytes(), result.formula_bytes));
    for (const Launch& launch : result.launches) {
      std::printf("  %s:", name_of_kernel(launch).c_str());
      for (size_t f = 0; f < std::size(kFigures); ++f)
        std::printf(" %s %.4f%s", kFigures[f], figure_of(launch, static_cast<Figure>(f)), f < 5 ? "," : "\n");
    }
  }
}

}  // namespace cuda_trace
