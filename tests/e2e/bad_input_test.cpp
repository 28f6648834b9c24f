// Invalid input: the right exit code, one message for the whole job that names the problem and its place, nothing started, nothing written. Each
// case runs in a fresh copy of a prepared directory.
#include <unistd.h>

#include <functional>
#include <iostream>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/manifest.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Words = std::vector<std::string>;
using Prepare = std::function<void(const TemporaryDirectory&)>;

struct BadInput {
  const char* name;
  Arguments arguments;
  int code;
  Words words;           ///< all contained in the message
  Prepare prepare = {};  ///< changes the directory first
  int lines = 1;         ///< lines of the message: one for each problem
  int ranks = 0;         ///< above 0: started by mpirun with this many ranks
};

Arguments train(const Arguments& assignments) { return kTrain + sets(assignments); }

Prepare config(const std::string& text) {
  return [=](const TemporaryDirectory& directory) { write_file(directory / "run.yaml", text); };
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  INFO(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// Replaces the first occurrence of `from` in a file.
Prepare edit(const std::string& file, const std::string& from, const std::string& to) {
  return [=](const TemporaryDirectory& directory) { write_file(directory / file, replaced(read_file(directory / file), from, to)); };
}
/// The same in a manifest, with its digest recomputed, so that its content is refused rather than its digest.
Prepare forge(const std::string& manifest, const std::string& from, const std::string& to) {
  return [=](const TemporaryDirectory& directory) {
    write_file(directory / manifest, with_digest(replaced(read_file(directory / manifest), from, to)));
  };
}
Prepare put(const std::string& file, const std::string& text) {
  return [=](const TemporaryDirectory& directory) { write_file(directory / file, text); };
}
Prepare shorten(const std::string& file, std::uintmax_t by) {
  return [=](const TemporaryDirectory& directory) { fs::resize_file(directory / file, fs::file_size(directory / file) - by); };
}
Prepare erase(const std::string& file) {
  return [=](const TemporaryDirectory& directory) { REQUIRE(fs::remove_all(directory / file) > 0); };
}
Prepare directory_instead(const std::string& file) {
  return [=](const TemporaryDirectory& directory) {
    fs::remove(directory / file);
    fs::create_directory(directory / file);
  };
}

std::string repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

size_t count_lines_with(const std::string& text, const std::string& word) {
  size_t count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) count += line.find(word) != std::string::npos ? 1 : 0;
  return count;
}

void check_refusal(const TemporaryDirectory& prepared, const BadInput& bad, const Arguments& more, std::pair<double, std::string>& slowest) {
  TemporaryDirectory directory;
  fs::copy(prepared.path(), directory.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  if (bad.prepare) bad.prepare(directory);
  const std::vector<std::string> before = directory.listing();
  const Arguments arguments = bad.arguments + more;
  const Outcome outcome = bad.ranks > 0 ? run_under_mpirun(directory, bad.ranks, arguments) : run(directory, arguments);
  CAPTURE(bad.name, more.size(), outcome.err);
  CHECK(outcome.code == bad.code);
  for (const std::string& word : bad.words) {
    CAPTURE(word);
    CHECK(outcome.err.find(word) != std::string::npos);
  }
  if (bad.ranks > 0) {
    CHECK(count_lines_with(outcome.err, bad.words.front()) == 1);  // the other lines are mpirun's
  } else {
    CHECK(count_lines_with(outcome.err, "") == static_cast<size_t>(bad.lines));
  }
  CHECK(outcome.out == "");
  CHECK(directory.changes_since(before) == "");
  CHECK(outcome.seconds < 10);  // under 2 on a quiet machine
  slowest = std::max(slowest, {outcome.seconds, bad.name});
}

/// `on_ranks`: also with four ranks, started by `train` itself.
void check_all(const TemporaryDirectory& prepared, const std::vector<BadInput>& cases, bool on_ranks = false) {
  std::pair<double, std::string> slowest;
  for (const BadInput& bad : cases) {
    check_refusal(prepared, bad, {}, slowest);
    if (on_ranks && bad.arguments.front() == "train" && bad.ranks == 0) check_refusal(prepared, bad, layout(2, 1, 2, 3), slowest);
  }
  std::cout << cases.size() << " cases, the slowest took " << slowest.first << " s: " << slowest.second << "\n";
}

TEST_CASE("bad input: layout") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  check_all(
      prepared,
      {
          {"product is not the world",
           train({"parallel.tensor=2"}),
           64,
           {"tensor 2 x pipeline 1 x data 1 = 2 ranks, but 3 were started", "parallel.data=1", "nearest valid"},
           {},
           1,
           3},
          {"data auto leaves a remainder",
           train({"parallel.tensor=2", "parallel.data=auto"}),
           64,
           {"but 3 were started", "parallel.data=auto"},
           {},
           1,
           3},
          {"heads over tensor, ffn_size and kv_heads too",
           train({"parallel.tensor=3"}),
           64,
           {"--set:parallel.tensor parallel.tensor=3: does not divide model.heads 4", "neither divides model.kv_heads 2",
            "does not divide model.ffn_size 32"},
           {},
           3},
          {"tensor beyond heads",
           train({"parallel.tensor=8"}),
           64,
           {"parallel.tensor=8: does not divide model.heads 4; allowed divisors of heads; nearest valid 4"}},
          {"kv_heads over tensor",
           train({"parallel.tensor=3", "model.heads=12", "model.hidden_size=48", "model.ffn_size=96"}),
           64,
           {"parallel.tensor=3: neither divides model.kv_heads 2"}},
          {"ffn_size over tensor", train({"parallel.tensor=2", "model.ffn_size=33"}), 64, {"parallel.tensor=2: does not divide model.ffn_size 33"}},
          {"hidden_size over heads",
           kTrain,
           64,
           {"run.yaml:2:44 model.heads=4: does not divide hidden_size 18"},
           edit("run.yaml", "hidden_size: 16", "hidden_size: 18")},
          {"odd head_size", train({"model.hidden_size=12"}), 64, {"model.heads=4: makes head_size 3, which is odd"}},
          {"kv_heads over heads", train({"model.kv_heads=3"}), 64, {"model.kv_heads=3: does not divide heads 4", "nearest valid 2 or 4"}},
          {"pipeline deeper than layers",
           train({"parallel.pipeline=5"}),
           64,
           {"parallel.pipeline=5: more stages than model.layers 4", "nearest valid 4"}},
          {"layers_per_stage with another sum",
           train({"parallel.pipeline=2", "parallel.layers_per_stage=[1,2]"}),
           64,
           {"parallel.layers_per_stage=[1, 2]: the sum is 3, but model.layers is 4"}},
          {"layers_per_stage of another depth",
           train({"parallel.pipeline=2", "parallel.layers_per_stage=[1,1,2]"}),
           64,
           {"3 entries for pipeline 2"}},
          {"a stage without layers in the middle",
           train({"parallel.pipeline=3", "parallel.layers_per_stage=[4,0,0]"}),
           64,
           {"parallel.layers_per_stage=[4, 0, 0]: stage 1 would compute nothing"}},
          {"zero_stage 4",
           train({"parallel.zero_stage=4"}),
           64,
           {"parallel.zero_stage=4: out of range; allowed integer from 0 to 3; nearest valid 3"}},
          {"no tensor rank", train({"parallel.tensor=0"}), 64, {"parallel.tensor=0: out of range", "nearest valid 1"}},
          {"negative degree", train({"parallel.data=-2"}), 64, {"parallel.data=-2: out of range"}},
          {"product beyond 32 bits",
           train({"parallel.data=2147483647", "parallel.pipeline=4", "training.global_batch_size=2147483647"}),
           64,
           {"ranks do not fit 32 bits"}},
          {"replicate over data",
           train({"parallel.data=4", "parallel.zero_stage=1", "parallel.replicate=3"}),
           64,
           {"parallel.replicate=3: does not divide parallel.data 4"}},
          {"replicate in ZeRO-0", train({"parallel.data=4", "parallel.replicate=2"}), 64, {"parallel.replicate=2: ZeRO-0 shards nothing"}},
          {"sequence parallel over tokens",
           train({"parallel.tensor=2", "parallel.sequence_parallel=true", "training.sequence_length=15"}),
           64,
           {"parallel.sequence_parallel=true: tensor 2 does not divide", "sequence_length 14 or 16"}},
          {"global batch over data",
           kTrain + sets({"parallel.data=3"}),
           64,
           {"run.yaml:6:22 training.global_batch_size=8: not a multiple of micro_batch_size 1 x data 3 = 3", "nearest valid 6 or 9"}},
          {"global batch over micro-batches",
           train({"training.micro_batch_size=3"}),
           64,
           {"training.global_batch_size=8: not a multiple", "nearest valid 6 or 9"}},
          {"sharded gradients in ZeRO-1",
           train({"parallel.data=2", "parallel.zero_stage=1", "parallel.gradient_accumulation=sharded"}),
           64,
           {"gradient_accumulation=sharded: zero_stage 1 keeps full gradients"}},
          {"reshard in ZeRO-2",
           train({"parallel.data=2", "parallel.zero_stage=2", "parallel.reshard=after_step"}),
           64,
           {"reshard=after_step: zero_stage 2 does not shard parameters"}},
          {"prefetch in ZeRO-0", train({"parallel.prefetch=3"}), 64, {"parallel.prefetch=3: has no effect"}},
          {"unknown schedule",
           train({"parallel.schedule=zb_h3"}),
           64,
           {"parallel.schedule=zb_h3: not one of the choices; allowed gpipe | 1f1b", "nearest valid zb_h1"}},
      });
}

TEST_CASE("bad input: configuration, its text") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  const std::string bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n";
  check_all(
      prepared,
      {
          {"unknown key",
           kTrain,
           64,
           {"run.yaml:5:3 training.sequence_lenght=16: unknown key; did you mean training.sequence_length?"},
           edit("run.yaml", "sequence_length", "sequence_lenght")},
          {"unknown section", kTrain, 64, {"run.yaml:13:1", "unknown key; did you mean parallel?"}, config(kConfig + "paralel: {tensor: 2}\n")},
          {"key of another section",
           train({"model.zero_stage=1"}),
           64,
           {"--set:model.zero_stage model.zero_stage=1: unknown key; did you mean parallel.zero_stage?"}},
          {"duplicate key", kTrain, 64, {"run.yaml:13:1 run: duplicate key, first given at run.yaml:1:1"}, config(kConfig + "run: {seed: 2}\n")},
          {"anchor and alias",
           kTrain,
           64,
           {"run.yaml:2:33 model.hidden_size: anchors (&name) are not allowed", "aliases (*name) are not allowed"},
           config("run: {directory: run}\nmodel: {layers: 4, hidden_size: &h 16, heads: *h}\ntraining: {steps: 1}\ndata: {train: [train]}\n"),
           2},
          {"alias bomb", kTrain, 64, {"run.yaml:13:4 a: anchors", "run.yaml:15:4 c: anchors", "aliases"}, config(kConfig + bomb), 10},
          {"merge key", kTrain, 64, {"run.yaml:13:1 <<: merge keys (<<) are not allowed"}, config(kConfig + "<<: {seed: 1}\n")},
          {"tag", kTrain, 64, {"run.yaml:4:10 training.steps: tags (!name) are not allowed"}, edit("run.yaml", "steps: 6", "steps: !!int 6")},
          {"two documents", kTrain, 64, {"run.yaml:13:1: a second document starts here"}, config(kConfig + "---\nrun: {seed: 2}\n")},
          {"tab", kTrain, 64, {"run.yaml:4:", "indented with a tab"}, edit("run.yaml", "  steps: 6", "\tsteps: 6")},
          {"bracket never closed", kTrain, 64, {"run.yaml:"}, edit("run.yaml", "device: cpu}", "device: cpu")},
          {"control character", kTrain, 64, {"run.yaml:1:18", "control character 7"}, edit("run.yaml", "run,", "\a,")},
          {"not UTF-8", kTrain, 64, {"run.yaml:1:18: not UTF-8"}, edit("run.yaml", "run,", "\xFF,")},
          {"empty file", kTrain, 64, {"data.train: required key is missing", "neither steps nor epochs"}, config(""), 2},
          {"a list", kTrain, 64, {"a configuration file is a mapping of sections, not a list"}, config("[1, 2]\n")},
          {"over 1 MiB",
           kTrain,
           64,
           {"run.yaml:1:1", "larger than 1048576 bytes"},
           config(kConfig + repeated("# and so on, line after line of it\n", 40000))},
          {"nested too deep",
           kTrain,
           64,
           {"run.yaml:13:", "nested more than 32 deep"},
           config(kConfig + "x: " + repeated("[", 200000) + repeated("]", 200000))},
          {"a directory", {"train", "train"}, 74, {"train: a directory, where a configuration file is expected"}},
          {"no such file", {"train", "runs.yaml"}, 66, {"runs.yaml: no such configuration file"}},
          {"octal", kTrain, 64, {"run.yaml:4:10 training.steps=010: number with a leading zero"}, edit("run.yaml", "steps: 6", "steps: 010")},
          {"hexadecimal", kTrain, 64, {"training.steps=0x10: hexadecimal"}, edit("run.yaml", "steps: 6", "steps: 0x10")},
          {"NaN", kTrain, 64, {"run.yaml:7:30 training.optimizer.learning_rate=.nan: NaN is not a value"}, edit("run.yaml", "1.0e-2", ".nan")},
          {"infinity", kTrain, 64, {"training.optimizer.learning_rate=.inf: infinity is not a value"}, edit("run.yaml", "1.0e-2", ".inf")},
          {"five at once",
           train({"parallel.zero_stage=4"}),
           64,
           {"run.yaml:2:17 model.layers=0", "run.yaml:4:10 training.steps=many", "run.yaml:7:15", "run.yaml:13:1 checkpint",
            "--set:parallel.zero_stage"},
           config(replaced(replaced(replaced(kConfig, "layers: 4", "layers: 0"), "steps: 6", "steps: many"), "learning_rate", "learning_rat") +
                  "checkpint: {every: 1}\n"),
           5},
      });
}

TEST_CASE("bad input: configuration, its values") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  check_all(prepared,
            {
                {"overflow of an integer",
                 train({"training.steps=99999999999999999999"}),
                 64,
                 {"training.steps=99999999999999999999: does not fit 64 bits"}},
                {"overflow of a number", train({"training.gradient_clip=1e999"}), 64, {"training.gradient_clip=1e999: too large"}},
                {"text for a number", train({"model.layers=four"}), 64, {"--set:model.layers model.layers=four: not an integer"}},
                {"fraction for an integer", train({"model.layers=4.0"}), 64, {"model.layers=4.0: not an integer", "nearest valid 4"}},
                {"quoted number", train({"model.layers='4'"}), 64, {"model.layers=4: quoted text", "4 without quotes"}},
                {"yes", train({"model.qkv_bias=yes"}), 64, {"model.qkv_bias=yes: not a boolean; allowed true | false; nearest valid true"}},
                {"list for a value", train({"model.layers=[4]"}), 64, {"model.layers: a list where a plain value is expected"}},
                {"value for a list", train({"data.train=train"}), 64, {"data.train=train: text where a list is expected", "nearest valid [train]"}},
                {"empty list", train({"data.train=[]"}), 64, {"data.train: an empty list"}},
                {"section for a value", train({"model={layers: 3}"}), 64, {"--set:model model={layers: 3}: sets one key at a time"}},
                {"no value", train({"model.layers="}), 64, {"model.layers: no value is given"}},
                {"negative learning rate",
                 train({"training.optimizer.learning_rate=-0.1"}),
                 64,
                 {"training.optimizer.learning_rate=-0.1: out of range; allowed number above 0"}},
                {"warm-up beyond the steps",
                 train({"training.schedule.warmup_steps=7"}),
                 64,
                 {"training.schedule.warmup_steps=7: leaves too few of the run's 6 steps", "nearest valid 6"}},
                {"warm-up beyond the epochs",
                 kTrain + sets({"training.schedule.warmup_steps=128"}),
                 64,
                 {"training.schedule.warmup_steps=128: leaves too few of the run's 127 steps"},
                 edit("run.yaml", "steps: 6", "epochs: 1")},
                {"steps and epochs", train({"training.epochs=1"}), 64, {"--set:training.epochs training.epochs=1: steps and epochs are both given"}},
                {"neither steps nor epochs",
                 kTrain,
                 64,
                 {"run.yaml:3:1 training.steps: neither steps nor epochs is given"},
                 edit("run.yaml", "  steps: 6\n", "")},
                {"dropout of all", train({"model.dropout=1"}), 64, {"model.dropout=1: out of range"}},
                {"device unknown",
                 train({"run.device=gpu"}),
                 64,
                 {"run.device=gpu: not one of the choices; allowed auto | cpu | cuda; nearest valid cuda"}},
                {"unknown tokenizer", train({"data.tokenizer=bpe"}), 64, {"data.tokenizer=bpe: unknown tokenizer; allowed: bytes"}},
                {"precision of a later version",
                 train({"training.precision=fp8"}),
                 64,
                 {"training.precision=fp8: not one of the choices; allowed fp64 | fp32 | bf16 | fp16"}},
                {"unknown architecture", train({"model.architecture=lama"}), 64, {"nearest valid llama"}},
                {"vocabulary below the tokenizer's", train({"model.vocab_size=255"}), 64, {"model.vocab_size=255: smaller than the tokenizer's 256"}},
                {"positions below the sequence",
                 train({"model.max_positions=15"}),
                 64,
                 {"model.max_positions=15: shorter than training.sequence_length 16"}},
                {"evaluation of nothing", train({"data.validation=[]"}), 64, {"training.evaluate.every=3: nothing to evaluate"}},
                {"decay without wsd", train({"training.schedule.decay_steps=2"}), 64, {"training.schedule.decay_steps=2: has no effect"}},
                {"keep nothing", train({"checkpoint.keep=0"}), 64, {"checkpoint.keep=0: out of range"}},
                {"name that is a path", train({"run.name=a/b"}), 64, {"run.name=a/b: not a valid directory name"}},
                {"difference from a missing file", {"config", "diff", "run.yaml", "none.yaml"}, 64, {"none.yaml"}},
                {"refused by show", {"config", "show", "run.yaml", "--set", "model.layers=0"}, 64, {"model.layers=0: out of range"}},
                {"refused by explain", {"config", "explain", "run.yaml", "--set", "model.layer=1"}, 64, {"did you mean model.layers?"}},
            },
            true);
}

TEST_CASE("bad input: dataset") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  const std::string index = "train/index.json";
  std::vector<BadInput> cases = {
      {"no such directory", train({"data.train=[train, trian]"}), 66, {"trian: no such token directory"}},
      {"a file for a directory", train({"data.train=[train.txt]"}), 65, {"train.txt: not a token directory"}},
      {"no validation directory", kTrain, 66, {"validation: no such token directory"}, erase("validation")},
      {"no index", kTrain, 66, {"train/index.json"}, erase(index)},
      {"no tokens", kTrain, 66, {"train/tokens.bin"}, erase("train/tokens.bin")},
      {"no documents", kTrain, 66, {"train/documents.bin"}, erase("train/documents.bin")},
      {"tokens cut short", kTrain, 65, {"train/tokens.bin: truncated", "index.json declares"}, shorten("train/tokens.bin", 1)},
      {"documents cut short", kTrain, 65, {"train/documents.bin: truncated"}, shorten("train/documents.bin", 3)},
      {"tokens emptied", kTrain, 65, {"train/tokens.bin: truncated: 0 bytes"}, put("train/tokens.bin", "")},
      {"tokens too long", kTrain, 65, {"train/tokens.bin: too long"}, put("train/tokens.bin", repeated("x", 30000))},
      {"validation cut short", kTrain, 65, {"validation/tokens.bin: truncated"}, shorten("validation/tokens.bin", 100)},
      {"documents with random bytes", kTrain, 65, {"train/documents.bin"}, put("train/documents.bin", repeated("\xFF", 16))},
      {"index that is not JSON", kTrain, 65, {"train/index.json: not valid JSON"}, put(index, "{\"format\": ")},
      {"index that is not an object", kTrain, 65, {"train/index.json: not a JSON object"}, put(index, "[]")},
      {"index of a later version",
       kTrain,
       65,
       {"train/index.json: version 3 is not supported; supported: 1 and 2"},
       edit(index, "\"version\": 2", "\"version\": 3")},
      {"index without a key", kTrain, 65, {"train/index.json: \"documents\" is missing"}, edit(index, ",\n  \"documents\": 1", "")},
      {"index with an unknown key",
       kTrain,
       65,
       {"train/index.json: unknown key \"docs\""},
       edit(index, "\"documents\": 1", "\"documents\": 1, \"docs\": 1")},
      {"index without tokens", kTrain, 65, {"train/index.json: contains no tokens"}, edit(index, "\"documents\": 1", "\"documents\": 0")},
      {"index of minus one document", kTrain, 65, {"train/index.json: \"documents\": is -1"}, edit(index, "\"documents\": 1", "\"documents\": -1")},
      {"index that overflows",
       kTrain,
       65,
       {"train/index.json: \"documents\": is 9223372036854775807"},
       edit(index, "\"documents\": 1", "\"documents\": 9223372036854775807")},
      {"index with a wrong token width",
       kTrain,
       65,
       {"train/index.json: \"token_bytes\": is 2"},
       edit(index, "\"token_bytes\": 1", "\"token_bytes\": 2")},
      {"index that is a directory", kTrain, 65, {"train/index.json: not a regular file"}, directory_instead(index)},
      {"tokens that are a directory", kTrain, 65, {"train/tokens.bin: not a regular file"}, directory_instead("train/tokens.bin")},
      {"token beyond the vocabulary",
       kTrain,
       65,
       {"train/tokens.bin: token ", "outside the vocabulary of 100"},
       edit(index, "\"vocab_size\": 256", "\"vocab_size\": 100")},
      {"vocabulary beyond the model's",
       kTrain,
       65,
       {"train: its vocabulary of 300 exceeds the model's vocab_size of 256"},
       [=](const TemporaryDirectory& directory) {
         edit(index, "\"vocab_size\": 256", "\"vocab_size\": 300")(directory);
         edit(index, "\"token_bytes\": 1", "\"token_bytes\": 2")(directory);
         fs::resize_file(directory / "train/tokens.bin", 2 * fs::file_size(directory / "train/tokens.bin"));
       }},
      {"validation of another tokenizer",
       kTrain,
       65,
       {"validation: made by tokenizer 0bytes-v1", "but the run uses bytes-v1"},
       edit("validation/index.json", "\"tokenizer_digest\": \"", "\"tokenizer_digest\": \"0")},
      {"shorter than one sequence",
       train({"training.sequence_length=20000"}),
       65,
       {"train:", "one sequence of 20000 tokens and its last target needs 20001"}},
      {"link to nowhere",
       train({"data.train=[gone]"}),
       66,
       {"gone: no such token directory"},
       [](const TemporaryDirectory& directory) { fs::create_symlink("nowhere", directory / "gone"); }},
      {"build: no such text", {"data", "build", "--output", "new", "missing.txt"}, 66, {"missing.txt: cannot open"}},
      {"build: empty text", {"data", "build", "--output", "new", "train.txt", "empty.txt"}, 65, {"empty.txt: is empty"}, put("empty.txt", "")},
      {"build: a gzip file", {"data", "build", "--output", "new", "text.gz"}, 65, {"text.gz: is a gzip file"}, put("text.gz", "\x1f\x8b\x08")},
      {"build: NUL bytes", {"data", "build", "--output", "new", "nul"}, 65, {"nul: is binary: byte 2 is NUL"}, put("nul", std::string("ab\0c", 4))},
      {"build: a token directory", {"data", "build", "--output", "new", "train"}, 65, {"train: is a token directory"}},
      {"build: unknown tokenizer", {"data", "build", "--tokenizer", "bpe", "--output", "new", "train.txt"}, 64, {"bpe"}},
      {"build: output that is a file", {"data", "build", "--output", "run.yaml", "train.txt"}, 64, {"run.yaml"}},
      {"inspect: no such directory", {"data", "inspect", "trian"}, 66, {"trian: no such token directory"}},
      {"inspect: cut short", {"data", "inspect", "train"}, 65, {"train/tokens.bin: truncated"}, shorten("train/tokens.bin", 1)},
  };
  if (::geteuid() != 0)  // root can read any file
    cases.push_back({"unreadable tokens", kTrain, 74, {"train/tokens.bin: cannot open: Permission denied"}, [](const TemporaryDirectory& directory) {
                       fs::permissions(directory / "train/tokens.bin", fs::perms::none);
                     }});
  if (!std::filesystem::exists("/dev/nvidiactl")) cases.push_back({"no GPU", train({"run.device=cuda"}), 64, {"run.device=cuda: ", "allowed cpu"}});
  check_all(prepared, cases, true);
}

TEST_CASE("bad input: checkpoint and run directory") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  REQUIRE(run(prepared, kTrain + Arguments{"--max-steps", "2"}).code == 0);
  const std::string saved = "run/checkpoints/step-00000002", shard = saved + "/rank-00000.safetensors", manifest = saved + "/manifest.json";
  const Arguments resume = train({"run.directory=other"}) + Arguments{"--resume", saved},
                  generate = {"generate", "--checkpoint", saved, "--prompt", "Ship"};
  const Arguments evaluate = {"eval", "run.yaml", "--checkpoint", saved};
  check_all(prepared,
            {
                {"resume from a missing checkpoint",
                 kTrain + Arguments{"--resume", "run/checkpoints/step-00000003"},
                 66,
                 {"run/checkpoints/step-00000003 does not exist"}},
                {"resume from an incomplete checkpoint", resume, 65, {saved + " is incomplete: manifest.json is missing"}, erase(manifest)},
                {"resume from a truncated file", resume, 65, {shard + ": has", "the manifest says"}, shorten(shard, 10)},
                {"resume without a file", resume, 65, {shard + ": cannot be read"}, erase(shard)},
                {"resume with a tensor of another kind",
                 resume,
                 65,
                 {"exp_avg_lost/", "is not a tensor of the configured model"},
                 forge(manifest, "\"exp_avg/", "\"exp_avg_lost/")},
                {"resume from a damaged manifest", resume, 65, {manifest}, put(manifest, "{\"format\": \"trireme")},
                {"resume another model",
                 resume + sets({"model.ffn_size=64"}),
                 64,
                 {"cannot resume from " + saved, "checkpoint: model.ffn_size: 32", "now:        model.ffn_size: 64"},
                 {},
                 4},
                {"resume at another learning rate",
                 train({"training.optimizer.learning_rate=0.5"}),
                 64,
                 {"cannot resume from run/checkpoints/step-00000002", "learning_rate: 0.5", "use a different run.directory"},
                 {},
                 4},
                {"never in a used directory",
                 kTrain + Arguments{"--resume", "never"},
                 64,
                 {"run.directory=run: already contains a run; allowed a different directory, or --resume auto"}},
                {"run directory below a file", train({"run.directory=train.txt/run"}), 74, {"run.directory=train.txt/run: cannot be written"}},
                {"run directory that is a file", train({"run.directory=train.txt"}), 74, {"run.directory=train.txt: cannot be written"}},
                {"run directory that is not writable", train({"run.directory=/proc/run"}), 74, {"run.directory=/proc/run: cannot be written"}},
                {"generate from a missing checkpoint",
                 {"generate", "--checkpoint", "nothing", "--prompt", "a"},
                 66,
                 {"nothing: does not exist; expected a checkpoint or a run directory"}},
                {"generate from an incomplete checkpoint", generate, 65, {"manifest.json is missing"}, erase(manifest)},
                {"generate from a truncated file", generate, 65, {"the manifest says"}, shorten(shard, 1)},
                {"generate from another version",
                 generate,
                 65,
                 {manifest + ": version 4 is not supported"},
                 forge(manifest, "\"version\": 3", "\"version\": 4")},
                {"generate from a text file",
                 {"generate", "--checkpoint", "train.txt", "--prompt", "a"},
                 65,
                 {"train.txt: not a directory; expected a checkpoint or a run directory"}},
                {"eval of another model",
                 evaluate + sets({"model.ffn_size=64"}),
                 65,
                 {"the checkpoint's model differs from the configuration; the checkpoint has", "ffn_size: 32"},
                 {},
                 3},
                {"eval of a missing checkpoint",
                 {"eval", "run.yaml", "--checkpoint", "nothing"},
                 66,
                 {"nothing: does not exist; expected a checkpoint or a run directory"}},
                {"eval without a validation set",
                 evaluate + sets({"data.validation=[]", "training.evaluate.every=0"}),
                 64,
                 {"data.validation: eval needs a validation set"}},
                {"eval without its data", evaluate, 66, {"validation: no such token directory"}, erase("validation")},
                {"generate from no text", {"generate", "--checkpoint", saved, "--prompt", ""}, 64, {"--prompt: empty"}},
            },
            true);
}

TEST_CASE("bad input: the help of each command says that --set may be repeated") {
  const TemporaryDirectory directory;
  for (const Arguments& command : std::vector<Arguments>{{"train"},
                                                         {"eval"},
                                                         {"plan"},
                                                         {"verify"},
                                                         {"bench", "step"},
                                                         {"bench", "kernels"},
                                                         {"bench", "scale"},
                                                         {"doctor"},
                                                         {"config", "show"},
                                                         {"config", "explain"},
                                                         {"config", "actions"}}) {
    CAPTURE(command);
    const std::string help = must(directory, command + Arguments{"--help"}).out;
    const size_t at = help.find("  --set ");
    REQUIRE(at != help.npos);
    CHECK(help.find("may be repeated", at) < help.find("\n  --", at + 1));
  }
}

TEST_CASE("bad input: usage") {
  TemporaryDirectory prepared;
  prepare_run(prepared);
  check_all(prepared,
            {
                {"nothing", {}, 64, {"trireme --help"}},
                {"unknown subcommand", {"trian", "run.yaml"}, 64, {"trian"}},
                {"command of a later version", {"chat", "run.yaml"}, 64, {"chat"}},
                {"unknown flag", kTrain + Arguments{"--verbose"}, 64, {"--verbose"}},
                {"second configuration", kTrain + Arguments{"more.yaml"}, 64, {"more.yaml"}},
                {"no configuration", {"train"}, 64, {"CONFIG is required"}},
                {"no steps", kTrain + Arguments{"--max-steps", "0"}, 64, {"--max-steps"}},
                {"fewer steps", kTrain + Arguments{"--max-steps", "-3"}, 64, {"--max-steps"}},
                {"steps in words", kTrain + Arguments{"--max-steps", "ten"}, 64, {"--max-steps"}},
                {"resume without a value", kTrain + Arguments{"--resume"}, 64, {"--resume"}},
                {"set without a value", kTrain + Arguments{"--set", "model.layers"}, 64, {"--set model.layers: not of the form key.path=value"}},
                {"set without a key", kTrain + Arguments{"--set", "=4"}, 64, {"--set =4: not of the form"}},
                {"no hosts file", kTrain + Arguments{"--hosts", "hosts"}, 66, {"hosts file hosts"}},
                {"generate without a checkpoint", {"generate", "--prompt", "a"}, 64, {"--checkpoint is required"}},
                {"generate without a prompt", {"generate", "--checkpoint", "run"}, 64, {"--prompt is required"}},
                {"negative temperature", {"generate", "--checkpoint", "run", "--prompt", "a", "--temperature", "-1"}, 64, {"--temperature"}},
                {"share above all", {"generate", "--checkpoint", "run", "--prompt", "a", "--top-p", "1.5"}, 64, {"--top-p"}},
                {"eval without a checkpoint", {"eval", "run.yaml"}, 64, {"--checkpoint is required"}},
                {"config without a command", {"config"}, 64, {"subcommand"}},
                {"data build without an output", {"data", "build", "train.txt"}, 64, {"--output is required"}},
            });
}

}  // namespace
}  // namespace trireme::test
