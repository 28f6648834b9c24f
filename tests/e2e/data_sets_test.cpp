// Data of a run: token files of other programs, blends, several validation sets and their evaluation, and errors.
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/core/check.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

template <class... Values>
std::string bytes_of(Values... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return bytes;
}

/// The bytes of a text as ids of type Id.
template <class Id>
std::string ids_of(const std::string& text) {
  std::string bytes;
  for (const char c : text) bytes += bytes_of(static_cast<Id>(static_cast<unsigned char>(c)));
  return bytes;
}

std::string llmc_of(const std::string& text) {
  std::string header = bytes_of(int32_t{20240520}, int32_t{1}, static_cast<int32_t>(text.size()));
  header.resize(1024);
  return header + ids_of<uint16_t>(text);
}

/// Writes PREFIX.bin and PREFIX.idx with one document.
void write_megatron(const fs::path& prefix, const std::string& text) {
  write_file(prefix.string() + ".bin", ids_of<int32_t>(text));
  write_file(prefix.string() + ".idx", std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + bytes_of(uint8_t{4}) +
                                           bytes_of(uint64_t{1}, uint64_t{2}) + bytes_of(static_cast<int32_t>(text.size())) +
                                           bytes_of(int64_t{0}, int64_t{0}, int64_t{1}));
}

TEST_CASE("data sets: a run reads the same data from every token file format") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = read_file(directory / "train.txt");
  write_file(directory / "nanogpt.bin", ids_of<uint16_t>(text));
  write_file(directory / "llmc.bin", llmc_of(text));
  write_megatron(directory / "megatron", text);
  must(directory, kTrain + in("expected"));
  const std::vector<double> expected = losses(directory / "expected", 6);
  for (const std::string name : {"nanogpt.bin", "llmc.bin", "megatron.idx"}) {
    CAPTURE(name);
    must(directory, kTrain + in("run-" + name) + sets({"data.train=[" + name + "]"}));
    CHECK(losses(directory / ("run-" + name), 6) == expected);
    CHECK(validation_loss(directory / ("run-" + name)) == validation_loss(directory / "expected"));
  }
}

TEST_CASE("data sets: a blend with a document mask, on eight ranks as on one, stopped and resumed") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = read_file(directory / "train.txt");
  Arguments build = {"data", "build", "--output", "lines"};
  for (int i = 0; i < 40; ++i) {
    write_file(directory / ("line" + std::to_string(i)), text.substr(static_cast<size_t>(i * 31), static_cast<size_t>(5 + i % 13)));
    build.push_back("line" + std::to_string(i));
  }
  must(directory, build);
  const Arguments command = kTrain + kNoEvaluation + sets({"data.train=[train, lines]", "data.weights=[3, 1]", "data.document_mask=true"});
  must(directory, command + in("one"));
  const std::vector<double> expected = losses(directory / "one", 6);
  must(directory, command + in("parts") + layout(2, 2, 2, 3) + sets({"parallel.sequence_parallel=true"}) + Arguments{"--max-steps", "4"});
  must(directory, command + in("parts") + layout(1, 1, 4, 1));
  const std::vector<double> parts = losses(directory / "parts", 6);
  for (size_t i = 0; i < 6; ++i) CHECK(parts[i] == Approx(expected[i]).epsilon(1e-4));  // fp32: the order of summation depends on the layout
  json tokens;                                                                          // of the last step
  for (const json& line : metrics(directory / "one"))
    if (line.contains("loss")) tokens = line;
  CHECK(tokens["data_tokens"].size() == 2);
  CHECK(tokens["data_tokens"]["train"].get<int64_t>() + tokens["data_tokens"]["lines"].get<int64_t>() == tokens["tokens"]);
  CHECK(std::abs(tokens["data_tokens"]["train"].get<int64_t>() - tokens["tokens"].get<int64_t>() * 3 / 4) <= 16);  // a sample
  // Two entries with one path are counted together.
  must(directory, kTrain + kNoEvaluation + sets({"data.train=[train, train]", "data.weights=[3, 1]"}) + in("twice"));
  for (const json& line : metrics(directory / "twice"))
    if (line.contains("loss")) CHECK(line["data_tokens"] == json({{"train", line["tokens"]}}));
  // Other weights, or no mask, make a different run.
  CHECK(must(directory, command + in("one") + sets({"training.steps=8", "data.weights=[2, 1]"}), 64).err.find("data.weights") != std::string::npos);
  CHECK(must(directory, command + in("one") + sets({"training.steps=8", "data.document_mask=false"}), 64).err.find("document_mask") !=
        std::string::npos);
}

TEST_CASE("data sets: packed documents, on eight ranks as on one, stopped and resumed") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = read_file(directory / "train.txt");
  std::string lines;
  int64_t tokens = 0;
  for (size_t i = 0; i < 70; ++i) {
    const size_t length = i % 9 == 0 ? 37 : 5 + i % 7;  // sequences have 16 tokens
    lines += json{{"text", text.substr(i * 31, length)}}.dump() + "\n";
    tokens += static_cast<int64_t>(length);
  }
  write_file(directory / "lines.jsonl", lines);
  must(directory, {"data", "build", "--output", "lines", "lines.jsonl"});
  const Arguments packs = sets({"data.document_mask=true", "data.packing=best_fit", "data.packing_window=64"});
  const Arguments command = kTrain + kNoEvaluation + packs + sets({"data.train=[lines]"});
  must(directory, command + in("one"));
  must(directory, command + in("parts") + layout(2, 2, 2, 3) + sets({"parallel.sequence_parallel=true"}) + Arguments{"--max-steps", "3"});
  must(directory, command + in("parts") + layout(1, 1, 4, 1));
  int64_t counted = 0;
  std::vector<double> shares;
  for (const json& line : metrics(directory / "one")) {
    if (!line.contains("loss")) continue;
    const double padding = line["padding"], used = 8 * 16 * (1 - padding);
    counted += std::llround(used);
    shares.push_back(padding);
    CHECK(line["tokens"] == counted);
    CHECK(line["tokens_per_second"].get<double>() * line["step_seconds"].get<double>() == Approx(used));
  }
  REQUIRE(shares.size() == 6);
  size_t step = 0;
  for (const json& line : metrics(directory / "parts")) {
    if (!line.contains("loss")) continue;
    CHECK(line["padding"] == shares[step]);
    CHECK(line["loss"].get<double>() == Approx(losses(directory / "one", 6)[step]).epsilon(1e-4));
    if (++step == 6) CHECK(line["tokens"] == counted);
  }
  CHECK(step == 6);
  // An epoch contains every token once.
  std::string epoch = kConfig;
  epoch.replace(epoch.find("steps: 6"), 8, "epochs: 1");
  write_file(directory / "epoch.yaml", epoch);
  must(directory, Arguments{"train", "epoch.yaml"} + kNoEvaluation + packs + in("epoch") +
                      sets({"data.train=[lines]", "training.global_batch_size=1", "checkpoint.every=0"}));
  for (const json& line : metrics(directory / "epoch"))
    if (line.contains("loss")) counted = line["tokens"];
  CHECK(counted == tokens);
  const json plan =
      json::parse(must(directory, Arguments{"plan", "run.yaml", "--json", "--cluster", "cpu"} + packs + sets({"data.train=[lines]"})).out);
  const int64_t sequences = plan["packing"]["sequences"];
  CHECK(plan["packing"]["padding"].get<double>() == Approx(1 - static_cast<double>(tokens) / static_cast<double>(16 * sequences)));
  CHECK(must(directory, Arguments{"plan", "run.yaml", "--cluster", "cpu"} + packs + sets({"data.train=[absent]"})).out.find("absent") !=
        std::string::npos);
  const Arguments blend = sets({"data.train=[lines, train]", "data.weights=[3, 1]"});
  must(directory, kTrain + kNoEvaluation + packs + blend + in("blend"));
  json last;
  for (const json& line : metrics(directory / "blend"))
    if (line.contains("loss")) last = line;
  CHECK(last["data_sequences"]["lines"].get<int64_t>() + last["data_sequences"]["train"].get<int64_t>() == 6 * 8);
  CHECK_FALSE(last.contains("data_tokens"));
  // By cost the same batches are trained.
  const Arguments still = command + layout(1, 2, 4, 2) + sets({"model.dropout=0"});
  must(directory, still + in("plain"));
  must(directory, still + in("balanced") + sets({"data.balance=cost"}));
  for (size_t s = 0; s < 6; ++s) CHECK(losses(directory / "balanced", 6)[s] == Approx(losses(directory / "plain", 6)[s]).epsilon(1e-4));
  for (const json& line : metrics(directory / "balanced"))
    if (line.contains("loss")) CHECK((line["cost_imbalance"] >= 0 && line["cost_imbalance"] < 1));
  for (const json& line : metrics(directory / "plain")) CHECK_FALSE(line.contains("cost_imbalance"));
  check_error(run(directory, command + in("other") + sets({"data.balance=cost"})), 64, "data.balance=cost: dropout masks");
  // Other samples make a different run.
  const Arguments unpacked = kTrain + kNoEvaluation + sets({"data.train=[lines]", "data.document_mask=true", "training.steps=8"});
  CHECK(says(must(directory, unpacked + in("one"), 64), "data.packing: best_fit"));
  check_error(run(directory, command + in("other") + sets({"data.document_mask=false"})), 64, "data.packing=best_fit");
}

TEST_CASE("data sets: named validation sets are reported separately by train and eval") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = read_file(directory / "train.txt");
  write_file(directory / "code.txt", "for (int i = 0; i < 31; ++i) oars += pull(ship[i]);\n" + text.substr(0, 100));
  write_file(directory / "more.bin", ids_of<uint16_t>(text.substr(50, 400)));
  must(directory, {"data", "build", "--output", "code", "code.txt"});
  const Arguments sources = sets({"data.validation=[validation, code=code, code=./more.bin, prose=validation]"});
  // Each set ends with a batch that is not full: 699 tokens are 44 sequences and 6 batches, 551 tokens are 35 and 5.
  CHECK_THAT(must(directory, kTrain + sources + layout(1, 1, 2, 1)).err, Catch::Matchers::Contains("17 batches, 1949 tokens, all validation data"));
  json last;
  for (const json& line : metrics(directory / "run"))
    if (line.contains("validation_loss")) last = line;
  REQUIRE(last["step"] == 6);
  REQUIRE(last["validation"].size() == 3);
  CHECK(last["validation"]["prose"] == last["validation"]["validation"]);
  CHECK(last["validation"]["code"] != last["validation"]["prose"]);

  const Arguments eval = Arguments{"eval", "run.yaml", "--checkpoint", "run/checkpoints/latest"};
  const json result = json::parse(must(directory, eval + Arguments{"--json"} + sources).out);
  CHECK(Process(Arguments{"bash", "-c", "\"$0\" \"$@\" > /dev/full", kBinary} + eval + sources, directory.path()).wait().code == 74);
  CHECK(result["sets"].size() == 3);
  double nats = 0;
  int64_t tokens = 0;
  for (const char* name : {"validation", "code", "prose"}) {
    CAPTURE(name);
    const json& set = result["sets"][name];
    const double loss = set["validation_loss"];
    CHECK(loss == Approx(last["validation"][name].get<double>()).epsilon(1e-5));
    CHECK(set["perplexity"].get<double>() == Approx(std::exp(loss)));
    CHECK(set["bits_per_byte"].get<double>() == Approx(loss / std::log(2.0)));
    nats += loss * set["tokens"].get<double>();
    tokens += set["tokens"].get<int64_t>();
  }
  // One set of 152 and 400 bytes, and one of 700: complete, with the rest of the last sequence.
  CHECK(result["sets"]["code"]["tokens"] == 152 + 400 - 1);
  CHECK(result["sets"]["prose"]["tokens"] == 700 - 1);
  CHECK(result["tokens"] == tokens);
  CHECK(result["validation_loss"].get<double>() == Approx(nats / static_cast<double>(tokens)));
  CHECK(last["validation_loss"].get<double>() == Approx(nats / static_cast<double>(tokens)).epsilon(1e-5));
  CHECK(must(directory, eval + sources).out.find("code: validation loss ") != std::string::npos);
  const json whole = json::parse(must(directory, eval + Arguments{"--json"}).out);
  CHECK_FALSE(whole.contains("sets"));

  // The same model as a Hugging Face folder.
  must(directory, {"checkpoint", "export", "--format", "hf", "--output", "folder", "run/checkpoints/latest"});
  CHECK(json::parse(must(directory, {"eval", "run.yaml", "--checkpoint", "folder", "--json"}).out) == whole);
}

TEST_CASE("data sets: eval takes what decides the loss from the configuration, for every kind of checkpoint") {
  TemporaryDirectory directory;
  write_file(directory / "docs.jsonl", R"({"text": "first document here"})"
                                       "\n"
                                       R"({"text": "second one"})"
                                       "\n"
                                       R"({"text": "and a third document"})");
  write_file(directory / "held.jsonl", R"({"text": "a held document"})"
                                       "\n"
                                       R"({"text": "short"})"
                                       "\n"
                                       R"({"text": "another held document"})");
  must(directory, {"data", "build", "--output", "docs", "docs.jsonl"});
  must(directory, {"data", "build", "--output", "held", "held.jsonl"});
  write_file(directory / "run.yaml", R"(run: {directory: masked, device: cpu}
model: {layers: 1, hidden_size: 16, heads: 2, vocab_size: 256}
training: {steps: 1, sequence_length: 16, global_batch_size: 2, schedule: {name: constant}}
data: {train: [docs], validation: [held], document_mask: true}
)");
  const Arguments off = sets({"data.document_mask=false"});
  must(directory, kTrain);
  must(directory, kTrain + off + in("plain"));
  for (const char* run : {"masked", "plain"}) must(directory, exporting(run, concat(run, "-hf")));
  must(directory, {"checkpoint", "import", "--format", "hf", "--output", "masked-back", "masked-hf"});
  const auto evaluated = [&](const std::string& checkpoint, const Arguments& more = {}) {
    return json::parse(must(directory, Arguments{"eval", "run.yaml", "--checkpoint", checkpoint, "--json"} + more).out);
  };
  // 41 bytes in three documents: each is a target once but for the first of each document, and without the mask but for the first of all.
  const json masked = evaluated("masked"), crossing = evaluated("masked", off);
  CHECK(masked["tokens"] == 38);
  CHECK(crossing["tokens"] == 40);
  CHECK(masked["validation_loss"].get<double>() == Approx(validation_loss(directory / "masked")).epsilon(1e-6));
  CHECK(crossing["validation_loss"] != masked["validation_loss"]);
  for (const char* same : {"masked-hf", "masked-back"}) {
    CAPTURE(same);
    CHECK(evaluated(same) == masked);
    CHECK(evaluated(same, off) == crossing);
  }
  // A run without the mask, evaluated with it and without.
  const json plain = evaluated("plain", off), apart = evaluated("plain");
  CHECK(plain["validation_loss"].get<double>() == Approx(validation_loss(directory / "plain")).epsilon(1e-6));
  CHECK(apart["tokens"] == 38);
  CHECK(evaluated("plain-hf", off) == plain);
  CHECK(evaluated("plain-hf") == apart);
  // So does every other key: the length of the context, the precision, and the batches in which sums are taken.
  CHECK(evaluated("masked-hf", sets({"training.sequence_length=4"}))["validation_loss"] != masked["validation_loss"]);
  CHECK(evaluated("masked-hf", sets({"training.precision=bf16"}))["validation_loss"] != masked["validation_loss"]);
  for (const char* batch : {"1", "2", "3", "8"}) {
    const json other = evaluated("masked", sets({concat("training.global_batch_size=", batch)}));
    CHECK(other["tokens"] == 38);
    CHECK(other["validation_loss"].get<double>() == Approx(masked["validation_loss"].get<double>()).epsilon(1e-6));
  }
  // A set that is shorter than a sequence.
  write_file(directory / "few.txt", "short");
  must(directory, {"data", "build", "--output", "few", "few.txt"});
  CHECK(evaluated("masked", sets({"data.validation=[few]"}))["tokens"] == 4);
}

TEST_CASE("data sets: the rest of the last sequence of a validation set counts in every layout") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments once = kTrain + sets({"training.steps=1", "training.schedule.warmup_steps=0", "model.dropout=0"});
  double expected = 0;
  for (const auto& [name, ranks] : {std::pair("one", layout(1, 1, 1, 0)), {"four", layout(1, 2, 2, 1)}, {"three", layout(1, 1, 4, 3)}}) {
    CAPTURE(name);
    const Outcome outcome = must(directory, once + ranks + in(name));
    CHECK_THAT(outcome.err, Catch::Matchers::Contains("6 batches, 699 tokens, all validation data"));
    const double loss = validation_loss(directory / name);
    if (expected == 0) expected = loss;
    CHECK(loss == Approx(expected).epsilon(1e-5));
    const json result = json::parse(must(directory, Arguments{"eval", "run.yaml", "--checkpoint", name, "--json"}).out);
    CHECK(result["tokens"] == 699);
    CHECK(result["validation_loss"].get<double>() == Approx(loss).epsilon(1e-5));
  }
  // A limited evaluation is of whole sequences from the start.
  CHECK_THAT(must(directory, once + in("few") + sets({"training.evaluate.batches=2"})).err, Catch::Matchers::Contains("2 batches, 256 tokens"));
}

TEST_CASE("data sets: bits per byte count bytes of text, whatever the tokenizer") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, {"tokenizer", "train", "--vocab-size", "300", "--output", "bpe.json", "train.txt"});
  for (const std::string name : {"train", "validation"})
    must(directory, {"data", "build", "--tokenizer", "bpe.json", "--no-end-of-text", "--output", "bpe-" + name, name + ".txt"});
  const Arguments tokens = sets({"data.tokenizer=bpe.json", "data.train=[bpe-train]", "data.validation=[bpe-validation]"});
  must(directory, kTrain + tokens);
  const json result = json::parse(must(directory, Arguments{"eval", "run.yaml", "--checkpoint", "run/checkpoints/latest", "--json"} + tokens).out);

  // The targets are all tokens after the first, with the rest of the last sequence; their decoded text has this many bytes.
  Tokenizer tokenizer = Tokenizer::open((directory / "bpe.json").string());
  const std::vector<int32_t> ids = tokenizer.encode(read_file(directory / "validation.txt"));
  const size_t count = ids.size() - 1;
  REQUIRE((count > 16 && count % 16 != 0));
  const std::string text = tokenizer.decode(std::vector<int32_t>(ids.begin() + 1, ids.begin() + 1 + static_cast<std::ptrdiff_t>(count)));
  REQUIRE(text.size() > count);
  const double loss = result["validation_loss"];
  CHECK(result["tokens"] == count);
  CHECK(result["bits_per_byte"].get<double>() == Approx(loss * static_cast<double>(count) / std::log(2.0) / static_cast<double>(text.size())));

  // Ids outside the tokenizer's vocabulary have no known text.
  write_file(directory / "other.bin", ids_of<uint16_t>(text) + bytes_of(uint16_t{400}, uint16_t{400}) + std::string(64, '\1'));
  const Arguments wider = sets({"model.vocab_size=512", "run.directory=wider", "training.steps=3"});
  must(directory, kTrain + tokens + wider);
  const json unknown = json::parse(must(directory, Arguments{"eval", "run.yaml", "--checkpoint", "wider/checkpoints/latest", "--json"} + tokens +
                                                       wider + sets({"data.validation=[a=other.bin, b=bpe-validation]"}))
                                       .out);
  CHECK(unknown["sets"]["a"]["bits_per_byte"].is_null());
  CHECK(unknown["sets"]["b"]["bits_per_byte"].is_number());
  CHECK(unknown["bits_per_byte"].is_null());

  // The tokenizer must match data and checkpoint.
  const Outcome data = must(directory, kTrain + in("new") + sets({"data.tokenizer=bpe.json"}), 65);
  CHECK(data.err.find("train: made by tokenizer bytes-v1, but the run uses ") != std::string::npos);
  const Outcome eval = must(directory, {"eval", "run.yaml", "--checkpoint", "run/checkpoints/latest", "--set", "model.vocab_size=300"}, 65);
  CHECK(eval.err.find("the checkpoint was trained with a different tokenizer") != std::string::npos);
}

TEST_CASE("data sets: invalid data is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = read_file(directory / "train.txt");
  write_file(directory / "ids.bin", ids_of<uint16_t>(text) + bytes_of(uint16_t{256}));
  write_megatron(directory / "megatron", text);
  write_megatron(directory / "cut", text);
  fs::resize_file(directory / "cut.idx", 60);
  fs::create_directory_symlink("train", directory / "link");
  fs::create_directory(directory / "copy");
  for (const char* name : {"index.json", "documents.bin"}) fs::copy_file(directory / "train" / name, directory / "copy" / name);
  fs::create_hard_link(directory / "train/tokens.bin", directory / "copy/tokens.bin");
  struct Case {
    const char* name;
    Arguments sets;
    int code;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {"train as validation", {"data.validation=[validation, train]"}, 64, {"data.validation: train/tokens.bin is also training data"}},
           {"train as validation by a name", {"data.validation=[x=./train/]"}, 64, {"is also training data, as train/tokens.bin"}},
           {"train as validation by a link", {"data.validation=[link]"}, 64, {"link/tokens.bin is also training data"}},
           {"train as validation by a hard link", {"data.validation=[copy]"}, 64, {"copy/tokens.bin is also training data"}},
           {"train as validation by prefix", {"data.train=[megatron.bin]", "data.validation=[megatron]"}, 64, {"megatron.bin is also training data"}},
           {"an id beyond the vocabulary",
            {"data.train=[ids.bin]"},
            65,
            {"ids.bin: token " + std::to_string(text.size()) + " is 256", "vocabulary of 256"}},
           {"a truncated index", {"data.train=[cut]"}, 65, {"cut.idx: truncated: 60 bytes"}},
           {"an index without ids", {"data.train=[gone.idx]"}, 66, {"gone.idx"}},
           {"not a token file", {"data.train=[train.txt]"}, 65, {"train.txt: not a token directory"}},
           {"a mask without documents",
            {"data.train=[ids.bin]", "data.document_mask=true", "model.vocab_size=300"},
            65,
            {"ids.bin: data.document_mask=true needs document boundaries"}},
           {"a source shorter than one sequence",
            {"data.train=[train, validation]", "data.validation=[]", "training.evaluate.every=0", "data.weights=[1, 1]",
             "training.sequence_length=700"},
            65,
            {"validation: 700 tokens", "needs 701"}},
       }) {
    INFO(c.name);
    const std::vector<std::string> before = directory.listing();
    for (const Arguments& ranks : {Arguments{}, layout(1, 1, 2, 1)}) {
      const Outcome outcome = run(directory, kTrain + sets(c.sets) + ranks);
      INFO(outcome.err);
      CHECK(outcome.code == c.code);
      for (const std::string& part : c.parts) CHECK(outcome.err.find(part) != std::string::npos);
      CHECK(directory.changes_since(before).empty());
    }
  }
}

}  // namespace
}  // namespace trireme::test
