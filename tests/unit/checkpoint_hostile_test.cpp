// Malicious checkpoints: manifests and files that are well-formed, with valid digests, but inconsistent.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "tests/support/small_checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;
using namespace trireme;
using namespace trireme::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// The text of a manifest with a valid digest: errors must be detected from the contents.
std::string sealed(json manifest) {
  manifest.erase("digest");
  return with_digest("{\n \"digest\": \"xxh3-128:" + std::string(32, '0') + "\"," + manifest.dump(1).substr(1) + "\n");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

/// An entry of "branch" with some members replaced.
json change(int64_t step, int64_t sample, const json& members = json::object()) {
  json entry = {{"step", step}, {"sample", sample}, {"changes", json::object()}};
  entry.update(members);
  return entry;
}

}  // namespace

TEST_CASE("hostile checkpoint: an inconsistent manifest with a valid digest is refused", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoint = save_small_checkpoint(directory.path), path = checkpoint / kManifestName;
  const std::string good = read_text(path);
  const json manifest = json::parse(good);
  REQUIRE(sealed(manifest) == sealed(json::parse(sealed(manifest))));
  write_file(path, sealed(manifest));
  load_whole(checkpoint);
  CheckpointReader(checkpoint).verify_digests();

  const auto rename_file = [](const std::string& to) {
    return [to](json& m) {
      m["files"][to] = m["files"]["rank-00001.safetensors"];
      m["files"].erase("rank-00001.safetensors");
      for (auto& tensor : m["tensors"])
        for (auto& box : tensor["boxes"])
          if (box["file"] == "rank-00001.safetensors") box["file"] = to;
    };
  };
  const std::vector<std::tuple<std::string, std::function<void(json&)>, std::string>> cases{
      {"file above", rename_file("../x"), "not a plain file name"},
      {"absolute path", rename_file("/etc/passwd"), "not a plain file name"},
      {"file below", rename_file("a/b"), "not a plain file name"},
      {"parent directory", rename_file(".."), "not a plain file name"},
      {"hidden file", rename_file(".x"), "not a plain file name"},
      {"no name", rename_file(""), "not a plain file name"},
      {"NUL in a name", rename_file(std::string("a\0b", 3)), "control characters"},
      {"escape in a name", rename_file("a\x1b[2J"), "control characters"},
      {"the manifest as a shard", rename_file("manifest.json"), "not a plain file name"},
      {"file not there", rename_file("x.safetensors"), "x.safetensors: cannot be read"},
      {"file not listed", [](json& m) { m["files"].erase("rank-00001.safetensors"); }, "\"rank-00001.safetensors\" is not listed"},
      {"file not referenced", [](json& m) { m["files"]["more"] = m["files"]["rank-00001.safetensors"]; }, "\"more\" contains no tensor"},
      {"file of more bytes", [](json& m) { m["files"]["rank-00001.safetensors"]["bytes"] = 1 << 20; }, "after the last tensor"},
      {"file of fewer bytes", [](json& m) { m["files"]["rank-00001.safetensors"]["bytes"] = 9; }, "lie outside rank-00001.safetensors"},
      {"file of -1 bytes", [](json& m) { m["files"]["rank-00001.safetensors"]["bytes"] = -1; }, "\"bytes\": is -1; expected an integer"},
      {"file digest", [](json& m) { m["files"]["rank-00001.safetensors"]["digest"] = "xxh3-128:0"; }, "rank-00001.safetensors: damaged header"},
      {"file digest that is a number", [](json& m) { m["files"]["rank-00001.safetensors"]["digest"] = 0; }, "expected a string"},
      {"files that are a list", [](json& m) { m["files"] = json::array(); }, "\"files\" is a list; expected an object"},
      {"tensors that are null", [](json& m) { m["tensors"] = nullptr; }, "\"tensors\" is null; expected an object"},
      {"box digest", [](json& m) { m["tensors"]["weight/b"]["boxes"][0]["digest"] = ""; }, "damaged header"},
      {"box missing", [](json& m) { m["tensors"]["weight/w"]["boxes"].erase(1); }, "\"weight/w\": 5 elements are not in any box"},
      {"boxes missing", [](json& m) { m["tensors"]["weight/w"].erase("boxes"); }, "\"boxes\" is missing"},
      {"box twice", [](json& m) { m["tensors"]["weight/w"]["boxes"].push_back(m["tensors"]["weight/w"]["boxes"][0]); }, "overlaps another box"},
      {"box outside", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["start"][0] = 4; }, "is out of range"},
      {"box far outside", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["start"][0] = INT64_MAX; }, "is out of range"},
      {"box at -1", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["start"][0] = -1; }, "is -1; expected an integer"},
      {"box of no rows", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["extent"][0] = 0; }, "is out of range"},
      {"box of three numbers", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["extent"].push_back(1); }, "does not have 2 numbers"},
      {"box that is null", [](json& m) { m["tensors"]["weight/w"]["boxes"][2] = nullptr; }, "expected an object"},
      {"box with a comment", [](json& m) { m["tensors"]["weight/w"]["boxes"][2]["comment"] = 1; }, "unknown key \"comment\""},
      {"bytes of another box", [](json& m) { m["tensors"]["weight/b"]["boxes"][0]["bytes"] = m["tensors"]["exp_avg_sq/w"]["boxes"][0]["bytes"]; },
       "has a byte range of the wrong size"},
      {"bytes used twice",
       [](json& m) {
         auto& range = m["tensors"]["weight/b"]["boxes"][0]["bytes"];
         const int64_t begin = m["tensors"]["weight/w"]["boxes"][0]["bytes"][0];
         range = {begin, begin + 16};
       },
       "tensors overlap at byte"},
      {"bytes left out",
       [](json& m) {
         for (const char* name : {"weight/w", "weight/b"})
           for (auto& box : m["tensors"][name]["boxes"])
             if (box["file"] == "rank-00002.safetensors") box["bytes"] = {box["bytes"][0].get<int64_t>() - 4, box["bytes"][1].get<int64_t>() - 4};
       },
       "rank-00002.safetensors"},
      {"bytes backwards",
       [](json& m) { std::swap(m["tensors"]["weight/b"]["boxes"][0]["bytes"][0], m["tensors"]["weight/b"]["boxes"][0]["bytes"][1]); }, "lie outside"},
      {"unknown dtype", [](json& m) { m["tensors"]["weight/w"]["dtype"] = "F8_E4M3"; }, "unknown dtype \"F8_E4M3\""},
      {"other dtype", [](json& m) { m["tensors"]["weight/w"]["dtype"] = "F64"; }, "has a byte range of the wrong size"},
      {"other dtype of the same size", [](json& m) { m["tensors"]["weight/w"]["dtype"] = "I32"; }, "\"weight/w\": differs from the manifest"},
      {"larger shape", [](json& m) { m["tensors"]["weight/w"]["shape"][0] = 8; }, "5 elements are not in any box"},
      {"shape that overflows",
       [](json& m) {
         m["tensors"]["weight/w"]["shape"] = {int64_t{1} << 62, int64_t{1} << 62};
       },
       "is too large"},
      {"shape beyond 63 bits", [](json& m) { m["tensors"]["weight/w"]["shape"][0] = UINT64_MAX; }, "expected an integer"},
      {"shape of no dimension", [](json& m) { m["tensors"]["weight/w"]["shape"] = json::array(); }, "has 0 dimensions"},
      {"shape of three dimensions",
       [](json& m) {
         m["tensors"]["weight/w"]["shape"] = {7, 5, 1};
       },
       "has 3 dimensions"},
      {"tensor with a comment", [](json& m) { m["tensors"]["weight/w"]["comment"] = 1; }, "unknown key \"comment\""},
      {"file with a comment", [](json& m) { m["files"]["rank-00001.safetensors"]["comment"] = 1; }, "unknown key \"comment\""},
      {"comment", [](json& m) { m["comment"] = 1; }, "unknown key \"comment\""},
      {"no seed", [](json& m) { m.erase("seed"); }, "\"seed\" is missing"},
      {"no samples", [](json& m) { m.erase("samples"); }, "\"samples\" is missing"},
      {"step of -1", [](json& m) { m["step"] = -1; }, "\"step\": is -1"},
      {"step of 2^63", [](json& m) { m["step"] = uint64_t{1} << 63; }, "expected an integer"},
      {"step with a fraction", [](json& m) { m["step"] = 7.0; }, "expected an integer"},
      {"step as a string", [](json& m) { m["step"] = "seven"; }, "expected an integer"},
      {"more optimizer steps than steps", [](json& m) { m["optimizer_steps"] = 8; }, "\"optimizer_steps\": is 8"},
      {"more rejected steps than steps", [](json& m) { m["rejected_steps"] = 8; }, "\"rejected_steps\": is 8"},
      {"rejected steps of -1", [](json& m) { m["rejected_steps"] = -1; }, "\"rejected_steps\": is -1"},
      {"branch of a number", [](json& m) { m["branch"] = 7; }, "\"branch\" is 7"},
      {"change with a comment",
       [](json& m) {
         m["branch"] = json::array({change(3, 0, {{"comment", 1}})});
       },
       "unknown key \"comment\""},
      {"change after the step", [](json& m) { m["branch"] = json::array({change(8, 0)}); }, "\"step\": is 8"},
      {"changes out of order",
       [](json& m) {
         m["branch"] = json::array({change(3, 0), change(3, 0)});
       },
       "\"step\": is 3"},
      {"change at sample -1", [](json& m) { m["branch"] = json::array({change(3, -1)}); }, "\"sample\": is -1"},
      {"change behind the samples", [](json& m) { m["branch"] = json::array({change(3, m["samples"].get<int64_t>() + 1)}); }, "\"sample\": is "},
      {"change without an old value",
       [](json& m) {
         m["branch"] = json::array({change(3, 0, {{"changes", {{"a", {1}}}}})});
       },
       "is not a pair of old and new value"},
      {"-1 non-finite values", [](json& m) { m["tensors"]["weight/w"]["boxes"][0]["non_finite"] = -1; }, "\"non_finite\": is -1"},
      {"more non-finite values than elements", [](json& m) { m["tensors"]["weight/w"]["boxes"][0]["non_finite"] = INT64_MAX; },
       "\"non_finite\": is 9223372036854775807"},
      {"loss scale that is a number", [](json& m) { m["loss_scale"] = 65536; }, "\"loss_scale\" is 65536; expected an object"},
      {"loss scale that rounds",
       [](json& m) {
         m["loss_scale"] = {{"scale", 3}, {"clean_steps", 0}};
       },
       "\"scale\": is 3; allowed powers of two"},
      {"loss scale of 0",
       [](json& m) {
         m["loss_scale"] = {{"scale", 0}, {"clean_steps", 0}};
       },
       "\"scale\": is 0"},
      {"loss scale without its count",
       [](json& m) {
         m["loss_scale"] = {{"scale", 4}};
       },
       "\"clean_steps\" is missing"},
      {"loss scale with a comment",
       [](json& m) {
         m["loss_scale"] = {{"scale", 4}, {"clean_steps", 0}, {"comment", 1}};
       },
       "unknown key \"comment\""},
      {"algorithms as a list", [](json& m) { m["product_algorithms"] = json::array(); }, "\"product_algorithms\" is a list; expected an object"},
      {"algorithms of a GPU as text",
       [](json& m) {
         m["product_algorithms"] = {{"a GPU", "id 1"}};
       },
       "is \"id 1\"; expected an object"},
      {"algorithm that is a number",
       [](json& m) {
         m["product_algorithms"] = {{"a GPU", {{"rows 1", 1}}}};
       },
       "\"rows 1\" is 1; expected a string"},
      {"tokenizer as a string", [](json& m) { m["tokenizer"] = "bytes"; }, "\"tokenizer\" is \"bytes\"; expected an object"},
      {"tokenizer with a comment", [](json& m) { m["tokenizer"]["comment"] = 1; }, "unknown key \"comment\""},
      {"tokenizer without a digest", [](json& m) { m["tokenizer"].erase("digest"); }, "\"digest\" is missing"},
      {"tokenizer without its files", [](json& m) { m["tokenizer"]["files"] = json::array(); }, "\"tokenizer\" has no files"},
      {"bytes with files", [](json& m) { m["tokenizer"]["name"] = "bytes"; }, "\"tokenizer\" lists files, but such a tokenizer has none"},
      {"tokenizer not listed", [](json& m) { m["files"].erase("tokenizer.json"); }, "\"tokenizer\": file \"tokenizer.json\" is not listed"},
      {"tokenizer elsewhere", [](json& m) { m["tokenizer"]["files"][0] = "../tokenizer.json"; },
       "\"tokenizer\": file \"../tokenizer.json\" is not listed"},
      {"tokenizer that is a shard", [](json& m) { m["tokenizer"]["files"][1] = "rank-00000.safetensors"; },
       "file \"rank-00000.safetensors\" belongs to the tokenizer but contains tensors"},
      {"tokenizer whose file is a number", [](json& m) { m["tokenizer"]["files"][1] = 1; }, "\"files\" contains an entry that is not a string"},
      {"tokenizer of another digest", [](json& m) { m["files"]["tokenizer.json"]["digest"] = "xxh3-128:0"; },
       "tokenizer.json: damaged: its digest is"},
      {"tokenizer of more bytes", [](json& m) { m["files"]["tokenizer.json"]["bytes"] = 1 << 20; }, "tokenizer.json: has"},
      {"model that is a list", [](json& m) { m["model"] = json::array(); }, "\"model\" is a list; expected an object"},
      {"another format", [](json& m) { m["format"] = "zip"; }, "format is not"},
      {"version 1", [](json& m) { m["version"] = 1; }, "version 1 is not supported"},
  };
  for (const auto& [name, edit, words] : cases) {
    json changed = manifest;
    edit(changed);
    write_file(path, sealed(changed));
    for (const std::string& error : errors_of(checkpoint)) {
      INFO(name);
      CHECK_THAT(error, Contains(checkpoint.string()) && Contains(words));
    }
  }

  const std::string text = sealed(manifest);
  const std::vector<std::tuple<std::string, std::string, std::string>> texts{
      {"key twice", with_digest(replaced(text, "\"step\": 7", "\"step\": 7, \"step\": 8")), "duplicate key \"step\""},
      {"file twice", with_digest(replaced(text, "\"files\": {", "\"files\": {\"rank-00000.safetensors\": {},")), "duplicate key"},
      {"NaN", with_digest(replaced(text, "\"step\": 7", "\"step\": NaN")), "not valid JSON"},
      {"infinity", with_digest(replaced(text, "\"step\": 7", "\"step\": 1e999")), "not valid JSON"},
      {"exponent", with_digest(replaced(text, "\"step\": 7", "\"step\": 1e1")), "expected an integer"},
      {"leading zero", with_digest(replaced(text, "\"step\": 7", "\"step\": 07")), "not valid JSON"},
      {"deep nesting", with_digest(replaced(text, "\"step\": 7", "\"step\": " + std::string(100'000, '['))), "nested deeper"},
      {"deep objects",
       with_digest(replaced(text, "\"step\": 7",
                            "\"step\": {\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":"
                            "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":"
                            "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{")),
       "nested deeper"},
      {"trailing text", with_digest(text + "{}"), "not valid JSON"},
      {"not UTF-8", with_digest(replaced(text, "\"training_data\": \"", "\"training_data\": \"\xff")), "not valid JSON"},
      {"cut short", text.substr(0, text.size() / 2), "damaged"},
      {"cut short, with a valid digest", with_digest(text.substr(0, text.size() / 2)), "not valid JSON"},
      {"nothing", "", "not valid JSON"},
      {"no digest", manifest.dump(1), "does not begin with its digest"},
      {"leading spaces", " " + text, "does not begin with its digest"},
      {"capitals in the digest", replaced(text, "xxh3-128:" + text.substr(text.find("xxh3-128:") + 9, 32), "xxh3-128:ABCDEF"), "damaged"},
      {"a manifest of the first version", "{\"format\": \"trireme-checkpoint\", \"version\": 1}", "version 1 is not supported"},
  };
  for (const auto& [name, changed, words] : texts) {
    write_file(path, changed);
    for (const std::string& error : errors_of(checkpoint)) {
      INFO(name);
      CHECK_THAT(error, Contains(path.string()) && Contains(words));
    }
  }
  write_file(path, good);
  CheckpointReader(checkpoint).verify_digests();
}

TEST_CASE("hostile checkpoint: files that contradict the manifest are refused", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoint = save_small_checkpoint(directory.path), manifest = checkpoint / kManifestName,
                 shard = checkpoint / "rank-00001.safetensors";
  const fs::path aside = directory.path / "aside";
  const std::string shard_name = shard.filename();
  const std::string good = read_text(shard);
  const auto length_of = [&](uint64_t length) { write_file(shard, std::string(reinterpret_cast<const char*>(&length), 8) + good.substr(8)); };
  /// Writes a different well-formed shard and its digest into the manifest: only comparing the two headers can detect it.
  const auto forge = [&](std::vector<SafetensorsSource> sources) {
    write_safetensors(shard, sources, {{"format", "trireme"}});
    const SafetensorsFile file(shard);
    json changed = json::parse(read_text(manifest));
    std::map<std::string, std::string> digests;
    for (auto& [name, tensor] : changed["tensors"].items())
      for (auto& box : tensor["boxes"]) {
        if (box["file"] != shard_name) continue;
        const auto start = box["start"].get<std::vector<int64_t>>();
        digests[concat(name, "@", start[0], ",", start.size() > 1 ? start[1] : 0)] = box["digest"];
      }
    // The data are shifted by the difference in header length.
    const int64_t moved = static_cast<int64_t>(fs::file_size(shard)) - static_cast<int64_t>(good.size());
    for (auto& tensor : changed["tensors"])
      for (auto& box : tensor["boxes"])
        if (box["file"] == shard_name) box["bytes"] = {box["bytes"][0].get<int64_t>() + moved, box["bytes"][1].get<int64_t>() + moved};
    changed["files"][shard_name] = {{"bytes", fs::file_size(shard)}, {"digest", file.digest(digests)}};
    write_file(manifest, sealed(changed));
  };
  const SafetensorsFile before(shard);
  const std::string w = "weight/w@2,0", v = "exp_avg_sq/w@0,0";
  const auto source = [&](const std::string& name) {
    const SafetensorsEntry& entry = before.entry(name);
    return SafetensorsSource{name, entry.dtype, entry.shape, good.data() + entry.begin};
  };
  const auto pipe_at = [](const fs::path& path) {
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  };
  const auto socket_at = [](const fs::path& path) {
    fs::remove(path);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.string().size() < sizeof address.sun_path);
    std::strcpy(address.sun_path, path.c_str());
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(socket);
  };
  const std::vector<std::tuple<std::string, fs::path, std::function<void()>, std::string>> cases{
      {"link to the same bytes", shard, [&] { fs::rename(shard, aside), fs::create_symlink(aside, shard); }, "not a regular file"},
      {"dangling link", shard, [&] { fs::remove(shard), fs::create_symlink("nowhere", shard); }, "not a regular file"},
      {"link to itself", shard, [&] { fs::remove(shard), fs::create_symlink(shard.filename(), shard); }, "not a regular file"},
      {"named pipe", shard, [&] { pipe_at(shard); }, "not a regular file"},
      {"socket", shard, [&] { socket_at(shard); }, "not a regular file"},
      {"directory", shard, [&] { fs::remove(shard), fs::create_directory(shard); }, "not a regular file"},
      {"missing", shard, [&] { fs::remove(shard); }, "cannot be read"},
      {"empty", shard, [&] { fs::resize_file(shard, 0); }, "has 0 bytes"},
      {"cut short", shard, [&] { fs::resize_file(shard, good.size() - 1); }, "bytes, the manifest says"},
      {"appended to", shard, [&] { write_file(shard, good + "x"); }, "bytes, the manifest says"},
      {"another rank's", shard, [&] { write_file(shard, read_text(checkpoint / "rank-00000.safetensors")); }, "bytes, the manifest says"},
      {"zeros", shard, [&] { write_file(shard, std::string(good.size(), '\0')); }, "not a safetensors file"},
      {"huge header", shard, [&] { length_of(UINT64_MAX); }, "not a safetensors file"},
      {"header of 2^63 bytes", shard, [&] { length_of(uint64_t{1} << 63); }, "not a safetensors file"},
      {"header over the limit", shard, [&] { length_of(100'000'001); }, "not a safetensors file"},
      {"header longer than the file", shard, [&] { length_of(good.size() - 7); }, "not a safetensors file"},
      {"header shorter", shard, [&] { length_of(9); }, "not valid JSON"},
      {"tensors swapped in the header", shard,
       [&] { write_file(shard, replaced(replaced(good, w, "weight/w@0,9"), "exp_avg_sq/w@0,0", "exp_avg_sq/w@9,9")); }, "damaged header"},
      {"two elements swapped", shard,
       [&] {
         std::string bytes = good;
         std::swap_ranges(bytes.end() - 4, bytes.end(), bytes.end() - 8);
         write_file(shard, bytes);
       },
       "\": damaged in bytes"},
      {"extra tensor without bytes", shard,
       [&] {
         forge({source(w), source(v), {"weight/more@0,0", DType::kF32, {0, 5}, nullptr}});
       },
       "\"weight/more@0,0\" is not in the manifest"},
      {"another dtype", shard,
       [&] {
         SafetensorsSource other = source(w);
         other.dtype = DType::kI32;
         forge({other, source(v)});
       },
       "\"weight/w\": differs from the manifest"},
      {"another shape", shard,
       [&] {
         SafetensorsSource other = source(w);
         other.shape = {5, 1};
         forge({other, source(v)});
       },
       "\"weight/w\": differs from the manifest"},
      {"other places", shard,
       [&] {
         forge({source(v), source(w)});
       },
       "differs from the manifest"},
      {"another name", shard,
       [&] {
         SafetensorsSource other = source(w);
         other.name = "weight/w@2,1";
         forge({other, source(v)});
       },
       "tensor \"weight/w@2,0\" is missing"},
      {"manifest a link", manifest, [&] { fs::rename(manifest, aside), fs::create_symlink(aside, manifest); }, "is a symbolic link"},
      {"manifest a pipe", manifest, [&] { pipe_at(manifest); }, "not a regular file"},
      {"manifest a socket", manifest, [&] { socket_at(manifest); }, "not a regular file"},
      {"manifest a directory", manifest, [&] { fs::remove(manifest), fs::create_directory(manifest); }, "not a regular file"},
      {"manifest missing", checkpoint, [&] { fs::remove(manifest); }, "manifest.json is missing"},
      {"manifest too large", manifest, [&] { fs::resize_file(manifest, (uintmax_t{1} << 30) + 1); }, "too large: "},
  };
  const fs::path copy = directory.path / "copy";
  fs::copy(checkpoint, copy);
  for (const auto& [name, file, damage, words] : cases) {
    INFO(name);
    damage();
    for (const std::string& error : errors_of(checkpoint)) CHECK_THAT(error, Contains(file.string()) && Contains(words));
    fs::remove_all(checkpoint);
    fs::remove_all(aside);
    fs::copy(copy, checkpoint);
    REQUIRE_NOTHROW(load_whole(checkpoint));
  }
}
