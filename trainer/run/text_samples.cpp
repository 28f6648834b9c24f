#include "trainer/run/text_samples.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"
#include "kernels/core/rng.h"
#include "trainer/files/printable.h"
#include "trainer/model/sampling.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

/// `text` with U+FFFD in place of each byte that is not UTF-8: an untrained model of bytes makes such, and JSON has no others.
std::string as_utf8(std::string_view text) {
  std::string clean;
  for (;;) {
    const size_t valid = valid_utf8(text);
    clean += text.substr(0, valid);
    if (valid == text.size()) return clean;
    clean += "\xEF\xBF\xBD";
    text.remove_prefix(valid + 1);
  }
}

/// One line that begins with the text.
std::string first_line(const std::string& text) {
  constexpr size_t kMost = 100;
  const std::string line = text.substr(0, std::min(text.find('\n'), kMost));
  return line.substr(0, valid_utf8(line)) + (line.size() < text.size() ? " ..." : "");
}

}  // namespace

void TextSamples::open() {
  if (run_.config.observe.samples.every == 0) return;
  const SamplesConfig& samples = run_.config.observe.samples;
  tokenizer_ = Tokenizer::open(run_.config.data.tokenizer);
  const int64_t tensor = run_.config.parallel.sequence_parallel ? run_.config.parallel.tensor : 1;
  const int64_t room = run_.config.training.sequence_length / tensor * tensor;
  for (const std::string& prompt : samples.prompts) {
    const std::vector<int32_t>& tokens = prompts_.emplace_back(tokenizer_->encode(prompt));
    const auto refuse = [&](const auto&... why) {
      throw ConfigError(concat("observe.samples.prompts: '", first_line(as_utf8(prompt)), "' ", why...));
    };
    if (tokens.empty()) refuse("has no token; allowed texts of one token or more");
    const int64_t most = room - std::ssize(tokens);
    if (most < 1) refuse("has ", counted(tokens.size(), "token"), "; allowed at most ", room - 1, ", as samples fit training.sequence_length");
    if (samples.max_tokens > most)
      refuse("has ", counted(tokens.size(), "token"), ", which observe.samples.max_tokens=", samples.max_tokens,
             " makes longer than training.sequence_length allows, ", room, "; nearest valid observe.samples.max_tokens=", most);
    const int64_t vocabulary = *run_.config.model.vocab_size;
    for (const int32_t token : tokens)
      if (token >= vocabulary) refuse("contains token ", token, ", but the model's vocabulary size is ", vocabulary);
  }
}

/// The tokens that follow `text`: the draws of `trireme generate --seed run.seed`. One rank of the last stage draws. Collective.
std::vector<int32_t> TextSamples::continue_text(std::vector<int32_t> text) {
  constexpr double kNone = -2, kEnd = -1;  // the maximum takes precedence
  const Mesh& mesh = run_.trainer->mesh();
  const SamplingOptions options{.temperature = run_.config.observe.samples.temperature, .vocab_size = tokenizer_->vocab_size()};
  const uint64_t key = random_key(static_cast<uint64_t>(run_.config.run.seed), "generate");
  const auto draw = [&](const std::vector<double>& logits, int64_t place) -> double {
    if (logits.empty() || mesh.at.tensor != 0 || mesh.data->rank() != 0) return kNone;
    if (std::ranges::any_of(logits, [](double value) { return !std::isfinite(value); })) return kEnd;  // a diverged model says nothing
    const int32_t token = sample_token(logits, options, random_uniform(key, static_cast<uint64_t>(place)));
    return std::ranges::find(tokenizer_->ends(), token) != tokenizer_->ends().end() ? kEnd : token;
  };
  std::vector<int32_t> added;
  while (std::ssize(added) < run_.config.observe.samples.max_tokens) {
    const double token = all_reduce_scalar(run_.world, draw(run_.trainer->continuation_logits(text), std::ssize(added)), ReduceOp::kMax);
    if (token < 0) break;
    added.push_back(static_cast<int32_t>(token));
    text.push_back(added.back());
  }
  return added;
}

void TextSamples::write(int64_t step) {
  run_.progress.act(concat("writing samples of text after step ", step));
  run_.progress.set_timeout(state_timeout(run_.config));
  const SharedWeights shared(run_.trainer->updates());  // for all tokens
  for (size_t i = 0; i < prompts_.size(); ++i) {
    std::vector<int32_t> tokens = prompts_[i];
    const std::vector<int32_t> added = continue_text(tokens);
    if (!run_.reports()) continue;
    const std::string& prompt = run_.config.observe.samples.prompts[i];
    const size_t before = tokenizer_->decode(tokens).size();
    tokens.insert(tokens.end(), added.begin(), added.end());
    const std::string all = tokenizer_->decode(tokens);
    const std::string text = as_utf8(std::string_view(all).substr(std::min(before, all.size())));
    run_.reporter.event("sample", step, {{"prompt", as_utf8(prompt)}, {"text", text}},
                        concat("step ", step, ": sample: ", printable(first_line(as_utf8(prompt) + text))));
  }
}

}  // namespace trireme
