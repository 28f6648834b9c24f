#pragma once
// Refuses inputs that are not text before they become tokens: compressed files, tables of other programs and binary data.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// Checks the first bytes and the extension of a regular file. `command`: the one that the message advises to pipe the text into.
/// Errors: DataError naming the format and what to do; MissingFileError, IoError.
void check_text_file(const std::string& path, const std::string& command = "data build");

/// Checks the first bytes of an input for the magic bytes of a format that is not text. `path` is for messages. Errors: DataError.
void check_magic(std::string_view start, const std::string& path, const std::string& command = "data build");

/// What a text looks like that is no document, but has documents in it: "a JSON array"; and how to get at them.
struct Look {
  std::string what, remedy;
  std::string text() const { return "looks like " + what + "; " + remedy; }
};
inline constexpr const char* kPlainTextAdvice = "; --plain-text reads it as text all the same";
/// Judges the beginning of a text by its first characters, and by the extension of `path`. Of a text that is read as JSON `lines`, only whether it is a
/// JSON array.
std::optional<Look> look_of(std::string_view start, const std::string& path, bool lines = false);
/// The same of a regular file.   Errors: DataError if it looks like something; MissingFileError, IoError.
void check_look_of_file(const std::string& path);

/// Checks the first stretch of a text document. Errors: DataError if a tenth of its bytes or more are not UTF-8.
void check_utf8(std::string_view start, const std::string& path);

/// Checks a stretch of a text document that begins at byte `offset` of the input. Errors: DataError if it contains a NUL byte.
void check_no_nul(std::string_view text, int64_t offset, const std::string& path);

/// Errors: DataError if the files of directory `path` are those of save_to_disk of Hugging Face datasets.
void check_not_dataset(const std::string& path);

}  // namespace trireme
