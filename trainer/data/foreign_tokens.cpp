#include "trainer/data/foreign_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/data/read_ids.h"

namespace trireme {
namespace {

constexpr const char* kAdvice = "; data.tokenizer or model.vocab_size does not match this file";

}  // namespace

int64_t size_of(IdType type) {
  switch (type) {
    case IdType::kU8:
    case IdType::kI8: return 1;
    case IdType::kU16:
    case IdType::kI16: return 2;
    case IdType::kI32:
    case IdType::kU32: return 4;
    case IdType::kI64: return 8;
  }
  throw InternalError("invalid id type");
}

FlatTokens::FlatTokens(const std::string& path, int64_t first_byte, IdType type) : file_(path), first_byte_(first_byte), type_(type) {
  const int64_t bytes = file_.bytes() - first_byte;
  if (bytes <= 0) throw DataError(concat(path, ": contains no tokens"));
  if (bytes % size_of(type) != 0)
    throw DataError(concat(path, ": truncated, or not a token file: ", bytes, " bytes of ids is not a multiple of ", size_of(type)));
  tokens_ = bytes / size_of(type);
}

void FlatTokens::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens [", begin, ", +", count, ") of ", tokens());
  const ValidIds valid{vocab_size, kAdvice};
  switch (type_) {
    case IdType::kU8: return read_ids<uint8_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kI8: return read_ids<int8_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kU16: return read_ids<uint16_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kI16: return read_ids<int16_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kI32: return read_ids<int32_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kU32: return read_ids<uint32_t>(file_, first_byte_, begin, count, valid, out);
    case IdType::kI64: return read_ids<int64_t>(file_, first_byte_, begin, count, valid, out);
  }
}

// ---- nanoGPT ----

/// Judges the first ids and as many from the middle, where a file of padding has others.
std::string NanoGptTokens::suspicion() const {
  constexpr int64_t kSampled = 4096, kFew = 16, kLargestHigh = 8;  // the upper halves of ids of half a million tokens are up to 8
  if (flat.tokens() < kFew) return "";
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kSampled, flat.tokens() / 4 * 4)));
  const auto count = static_cast<int64_t>(ids.size());
  int64_t wide = 0, wider = 0, letters = 0, stretches = 0;
  for (const int64_t begin : {int64_t{0}, (flat.tokens() - count) / 8 * 4}) {
    flat.read(begin, count, 1 << 16, ids.data());
    std::array<int64_t, 4> largest{}, large{};
    for (size_t i = 0; i < ids.size(); ++i) {
      largest[i % 4] = std::max<int64_t>(largest[i % 4], ids[i]);
      large[i % 4] += ids[i] > kLargestHigh ? 1 : 0;
      for (const int byte : {ids[i] & 0xff, ids[i] >> 8})
        letters += (byte >= 0x20 && byte < 0x7f) || byte == '\n' || byte == '\t' || byte == '\r' ? 1 : 0;
    }
    const bool low = 8 * large[0] > count;  // half of the first of four
    wide += low && 8 * large[2] > count && std::max(largest[1], largest[3]) <= kLargestHigh ? 1 : 0;
    wider += low && largest[1] <= kLargestHigh && largest[2] == 0 && largest[3] == 0 ? 1 : 0;
    ++stretches;
  }
  const auto text = [&](int64_t bytes) {
    return concat(flat.path(), ": read as ", flat.tokens(), " ids of 2 bytes, but every ", bytes == 4 ? "second" : "second to fourth",
                  " one is 0 or almost: are these ", flat.tokens() * 2 / bytes, " ids of ", bytes,
                  " bytes? Then write them again, e.g. with numpy: fromfile(FILE, \"", bytes == 4 ? "uint32" : "int64",
                  "\").astype(\"uint16\").tofile(OTHER), or give ids above 65535 to a Megatron dataset");
  };
  if (wide == stretches) return text(4);
  if (wider == stretches) return text(8);
  if (100 * letters >= 98 * stretches * 2 * count)
    return concat(flat.path(), ": read as ", flat.tokens(), " ids of 2 bytes, but its bytes look like text; `trireme data build` encodes text");
  return "";
}

// ---- llm.c ----

namespace {

constexpr int64_t kLlmcHeader = 256 * sizeof(int32_t);
constexpr int32_t kLlmcGpt2 = 20240520, kLlmcEvaluation = 20240522, kLlmcLlama3 = 20240801;

/// Checks the header and returns the type of the ids.
IdType llmc_type(const std::string& path) {
  const RandomAccessFile file(path);
  const auto field = [&](int64_t i) { return read_value<int32_t>(file, i * static_cast<int64_t>(sizeof(int32_t))); };
  if (file.bytes() < kLlmcHeader) throw DataError(concat(path, ": truncated: ", file.bytes(), " bytes, but an llm.c header has ", kLlmcHeader));
  if (field(0) == kLlmcEvaluation) throw DataError(concat(path, ": an llm.c evaluation file, not a token file"));
  const IdType type = field(0) == kLlmcGpt2 ? IdType::kU16 : IdType::kU32;
  const int32_t version = field(0) == kLlmcGpt2 ? 1 : 7;
  if (field(1) != version) throw DataError(concat(path, ": llm.c format version ", field(1), " is not supported; supported: ", version));
  const int64_t expected = kLlmcHeader + field(2) * size_of(type);
  if (field(2) < 1 || file.bytes() != expected)
    throw DataError(concat(path, ": ", file.bytes() < expected ? "truncated" : "does not match its header", ": ", file.bytes(),
                           " bytes, but the header declares ", field(2), " ids of ", size_of(type), " bytes"));
  return type;
}

}  // namespace

bool LlmcTokens::recognises(const std::string& path) {
  const RandomAccessFile file(path);
  if (file.bytes() < static_cast<int64_t>(sizeof(int32_t))) return false;
  const auto magic = read_value<int32_t>(file, 0);
  return magic == kLlmcGpt2 || magic == kLlmcEvaluation || magic == kLlmcLlama3;
}

LlmcTokens::LlmcTokens(const std::string& path) : flat(path, kLlmcHeader, llmc_type(path)) {}

// ---- Megatron ----

namespace {

constexpr char kMegatronMagic[] = "MMIDIDX\0";  // nine bytes including the terminating zero
constexpr int64_t kTypeAt = 9 + 8, kSequencesAt = kTypeAt + 1, kBordersAt = kSequencesAt + 8, kLengthsAt = kBordersAt + 8;

IdType megatron_type(const RandomAccessFile& index) {
  static_assert(sizeof kMegatronMagic == 9);
  const std::string& path = index.path();
  if (index.bytes() < kLengthsAt) throw DataError(concat(path, ": truncated: ", index.bytes(), " bytes, but the header has ", kLengthsAt));
  if (std::array<char, sizeof kMegatronMagic> magic;
      index.read(0, sizeof magic, magic.data()), std::memcmp(magic.data(), kMegatronMagic, sizeof magic) != 0)
    throw DataError(concat(path, ": not a Megatron index: it does not begin with MMIDIDX"));
  if (const auto version = read_value<uint64_t>(index, 9); version != 1)
    throw DataError(concat(path, ": Megatron index version ", version, " is not supported; supported: 1"));
  switch (const auto code = read_value<uint8_t>(index, kTypeAt); code) {
    case 1: return IdType::kU8;
    case 2: return IdType::kI8;
    case 3: return IdType::kI16;
    case 4: return IdType::kI32;
    case 5: return IdType::kI64;
    case 8: return IdType::kU16;
    default: throw DataError(concat(path, ": data type ", static_cast<int>(code), " is not an integer type; allowed 1, 2, 3, 4, 5, 8"));
  }
}

}  // namespace

MegatronTokens::MegatronTokens(const std::string& prefix) : index_(prefix + ".idx"), type_(megatron_type(index_)), flat_(prefix + ".bin", 0, type_) {
  const auto sequences = read_value<uint64_t>(index_, kSequencesAt), borders = read_value<uint64_t>(index_, kBordersAt);
  const auto room = static_cast<uint64_t>(index_.bytes());
  // The counts are checked first so that the products cannot overflow.
  const bool sane = sequences < room && borders < room;
  const uint64_t expected = sane ? static_cast<uint64_t>(kLengthsAt) + sequences * 12 + borders * 8 : std::numeric_limits<uint64_t>::max();
  if (expected != room)
    throw DataError(concat(index_.path(), ": ", expected > room ? "truncated" : "too long", ": ", room, " bytes, but its header declares ", sequences,
                           " sequences and ", borders, " document boundaries"));
  sequences_ = static_cast<int64_t>(sequences);
  borders_ = static_cast<int64_t>(borders);
  check_index();
}

ValueReader<int32_t> MegatronTokens::lengths() const { return {index_, kLengthsAt, sequences_}; }
ValueReader<int64_t> MegatronTokens::starts() const { return {index_, kLengthsAt + 4 * sequences_, sequences_}; }
ValueReader<int64_t> MegatronTokens::borders() const { return {index_, kLengthsAt + 12 * sequences_, borders_}; }

/// Checks the complete index once: since the sequences are contiguous, the file is one stream of tokens.
void MegatronTokens::check_index() const {
  int64_t end = 0;
  const int64_t tokens = flat_.tokens();
  ValueReader<int32_t> lengths = this->lengths();
  ValueReader<int64_t> starts = this->starts(), borders = this->borders();
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t count = lengths[s], start = starts[s];
    if (count < 0 || count > tokens - end || start != end * size_of(type_))
      throw DataError(concat(index_.path(), ": sequence ", s, ", ", count, " ids from byte ", start, " of ", flat_.path(), " with ", tokens,
                             " ids, must begin at byte ", end * size_of(type_), ", where the previous one ends, and lie inside the file"));
    end += count;
  }
  if (end != tokens) throw DataError(concat(index_.path(), ": covers ", end, " ids, but ", flat_.path(), " has ", tokens));
  int64_t before = 0;
  for (int64_t i = 0; i < borders_; ++i) {
    const int64_t border = borders[i];
    if (border < before || border > sequences_ || (i == 0 && border != 0))
      throw DataError(concat(index_.path(), ": document ", i, " begins at sequence ", border, ", after ", before, ", of ", sequences_));
    before = border;
  }
  if (borders_ < 2 || before != sequences_)
    throw DataError(concat(index_.path(), ": the documents cover ", before, " of ", sequences_, " sequences"));
}

int64_t MegatronTokens::DocumentReader::token_at(int64_t border) {
  const int64_t sequence = borders_[border];
  if (sequence == tokens_.sequences_) return tokens_.flat_.tokens();
  const int64_t token = sequence >= 0 && sequence < tokens_.sequences_ ? starts_[sequence] / size_of(tokens_.type_) : -1;
  // check_index() has checked it, but another program may have changed the file since.
  if (token < 0 || token > tokens_.flat_.tokens()) throw DataError(concat(tokens_.index_.path(), ": changed while in use"));
  return token;
}

TokenFile::Document MegatronTokens::DocumentReader::operator[](int64_t i) {
  TRIREME_CHECK(i >= 0 && i < tokens_.documents(), "document ", i, " of ", tokens_.documents());
  const int64_t begin = token_at(i);
  return {begin, token_at(i + 1), begin};
}

}  // namespace trireme
