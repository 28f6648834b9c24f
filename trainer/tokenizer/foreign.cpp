#include "trainer/tokenizer/foreign.h"

#include <algorithm>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kConvert = "transformers writes a tokenizer.json: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OUT)";

/// Lines of base64, a space and a rank.
bool is_tiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 400));
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0 || space % 4 != 0) return false;
  const auto of = [](std::string_view part, std::string_view allowed) { return !part.empty() && part.find_first_not_of(allowed) == part.npos; };
  return of(line.substr(0, space), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") && of(line.substr(space + 1), "0123456789\r");
}

/// The JSON object of a text, or of the string that a text is, as Keras users write it; null if there is none.
json object_in_text(std::string_view text) {
  try {
    if (!text.starts_with('"')) return parse_object(text, "", ControlCharacters::kInKeys);
    return parse_object(parse_value(text, "").get<std::string>(), "", ControlCharacters::kInKeys);
  } catch (const std::exception&) {
    return nullptr;
  }
}

bool has(const json& root, const char* key) { return root.is_object() && root.contains(key); }

bool is_vocabulary(const json& root) {
  return root.is_object() && !root.empty() && std::all_of(root.begin(), root.end(), [](const json& id) { return id.is_number_integer(); });
}

}  // namespace

std::string foreign_tokenizer(const std::string& name, std::string_view text) {
  if (is_tiktoken(text)) return concat("a vocabulary of tiktoken, which has neither its regex nor its special tokens; ", kConvert);
  if (name == "vocab.txt") return concat("the vocabulary of a WordPiece tokenizer without its rules; ", kConvert);
  if (name == "merges.txt" || text.starts_with("#version: 0"))
    return concat("the merges of a BPE tokenizer without its vocabulary and rules; ", kConvert);
  const json root = object_in_text(text);
  if (has(root, "class_name") && has(root, "config"))
    return "a Keras Tokenizer, whose ids are of whole words; train a tokenizer by `trireme tokenizer train`";
  if (has(root, "config") && has(root, "vocab") && root.at("vocab").is_array())
    return concat("a tekken.json of Mistral; its model on the hub has a tokenizer.json in a folder for transformers");
  if (has(root, "tokenizer_class") || has(root, "added_tokens_decoder"))
    return "a tokenizer_config.json, the settings of a tokenizer; name its folder, or the tokenizer.json in it";
  if (has(root, "model_type")) return "a model's config.json; name its folder, or the tokenizer.json in it";
  if (is_vocabulary(root)) return concat("a vocabulary without the merges and rules of its tokenizer, such as a vocab.json; ", kConvert);
  return "";
}

std::string foreign_tokenizer_in(const fs::path& folder) {
  static const std::vector<std::string> kNames = {"vocab.json", "merges.txt", "vocab.txt", "tekken.json", "spiece.model", "sentencepiece.bpe.model"};
  std::string found;
  bool model = false;
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.ends_with(".tiktoken")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    found += (found.empty() ? "" : ", ") + name;
    model = model || name.ends_with(".model");
  }
  if (found.empty()) return "";
  return concat(found, model ? "; a SentencePiece model can be named itself" : concat("; ", kConvert));
}

}  // namespace trireme
