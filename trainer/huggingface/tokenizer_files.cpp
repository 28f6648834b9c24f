#include "trainer/huggingface/tokenizer_files.h"

#include "trainer/checkpoint/tokenizer_copy.h"
#include "trainer/files/durable_file.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using nlohmann::ordered_json;

/// Tokenizer files in a Hugging Face folder.
constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                  "vocab.json",     "merges.txt",      "chat_template.jinja"};

ordered_json bytes_tokenizer() {
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  const ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", std::move(vocabulary)},
            {"merges", ordered_json::array()}}}};
}

/// A tokenizer_config.json for a tokenizer without one.
ordered_json describe(const Tokenizer& tokenizer, const ModelConfig& model) {
  ordered_json config = {
      {"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", *model.max_positions}, {"clean_up_tokenization_spaces", false}};
  if (tokenizer.name() == "sentencepiece") {
    // As in training, no tokens are added at the ends.
    config.update(ordered_json{{"tokenizer_class", "LlamaTokenizer"}, {"legacy", false}, {"add_bos_token", false}, {"add_eos_token", false}});
  } else {
    // Absent tokens are written as null, because a class would add its default tokens to the vocabulary.
    const std::optional<int32_t> end = tokenizer.end_of_text();
    for (const char* token : {"bos_token", "eos_token", "unk_token", "pad_token"}) config[token] = nullptr;
    if (end) config["eos_token"] = tokenizer.decode(std::vector<int32_t>{*end});
  }
  return config;
}

}  // namespace

void write_tokenizer_files(const WeightSource& source, const fs::path& folder) {
  std::error_code ignored;
  if (!source.is_checkpoint()) {
    const fs::path& from = source.folder();
    for (const char* name : kFiles)
      if (fs::is_regular_file(from / name, ignored)) write_durably(folder / name, read_text(from / name));
    return;
  }
  if (source.tokenizer().empty()) return;
  const Tokenizer tokenizer = Tokenizer::open(source.tokenizer());
  std::map<std::string, std::string> texts = copy_of(tokenizer).texts;
  if (texts.empty()) texts["tokenizer.json"] = bytes_tokenizer().dump(1) + "\n";
  texts.try_emplace("tokenizer_config.json", describe(tokenizer, source.model()).dump(2) + "\n");
  for (const auto& [name, text] : texts) write_durably(folder / name, text);
}

ordered_json special_ids(const std::string& spec) {
  ordered_json ids = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr}};
  if (spec.empty()) return ids;
  const Tokenizer tokenizer = Tokenizer::open(spec);
  if (tokenizer.begin_of_text()) ids["bos_token_id"] = *tokenizer.begin_of_text();
  const std::vector<int32_t>& ends = tokenizer.ends();
  if (!ends.empty()) ids["eos_token_id"] = ends.size() == 1 ? ordered_json(ends.front()) : ordered_json(ends);
  return ids;
}

}  // namespace trireme
