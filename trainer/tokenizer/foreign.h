#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

/// What a tokenizer's file is, if it is in a known format that is not supported, with what helps: "a Keras Tokenizer, ...". Empty if it is unknown.
/// `name`: the name of the file.
std::string foreign_tokenizer(const std::string& name, std::string_view text);
/// The tokenizer files of such formats in a folder that has neither tokenizer.json nor tokenizer.model, and what helps; empty if there are none.
std::string foreign_tokenizer_in(const std::filesystem::path& folder);

}  // namespace trireme
