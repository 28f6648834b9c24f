#pragma once
// What the files beside a tokenizer say about it, in a model folder of Hugging Face, a checkpoint or a token directory.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"

namespace trireme {

/// Sampling settings of a generation_config.json; those that it lacks have no value.
struct GenerationDefaults {
  std::optional<double> temperature, top_p;  ///< temperature 0 if it says not to sample
  std::optional<int64_t> top_k;
  std::vector<std::string> ignored;  ///< settings that would change the text and are not supported
};

struct TokenizerCompanions {
  std::vector<AddedToken> added;            ///< by id: added_tokens_decoder of tokenizer_config.json, else added_tokens.json
  std::optional<std::string> end, begin;    ///< eos_token and bos_token of tokenizer_config.json, else of special_tokens_map.json
  std::string end_file;                     ///< the file that names `end`
  std::vector<int64_t> end_ids, begin_ids;  ///< eos_token_id and bos_token_id of generation_config.json, then of config.json
  bool spaces_after_added = true;           ///< tokenizer_config.json, "legacy": a SentencePiece model inserts a space behind each added token too
  GenerationDefaults sampling;
};

/// Reads the files in `folder` that exist. Errors: DataError naming the file and the key.
TokenizerCompanions read_companions(const std::filesystem::path& folder);

/// Names of the files beside a tokenizer that belong to a copy of it. A model's config.json does not: what it says goes into the generation_config.json.
extern const std::vector<std::string> kCompanionNames;
/// Their contents, of those in `folder`, by name.
std::map<std::string, std::string> companion_copies(const std::filesystem::path& folder);

}  // namespace trireme
