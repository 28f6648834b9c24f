#pragma once
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/huggingface/weight_source.h"

namespace trireme {

/// The tokenizer of `source`, as transformers opens it: tokenizer.json or tokenizer.model with tokenizer_config.json; of a Hugging Face folder, all
/// files that belong to its tokenizer, as they are. The bytes tokenizer becomes a byte-level tokenizer.json without merges, in which the id of a byte
/// is its value. Writes nothing where the source has no tokenizer. Errors: those of Tokenizer::open; IoError.
void write_tokenizer_files(const WeightSource& source, const std::filesystem::path& folder);

/// Id of the token that ends a document; null where `spec`, as Tokenizer::open takes it, has none or is empty.
nlohmann::json end_of_text_id(const std::string& spec);

}  // namespace trireme
