#pragma once
// The pre_tokenizer of a tokenizer.json.
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

/// `root`: the file. `model`: of pieces, whose rules of spaces and bytes are set too; null for byte-level BPE. Errors: DataError, prefixed with `where`, for
/// what is not supported.
PretokenizerRules parse_pre_tokenizer(const nlohmann::json& root, PieceModel* model, const std::string& where);

}  // namespace trireme
