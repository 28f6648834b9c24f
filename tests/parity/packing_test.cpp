// Packed documents of a token directory train as they do in one sequence each, and their padding neither counts nor has a gradient.
#include <algorithm>
#include <cmath>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/data/token_writer.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr int64_t kPackedLength = 12, kPackedVocabulary = 61;
constexpr int64_t kLongDocuments = 12, kShortDocuments = 6;  // of 8 and 3 tokens: 12 sequences, 6 of which have 1 token of padding and 6 have 4

std::vector<int32_t> packed_document(int64_t document) {
  std::vector<int32_t> tokens(document % 3 == 2 ? 3 : 8);
  for (size_t t = 0; t < tokens.size(); ++t)
    tokens[t] = static_cast<int32_t>(random_bits(random_key(8, "packed"), static_cast<uint64_t>(document), t) % kPackedVocabulary);
  return tokens;
}

/// Each document in its own sequence, behind it masked tokens that are not zero.
struct OneDocumentEach final : Dataset {
  int64_t sequences() const override { return kLongDocuments + kShortDocuments; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    const std::vector<int32_t> document = packed_document(sample);
    for (size_t t = 0; t < kPackedLength; ++t) {
      tokens[t] = t < document.size() ? document[t] : 7;
      targets[t] = t + 1 < document.size() ? document[t + 1] : -1;
    }
    segments.push_back(kPackedLength);
  }
};

struct PackedStep {
  StepResult result;
  std::vector<std::vector<double>> gradients;  ///< of this rank's boxes
};

PackedStep packed_step(Communicator& world, Config config, const Dataset& data, Packing packing) {
  config.data.document_mask = true;
  config.data.packing = packing;
  config.training.global_batch_size = data.sequences();
  Arena arena(Device::kReference, true);
  Context ctx{Device::kReference, &arena, 1};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  PackedStep step{trainer.step(data, 0, 0), {}};
  for (const OwnedBox& owned : trainer.owned_boxes())
    step.gradients.emplace_back(owned.gradient.data<double>(), owned.gradient.data<double>() + owned.gradient.numel());
  return step;
}

}  // namespace

TEST_CASE("packed documents have the loss and the gradient of separate ones, and padding does not count") {
  const TemporaryDirectory scratch;
  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = "bytes-v1";
  index.vocab_size = kPackedVocabulary;
  TokenWriter writer((scratch.path / "data").string(), index);
  for (int64_t d = 0; d < kLongDocuments + kShortDocuments; ++d) {
    writer.append(packed_document(d));
    writer.end_document();
  }
  writer.commit();
  const TokenDataset packed({scratch.path / "data"}, {kPackedLength, kPackedVocabulary, "bytes-v1", true, {}, 64});
  REQUIRE(packed.sequences() == kLongDocuments);
  constexpr double kTolerance = 1e-12;  // sums of some hundred terms in fp64, in another order
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2})
    for (const ParityLayout& layout :
         {ParityLayout{}, ParityLayout{{.micro_batch = 3}}, ParityLayout{{.data = 3, .zero = 2}}, ParityLayout{{.pipeline = 2, .data = 2, .zero = 1}},
          ParityLayout{{.tensor = 2, .pipeline = 1, .data = 2, .zero = 3, .micro_batch = 3, .sequence_parallel = true}}}) {
      if (!is_legal(model, layout)) continue;
      INFO(name_of(model) << " " << layout.str());
      run_ranks(layout.world(), [&](Communicator& world) {
        const PackedStep apart = packed_step(world, parity_config(model, layout, "fp64"), OneDocumentEach(), Packing::kNone);
        const PackedStep together = packed_step(world, parity_config(model, layout, "fp64"), packed, Packing::kBestFit);
        TRIREME_CHECK(together.result.padding == 6 * 1 + 6 * 4 && apart.result.padding == 0, "padding ", together.result.padding);
        TRIREME_CHECK(together.result.targets == apart.result.targets && apart.result.targets == 12 * 7 + 6 * 2, "targets ", together.result.targets);
        const double scale = apart.result.grad_norm;
        TRIREME_CHECK(std::abs(apart.result.loss - together.result.loss) <= kTolerance * apart.result.loss, "loss ", together.result.loss);
        TRIREME_CHECK(std::abs(scale - together.result.grad_norm) <= kTolerance * scale, "norm ", together.result.grad_norm, ", ", scale);
        for (size_t b = 0; b < apart.gradients.size(); ++b)
          for (size_t i = 0; i < apart.gradients[b].size(); ++i)
            TRIREME_CHECK(std::abs(apart.gradients[b][i] - together.gradients[b][i]) <= kTolerance * scale, "gradient ", together.gradients[b][i]);
      });
    }
}

}  // namespace trireme::test
