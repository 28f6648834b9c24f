#include "trainer/data/token_source.h"

#include <filesystem>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/foreign_files.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The PREFIX of PREFIX.idx and PREFIX.bin if `path` names a Megatron dataset.
std::optional<std::string> megatron_prefix(const std::string& path) {
  if (path.ends_with(".idx")) return path.substr(0, path.size() - 4);
  if (path.ends_with(".bin") && exists(path.substr(0, path.size() - 4) + ".idx")) return path.substr(0, path.size() - 4);
  if (!exists(path) && exists(path + ".idx")) return path;
  return std::nullopt;
}

using AnyFile = std::variant<TokenFile, NanoGptTokens, LlmcTokens, MegatronTokens>;

AnyFile open(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const fs::path folder = path;
    if (!exists(folder / "index.json") && (exists(folder / "config.json") || exists(folder / "manifest.json") || !foreign_folder(path).empty()))
      throw DataError(concat(path, ": is the folder of a model, not a token directory; `trireme data build` makes one of text"));
    return TokenFile(path);
  }
  if (const std::optional<std::string> prefix = megatron_prefix(path)) return MegatronTokens(*prefix);
  if (!exists(path)) return TokenFile(path);  // throws the error for a missing path
  if (LlmcTokens::recognises(path)) return LlmcTokens(path);
  if (const std::string what = foreign_file(path); !what.empty()) throw DataError(concat(path, ": ", what));
  if (path.ends_with(".bin")) return NanoGptTokens(path);
  throw DataError(concat(path,
                         ": not a token directory of `trireme data build`, nor a token file of llm.c, Megatron (*.bin with *.idx) or nanoGPT "
                         "(*.bin); text becomes one with `trireme data build`"));
}

template <class File>
constexpr bool kIsDirectory = std::is_same_v<File, TokenFile>;
template <class File>
constexpr bool kIsMegatron = std::is_same_v<File, MegatronTokens>;

const FlatTokens& flat(const NanoGptTokens& file) { return file.flat; }
const FlatTokens& flat(const LlmcTokens& file) { return file.flat; }
const FlatTokens& flat(const MegatronTokens& file) { return file.flat(); }

/// Calls `of_directory` for a token directory, otherwise `of_foreign` with the ids.
template <class OfDirectory, class OfForeign>
auto visit_ids(const AnyFile& any, OfDirectory&& of_directory, OfForeign&& of_foreign) {
  return std::visit(
      [&]<class File>(const File& file) {
        if constexpr (kIsDirectory<File>)
          return of_directory(file);
        else
          return of_foreign(flat(file));
      },
      any);
}

}  // namespace

TokenSource::TokenSource(const std::string& path) : path_(path), file_(open(path)) {}

int64_t TokenSource::tokens() const {
  return visit_ids(
      file_, [](const TokenFile& file) { return file.tokens(); }, [](const FlatTokens& ids) { return ids.tokens(); });
}

int64_t TokenSource::documents() const {
  return std::visit(
      []<class File>(const File& file) -> int64_t {
        if constexpr (kIsDirectory<File>) return file.index().documents;
        if constexpr (kIsMegatron<File>) return file.documents();
        return 1;
      },
      file_);
}

bool TokenSource::has_document_boundaries() const {
  return std::holds_alternative<TokenFile>(file_) || std::holds_alternative<MegatronTokens>(file_);
}

bool TokenSource::prompts() const {
  const TokenFile* directory = std::get_if<TokenFile>(&file_);
  return directory != nullptr && directory->index().prompts;
}

void TokenSource::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  visit_ids(
      file_,
      [&](const TokenFile& file) {
        if (file.index().vocab_size > vocab_size)
          throw DataError(concat(path_, ": its vocabulary of ", file.index().vocab_size, " exceeds the model's vocab_size of ", vocab_size));
        file.read(begin, count, out);
      },
      [&](const FlatTokens& ids) { ids.read(begin, count, vocab_size, out); });
}

void TokenSource::visit_documents(int64_t first, const std::function<bool(const TokenFile::Document&)>& visit) const {
  std::visit(
      [&]<class File>(const File& file) {
        if constexpr (kIsDirectory<File> || kIsMegatron<File>) {
          typename File::DocumentReader documents(file);
          for (int64_t i = first, count = this->documents(); i < count && visit(documents[i]); ++i) {
          }
        } else if (first == 0) {
          visit({0, tokens(), 0});
        }
      },
      file_);
}

int64_t TokenSource::document_at(int64_t token) const {
  TRIREME_CHECK(token >= 0 && token < tokens(), "token ", token, " of ", tokens());
  return std::visit(
      [&]<class File>(const File& file) -> int64_t {
        if constexpr (kIsDirectory<File> || kIsMegatron<File>) {
          typename File::DocumentReader documents(file);
          int64_t first = 0, last = this->documents() - 1;  // of documents with the same begin, all but the last are empty
          while (first < last) {
            const int64_t middle = first + (last - first + 1) / 2;
            if (documents[middle].begin <= token)
              first = middle;
            else
              last = middle - 1;
          }
          return first;
        }
        return 0;
      },
      file_);
}

std::string TokenSource::suspicion() const {
  const auto* const file = std::get_if<NanoGptTokens>(&file_);
  return file == nullptr ? "" : file->suspicion();
}

std::optional<std::string> TokenSource::tokenizer_digest() const {
  const TokenFile* directory = std::get_if<TokenFile>(&file_);
  return directory == nullptr ? std::nullopt : std::optional(directory->index().tokenizer_digest);
}

std::string TokenSource::file() const {
  return visit_ids(
      file_, [](const TokenFile& file) { return file.directory() + "/tokens.bin"; }, [](const FlatTokens& ids) { return ids.path(); });
}

std::optional<std::string> TokenSource::digest(bool documents) const {
  const TokenFile* directory = std::get_if<TokenFile>(&file_);
  if (directory == nullptr || !directory->index().has_digests()) return std::nullopt;
  const TokenIndex& index = directory->index();
  return documents ? concat(index.tokens_digest, index.documents_digest, index.prompts_digest) : index.tokens_digest;
}

std::string TokenSource::description() const {
  return std::visit(
      [&]<class File>(const File& file) -> std::string {
        if constexpr (kIsDirectory<File>) return file.index().without_digests().to_json();
        const char* format = kIsMegatron<File> ? "megatron" : std::is_same_v<File, LlmcTokens> ? "llm.c" : "nanogpt";
        return concat(format, ", ", counted(tokens(), "token"), " in ", counted(documents(), "document"), "\n");
      },
      file_);
}

}  // namespace trireme
