#pragma once
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/huggingface/weight_source.h"

namespace trireme {

/// Writes the tokenizer of `source` in the format of transformers: tokenizer.json or tokenizer.model with tokenizer_config.json. All tokenizer files
/// of a Hugging Face folder are copied unchanged. The bytes tokenizer becomes a byte-level tokenizer.json without merges, in which the id of a byte
/// is its value. Writes nothing if the source has no tokenizer. Errors: those of Tokenizer::open; IoError.
void write_tokenizer_files(const WeightSource& source, const std::filesystem::path& folder);

/// bos_token_id, eos_token_id and pad_token_id for `spec`, an argument of Tokenizer::open; null where it has none or `spec` is empty.
nlohmann::ordered_json special_ids(const std::string& spec);

}  // namespace trireme
