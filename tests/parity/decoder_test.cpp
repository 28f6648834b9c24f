// Decoding with a KV cache yields the text of decoding without one.
#include "trainer/loop/decoder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>

#include "parallel/comm/self.h"
#include "tests/parity/text_models.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/model/sampling.h"

namespace trireme::test {
namespace {

struct Text {
  std::vector<int32_t> tokens;
  std::vector<std::vector<double>> logits;  ///< per step
};

/// The prompt, continued greedily by `count` tokens.
Text continued(Trainer& trainer, const std::vector<int32_t>& prompt, int64_t count, bool keep) {
  Text text{prompt, {}};
  Decoder decoder(trainer, static_cast<int64_t>(prompt.size()) + count, keep);
  for (int64_t i = 0; i < count; ++i) {
    text.logits.push_back(decoder.logits(text.tokens));
    text.tokens.push_back(sample_token(text.logits.back(), {.temperature = 0}, 0));
  }
  return text;
}

struct Case {
  int64_t prompt, count;
};
// The model has 13 positions: a text that grows from 1 token beyond them; a prompt that fills them; one longer than them; a text that ends with them.
constexpr Case kCases[] = {{1, 20}, {13, 5}, {17, 4}, {6, 7}};

/// max|a - b| / max|b|.
double error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return a.size() == b.size() ? difference / largest : INFINITY;
}

/// Difference between the best and the second-best logit, relative to the largest.
double gap(std::vector<double> logits) {
  std::partial_sort(logits.begin(), logits.begin() + 2, logits.end(), std::greater<>());
  const double largest = *std::max_element(logits.begin(), logits.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  return (logits[0] - logits[1]) / std::abs(largest);
}

struct Rank {
  Rank(const std::string& name, const std::string& precision, Device device, int threads = 1)
      : arena(device, true),
        ctx{.device = device, .arena = &arena, .threads = threads, .gpu = nullptr},
        trainer(ctx, world, text_config(name, 1, precision), false) {
    draw_weights(trainer);
  }
  SelfCommunicator world{"world"};
  Arena arena;
  Context ctx;
  Trainer trainer;
};

TEST_CASE("decoding with a KV cache is bit-identical to recomputing the text on the reference kernels") {
  for (const std::string& name : kTextModels) {
    CAPTURE(name);
    Rank rank(name, "fp64", Device::kReference);
    for (const Case& c : kCases) {
      CAPTURE(c.prompt, c.count);
      const std::vector<int32_t> prompt = text_tokens(c.prompt, c.prompt);
      const Text again = continued(rank.trainer, prompt, c.count, false), kept = continued(rank.trainer, prompt, c.count, true);
      CHECK(kept.tokens == again.tokens);
      CHECK(kept.logits == again.logits);
      const std::vector<double> rows = rank.trainer.logits(prompt.size() > 13 ? std::vector(prompt.end() - 13, prompt.end()) : prompt);
      CHECK(std::vector<double>(rows.end() - 61, rows.end()) == kept.logits.front());
    }
  }
}

TEST_CASE("decoding with a KV cache yields the same text on the CPU kernels") {
  for (const std::string& name : kTextModels) {
    for (const int threads : name == "grouped" ? std::vector{1, 2} : std::vector{1}) {
      CAPTURE(name, threads);
      Rank rank(name, "fp32", Device::kCpu, threads);
      for (const Case& c : kCases) {
        CAPTURE(c.prompt, c.count);
        const std::vector<int32_t> prompt = text_tokens(c.prompt, c.prompt);
        const Text again = continued(rank.trainer, prompt, c.count, false), kept = continued(rank.trainer, prompt, c.count, true);
        CHECK(kept.tokens == again.tokens);
        for (size_t i = 0; i < again.logits.size(); ++i) {
          CHECK(error(kept.logits[i], again.logits[i]) < 1e-5);  // fp32 through five blocks
          CHECK(gap(again.logits[i]) > 1e-4);                    // otherwise equal tokens would be a coincidence
        }
      }
    }
  }
}

TEST_CASE("decoding with a KV cache in half precision has errors of the size of rounding") {
  const std::vector<int32_t> prompt = text_tokens(3, 3);
  for (const std::string& name : kTextModels) {
    Rank exact(name, "fp64", Device::kReference);
    const Text expected = continued(exact.trainer, prompt, 10, true);
    double of_bf16 = 0;
    for (const char* precision : {"bf16", "fp16"}) {
      CAPTURE(name, precision);
      Rank rank(name, precision, Device::kCpu);
      double kept = 0, again = 0;  // along the exact text, so that a different token cannot diverge the texts
      for (const bool keep : {false, true}) {
        Decoder decoder(rank.trainer, 13, keep);
        for (size_t i = 0; i < expected.logits.size(); ++i) {
          const double e = error(decoder.logits(std::span(expected.tokens).first(prompt.size() + i)), expected.logits[i]);
          (keep ? kept : again) = std::max(keep ? kept : again, e);
        }
      }
      CAPTURE(kept, again);
      CHECK(kept < 2 * again);                     // no worse than rounding without the cache
      if (of_bf16 > 0) CHECK(kept < of_bf16 / 2);  // fp16 has three more bits: only rounding errors shrink with them
      of_bf16 = kept;
    }
  }
}

TEST_CASE("tensor ranks decode the text of one rank, identically on all ranks") {
  for (const std::string& name : kTextModels) {
    Rank one(name, "fp32", Device::kCpu);
    const std::vector<int32_t> prompt = text_tokens(5, 5);
    const Text expected = continued(one.trainer, prompt, 12, true);
    const std::vector<double> rows = one.trainer.logits(prompt);
    for (const int ranks : one.trainer.config().model.heads == 6 ? std::vector{2, 3, 6} : std::vector{2, 4}) {
      CAPTURE(name, ranks);
      std::mutex mutex;
      std::vector<Text> texts;
      std::vector<double> logits;
      run_ranks(ranks, [&](Communicator& world) {
        Arena arena(Device::kCpu, true);
        Context ctx{.device = Device::kCpu, .arena = &arena, .threads = 1, .gpu = nullptr};
        Trainer trainer(ctx, world, text_config(name, ranks, "fp32"), false);
        draw_weights(trainer);
        const std::vector<double> mine = trainer.logits(prompt);
        Text text = continued(trainer, prompt, 12, true);
        const std::lock_guard lock(mutex);
        texts.push_back(std::move(text));
        if (world.rank() == 0) logits = mine;
      });
      CHECK(error(logits, rows) < 1e-5);
      for (const Text& text : texts) {
        CHECK(text.tokens == expected.tokens);
        CHECK(text.logits == texts.front().logits);
      }
      for (size_t i = 0; i < expected.logits.size(); ++i) CHECK(error(texts.front().logits[i], expected.logits[i]) < 1e-5);
    }
  }
}

TEST_CASE("a KV cache is as large as the text needs") {
  Rank rank("grouped", "fp64", Device::kReference);
  const auto held = [&](int64_t tokens) {
    const int64_t before = rank.arena.current_bytes(MemoryCategory::kActivations);
    rank.trainer.stage().make_cache(rank.ctx, tokens);
    return rank.arena.current_bytes(MemoryCategory::kActivations) - before;
  };
  const ModelConfig& model = rank.trainer.config().model;
  const int64_t token = model.layers * 2 * *model.kv_heads * *model.head_size * 8;  // keys and values of 8 bytes
  CHECK(held(4) == 4 * token);
  CHECK(held(1000) == (13 - 4) * token);
}

TEST_CASE("a KV cache under a window is as large as the window, and accepts several new tokens at a time") {
  Rank rank("window", "fp64", Device::kReference), other("window", "fp64", Device::kReference);
  const ModelConfig& model = rank.trainer.config().model;
  const int64_t token = 2 * *model.kv_heads * *model.head_size * 8, windowed = static_cast<int64_t>(model.window_layers->size());
  const int64_t before = rank.arena.current_bytes(MemoryCategory::kActivations);
  Decoder decoder(rank.trainer, 1000, true);
  CHECK(rank.arena.current_bytes(MemoryCategory::kActivations) - before == (windowed * *model.window + (model.layers - windowed) * 13) * token);
  const std::vector<int32_t> text = text_tokens(3, 13);
  for (const size_t known : {2, 5, 9, 13}) {  // within the window, to its end, across the end of the ring buffer, to the last position
    CAPTURE(known);
    const std::span<const int32_t> seen = std::span(text).first(known);
    CHECK(decoder.logits(seen) == Decoder(other.trainer, 13, false).logits(seen));
  }
}

}  // namespace
}  // namespace trireme::test
