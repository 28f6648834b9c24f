#include "trainer/tokenizer/tokenizer.h"

#include <filesystem>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/mapped_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 28;  // the largest vocabularies in use take 30 MB

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// The eos_token of the tokenizer_config.json beside a tokenizer.json; nullopt if the file or the key does not exist.
std::optional<std::string> configured_end(const fs::path& tokenizer) {
  const fs::path path = fs::path(tokenizer).replace_filename("tokenizer_config.json");
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  const json root = parse_object(read_text(path, kMaxBytes), path.string());
  const auto found = root.find("eos_token");
  if (found == root.end() || found->is_null()) return std::nullopt;
  return found->is_object() ? string_member(*found, "content", path.string()) : string_member(root, "eos_token", path.string());
}

template <class Any>
std::optional<int32_t> find_end(const Any& tokenizer, const std::string& file) {
  if (const std::optional<std::string> name = configured_end(file)) {
    const std::optional<int32_t> id = tokenizer.added_token(*name);
    if (!id) throw DataError(concat(file, ": no added token ", *name, ", which the tokenizer_config.json beside it names as eos_token"));
    return id;
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>"})
    if (const std::optional<int32_t> id = tokenizer.added_token(name)) return id;
  return std::nullopt;
}

/// The tokenizer's file in a directory. If there are both, tokenizer.json may be a conversion of tokenizer.model, which is then preferred.
std::string file_in(const std::string& directory) {
  const fs::path translation = fs::path(directory) / "tokenizer.json", model = fs::path(directory) / "tokenizer.model";
  std::error_code unreadable;
  if (!fs::exists(model, unreadable)) {
    if (fs::exists(translation, unreadable)) return translation.string();
    throw MissingFileError(concat(directory, ": contains neither tokenizer.json nor tokenizer.model"));
  }
  if (!fs::exists(translation, unreadable)) return model.string();
  const json root = parse_object(read_text(translation, kMaxBytes), translation.string(), ControlCharacters::kInKeys);
  const json decoder = root.value("decoder", json());
  const bool byte_level = decoder.is_object() && decoder.value("type", json()) == "ByteLevel";
  return byte_level ? translation.string() : model.string();
}

}  // namespace

Tokenizer Tokenizer::open(const std::string& spec) {
  Tokenizer made;
  if (spec == "bytes") return made;
  std::error_code unreadable;
  made.file_ = fs::is_directory(spec, unreadable) ? file_in(spec) : spec;
  const auto take = [&](auto tokenizer, std::optional<int32_t> end) {
    made.vocab_size_ = tokenizer.vocab_size();
    made.end_of_text_ = end;
    made.kind_ = std::move(tokenizer);
  };
  const bool sentencepiece = made.file_.ends_with(".model");
  if (!sentencepiece && !made.file_.ends_with(".json"))
    throw ConfigError(concat("tokenizer=", spec,
                             ": unknown tokenizer; allowed: bytes, a SentencePiece model (*.model), a tokenizer.json, a directory with either"));
  const std::string text = read_text(made.file_, kMaxBytes);
  made.digest_ = digest_of(text);
  if (sentencepiece) {
    made.name_ = "sentencepiece";
    SentencePieceTokenizer tokenizer(text, made.file_);
    take(tokenizer, tokenizer.end_of_text());
  } else {
    made.name_ = "bpe";
    TokenizerJson description = parse_tokenizer_json(text, made.file_);
    if (description.fallback) {
      ByteFallbackTokenizer tokenizer(std::move(description), made.file_);
      take(tokenizer, find_end(tokenizer, made.file_));
    } else {
      BytePairTokenizer tokenizer(std::move(description), made.file_);
      take(tokenizer, find_end(tokenizer, made.file_));
    }
  }
  return made;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& tokens, bool first) {
  std::visit(Overloaded{[&](ByteTokenizer&) {
                          for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
                        },
                        [&](auto& tokenizer) { tokenizer.encode(text, tokens, first); }},
             kind_);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<int32_t> tokens;
  encode(text, tokens);
  return tokens;
}

size_t Tokenizer::cut(std::string_view text, bool first) const {
  return std::visit(
      Overloaded{[&](const ByteTokenizer&) { return text.size(); }, [&](const SentencePieceTokenizer& tokenizer) { return tokenizer.cut(text); },
                 [&](const ByteFallbackTokenizer& tokenizer) { return tokenizer.cut(text); },
                 [&](const BytePairTokenizer& tokenizer) { return tokenizer.cut(text, first); }},
      kind_);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size_) throw DataError(concat("token ", token, " is outside the tokenizer's vocabulary of ", vocab_size_));
  return std::visit(Overloaded{[&](const ByteTokenizer&) {
                                 std::string text;
                                 for (const int32_t token : tokens) text.push_back(static_cast<char>(token));
                                 return text;
                               },
                               [&](const auto& tokenizer) { return tokenizer.decode(tokens); }},
                    kind_);
}

std::vector<int32_t> Tokenizer::token_bytes() const {
  return std::visit(
      Overloaded{[](const ByteTokenizer&) { return std::vector<int32_t>(256, 1); }, [](const auto& tokenizer) { return tokenizer.token_bytes(); }},
      kind_);
}

bool same_ids(const Tokenizer& a, const Tokenizer& b) {
  if (a.digest() == b.digest()) return true;
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < a.vocab_size(); ++id)
    if (a.decode({&id, 1}) != b.decode({&id, 1})) return false;
  return true;
}

}  // namespace trireme
