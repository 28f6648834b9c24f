#pragma once
// Keys, options and commands of other trainers, for the messages about unknown ones.
#include <span>
#include <string>
#include <string_view>

namespace trireme {

/// A name that another trainer gives to something that this one has, or does not have.
struct ForeignName {
  const char* name;      ///< in lower case with underscores: the end of a dotted path
  const char* programs;  ///< that have it, "nanoGPT and LitGPT"
  const char* key;       ///< the key of this program; empty: there is none
  const char* note;      ///< how the value differs, or what there is in place of a key; empty: it is the same
};
std::span<const ForeignName> foreign_names();

/// The row of a key or option as somebody wrote it: "--max-steps", "training.max_steps" and "max_steps" are the same. nullptr: unknown.
const ForeignName* foreign_name(std::string_view name);
/// "; num_hidden_layers of Hugging Face is model.layers here", to be added to a message about `name`. Empty: unknown.
std::string foreign_suggestion(std::string_view name);

/// What a command of another program, or a misspelt one, is here: "pretrain", "trian". `commands`: those of this program. Empty: unknown.
std::string command_suggestion(std::string_view name, std::span<const std::string> commands);

}  // namespace trireme
