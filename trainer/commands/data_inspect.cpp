#include "trainer/commands/data_inspect.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/finish_output.h"
#include "trainer/data/token_source.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

constexpr int64_t kSampleTokens = 300;

struct Lengths {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  int64_t longest = 0;
  int64_t prompt_tokens = 0;
  std::vector<int64_t> documents;  ///< [b]: documents whose length has b binary digits: 0, 1, 2-3, 4-7, ...
};

Lengths measure(const TokenSource& source) {
  Lengths lengths;
  source.visit_documents(0, [&](const TokenFile::Document& document) {
    const int64_t length = document.end - document.begin;
    const auto digits = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)));
    lengths.shortest = std::min(lengths.shortest, length);
    lengths.longest = std::max(lengths.longest, length);
    lengths.prompt_tokens += document.response - document.begin;
    if (lengths.documents.size() <= digits) lengths.documents.resize(digits + 1);
    ++lengths.documents[digits];
    return true;
  });
  return lengths;
}

int64_t bucket_from(size_t digits) { return digits == 0 ? 0 : int64_t{1} << (digits - 1); }
int64_t bucket_to(size_t digits) { return (int64_t{1} << digits) - 1; }

/// Replaces control characters, which could control the terminal, by '?'.
std::string printable_sample(std::string text) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

/// The tokenizer for the sample; nullopt if it is unknown. A token directory contains its own.
std::optional<Tokenizer> tokenizer_of(const InspectOptions& options, const std::optional<TokenIndex>& index) {
  if (options.tokenizer.empty() && !index) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::open(!options.tokenizer.empty() ? options.tokenizer : index->tokenizer == "bytes" ? "bytes" : options.path);
  if (index && tokenizer.digest() != index->tokenizer_digest)
    throw DataError(concat(options.path, ": encoded with tokenizer ", index->tokenizer, " (", index->tokenizer_digest, "), but ",
                           options.tokenizer.empty() ? "its copy in the directory" : options.tokenizer, " is a different one (", tokenizer.digest(),
                           ")"));
  return tokenizer;
}

std::string sample_of(const TokenSource& source, const std::optional<Tokenizer>& tokenizer) {
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kSampleTokens, source.tokens())));
  const int64_t vocab_size = tokenizer ? tokenizer->vocab_size() : std::numeric_limits<int32_t>::max();
  source.read(0, static_cast<int64_t>(tokens.size()), vocab_size, tokens.data());
  if (tokenizer) return tokenizer->decode(tokens);
  std::string ids;
  for (const int32_t token : tokens) ids += concat(ids.empty() ? "" : " ", token);
  return ids;
}

void print_lengths(const Lengths& lengths) {
  constexpr int64_t kBar = 50;
  const int64_t most = *std::max_element(lengths.documents.begin(), lengths.documents.end());
  std::cout << "lengths     tokens       documents\n";
  for (size_t digits = 0; digits < lengths.documents.size(); ++digits) {
    const int64_t count = lengths.documents[digits];
    if (count == 0 && bucket_to(digits) < lengths.shortest) continue;
    const int64_t bar = static_cast<int64_t>(static_cast<double>(kBar) * static_cast<double>(count) / static_cast<double>(most));
    std::cout << std::setw(12) << bucket_from(digits) << " - " << std::left << std::setw(12) << bucket_to(digits) << std::right << std::setw(12)
              << count << "  " << std::string(static_cast<size_t>(count > 0 ? std::max<int64_t>(bar, 1) : 0), '#') << '\n';
  }
}

std::string format_of(const TokenSource& source) {
  const std::string text = source.description();
  return text.substr(0, text.find(','));
}

nlohmann::ordered_json to_json(const TokenSource& source, const std::optional<TokenIndex>& index, const Lengths& lengths, double mean) {
  nlohmann::ordered_json json;
  if (index) {
    json = parse_value<nlohmann::ordered_json>(index->to_json(), "index.json");
  } else {
    json = {{"format", format_of(source)}, {"tokens", source.tokens()}, {"documents", nullptr}};
    if (!source.has_document_boundaries()) return json;
    json["documents"] = source.documents();
  }
  if (index && index->prompts) json["prompt_tokens"] = lengths.prompt_tokens;
  json["document_tokens"] = {{"shortest", lengths.shortest}, {"mean", mean}, {"longest", lengths.longest}};
  json["lengths"] = nlohmann::ordered_json::array();
  for (size_t digits = 0; digits < lengths.documents.size(); ++digits)
    if (lengths.documents[digits] > 0)
      json["lengths"].push_back({{"from", bucket_from(digits)}, {"to", bucket_to(digits)}, {"documents", lengths.documents[digits]}});
  return json;
}

}  // namespace

void inspect_tokens(const InspectOptions& options) {
  const TokenSource source(options.path);
  if (const std::string doubt = source.suspicion(); !doubt.empty()) std::cerr << "warning: " << printable(doubt) << '\n';
  std::error_code ignored;
  std::optional<TokenIndex> index;
  if (std::filesystem::is_directory(options.path, ignored)) {
    const TokenFile file(options.path);
    if (options.verify) file.verify();
    index = file.index();
  } else if (options.verify) {
    throw ConfigError(concat("--verify: ", options.path, ": token files of other programs have no digests; allowed a token directory"));
  }
  const std::optional<Tokenizer> tokenizer = tokenizer_of(options, index);
  const Lengths lengths = measure(source);
  const double mean = static_cast<double>(source.tokens()) / static_cast<double>(source.documents());
  const std::string sample = sample_of(source, tokenizer);

  if (options.json) {
    nlohmann::ordered_json json = to_json(source, index, lengths, mean);
    json["sample"] = sample;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    return finish_output();
  }
  std::cout << "tokens      " << source.tokens();
  if (index) std::cout << " of " << counted(index->token_bytes(), "byte");
  if (source.has_document_boundaries())
    std::cout << "\ndocuments   " << source.documents() << "; tokens in each: shortest " << lengths.shortest << ", mean " << std::llround(mean)
              << ", longest " << lengths.longest << '\n';
  else
    std::cout << "\ndocuments   not recorded by this format\n";
  if (index && index->prompts)
    std::cout << "prompts     " << lengths.prompt_tokens << " tokens, never targets; " << source.tokens() - lengths.prompt_tokens
              << " response tokens\n";
  if (index) {
    std::cout << "digest      " << (index->has_digests() ? index->tokens_digest + ", of all tokens" : "none: built by an earlier version")
              << (options.verify ? "; verified\n" : "\n");
    std::cout << "tokenizer   " << index->tokenizer << " (" << index->tokenizer_digest << "), vocabulary " << index->vocab_size << '\n';
  } else {
    std::cout << "format      " << format_of(source) << '\n';
  }
  if (source.has_document_boundaries()) print_lengths(lengths);
  std::cout << (tokenizer ? "sample\n" : "sample of ids; --tokenizer shows it as text\n") << printable_sample(sample) << '\n';
  finish_output();
}

}  // namespace trireme
