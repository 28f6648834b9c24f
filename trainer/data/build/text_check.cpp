#include "trainer/data/build/text_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "trainer/data/build/json_line.h"
#include "trainer/files/lfs_pointer.h"
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
    {"a 7z archive", ".7z",
     "7z\xbc\xaf\x27"
     "\x1c"sv,
     "7z e -so"},
    {"an lz4 file", ".lz4", "\x04\x22\x4d\x18"sv, "lz4cat"},
    {"a PDF document", ".pdf", "%PDF-"sv, "pdftotext"},
    {"a GGUF file", ".gguf", "GGUF"sv, nullptr},
    {"a NumPy array", ".npy", "\x93NUMPY"sv, nullptr},
    {"an HDF5 file", ".h5", "\x89HDF\r\n\x1a\n"sv, nullptr},
    {"an SQLite database", nullptr, "SQLite format 3\0"sv, nullptr},
    {"a PNG image", ".png", "\x89PNG\r\n\x1a\n"sv, nullptr},
    {"a JPEG image", ".jpg", "\xff\xd8\xff"sv, nullptr},
    {"an Arrow file", nullptr, "\xff\xff\xff\xff"sv, nullptr},  // the streaming format, which Hugging Face datasets writes
};

bool is_json_lines(std::string_view path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

[[noreturn]] void refuse(const Format& format, const std::string& path, const std::string& command) {
  const std::string head = concat(path, ": is ", format.name, ", not text; ");
  const std::string_view name = format.name;
  if (name == "a PDF document") throw DataError(concat(head, "extract its text first: pdftotext FILE - | trireme ", command, " ... -"));
  if (!format.reader && (name == "a Parquet file" || name == "an Arrow file"))
    throw DataError(concat(head, "convert it to JSON lines, e.g. with to_json(\"FILE.jsonl\") of Hugging Face datasets"));
  if (!format.reader) throw DataError(head + "write what is to be learnt as UTF-8 text or JSON lines");
  const std::string_view inner = format.extension && path.ends_with(format.extension)
                                     ? std::string_view(path).substr(0, path.size() - std::strlen(format.extension))
                                     : std::string_view();
  const char* const lines = command == "data build" && is_json_lines(inner) ? "--field text " : "";  // a pipe has no extension
  throw DataError(concat(head, "decompress it first: ", format.reader, " FILE | trireme ", command, " ", lines, "... -"));
}

/// UTF-16 and UTF-32 begin with a byte order mark.
bool has_wide_mark(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") || text.starts_with("\0\0\xfe\xff"sv);
}

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

/// The first bytes of a file, by default as many as the longest magic has.
std::string first_bytes(const std::string& path, size_t most = 64) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(path, "cannot open", errno);
  std::string bytes(most, '\0');
  ssize_t count = 0;
  do count = ::read(descriptor, bytes.data(), bytes.size());
  while (count < 0 && errno == EINTR);
  const int error_number = errno;
  ::close(descriptor);
  if (count < 0) throw_file_error(path, "cannot read", error_number);
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

bool is_json_document(std::string_view path) { return path.ends_with(".json") || path.ends_with(".ipynb"); }

/// [{"name": ... : no text begins like that.
bool is_array_of_records(std::string_view text) {
  std::string start;
  for (const char c : text.substr(0, 256))
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') start += c;
  return start.starts_with("[{\"");
}

/// The first object of an array, up to its closing brace; empty if it is cut.
std::string_view first_object(std::string_view array) {
  const size_t begin = array.find('{');
  if (begin == array.npos) return {};
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < array.size(); ++i) {
    const char c = array[i];
    if (quoted && c == '\\')
      ++i;
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && c == '{')
      ++depth;
    else if (!quoted && c == '}' && --depth == 0)
      return array.substr(begin, i + 1 - begin);
  }
  return {};
}

/// " with --field NAME; it has texts in ...", for the fields of one object.
std::string field_advice(std::string_view object) {
  const std::vector<std::string> fields = string_fields(object);
  if (fields.empty()) return " with --field NAME";
  return concat(" with --field NAME; the first one has texts in ", joined(fields, ", "));
}

/// The cells of a line, without their quotes; none if a quote is open at its end.
std::vector<std::string> cells_of(std::string_view line, char separator) {
  std::vector<std::string> cells{""};
  bool quoted = false;
  for (const char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == separator && !quoted)
      cells.emplace_back();
    else if (c != '\r')
      cells.back() += c;
  }
  return quoted ? std::vector<std::string>() : cells;
}

/// A line of names, and one of as many cells: prose has a space behind a comma.
bool is_table(std::string_view text, char separator) {
  const size_t end = text.find('\n');
  if (end == text.npos) return false;
  const std::vector<std::string> names = cells_of(text.substr(0, end), separator);
  const auto is_name = [](const std::string& cell) {
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789-. ";
    return !cell.empty() && cell.size() <= 40 && cell.front() != ' ' && cell.back() != ' ' && cell.find_first_not_of(kLetters) == cell.npos;
  };
  if (names.size() < 2 || !std::all_of(names.begin(), names.end(), is_name)) return false;
  const std::string_view rest = text.substr(end + 1);
  const std::string_view second = rest.substr(0, rest.find('\n'));
  if (second.empty()) return false;
  const std::vector<std::string> cells = cells_of(second, separator);
  return cells.empty() || cells.size() == names.size();  // a quoted cell may continue in the next line
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
  check_no_lfs_pointer(start, std::ssize(start), path);
  if (has_wide_mark(start)) refuse_encoding(path, "begins with the byte order mark of UTF-16 or UTF-32");
}

std::optional<Look> look_of(std::string_view start, const std::string& path, bool lines) {
  if (start.starts_with("\xef\xbb\xbf")) start.remove_prefix(3);
  start.remove_prefix(std::min(start.find_first_not_of(" \t\r\n"), start.size()));
  if (start.starts_with('[') && (lines || is_array_of_records(start) || is_json_document(path)))
    return Look{"a JSON array",
                concat("write each of its items on a line, e.g. jq -c '.[]' FILE > FILE.jsonl, and build that", field_advice(first_object(start)))};
  if (lines) return std::nullopt;
  if (start.starts_with('{')) {
    const std::string_view first = start.substr(0, start.find('\n'));
    if (!string_fields(first).empty()) return Look{"JSON lines", "encode a field of each line" + field_advice(first)};
    if (is_json_document(path)) return Look{"a JSON document", "extract its texts first, e.g. with jq -r"};
    return std::nullopt;
  }
  if (begins_with_word(start, "<!doctype html") || begins_with_word(start, "<html"))
    return Look{"an HTML page", "extract its text first, as its tags would be learnt"};
  if (begins_with_word(start, "<?xml")) return Look{"an XML document", "extract its text first, as its tags would be learnt"};
  const char separator = is_table(start, ',') ? ',' : is_table(start, '\t') ? '\t' : '\0';
  const bool named_table = path.ends_with(".csv") || path.ends_with(".tsv");
  if (separator != '\0' || named_table)
    return Look{
        separator == '\t' || path.ends_with(".tsv") ? "a table of tab-separated values" : "a table of comma-separated values",
        "convert it to JSON lines first, e.g. pandas.read_csv(\"FILE\").to_json(\"FILE.jsonl\", orient=\"records\", lines=True), and name the "
        "column with --field"};
  return std::nullopt;
}

void check_look_of_file(const std::string& path) {
  if (const std::optional<Look> look = look_of(first_bytes(path, size_t{1} << 16), path))
    throw DataError(concat(path, ": ", look->text(), kPlainTextAdvice));
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
