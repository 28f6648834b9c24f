#include "trainer/data/build/text_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/files/mapped_file.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

struct Format {
  const char* name;       ///< with its article
  const char* extension;  ///< may be nullptr
  std::string_view magic;
  const char* reader;  ///< prints the text of a file to standard output; nullptr: no such program
};

constexpr Format kFormats[] = {
    {"a gzip file", ".gz", "\x1f\x8b"sv, "zcat"},
    {"a Zstandard file", ".zst", "\x28\xb5\x2f\xfd"sv, "zstdcat"},
    {"an xz file", ".xz",
     "\xfd"
     "7zXZ\0"sv,
     "xzcat"},
    {"a bzip2 file", ".bz2", "BZh91AY&SY"sv, "bzcat"},
    {"a zip file", ".zip", "PK\x03\x04"sv, "unzip -p"},
    {"a Parquet file", ".parquet", "PAR1"sv, nullptr},
    {"an Arrow file", ".arrow", "ARROW1"sv, nullptr},
    {"an Arrow file", nullptr, "\xff\xff\xff\xff"sv, nullptr},  // the streaming format, which Hugging Face datasets writes
};

bool is_json_lines(std::string_view path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

[[noreturn]] void refuse(const Format& format, const std::string& path, const std::string& command) {
  const std::string head = concat(path, ": is ", format.name, ", not text; ");
  if (!format.reader) throw DataError(concat(head, "convert it to JSON lines, e.g. with to_json(\"FILE.jsonl\") of Hugging Face datasets"));
  const std::string_view inner = format.extension && path.ends_with(format.extension)
                                     ? std::string_view(path).substr(0, path.size() - std::strlen(format.extension))
                                     : std::string_view();
  const char* const lines = command == "data build" && is_json_lines(inner) ? "--field text " : "";  // a pipe has no extension
  throw DataError(concat(head, "decompress it first: ", format.reader, " FILE | trireme ", command, " ", lines, "... -"));
}

/// UTF-16 and UTF-32 begin with a byte order mark.
bool has_wide_mark(std::string_view text) { return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"); }

[[noreturn]] void refuse_encoding(const std::string& path, const std::string& found) {
  throw DataError(concat(path, ": ", found, "; the input must be UTF-8 text: convert it with iconv -f ENCODING -t UTF-8 if it is text"));
}

size_t invalid_bytes(std::string_view text) {
  size_t count = 0;
  while (!text.empty()) {
    text.remove_prefix(valid_utf8(text));
    if (text.size() <= unfinished_utf8(text)) break;  // the stretch may end within a character
    ++count;
    text.remove_prefix(1);
  }
  return count;
}

/// The first bytes of a file, as many as the longest magic has.
std::string first_bytes(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(path, "cannot open", errno);
  char bytes[16];
  ssize_t count = 0;
  do count = ::read(descriptor, bytes, sizeof bytes);
  while (count < 0 && errno == EINTR);
  const int error_number = errno;
  ::close(descriptor);
  if (count < 0) throw_file_error(path, "cannot read", error_number);
  return {bytes, static_cast<size_t>(count)};
}

}  // namespace

void check_text_file(const std::string& path, const std::string& command) {
  check_magic(first_bytes(path), path, command);
  for (const Format& format : kFormats)
    if (format.extension && path.ends_with(format.extension)) refuse(format, path, command);
}

void check_magic(std::string_view start, const std::string& path, const std::string& command) {
  for (const Format& format : kFormats)
    if (start.starts_with(format.magic)) refuse(format, path, command);
  if (has_wide_mark(start)) refuse_encoding(path, "begins with the byte order mark of UTF-16 or UTF-32");
}

void check_utf8(std::string_view start, const std::string& path) {
  const size_t invalid = invalid_bytes(start);
  if (invalid > 0 && 10 * invalid >= start.size())
    refuse_encoding(path, concat("not UTF-8: ", invalid, " of the first ", start.size(), " bytes are invalid"));
}

void check_no_nul(std::string_view text, int64_t offset, const std::string& path) {
  if (const size_t at = text.find('\0'); at != std::string_view::npos)
    refuse_encoding(path, concat("is binary: byte ", offset + static_cast<int64_t>(at), " is NUL"));
}

void check_not_dataset(const std::string& path) {
  std::error_code ignored;
  bool described = fs::exists(fs::path(path) / "dataset_dict.json", ignored), arrow = described;
  for (const char* name : {"state.json", "dataset_info.json"}) described = described || fs::exists(fs::path(path) / name, ignored);
  if (!described) return;
  for (fs::directory_iterator entry(path, ignored), end; !ignored && entry != end; entry.increment(ignored))
    arrow = arrow || entry->path().extension() == ".arrow";
  if (arrow)
    throw DataError(concat(path, ": is a directory of Hugging Face datasets (save_to_disk), not text; convert it to JSON lines first: ",
                           "datasets.load_from_disk(DIR).to_json(\"FILE.jsonl\"), for each split of a DatasetDict"));
}

}  // namespace trireme
