// Documents packed into sequences train as they do separately, and the consumed samples do not depend on the data degree.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/data/sampler.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr int64_t kLength = 12, kVocab = 61;
constexpr int64_t kPacks = 12, kPieces = 4;  // sequences, and documents in each

/// Lengths of the documents of a pack: equal lengths, single tokens, all of a sequence but a few tokens.
std::vector<int64_t> lengths_of(int64_t pack) {
  const std::vector<std::vector<int64_t>> all = {{5, 1, 4, 2}, {3, 3, 3, 3}, {1, 1, 1, 9}, {6, 4, 1, 1}, {2, 2, 4, 4}, {7, 2, 2, 1}};
  return all[static_cast<size_t>(pack) % all.size()];
}

/// Token `t` of a document. The last token has no target, and some others are masked.
int32_t token_of(int64_t document, int64_t t) {
  return static_cast<int32_t>(random_bits(random_key(5, "documents"), static_cast<uint64_t>(document), static_cast<uint64_t>(t)) % kVocab);
}
int32_t target_of(int64_t document, int64_t t, int64_t length) { return t + 1 == length || (document + t) % 5 == 0 ? -1 : token_of(document, t + 1); }

/// Four documents per sequence, each a segment.
struct Packed final : Dataset {
  int64_t sequences() const override { return kPacks; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    int64_t document = sample * kPieces;
    for (const int64_t length : lengths_of(sample)) {
      for (int64_t t = 0; t < length; ++t) {
        *tokens++ = token_of(document, t);
        *targets++ = target_of(document, t, length);
      }
      segments.push_back(length);
      ++document;
    }
  }
};

/// The same documents, one per sequence, padded with masked tokens.
struct Apart final : Dataset {
  int64_t sequences() const override { return kPacks * kPieces; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    const int64_t length = lengths_of(sample / kPieces)[static_cast<size_t>(sample % kPieces)];
    for (int64_t t = 0; t < kLength; ++t) {
      tokens[t] = token_of(sample, t);
      targets[t] = t < length ? target_of(sample, t, length) : -1;
    }
    segments.push_back(kLength);
  }
};

struct Figures {
  double loss = 0, grad_norm = 0, validation_loss = 0;
  std::vector<std::vector<double>> gradients;  ///< of this rank's boxes
};

Figures train_one_step(Communicator& world, Config config, const Dataset& data) {
  config.data.document_mask = true;
  config.training.global_batch_size = data.sequences();
  Arena arena(Device::kReference, true);
  Context ctx{Device::kReference, &arena, 1};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  Figures figures;
  figures.validation_loss = trainer.evaluate(data, 0).loss;
  const StepResult result = trainer.step(data, 0, 0);
  TRIREME_CHECK(result.accepted, "rejected because of ", result.offender);
  figures.loss = result.loss;
  figures.grad_norm = result.grad_norm;
  for (const OwnedBox& owned : trainer.owned_boxes())
    figures.gradients.emplace_back(owned.gradient.data<double>(), owned.gradient.data<double>() + owned.gradient.numel());
  return figures;
}

/// Reordered fp64 sums: some hundred terms, none much larger than the result.
constexpr double kTolerance = 1e-12;

void check_near(const char* what, double expected, double actual, double scale) {
  TRIREME_CHECK(std::abs(expected - actual) <= kTolerance * scale, what, ": ", expected, " expected, got ", actual);
}

}  // namespace

TEST_CASE("documents packed into sequences train as they do in separate sequences") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    std::vector<double> losses;
    for (ParityLayout layout : {ParityLayout{}, ParityLayout{{.micro_batch = 3}}, ParityLayout{{.tensor = 2, .sequence_parallel = true}},
                                ParityLayout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .micro_batch = 2, .sequence_parallel = true}}}) {
      if (!is_legal(model, layout)) layout.tensor = 1;
      INFO(name_of(model) << " " << layout.str());
      const Config config = parity_config(model, layout, "fp64");
      std::mutex mutex;
      run_ranks(layout.world(), [&](Communicator& world) {
        const Figures packed = train_one_step(world, config, Packed()), apart = train_one_step(world, config, Apart());
        check_near("loss", apart.loss, packed.loss, apart.loss);
        check_near("validation loss", apart.validation_loss, packed.validation_loss, apart.loss);
        check_near("grad_norm", apart.grad_norm, packed.grad_norm, apart.grad_norm);
        for (size_t b = 0; b < apart.gradients.size(); ++b)
          for (size_t i = 0; i < apart.gradients[b].size(); ++i)
            check_near("gradient", apart.gradients[b][i], packed.gradients[b][i], apart.grad_norm);
        if (world.rank() != 0) return;
        const std::lock_guard lock(mutex);
        losses.push_back(packed.loss);
      });
    }
    for (const double loss : losses) CHECK(loss == Approx(losses[0]).epsilon(kTolerance));
  }
}

TEST_CASE("a document does not attend to the previous one in its sequence") {
  // Changes the tokens of all but the last document of every sequence; only the last one's targets count.
  struct Disturbed final : Dataset {
    explicit Disturbed(int32_t by) : shift(by) {}
    int64_t sequences() const override { return kPacks; }
    void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
      Packed().read(sample, tokens, targets, segments);
      const int64_t last = kLength - segments.back();
      for (int64_t t = 0; t < last; ++t) {
        tokens[t] = (tokens[t] + shift) % static_cast<int32_t>(kVocab);
        targets[t] = -1;
      }
    }
    int32_t shift;
  };
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2}) {
    const Config config = parity_config(model, {}, "fp64");
    run_ranks(1, [&](Communicator& world) {
      const Figures one = train_one_step(world, config, Disturbed(0)), other = train_one_step(world, config, Disturbed(17));
      TRIREME_CHECK(one.loss == other.loss && one.validation_loss == other.validation_loss, "the losses differ: ", one.loss, ", ", other.loss);
      TRIREME_CHECK(one.grad_norm == other.grad_norm, "the gradients differ");
    });
  }
}

namespace {

/// A blend of 17 and 5 samples that records which samples a rank reads.
struct Blend final : Dataset {
  int64_t sequences() const override { return 22; }
  std::vector<Group> groups() const override { return {{17, 3.0}, {5, 1.0}}; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    read_here.push_back(sample);
    RaggedDataset(22, kLength, kVocab).read(sample, tokens, targets, segments);
  }
  mutable std::vector<int64_t> read_here;
};

}  // namespace

TEST_CASE("each sample of a blend is consumed exactly once per epoch while the data degree changes from 2 to 3 to 1") {
  constexpr int64_t kBatch = 12;
  std::vector<int64_t> consumed(kBatch * 16, -1);  // by place in training
  int64_t step = 0;
  for (const auto& [data, steps] : std::vector<std::pair<int, int64_t>>{{2, 5}, {3, 6}, {1, 5}}) {
    ParityLayout layout;
    layout.data = data;
    layout.zero = data > 1 ? 2 : 0;
    const Config config = parity_config(ParityModel::kGpt2, layout, "fp64");
    std::mutex mutex;
    run_ranks(layout.world(), [&, first = step, count = steps](Communicator& world) {
      Arena arena(Device::kReference, true);
      Context ctx{Device::kReference, &arena, 1};
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      for (int64_t s = first; s < first + count; ++s) {
        const Blend blend;
        trainer.step(blend, s, 1e-3);
        const auto share = static_cast<int64_t>(blend.read_here.size());
        TRIREME_CHECK(share * world.size() == kBatch, share, " samples on one of ", world.size(), " ranks");
        const std::lock_guard lock(mutex);
        std::copy(blend.read_here.begin(), blend.read_here.end(), consumed.begin() + s * kBatch + world.rank() * share);
      }
    });
    step += steps;
  }
  const Sampler sampler(static_cast<uint64_t>(parity_config(ParityModel::kGpt2, {}, "fp64").run.seed), Blend().groups(), kBatch);
  std::vector<int64_t> large, small;
  for (size_t p = 0; p < consumed.size(); ++p) {
    CHECK(consumed[p] == sampler.sample(static_cast<int64_t>(p) / kBatch, static_cast<int64_t>(p) % kBatch));
    (consumed[p] < 17 ? large : small).push_back(consumed[p]);
  }
  CHECK(large.size() == 144);
  CHECK(small.size() == 48);
  const auto check_epochs = [](const std::vector<int64_t>& samples, size_t size, int64_t first) {
    for (size_t begin = 0; begin + size <= samples.size(); begin += size) {
      std::vector<int64_t> epoch(samples.begin() + static_cast<std::ptrdiff_t>(begin), samples.begin() + static_cast<std::ptrdiff_t>(begin + size));
      std::sort(epoch.begin(), epoch.end());
      for (size_t i = 0; i < size; ++i) CHECK(epoch[i] == first + static_cast<int64_t>(i));
    }
  };
  check_epochs(large, 17, 0);
  check_epochs(small, 5, 17);
}

}  // namespace trireme::test
