#pragma once
// What a text becomes in a batch script, so that no character of it means anything to a shell or to sbatch.
#include <string>
#include <string_view>
#include <vector>

namespace trireme::submit {

/// One word of a shell command, in single quotes.
std::string quoted_word(std::string_view text);
/// The same, without quotes if all of its characters are harmless.
std::string shell_word(std::string_view text);

/// In a text that differs between the elements of a job array, the place of the element's number.
inline constexpr std::string_view kArrayIndex = "{array}";
/// shell_word(), with every kArrayIndex replaced by the shell's "$SLURM_ARRAY_TASK_ID".
std::string shell_word_of_element(std::string_view text);
/// The text with every kArrayIndex replaced by `index`.
std::string text_of_element(std::string_view text, std::string_view index);

/// The words with spaces between them.
std::string shell_words(const std::vector<std::string>& words);

/// The value of an option in an #SBATCH line, in quotes where sbatch needs them. `pattern`: sbatch replaces %j and the like in it, so a percent sign of
/// `text` must have been doubled. Errors: ConfigError, naming `option`, if an #SBATCH line cannot express the text: control characters, quotes and
/// backslashes.
std::string directive_value(const std::string& option, std::string_view text);

/// `text` with every % doubled, for a file name in which sbatch replaces patterns.
std::string without_patterns(std::string_view text);

/// The name of a job: characters other than letters, digits and ._+- become "_", and so does a dash in front; at most 64 of them.
std::string job_name_of(std::string_view run_name);

}  // namespace trireme::submit
