#include "trainer/files/output_files.h"

#include <deque>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Path with a canonical directory, so that "a/../b" equals "b".
fs::path name_of(const fs::path& path) {
  std::error_code error;
  const fs::path directory = fs::canonical(path.has_parent_path() ? path.parent_path() : ".", error);
  return directory / path.filename();
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& inputs) {
  for (const OutputFile& file : files) {
    const std::string shown = concat(file.option, " ", file.path, ": ");
    check_replaceable(file.path);
    std::error_code error;
    for (const std::string& input : inputs)
      if (fs::equivalent(file.path, input, error)) throw ConfigError(concat(shown, "is read by this command; choose another name"));
    const std::string temporary = file.path + ".tmp";
    if (fs::exists(fs::symlink_status(temporary, error)))
      throw IoError(concat(shown, "is written through ", temporary, ", which exists; remove it, or choose another name"));
    for (const OutputFile& other : files)
      if (&other != &file && (name_of(other.path) == name_of(file.path) || name_of(other.path) == name_of(temporary)))
        throw ConfigError(concat(shown, "and ", other.option, " ", other.path, " would overwrite each other; choose another name"));
  }
}

void write_outputs(const std::vector<OutputFile>& files, const std::vector<std::string>& texts) {
  TRIREME_CHECK(files.size() == texts.size(), files.size(), " files for ", texts.size(), " texts");
  std::deque<DurableFile> open;
  for (const OutputFile& file : files) open.emplace_back(file.path);
  for (size_t i = 0; i < open.size(); ++i) open[i].write(texts[i]);
  for (DurableFile& file : open) file.commit();
}

}  // namespace trireme
