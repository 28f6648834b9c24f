// Token files of every format as streams of samples: windows, document masks, prompts, blends, and damaged files.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/run_files.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_writer.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int32_t>;
using Documents = std::vector<Ids>;

uint64_t draw(const char* what, uint64_t i) { return random_bits(random_key(11, what), i); }

/// Documents of 1 to 13 tokens below `vocab`.
Documents some_documents(size_t count, int32_t vocab) {
  Documents documents(count);
  uint64_t at = 0;
  for (size_t d = 0; d < count; ++d) {
    documents[d].resize(1 + draw("length", d) % 13);
    for (int32_t& token : documents[d]) token = static_cast<int32_t>(draw("token", at++) % static_cast<uint64_t>(vocab));
  }
  return documents;
}

Ids joined(const Documents& documents) {
  Ids all;
  for (const Ids& document : documents) all.insert(all.end(), document.begin(), document.end());
  return all;
}

void write_directory(const fs::path& path, int64_t vocab, const Documents& documents, const std::vector<int64_t>& prompts = {}) {
  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = "bytes-v1";
  index.vocab_size = vocab;
  index.prompts = !prompts.empty();
  TokenWriter writer(path.string(), index);
  for (size_t d = 0; d < documents.size(); ++d) {
    writer.append(documents[d]);
    writer.end_document(prompts.empty() ? 0 : prompts[d]);
  }
  writer.commit();
}

template <class... Values>
void put(std::string& bytes, Values... values) {
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
}

template <class Id>
std::string packed(const Ids& ids) {
  std::string bytes;
  for (const int32_t id : ids) put(bytes, static_cast<Id>(id));
  return bytes;
}

std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
  std::string bytes;
  put(bytes, magic, version, tokens);
  bytes.resize(256 * sizeof(int32_t));
  return bytes;
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

struct MegatronIndex {
  std::vector<int32_t> lengths;  ///< sequence lengths, in ids
  std::vector<int64_t> starts;   ///< sequence starts, in bytes
  std::vector<int64_t> borders;
  uint8_t code;
  uint64_t version = 1;

  /// Contiguous sequences of the given lengths.
  MegatronIndex(std::vector<int32_t> of, std::vector<int64_t> documents, uint8_t type, int64_t id_bytes)
      : lengths(std::move(of)), borders(std::move(documents)), code(type) {
    int64_t at = 0;
    for (const int32_t length : lengths) {
      starts.push_back(at * id_bytes);
      at += length;
    }
  }
  std::string bytes() const {
    std::string out("MMIDIDX\0\0", 9);
    put(out, version, code, static_cast<uint64_t>(lengths.size()), static_cast<uint64_t>(borders.size()));
    for (const int32_t length : lengths) put(out, length);
    for (const int64_t start : starts) put(out, start);
    for (const int64_t border : borders) put(out, border);
    return out;
  }
};

/// One sequence per document, except that every fifth document has two sequences, one of them empty.
MegatronIndex megatron_index(const Documents& documents, uint8_t code, int64_t id_bytes) {
  std::vector<int32_t> lengths;
  std::vector<int64_t> borders = {0};
  for (size_t d = 0; d < documents.size(); ++d) {
    const auto size = static_cast<int32_t>(documents[d].size());
    const int32_t cut = d % 10 == 0 ? 0 : size / 2;
    if (d % 5 == 0) lengths.push_back(cut);
    lengths.push_back(d % 5 == 0 ? size - cut : size);
    borders.push_back(static_cast<int64_t>(lengths.size()));
  }
  return {lengths, borders, code, id_bytes};
}

DatasetOptions options(int64_t length, int64_t vocab, bool document_mask = false, std::vector<double> weights = {}) {
  return {length, vocab, "bytes-v1", document_mask, std::move(weights)};
}

/// Complete data: the last sequence may be short.
DatasetOptions whole(DatasetOptions how) {
  how.whole = true;
  return how;
}

struct Sample {
  Ids tokens, targets;
  std::vector<int64_t> segments;
  bool operator==(const Sample&) const = default;
};

Sample read(const Dataset& data, int64_t sample, int64_t length) {
  Sample out{Ids(static_cast<size_t>(length)), Ids(static_cast<size_t>(length)), {}};
  data.read(sample, out.tokens.data(), out.targets.data(), out.segments);
  return out;
}

std::vector<Sample> read_all(const std::vector<std::string>& paths, const DatasetOptions& how) {
  const TokenDataset data(paths, how);
  std::vector<Sample> samples;
  for (int64_t s = 0; s < data.sequences(); ++s) samples.push_back(read(data, s, how.sequence_length));
  return samples;
}

}  // namespace

TEST_CASE("all readers give the same batches for the same data", "[data]") {
  const TemporaryDirectory scratch;
  const Documents documents = some_documents(80, 120);  // ids that fit every type
  const Ids ids = joined(documents);
  const auto count = static_cast<int32_t>(ids.size());
  const fs::path& at = scratch.path;
  write_directory(at / "tokens", 120, documents);
  write(at / "nanogpt.bin", packed<uint16_t>(ids));
  write(at / "gpt2", llmc_header(20240520, 1, count) + packed<uint16_t>(ids));
  write(at / "llama3.bin", llmc_header(20240801, 7, count) + packed<uint32_t>(ids));
  write(at / "u16.bin", packed<uint16_t>(ids));
  write(at / "u16.idx", megatron_index(documents, 8, 2).bytes());
  write(at / "i32.bin", packed<int32_t>(ids));
  write(at / "i32.idx", megatron_index(documents, 4, 4).bytes());
  write(at / "i16.bin", packed<int16_t>(ids));
  write(at / "i16.idx", megatron_index(documents, 3, 2).bytes());
  write(at / "i64.bin", packed<int64_t>(ids));
  write(at / "i64.idx", megatron_index(documents, 5, 8).bytes());
  write(at / "u8.bin", packed<uint8_t>(ids));
  write(at / "u8.idx", megatron_index(documents, 1, 1).bytes());
  write(at / "i8.bin", packed<int8_t>(ids));
  write(at / "i8.idx", megatron_index(documents, 2, 1).bytes());
  for (const int64_t length : {1, 7, 16, 64}) {
    CAPTURE(length);
    const std::vector<Sample> expected = read_all({at / "tokens"}, options(length, 120));
    REQUIRE(static_cast<int64_t>(expected.size()) == (count - 1) / length);
    for (size_t s = 0; s < expected.size(); ++s) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(s) * length;
      REQUIRE(expected[s] == Sample{Ids(begin, begin + length), Ids(begin + 1, begin + 1 + length), {length}});
    }
    for (const char* name : {"nanogpt.bin", "gpt2", "llama3.bin", "u16", "u16.bin", "u16.idx", "i32", "i16", "i64", "u8.bin", "i8"}) {
      CAPTURE(name);
      CHECK(read_all({at / name}, options(length, 120)) == expected);
      // Neither a larger vocabulary of the model nor a second source before or after it changes the samples.
      CHECK(read_all({at / name}, options(length, 1000)) == expected);
      CHECK(read_all({at / name, at / "u8"}, options(length, 120)) == read_all({at / "tokens", at / "tokens"}, options(length, 120)));
    }
    const std::vector<Sample> apart = read_all({at / "tokens"}, options(length, 120, true));
    CHECK(apart != expected);
    for (const char* name : {"u16", "i32.bin", "i16.idx", "i64", "u8", "i8"}) CHECK(read_all({at / name}, options(length, 120, true)) == apart);
  }
}

TEST_CASE("samples cover the stream of all sources, each target once", "[data]") {
  const TemporaryDirectory scratch;
  Ids stream(50);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int32_t>(i * 7 % 256);
  const std::vector<int64_t> cuts = {0, 3, 4, 21, 50};  // windows span one, two and three sources
  std::vector<std::string> paths;
  for (size_t d = 0; d + 1 < cuts.size(); ++d) {
    paths.push_back(scratch.path / std::to_string(d));
    write_directory(paths.back(), 256, {{stream.begin() + cuts[d], stream.begin() + cuts[d + 1]}});
  }
  for (const int64_t length : {1, 2, 5, 7, 16, 49}) {
    CAPTURE(length);
    const TokenDataset dataset(paths, options(length, 256));
    REQUIRE(dataset.sequences() == 49 / length);
    for (int64_t s = 0; s < dataset.sequences(); ++s) {
      const auto begin = stream.begin() + s * length;
      CHECK(read(dataset, s, length) == Sample{{begin, begin + length}, {begin + 1, begin + 1 + length}, {length}});
    }
    CHECK_THROWS_AS(read(dataset, dataset.sequences(), length), InternalError);
    const auto width = static_cast<size_t>(length);
    CHECK(read(dataset, -1, length) == Sample{Ids(width, 0), Ids(width, -1), {length}});
  }
  check_throws<DataError>([&] { TokenDataset(paths, options(50, 256)); }, {"50 tokens", "needs 51"});
  check_throws<DataError>([&] { TokenDataset(paths, options(5, 255)); }, {"vocabulary of 256", "vocab_size of 255"});
  check_throws<DataError>([&] { TokenDataset(paths, {5, 256, "bpe-1"}); }, {"made by tokenizer bytes-v1", "the run uses bpe-1"});
  CHECK_NOTHROW(TokenDataset(paths, options(5, 257)));
}

TEST_CASE("complete data are complete: a set that is shorter than a sequence, and one of two tokens", "[data]") {
  const TemporaryDirectory scratch;
  const std::string few = scratch.path / "few", two = scratch.path / "two", one = scratch.path / "one";
  write_directory(few, 256, {{5, 6, 7}, {8, 9}});
  write_directory(two, 256, {{5, 6}});
  write_directory(one, 256, {{5}});
  CHECK(read_all({few}, whole(options(8, 256))) == std::vector<Sample>{{{5, 6, 7, 8, 0, 0, 0, 0}, {6, 7, 8, 9, -1, -1, -1, -1}, {8}}});
  CHECK(read_all({few}, whole(options(8, 256, true))) == std::vector<Sample>{{{5, 6, 7, 8, 0, 0, 0, 0}, {6, 7, -1, 9, -1, -1, -1, -1}, {3, 1, 4}}});
  CHECK(read_all({few}, whole(options(4, 256))) == read_all({few}, options(4, 256)));  // nothing is left over
  CHECK(read_all({two}, whole(options(3, 256))) == std::vector<Sample>{{{5, 0, 0}, {6, -1, -1}, {3}}});
  check_throws<DataError>([&] { TokenDataset({one}, whole(options(3, 256))); }, {"1 token, but one sequence of 1 token and its last target needs 2"});
  CHECK(TokenDataset({few, two}, whole(options(4, 256))).positions(100) == 6);
}

TEST_CASE("token files without a header: ids of another width, text and files of PyTorch are noticed", "[data]") {
  const TemporaryDirectory scratch;
  const auto suspicion = [&](const std::string& bytes) {
    write(scratch.path / "ids.bin", bytes);
    return TokenSource(scratch.path / "ids.bin").suspicion();
  };
  for (const int32_t vocab : {256, 50257, 128256}) {
    for (const size_t count : {16, 1000, 20'000}) {
      CAPTURE(vocab, count);
      Ids ids;
      for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(draw("id", i) % static_cast<uint64_t>(vocab)));
      if (vocab <= 65536) CHECK(suspicion(packed<uint16_t>(ids)).empty());
      CHECK(suspicion(packed<uint32_t>(ids)).find(concat("are these ", count, " ids of 4 bytes?")) != std::string::npos);
      CHECK(suspicion(packed<int64_t>(ids)).find(concat("are these ", count, " ids of 8 bytes?")) != std::string::npos);
      Ids padded = ids;
      padded.resize(3 * count, 0);  // a tail of zeros is padding
      if (vocab <= 65536) CHECK(suspicion(packed<uint16_t>(padded)).empty());
    }
  }
  CHECK(suspicion(packed<uint16_t>(Ids(1000, 0))).empty());
  CHECK(suspicion(packed<uint16_t>({1, 0, 2, 0})).empty());  // too few to judge
  std::string text;
  while (text.size() < 5000) text += "A line of prose, as it is.\n";
  CHECK(suspicion(text).find("its bytes look like text") != std::string::npos);
  write(scratch.path / "pytorch_model.bin", "PK\x03\x04 and so on");
  check_throws<DataError>([&] { TokenSource(scratch.path / "pytorch_model.bin"); }, {"pytorch_model.bin: is a file of PyTorch, a pickle"});
  write(scratch.path / "text.txt", text);
  check_throws<DataError>([&] { TokenSource(scratch.path / "text.txt"); }, {"text becomes one with `trireme data build`"});
  write(scratch.path / "pointer.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10\n");
  check_throws<DataError>([&] { TokenSource(scratch.path / "pointer.bin"); }, {"pointer.bin: is a Git LFS pointer"});
}

TEST_CASE("document mask and prompts: segments and targets, token by token", "[data]") {
  const TemporaryDirectory scratch;
  std::vector<Documents> parts = {some_documents(30, 256), some_documents(17, 200), {{5}}, some_documents(40, 256)};
  std::vector<std::string> paths;
  // For each token of the stream: its document, and whether it belongs to a prompt.
  Ids stream;
  std::vector<int64_t> document;
  std::vector<bool> prompt;
  int64_t number = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    std::vector<int64_t> prompts;
    for (size_t d = 0; d < parts[p].size(); ++d, ++number) {
      const auto size = static_cast<int64_t>(parts[p][d].size());
      const int64_t length = p == 1 ? 0 : static_cast<int64_t>(draw("prompt", static_cast<uint64_t>(number)) % static_cast<uint64_t>(size + 1));
      prompts.push_back(length);
      for (int64_t t = 0; t < size; ++t) {
        stream.push_back(parts[p][d][static_cast<size_t>(t)]);
        document.push_back(number);
        prompt.push_back(t < length);
      }
    }
    paths.push_back(scratch.path / std::to_string(p));
    write_directory(paths.back(), 256, parts[p], p == 1 ? std::vector<int64_t>{} : prompts);  // one source is not instruction data
  }
  for (const auto& [apart, complete] : {std::pair(false, false), {true, false}, {false, true}, {true, true}})
    for (const int64_t length : {1, 3, 8, 29, 200}) {
      CAPTURE(apart, complete, length);
      const TokenDataset dataset(paths, complete ? whole(options(length, 256, apart)) : options(length, 256, apart));
      REQUIRE(dataset.sequences() > 1);
      const int64_t targets = std::ssize(stream) - 1;
      REQUIRE(dataset.sequences() == (complete ? (targets + length - 1) / length : targets / length));
      CHECK(dataset.positions(dataset.sequences()) == (complete ? targets : dataset.sequences() * length));
      CHECK(dataset.positions(1) == length);
      for (int64_t s = 0; s < dataset.sequences(); ++s) {
        Sample expected;
        const int64_t filled = std::min(length, targets - s * length);
        CHECK(dataset.padding(s) == length - filled);
        for (int64_t t = 0; t < length; ++t) {
          if (t >= filled) {
            expected.tokens.push_back(0);
            expected.targets.push_back(-1);
            if (t == filled && apart) expected.segments.push_back(0);
            ++expected.segments.back();
            continue;
          }
          const auto here = static_cast<size_t>(s * length + t), next = here + 1;
          expected.tokens.push_back(stream[here]);
          expected.targets.push_back(prompt[next] || (apart && document[next] != document[here]) ? -1 : stream[next]);
          if (t == 0 || (apart && document[here] != document[here - 1])) expected.segments.push_back(0);
          ++expected.segments.back();
        }
        REQUIRE(read(dataset, s, length) == expected);
      }
    }
}

TEST_CASE("with weights every source is a separate stream and group", "[data]") {
  const TemporaryDirectory scratch;
  std::vector<std::string> paths;
  for (const int32_t count : {31, 101, 11}) {
    paths.push_back(scratch.path / std::to_string(count));
    write_directory(paths.back(), 256, {Ids(static_cast<size_t>(count), count)});
  }
  const TokenDataset dataset(paths, options(10, 256, false, {3, 0.5, 1}));
  const std::vector<Dataset::Group> groups = dataset.groups();
  REQUIRE(groups.size() == 3);
  CHECK(dataset.sequences() == 14);
  const std::vector<int64_t> sequences = {3, 10, 1};
  const std::vector<double> weights = {3, 0.5, 1};
  int64_t sample = 0;
  for (size_t g = 0; g < 3; ++g) {
    CHECK(groups[g].sequences == sequences[g]);
    CHECK(groups[g].weight == weights[g]);
    const int32_t id = std::stoi(fs::path(paths[g]).filename().string());
    for (int64_t s = 0; s < sequences[g]; ++s) CHECK(read(dataset, sample++, 10) == Sample{Ids(10, id), Ids(10, id), {10}});  // one source per window
  }
  CHECK(TokenDataset(paths, options(10, 256)).groups().size() == 1);
  check_throws<DataError>([&] { TokenDataset(paths, options(11, 256, false, {1, 1, 1})); }, {"11: 11 tokens", "needs 12"});
}

TEST_CASE("offsets are 64-bit: sparse files over 5 GB in every format", "[data]") {
  const TemporaryDirectory scratch;
  const auto sparse = [](const fs::path& path, const std::string& begin, int64_t last, const std::string& end) {
    std::ofstream file(path, std::ios::binary);
    file << begin;
    file.seekp(last);
    file << end;
  };
  const auto check = [](const fs::path& path, int64_t tokens, bool apart) {
    CAPTURE(path);
    const TokenDataset dataset({path}, options(1000, 1000, apart));
    REQUIRE(dataset.tokens() == tokens);
    REQUIRE(dataset.sequences() == (tokens - 1) / 1000);
    Sample last = read(dataset, dataset.sequences() - 1, 1000);
    CHECK(last.tokens == Ids(1000, 0));
    CHECK(last.targets[998] == 0);
    CHECK(last.targets[999] == 0x0107);
    CHECK(read(dataset, 0, 1000).targets[999] == 0);
    return last.segments;
  };
  const int64_t many = 3'000'000'001;  // of 2 bytes each: both the token index and the byte offset exceed 32 bits
  const std::string id("\x07\x01", 2);

  fs::create_directory(scratch.path / "tokens");
  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = "bytes-v1";
  index.vocab_size = 1000;
  index.tokens = many;
  index.documents = 1;
  write(scratch.path / "tokens/index.json", index.to_json());
  std::string documents;
  put(documents, uint64_t{0}, static_cast<uint64_t>(many));
  write(scratch.path / "tokens/documents.bin", documents);
  sparse(scratch.path / "tokens/tokens.bin", "", 2 * (many - 1), id);
  check(scratch.path / "tokens", many, false);

  sparse(scratch.path / "nanogpt.bin", "", 2 * (many - 1), id);
  check(scratch.path / "nanogpt.bin", many, false);

  const int32_t most = 1'500'000'001;  // its header counts in 32 bits, so 6 GB take uint32 ids
  sparse(scratch.path / "llama3", llmc_header(20240801, 7, most), 1024 + 4 * int64_t{most - 1}, id + std::string(2, '\0'));
  check(scratch.path / "llama3", most, false);

  sparse(scratch.path / "megatron.bin", "", 2 * (many - 1), id);
  write(scratch.path / "megatron.idx", MegatronIndex({1'500'000'000, 1'499'999'500, 501}, {0, 1, 2, 3}, 8, 2).bytes());
  CHECK(check(scratch.path / "megatron", many, true) == std::vector<int64_t>{500, 500});
}

TEST_CASE("a damaged or invalid foreign token file is reported by name", "[data]") {
  const TemporaryDirectory scratch;
  const auto refused = [&](const std::string& name, const std::vector<std::string>& parts) {
    CAPTURE(name);
    check_throws<DataError>([&] { TokenDataset({scratch.path / name}, options(2, 300)); }, parts);
  };
  const auto file = [&](const std::string& name, const std::string& bytes) {
    write(scratch.path / name, bytes);
    return name;
  };
  const std::string ids = packed<uint16_t>({1, 2, 3, 4, 5});
  refused(file("odd.bin", ids + "x"), {"odd.bin", "11 bytes of ids is not a multiple of 2"});
  refused(file("empty.bin", ""), {"empty.bin", "contains no tokens"});
  refused(file("text.txt", "text"), {"text.txt", "not a token directory", "llm.c"});
  refused(file("llmc-cut", llmc_header(20240520, 1, 5).substr(0, 100)), {"llmc-cut", "truncated", "100 bytes"});
  refused(file("llmc-short", llmc_header(20240520, 1, 6) + ids), {"llmc-short", "truncated", "declares 6 ids"});
  refused(file("llmc-long", llmc_header(20240520, 1, 4) + ids), {"llmc-long", "declares 4 ids"});
  refused(file("llmc-none", llmc_header(20240520, 1, 0)), {"llmc-none", "declares 0 ids"});
  refused(file("llmc-negative", llmc_header(20240520, 1, -1) + ids), {"llmc-negative", "declares -1 ids"});
  refused(file("llmc-version", llmc_header(20240520, 2, 5) + ids), {"llmc-version", "version 2"});
  refused(file("llmc-questions", llmc_header(20240522, 1, 5) + ids), {"llmc-questions", "evaluation"});

  const auto megatron = [&](const std::string& name, const std::string& index, const std::string& bin) {
    write(scratch.path / (name + ".idx"), index);
    write(scratch.path / (name + ".bin"), bin);
    return name;
  };
  const MegatronIndex good({2, 3}, {0, 1, 2}, 8, 2);
  CHECK_NOTHROW(TokenDataset({scratch.path / megatron("good", good.bytes(), ids)}, options(2, 300)));
  for (size_t bytes = 0; bytes < good.bytes().size(); ++bytes)
    refused(megatron("cut", good.bytes().substr(0, bytes), ids), {"cut.idx", "truncated", std::to_string(bytes) + " bytes"});
  refused(megatron("long", good.bytes() + "xx", ids), {"long.idx", "too long"});
  refused(megatron("magic", "mmididx" + good.bytes().substr(7), ids), {"magic.idx", "does not begin with MMIDIDX"});
  refused(megatron("bin-short", good.bytes(), ids.substr(2)), {"bin-short.idx", "sequence 1", "bin-short.bin"});
  refused(megatron("bin-long", good.bytes(), ids + ids), {"bin-long.idx", "covers 5 ids", "has 10"});
  const auto spoiled = [&](const std::string& name, const std::function<void(MegatronIndex&)>& spoil, const std::vector<std::string>& parts) {
    MegatronIndex index = good;
    spoil(index);
    refused(megatron(name, index.bytes(), ids), parts);
  };
  spoiled("version", [](auto& i) { i.version = 2; }, {"version 2"});
  spoiled("floats", [](auto& i) { i.code = 7; }, {"data type 7"});
  spoiled("no-type", [](auto& i) { i.code = 0; }, {"data type 0"});
  spoiled("other-order", [](auto& i) { i.starts = {6, 0}; }, {"sequence 0", "must begin at byte 0"});
  spoiled("gap", [](auto& i) { i.starts[1] = 6; }, {"sequence 1", "must begin at byte 4"});
  spoiled("negative", [](auto& i) { i.lengths = {-2, 7}; }, {"sequence 0"});
  spoiled("borders-fall", [](auto& i) { i.borders = {0, 2, 1, 2}; }, {"document 2 begins at sequence 1"});
  spoiled("borders-start", [](auto& i) { i.borders = {1, 2}; }, {"document 0"});
  spoiled("borders-end", [](auto& i) { i.borders = {0, 1}; }, {"cover 1 of 2 sequences"});
  spoiled("borders-leave", [](auto& i) { i.borders = {0, 3}; }, {"document 1"});
  spoiled("no-borders", [](auto& i) { i.borders = {}; }, {"cover 0 of 2 sequences"});
  std::string huge = good.bytes();
  const uint64_t most = ~uint64_t{0} / 12 + 2;  // times 12, it overflows to a small number
  std::memcpy(huge.data() + 18, &most, sizeof most);
  refused(megatron("huge", huge, ids), {"huge.idx", "truncated"});

  fs::remove(scratch.path / "good.bin");
  check_throws<MissingFileError>([&] { TokenDataset({scratch.path / "good.idx"}, options(2, 300)); }, {"good.bin"});
  check_throws<MissingFileError>([&] { TokenDataset({scratch.path / "nothing.idx"}, options(2, 300)); }, {"nothing.idx"});
  check_throws<MissingFileError>([&] { TokenDataset({scratch.path / "nothing"}, options(2, 300)); }, {"nothing", "no such token directory"});
}

TEST_CASE("an id outside the model's vocabulary is reported with its position, in every format", "[data]") {
  const TemporaryDirectory scratch;
  const Ids ids = {1, 2, 299, 3, 4, 300, 5};
  write(scratch.path / "nanogpt.bin", packed<uint16_t>(ids));
  write(scratch.path / "llmc", llmc_header(20240520, 1, 7) + packed<uint16_t>(ids));
  write(scratch.path / "megatron.bin", packed<int32_t>({1, 2, 299, 3, 4, -300, 5}));
  write(scratch.path / "megatron.idx", MegatronIndex({7}, {0, 1}, 4, 4).bytes());
  for (const std::string name : {"nanogpt.bin", "llmc", "megatron"}) {
    CAPTURE(name);
    const TokenDataset dataset({scratch.path / name}, options(2, 300));
    CHECK_NOTHROW(read(dataset, 0, 2));
    check_throws<DataError>([&] { read(dataset, 2, 2); },
                            {name, "token 5 is", name == "megatron" ? "-300" : "300", "vocabulary of 300", "model.vocab_size"});
    check_throws<DataError>([&] { dataset.fingerprint(); }, {name, "token 5 is"});
    CHECK_NOTHROW(name == "megatron" || TokenDataset({scratch.path / name}, options(2, 301)).fingerprint());
  }
}

TEST_CASE("data.document_mask is refused for a format without document boundaries", "[data]") {
  const TemporaryDirectory scratch;
  write(scratch.path / "nanogpt.bin", packed<uint16_t>({1, 2, 3}));
  check_throws<DataError>([&] { TokenDataset({scratch.path / "nanogpt.bin"}, options(1, 10, true)); }, {"nanogpt.bin", "document_mask"});
}

TEST_CASE("the fingerprint of a dataset depends on its content, not its path", "[data]") {
  const TemporaryDirectory scratch;
  const fs::path& at = scratch.path;
  write_directory(at / "a", 256, {{1, 2, 3, 4}});
  write_directory(at / "b", 256, {{1, 2, 3, 4}});
  write_directory(at / "c", 256, {{1, 2, 3, 5}});
  write_directory(at / "p", 256, {{1, 2, 3, 4}}, {1});
  write_directory(at / "q", 256, {{1, 2, 3, 4}}, {2});
  write_directory(at / "split1", 256, {{1}, {2, 3, 4}});
  write_directory(at / "split2", 256, {{1, 2}, {3, 4}});
  const auto fingerprint = [&](const std::vector<std::string>& names, bool apart = false) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(at / name);
    return TokenDataset(paths, options(2, 256, apart)).fingerprint();
  };
  CHECK(fingerprint({"a"}) == fingerprint({"b"}));
  CHECK(fingerprint({"a"}) != fingerprint({"c"}));
  CHECK(fingerprint({"a", "c"}) != fingerprint({"c", "a"}));
  CHECK(fingerprint({"p"}) != fingerprint({"q"}));
  CHECK(fingerprint({"split1"}) == fingerprint({"split2"}));
  CHECK(fingerprint({"split1"}, true) != fingerprint({"split2"}, true));
}

TEST_CASE("the fingerprint of many tokens looks at all of the file, not at its begin alone", "[data]") {
  const TemporaryDirectory scratch;
  constexpr size_t kTokens = size_t{3} << 20, kSame = size_t{2} << 20;
  Ids tokens(kTokens, 1);
  write_directory(scratch.path / "a", 256, {tokens});
  std::fill(tokens.begin() + kSame, tokens.end(), 2);
  write_directory(scratch.path / "b", 256, {tokens});
  const auto fingerprint = [&](const std::string& name) { return TokenDataset({scratch.path / name}, options(2, 256)).fingerprint(); };
  CHECK(fingerprint("a") != fingerprint("b"));
}

TEST_CASE("a token file of any format truncated while open is reported", "[data]") {
  const TemporaryDirectory scratch;
  const fs::path& at = scratch.path;
  const Documents documents = some_documents(4000, 120);
  const Ids ids = joined(documents);
  write_directory(at / "tokens", 120, documents);
  write(at / "nanogpt.bin", packed<uint16_t>(ids));
  write(at / "llmc", llmc_header(20240520, 1, static_cast<int32_t>(ids.size())) + packed<uint16_t>(ids));
  write(at / "megatron.bin", packed<int32_t>(ids));
  write(at / "megatron.idx", megatron_index(documents, 4, 4).bytes());
  const auto shorter = [&](const std::string& name, const std::string& file, bool apart) {
    CAPTURE(name, file);
    const TokenDataset dataset({at / name}, options(16, 120, apart));
    CHECK_NOTHROW(read(dataset, dataset.sequences() - 1, 16));
    fs::resize_file(at / file, 8);
    check_throws<DataError>([&] { read(dataset, dataset.sequences() - 1, 16); }, {file, "truncated while in use", "8 bytes"});
  };
  shorter("tokens", "tokens/documents.bin", true);
  write_directory(at / "others", 120, documents);
  shorter("others", "others/tokens.bin", false);
  shorter("nanogpt.bin", "nanogpt.bin", false);
  shorter("llmc", "llmc", false);
  shorter("megatron", "megatron.idx", true);
  write(at / "megatron.idx", megatron_index(documents, 4, 4).bytes());
  shorter("megatron", "megatron.bin", true);
}

TEST_CASE("data without a target is refused, whatever masks it", "[data]") {
  const TemporaryDirectory scratch;
  const fs::path& at = scratch.path;
  const auto refused = [&](const std::vector<std::string>& names, const DatasetOptions& how, const std::string& words) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(at / name);
    check_throws<DataError>([&] { TokenDataset(paths, how); }, {names.front(), "no token is a target", words});
  };
  write_directory(at / "prompts", 256, {{1, 2, 3, 4}, {5, 6}}, {4, 2});
  refused({"prompts"}, options(2, 256), "prompt tokens are never targets");
  write_directory(at / "first", 256, {{1, 2, 3, 4}, {5, 6}}, {0, 2});
  CHECK_NOTHROW(TokenDataset({at / "first"}, options(2, 256)));
  // Neither token 0 of the stream nor any token after the last complete sequence is a target: for length 2, the targets are tokens 1 to 4.
  write_directory(at / "ends", 256, {{1}, {2, 3, 4, 5}, {6}}, {0, 4, 0});
  refused({"ends"}, options(2, 256), "");
  CHECK_NOTHROW(TokenDataset({at / "ends"}, options(5, 256)));
  // Documents of one token, with a document mask.
  write_directory(at / "ones", 256, {{1}, {2}, {3}, {4}});
  refused({"ones"}, options(2, 256, true), "first token of a document");
  CHECK_NOTHROW(TokenDataset({at / "ones"}, options(2, 256)));
  // One stream of two sources needs one target; two groups of a blend need one each.
  CHECK_NOTHROW(TokenDataset({at / "prompts", at / "ones"}, options(2, 256)));
  refused({"prompts", "ones"}, options(2, 256, false, {0.5, 0.5}), "");
}

TEST_CASE("the identity of data covers every token if the sources have digests", "[data]") {
  const TemporaryDirectory scratch;
  const fs::path& at = scratch.path;
  Ids ids(1'100'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 251);
  write_directory(at / "a", 256, {ids});
  write_directory(at / "same", 256, {ids});
  ids[268 * 1000 + 5] ^= 1;  // between two of the 4,096 tokens that the fingerprint reads
  write_directory(at / "b", 256, {ids});
  const TokenDataset a({at / "a"}, options(16, 256)), b({at / "b"}, options(16, 256));
  CHECK(a.fingerprint() == b.fingerprint());
  CHECK_FALSE(same_data(a.identity(), b.identity()));
  CHECK(same_data(a.identity(), TokenDataset({at / "same"}, options(16, 256)).identity()));
  // Checkpoints of earlier versions and data without digests have the fingerprint only.
  CHECK(same_data(std::to_string(a.fingerprint()), a.identity()));
  CHECK(same_data(a.identity(), std::to_string(a.fingerprint())));
  CHECK_FALSE(same_data(a.identity(), std::to_string(a.fingerprint() + 1)));
  write(at / "nanogpt.bin", packed<uint16_t>(ids));
  const TokenDataset foreign({at / "nanogpt.bin"}, options(16, 256)), mixed({at / "a", at / "nanogpt.bin"}, options(16, 256));
  CHECK(foreign.identity() == std::to_string(foreign.fingerprint()));
  CHECK(mixed.identity() == std::to_string(mixed.fingerprint()));

  // With a document mask, the document boundaries are included.
  write_directory(at / "split1", 256, {{1}, {2, 3, 4}});
  write_directory(at / "split2", 256, {{1, 2}, {3, 4}});
  const auto identity = [&](const std::string& name, bool apart) { return TokenDataset({at / name}, options(2, 256, apart)).identity(); };
  CHECK(same_data(identity("split1", false), identity("split2", false)));
  CHECK_FALSE(same_data(identity("split1", true), identity("split2", true)));
  const auto digest = [&](const std::string& name) { return identity(name, true).substr(identity(name, true).find(' ')); };
  CHECK(digest("split1") != digest("split2"));
}

}  // namespace trireme::test
