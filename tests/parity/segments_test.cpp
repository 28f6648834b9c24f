// Documents that share a sequence train as if each had its own sequence.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "parallel/comm/self.h"
#include "tests/parity/text_models.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

namespace trireme::test {
namespace {

constexpr int64_t kSequence = 12;
using Lengths = std::vector<int64_t>;
// Boundaries on and off those of tensor ranks, documents of one token, equal neighbours within a sequence and across its end.
const std::vector<Lengths> kPacked = {{5, 4, 3}, {12}, {1, 11}, {6, 6}, {6, 3, 3}, {1, 1, 1, 9}};

/// Tokens and targets of document `text`; the last token has no target.
void write_document(int64_t text, int64_t length, int32_t* tokens, int32_t* targets) {
  const std::vector<int32_t> ids = text_tokens(text, length);
  for (int64_t t = 0; t < length; ++t) {
    tokens[t] = ids[static_cast<size_t>(t)];
    targets[t] = t + 1 < length ? ids[static_cast<size_t>(t + 1)] : -1;
  }
}

class Packed final : public Dataset {
 public:
  int64_t sequences() const override { return static_cast<int64_t>(kPacked.size()); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    int64_t at = 0;
    for (const int64_t length : kPacked[static_cast<size_t>(sample)]) {
      write_document(100 * sample + at, length, tokens + at, targets + at);
      at += length;
      segments.push_back(length);
    }
  }
};

/// Each document at the start of its own sequence, followed by masked padding.
class Apart final : public Dataset {
 public:
  Apart() {
    for (size_t sample = 0; sample < kPacked.size(); ++sample) {
      int64_t at = 0;
      for (const int64_t length : kPacked[sample]) {
        documents_.push_back({100 * static_cast<int64_t>(sample) + at, length});
        at += length;
      }
    }
  }
  int64_t sequences() const override { return static_cast<int64_t>(documents_.size()); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    const auto [text, length] = documents_[static_cast<size_t>(sample)];
    std::fill(tokens, tokens + kSequence, 7);
    std::fill(targets, targets + kSequence, -1);
    write_document(text, length, tokens, targets);
    segments.push_back(kSequence);
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> documents_;
};

struct Record {
  double loss = 0;
  double validation_loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

/// One step over all samples of `data`, on tensor ranks.
Record train(const std::string& name, const Dataset& data, int tensor, bool sequence_parallel, int micro_batch) {
  Config config = text_config(name, tensor, "fp64");
  config.parallel.sequence_parallel = sequence_parallel;
  config.training.micro_batch_size = micro_batch;
  config.training.global_batch_size = data.sequences();
  config.data.document_mask = true;
  Record record;
  std::mutex mutex;
  run_ranks(tensor, [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{.device = Device::kReference, .arena = &arena, .threads = 1, .gpu = nullptr};
    Trainer trainer(ctx, world, config, true);
    draw_weights(trainer);
    const double validation = trainer.evaluate(data, 0).loss;
    const double loss = trainer.step(data, 0, 1e-3).loss;
    const std::lock_guard lock(mutex);
    record.loss = loss;
    record.validation_loss = validation;
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      std::vector<double>& whole = record.gradients[owned.spec->name];
      whole.resize(static_cast<size_t>(owned.spec->shape[0] * owned.spec->shape[1]));
      for (int64_t i = 0; i < owned.box.numel(); ++i) {
        const int64_t row = owned.box.start[0] + i / owned.box.extent[1], column = owned.box.start[1] + i % owned.box.extent[1];
        whole[static_cast<size_t>(row * owned.spec->shape[1] + column)] = owned.gradient.data<double>()[i];
      }
    }
  });
  return record;
}

void check_equal(const Record& packed, const Record& apart) {
  CHECK(packed.loss == Approx(apart.loss).epsilon(1e-12));
  CHECK(packed.validation_loss == Approx(apart.validation_loss).epsilon(1e-12));
  REQUIRE(packed.gradients.size() == apart.gradients.size());
  for (const auto& [name, expected] : apart.gradients) {
    double error = 0, largest = 1e-3;
    for (size_t i = 0; i < expected.size(); ++i) {
      error = std::max(error, std::abs(packed.gradients.at(name)[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    CAPTURE(name);
    CHECK(error <= 1e-11 * largest);
  }
}

TEST_CASE("segments: packed documents have the loss and gradients of separate sequences") {
  for (const std::string& name : kTextModels) {
    const Record apart = train(name, Apart(), 1, false, 1);
    REQUIRE(apart.loss > 1);
    for (const int micro_batch : {1, 2, 3}) {
      CAPTURE(name, micro_batch);
      check_equal(train(name, Packed(), 1, false, micro_batch), apart);
    }
    for (const bool sequence_parallel : {false, true}) {
      CAPTURE(name, sequence_parallel);
      check_equal(train(name, Packed(), 2, sequence_parallel, 1), apart);
      check_equal(train(name, Packed(), 2, sequence_parallel, 3), apart);
    }
  }
}

/// Logits [M,V] of a micro-batch on the reference kernels. Without `lengths` a sequence is one document.
std::vector<double> logits_of(Trainer& trainer, const std::vector<int32_t>& tokens, int64_t sequence, const Lengths& lengths = {}) {
  Context& ctx = trainer.context();
  const auto rows = static_cast<int64_t>(tokens.size());
  const auto indices = [&] { return Tensor::empty(ctx, {rows}, DType::kI32, MemoryCategory::kData); };
  Microbatch batch{.tokens = indices(), .targets = {}};
  if (!lengths.empty()) {
    batch.documents = {indices(), indices()};
    write_bounds(lengths, rows, sequence, batch.documents.starts.data<int32_t>(), batch.documents.ends.data<int32_t>());
  }
  std::copy(tokens.begin(), tokens.end(), batch.tokens.data<int32_t>());
  TransformerStage& stage = trainer.stage();
  stage.begin(ctx, {batch}, sequence, RunMode::kLogits, 0);
  for (size_t unit = 0; unit < stage.params().units().size(); ++unit) stage.unshard(ctx, static_cast<int>(unit));
  for (int part = 0; part < stage.parts(); ++part) stage.forward(ctx, 0, part);
  const Tensor logits = stage.logits(0);
  return {logits.data<double>(), logits.data<double>() + logits.numel()};
}

TEST_CASE("segments: logits of a packed document are bit-identical to those of the document alone") {
  for (const std::string& name : kTextModels) {
    SelfCommunicator world("world");
    Arena arena(Device::kReference, true);
    Context ctx{.device = Device::kReference, .arena = &arena, .threads = 1, .gpu = nullptr};
    Trainer trainer(ctx, world, text_config(name, 1, "fp64"), false);
    draw_weights(trainer);
    for (const Lengths& lengths : kPacked) {
      std::vector<int32_t> packed;
      std::vector<double> expected;
      for (const int64_t length : lengths) {
        const std::vector<int32_t> document = text_tokens(static_cast<int64_t>(packed.size()), length);
        packed.insert(packed.end(), document.begin(), document.end());
        const std::vector<double> alone = logits_of(trainer, document, length);
        expected.insert(expected.end(), alone.begin(), alone.end());
      }
      CAPTURE(name, lengths);
      CHECK(logits_of(trainer, packed, kSequence, lengths) == expected);
      if (lengths.size() > 1) CHECK(logits_of(trainer, packed, kSequence) != expected);
    }
  }
}

TEST_CASE("segments: the bounds of documents are those of each token's document within its sequence") {
  constexpr int64_t kRows = 12, kTokens = 6;
  std::vector<int32_t> starts(kRows), ends(kRows);
  const auto write = [&](const Lengths& lengths) { write_bounds(lengths, kRows, kTokens, starts.data(), ends.data()); };
  write({3, 1, 2, 6});
  CHECK(starts == std::vector<int32_t>{0, 0, 0, 3, 4, 4, 0, 0, 0, 0, 0, 0});
  CHECK(ends == std::vector<int32_t>{3, 3, 3, 4, 6, 6, 6, 6, 6, 6, 6, 6});
  CHECK_THROWS_WITH(write({3, 4, 5}), Catch::Contains("document of 4 rows at row 3 is empty or crosses a sequence of 6"));
  CHECK_THROWS_WITH(write({6}), Catch::Contains("documents cover 6 rows of a micro-batch of 12"));
  CHECK_THROWS_WITH(write({6, 6, 1}), Catch::Contains("document of 1 rows at row 12"));
  CHECK_THROWS_AS(write({6, 0, 6}), InternalError);
}

TEST_CASE("segments: documents are refused where the configuration has no document mask") {
  SelfCommunicator world("world");
  Arena arena(Device::kReference, true);
  Context ctx{.device = Device::kReference, .arena = &arena, .threads = 1, .gpu = nullptr};
  Config config = text_config(kTextModels[0], 1, "fp64");
  Trainer trainer(ctx, world, config, true);
  draw_weights(trainer);
  CHECK_THROWS_WITH(trainer.step(Packed(), 0, 1e-3), Catch::Contains("data.document_mask is off"));
  CHECK_NOTHROW(trainer.step(Apart(), 0, 1e-3));
}

}  // namespace
}  // namespace trireme::test
