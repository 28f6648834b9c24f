// Invalid configurations: each is refused with the right exit code, location and message.
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

const std::string kBase = R"(model: {layers: 5, hidden_size: 96, heads: 12, kv_heads: 2, ffn_size: 256}
parallel: {tensor: 2}
training: {steps: 100, sequence_length: 32, micro_batch_size: 1, global_batch_size: 8}
data: {train: [data/a], validation: [data/v]}
)";

/// Exit code and message of a refused configuration; 0 and "" if it is accepted.
struct Answer {
  int code = 0;
  std::string message;
};

template <class Body>
Answer answer_of(Body&& body) {
  try {
    body();
    return {};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
}

Answer answer_of_text(const std::string& text, const std::vector<std::string>& sets = {}, std::optional<int64_t> world = std::nullopt) {
  return answer_of([&] { resolve(parse_config(text, "run.yaml", sets), world); });
}

void check_answer(const Answer& answer, int code, const std::vector<std::string>& expected) {
  CAPTURE(answer.message);
  CHECK(answer.code == code);
  for (const std::string& part : expected) {
    CAPTURE(part);
    CHECK(answer.message.find(part) != std::string::npos);
  }
}

struct TextCase {
  const char* name;
  std::string text;
  std::vector<std::string> expected;
};

std::string repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST_CASE("bad configuration: the base of the cases below is valid") { CHECK(answer_of_text(kBase).message == ""); }

TEST_CASE("bad configuration: YAML that other parsers accept") {
  const std::vector<TextCase> cases = {
      {"duplicate key",
       "run: {seed: 1}\nmodel:\n  layers: 4\n  heads: 2\n  layers: 5\n",
       {"run.yaml:5:3 model.layers: duplicate key, first given at run.yaml:3:3"}},
      {"duplicate section", "run: {seed: 1}\nrun: {seed: 1}\n", {"run.yaml:2:1 run: duplicate key, first given at run.yaml:1:1"}},
      {"duplicate key in another spelling", "run: {seed: 1, \"seed\": 2}\n", {"run.yaml:1:16 run.seed: duplicate key, first given at run.yaml:1:7"}},
      {"anchor", "run: {seed: &s 1}\n", {"run.yaml:1:13 run.seed: anchors (&name) are not allowed"}},
      {"anchor on a section", "run: &r {seed: 1}\n", {"run.yaml:1:6 run: anchors"}},
      {"anchor on nothing", "run: {directory: &d }\n", {"run.yaml:1:18 run.directory: anchors"}},
      {"alias", "run: {name: &s a, directory: *s}\n", {"run.yaml:1:30 run.directory: aliases (*name) are not allowed"}},
      {"alias of nothing", "run: {name: *s}\n", {"run.yaml:1:13", "anchor is not defined"}},
      {"alias to its own parent", "run: &r {name: *r}\n", {"run.yaml:1:16 run.name: aliases"}},
      {"merge key", "run: &r {seed: 1}\nmodel:\n  <<: *r\n", {"run.yaml:3:3 model.<<: merge keys (<<) are not allowed"}},
      {"tag", "run: {seed: !!int 1}\n", {"run.yaml:1:13 run.seed: tags (!name) are not allowed"}},
      {"tag on null", "run: {name: !!str null}\n", {"run.yaml:1:13 run.name: tags"}},
      {"tag without a name", "run: {name: ! a}\n", {"run.yaml:1:13 run.name: tags"}},
      {"tag on a section", "run: !!map {seed: 1}\n", {"run.yaml:1:6 run: tags"}},
      {"two documents", "run: {seed: 1}\n---\nrun: {seed: 2}\n", {"a second document starts here"}},
      {"a document after the end", "run: {seed: 1}\n...\nrun: {seed: 2}\n", {"run.yaml:3:1: a second document starts here"}},
      {"dedent that begins another document", "  run: {seed: 1}\nmodel: {layers: 2}\n", {"run.yaml:2:1: a second document", "indentation"}},
      {"a stray comma, which yaml-cpp reads endlessly", ", a\n", {"run.yaml:1:1"}},
      {"octal by leading zero", "run: {seed: 010}\n", {"run.yaml:1:13 run.seed=010: number with a leading zero (octal to some readers) is refused"}},
      {"octal", "run: {seed: 0o7}\n", {"run.yaml:1:13 run.seed=0o7: octal number is refused"}},
      {"hexadecimal", "run: {seed: 0x10}\n", {"run.yaml:1:13 run.seed=0x10: hexadecimal number is refused"}},
      {"binary", "run: {seed: -0b11}\n", {"run.seed=-0b11: binary number is refused"}},
      {"underscores", "run: {seed: 1_000}\n", {"run.yaml:1:13 run.seed=1_000: number with underscores is refused"}},
      {"base 60", "run: {seed: 1:30}\n", {"run.yaml:1:13 run.seed=1:30: number in base 60 is refused"}},
      {"NaN", "model: {dropout: .nan}\n", {"run.yaml:1:18 model.dropout=.nan: NaN is not a value"}},
      {"infinity", "model: {dropout: -.Inf}\n", {"run.yaml:1:18 model.dropout=-.Inf: infinity is not a value"}},
      {"number trap in a text field", "run: {name: 0x10}\n", {"run.name=0x10: hexadecimal number is refused", "quote it if text is meant"}},
      {"unknown directive", "%FOO bar\n---\nrun: {seed: 1}\n", {"run.yaml:1:1: directives (%NAME) are not allowed"}},
      {"quote never closed", "run: {seed: 1}\ndata: {tokenizer: \"bytes}\n", {"run.yaml:2:19 data.tokenizer: the quote \" is never closed"}},
      {"single quote never closed", "run:\n  name: 'it''s\n", {"run.yaml:2:9 run.name: the quote ' is never closed"}},
      {"list never closed", "data: {train: [a, b\n", {"run.yaml:", "not found"}},
      {"tab as indentation", "run:\n\tseed: 1\n", {"run.yaml:2:"}},
      {"tab after a key", "run:\n  seed: 1\n\tname: a\n", {"run.yaml:3:1", "illegal tab"}},
      {"colon in plain text", "run: name: a\n", {"run.yaml:1:", "illegal map value"}},
      {"a section as a key", "{a: 1}: 2\n", {"run.yaml:1:1", "a key must be plain text"}},
      {"a list as a key", "? [a]\n: 2\n", {"run.yaml:1:3", "a key must be plain text"}},
      {"no key before the colon", "run: {: 1}\n", {"run.yaml:1:", "a key is missing"}},
      {"not a mapping", "- a\n- b\n", {"run.yaml:1:1: a configuration file is a mapping of sections, not a list"}},
      {"bare text", "hello\n", {"run.yaml:1:1: a configuration file is a mapping of sections, not text"}},
      {"NUL byte", std::string("run: {name: a\0b}\n", 17), {"run.yaml:1:14: control character 0"}},
      {"escaped NUL", "run: {name: \"a\\0b\"}\n", {"run.yaml:1:13 run.name: a NUL character"}},
      {"Latin-1", "run:\n  name: caf\xE9\n", {"run.yaml:2:12: not UTF-8 text"}},
      {"UTF-16", std::string("\xFF\xFEr\0u\0", 6), {"run.yaml:1:1: not UTF-8 text"}},
      {"overlong UTF-8", "run: {name: \xC0\xAF}\n", {"run.yaml:1:13: not UTF-8 text"}},
      {"larger than 1 MiB", repeated("# a comment\n", 87382), {"run.yaml:1:1: larger than 1048576 bytes"}},
      {"33 lists deep", "data: {train: " + repeated("[", 31) + repeated("]", 31) + "}\n", {"run.yaml:1:45 data.train: nested more than 32 deep"}},
      {"a bracket bomb", repeated("[", size_t{1} << 19) + repeated("]", size_t{1} << 19), {"nested more than 32 deep"}},
      {"a brace bomb", repeated("{a: ", 200000) + repeated("}", 200000), {"nested more than 32 deep"}},
      {"a bracket bomb without an end", repeated("[", size_t{1} << 20), {"run.yaml:1:1"}},
      {"a dash bomb", repeated("- ", size_t{1} << 19), {"nested more than 32 deep"}},
      {"a question bomb", repeated("? ", size_t{1} << 19), {"run.yaml:1:3: a key must be plain text"}},
      {"columns count characters", "run: {name: \"\xC3\xA9\xC3\xA9\", seed: 010}\n", {"run.yaml:1:25 run.seed=010"}},
      {"lines survive CRLF", "run:\r\n  seed: 010\r\n", {"run.yaml:2:9 run.seed=010"}},
      {"after a byte order mark", "\xEF\xBB\xBFrun: {seed: 010}\n", {"run.yaml:1:13 run.seed=010"}},
  };
  for (const TextCase& c : cases) {
    CAPTURE(c.name);
    check_answer(answer_of_text(c.text), 64, c.expected);
  }
}

TEST_CASE("bad configuration: input just within the limits is accepted") {
  CHECK(answer_of_text("# \xC3\xA9\n" + kBase + repeated("# a comment\n", 87000)).message == "");
  CHECK(answer_of_text("---\n" + kBase + "...\n").message == "");
  CHECK(answer_of_text(kBase + "checkpoint:\nrun: {name: '0x10', directory: \"1:30\"}\n").message == "");
  // Nesting of 32 is parsed, and only the value is refused.
  CHECK(answer_of_text("data: {train: " + repeated("[", 30) + repeated("]", 30) + "}\n").message.find("nested") == std::string::npos);
}

struct SetCase {
  const char* name;
  std::vector<std::string> sets;  ///< over kBase
  std::vector<std::string> expected;
  std::optional<int64_t> world = std::nullopt;
};

void check_cases(const std::vector<SetCase>& cases) {
  for (const SetCase& c : cases) {
    CAPTURE(c.name);
    check_answer(answer_of_text(kBase, c.sets, c.world), 64, c.expected);
  }
}

TEST_CASE("bad configuration: keys and values") {
  check_cases({
      {"unknown key", {"model.layer=4"}, {"--set:model.layer model.layer=4: unknown key; did you mean model.layers?"}},
      {"unknown section", {"modle.layers=4"}, {"--set:modle.layers modle: unknown key; did you mean model?"}},
      {"key of another section", {"tensor=2"}, {"tensor=2: unknown key; did you mean parallel.tensor?"}},
      {"nothing like any key", {"model.zzzzzzzz=4"}, {"model.zzzzzzzz=4: unknown key"}},
      {"key below a value", {"model.layers.deep=4"}, {"--set:model.layers.deep", "a part of the path is a value, not a section"}},
      {"section as a value", {"parallel=4"}, {"--set:parallel parallel=4: a section with keys is expected, not text"}},
      {"mapping in --set", {"parallel={tensor: 2}"}, {"--set:parallel parallel={tensor: 2}: sets one key at a time"}},
      {"--set without a value", {"run.name="}, {"--set:run.name run.name: no value is given"}},
      {"--set without =", {"run.name"}, {"--set run.name: not of the form key.path=value"}},
      {"--set without a key", {"=4"}, {"not of the form key.path=value"}},
      {"--set with an empty part", {"run..name=4"}, {"not of the form key.path=value"}},
      {"--set that is no YAML", {"data.train=[a"}, {"--set:data.train data.train:", "a bracket is never closed"}},
      {"--set with an octal number", {"run.seed=010"}, {"--set:run.seed run.seed=010: number with a leading zero"}},
      {"null", {"run.seed=null"}, {"run.seed: no value is given; allowed integer from 0"}},
      {"an average that never moves", {"training.ema.decay=1"}, {"training.ema.decay=1: out of range; allowed number above 0 to below 1, or null"}},
      {"an average that is the weights", {"training.ema.decay=0"}, {"training.ema.decay=0: out of range"}},
      {"text for an integer", {"model.layers=four"}, {"model.layers=four: not an integer in decimal digits; allowed integer from 1 to 1024"}},
      {"exponent for an integer", {"model.layers=1e3"}, {"model.layers=1e3: not an integer in plain digits", "nearest valid 1000"}},
      {"fraction for an integer", {"model.layers=4.5"}, {"model.layers=4.5: not an integer in plain digits"}},
      {"plus sign", {"model.layers=+4"}, {"model.layers=+4: not an integer in decimal digits"}},
      {"quoted integer", {"model.layers=\"4\""}, {"model.layers=4: quoted text where a plain value is expected", "4 without quotes"}},
      {"integer over 64 bits", {"run.seed=9223372036854775808"}, {"run.seed=9223372036854775808: does not fit 64 bits"}},
      {"negative", {"run.seed=-1"}, {"run.seed=-1: out of range; allowed integer from 0; nearest valid 0"}},
      {"zero layers", {"model.layers=0"}, {"model.layers=0: out of range; allowed integer from 1 to 1024; nearest valid 1"}},
      {"a million layers", {"model.layers=1000000"}, {"out of range", "nearest valid 1024"}},
      {"number over double", {"training.gradient_clip=1e999"}, {"training.gradient_clip=1e999: too large or too small"}},
      {"bare nan", {"model.dropout=nan"}, {"model.dropout=nan: not a decimal number"}},
      {"dropout of all", {"model.dropout=1"}, {"model.dropout=1: out of range; allowed number from 0 to below 1"}},
      {"learning rate zero", {"training.optimizer.learning_rate=0"}, {"training.optimizer.learning_rate=0: out of range; allowed number above 0"}},
      {"beta over one", {"training.optimizer.beta2=1.5"}, {"training.optimizer.beta2=1.5: out of range"}},
      {"zero_stage 4", {"parallel.zero_stage=4"}, {"parallel.zero_stage=4: out of range; allowed integer from 0 to 3; nearest valid 3"}},
      {"yes for a boolean", {"model.tied_embeddings=yes"}, {"model.tied_embeddings=yes: not a boolean; allowed true | false; nearest valid true"}},
      {"0 for a boolean", {"model.tied_embeddings=0"}, {"not a boolean", "nearest valid false"}},
      {"quoted boolean", {"model.tied_embeddings='true'"}, {"quoted text where a plain value is expected", "true without quotes"}},
      {"auto for a key without auto", {"model.layers=auto"}, {"model.layers=auto: not an integer"}},
      {"unknown choice", {"model.architecture=lama"}, {"model.architecture=lama: not one of the choices; allowed llama | gpt2; nearest valid llama"}},
      {"device unknown", {"run.device=gpu"}, {"run.device=gpu", "not one of the choices", "allowed auto | cpu | cuda"}},
      {"precision of a later version",
       {"training.precision=fp8", "training.loss_scale.initial=8"},
       {"training.precision=fp8: not one of the choices; allowed fp64 | fp32 | bf16 | fp16"}},
      {"unknown attention", {"kernels.attention=flash"}, {"kernels.attention=flash", "not one of the choices", "allowed auto | builtin | cudnn"}},
      {"cuDNN attention in fp32",
       {"kernels.attention=cudnn"},
       {"kernels.attention=cudnn: cuDNN's attention computes in bf16 and fp16; allowed auto | builtin, or training.precision bf16 | fp16"}},
      {"cuDNN attention on a CPU",
       {"kernels.attention=cudnn", "training.precision=bf16", "run.device=cpu"},
       {"kernels.attention=cudnn: attention on CPUs has kernels of its own; allowed auto | builtin, or run.device cuda"}},
      {"cuDNN attention of an unusual head size",
       {"kernels.attention=cudnn", "training.precision=bf16", "model.head_size=20"},
       {"kernels.attention=cudnn: model.head_size is 20; allowed auto | builtin, or head_size a multiple of 8 up to 128"}},
      {"cuDNN attention of large heads",
       {"kernels.attention=cudnn", "training.precision=bf16", "model.head_size=136"},
       {"kernels.attention=cudnn: model.head_size is 136"}},
      {"cuDNN attention with documents apart",
       {"kernels.attention=cudnn", "training.precision=bf16", "data.document_mask=true"},
       {"kernels.attention=cudnn: cuDNN's deterministic backward does not keep documents apart; allowed auto | builtin, or data.document_mask "
        "false"}},
      {"packing of documents that attend to each other",
       {"data.packing=best_fit"},
       {"data.packing=best_fit: documents that are put together have nothing to do with each other", "data.document_mask true"}},
      {"an unknown packing", {"data.packing=bfd"}, {"data.packing=bfd", "allowed none | best_fit"}},
      {"encryption without a key",
       {"security.encryption=required"},
       {"security.key_file: security.encryption required needs a key that all hosts share; allowed the path of a file"}},
      {"a key without encryption", {"security.key_file=key"}, {"security.key_file=key: has no effect: encryption is none; remove the key"}},
      {"figures in clear text beside encryption",
       {"security.encryption=required", "security.key_file=key", "observe.prometheus.port=9100", "observe.prometheus.address=0.0.0.0"},
       {"observe.prometheus.address=0.0.0.0: figures of the run would leave the host in clear text", "nearest valid 127.0.0.1"}},
      {"an unknown encryption", {"security.encryption=tls"}, {"security.encryption=tls", "allowed none | required"}},
      {"a window without packing", {"data.packing_window=64"}, {"data.packing_window=64: has no effect: data.packing is none"}},
      {"a window of nothing", {"data.packing=best_fit", "data.document_mask=true", "data.packing_window=0"}, {"data.packing_window=0: out of range"}},
      {"balance of equal costs", {"data.balance=cost"}, {"data.balance=cost: without a document mask every sequence costs the same"}},
      {"balance with dropout",
       {"data.balance=cost", "data.document_mask=true", "model.dropout=0.1"},
       {"data.balance=cost: dropout masks follow the place in the batch"}},
      {"a graph with dropout",
       {"kernels.cuda_graph=true", "model.dropout=0.1"},
       {"kernels.cuda_graph=true: a captured step would repeat the same dropout masks"}},
      {"a graph of steps that are recorded",
       {"kernels.cuda_graph=true", "observe.anomalies.policy=rerun"},
       {"kernels.cuda_graph=true: observe.anomalies.policy rerun records what ranks exchange"}},
      {"an unknown policy", {"observe.anomalies.policy=ignore"}, {"observe.anomalies.policy=ignore"}},
      {"a window too short", {"observe.anomalies.window=7"}, {"observe.anomalies.window=7"}},
      {"a limit at the median", {"observe.anomalies.z=0"}, {"observe.anomalies.z=0"}},
      {"a graph of ranks that share a GPU", {"kernels.cuda_graph=true", "run.ranks_per_gpu=2"}, {"kernels.cuda_graph=true: ranks that share a GPU"}},
      {"times of ranks that share a GPU",
       {"kernels.tuning_file=products.json", "run.ranks_per_gpu=2"},
       {"kernels.tuning_file=products.json: ranks that share a GPU would time the products of one another", "nearest valid none"}},
      {"multiprocessors for communication of ranks that share a GPU",
       {"parallel.communication_sms=8", "run.ranks_per_gpu=2"},
       {"parallel.communication_sms=8: ranks that share a GPU communicate through host memory", "nearest valid 0"}},
      {"registered buffers of ranks that share a GPU",
       {"parallel.register_buffers=true", "run.ranks_per_gpu=2"},
       {"parallel.register_buffers=true: ranks that share a GPU communicate through host memory", "nearest valid false"}},
      {"fp64 on a GPU",
       {"training.precision=fp64", "run.device=cuda"},
       {"run.device=cuda: precision fp64 runs on the reference kernels", "nearest valid cpu"}},
      {"fp64 reduced in bf16",
       {"training.precision=fp64", "training.reduce_dtype=bf16"},
       {"training.reduce_dtype=bf16: precision fp64 reduces in fp64"}},
      {"loss scale in bf16",
       {"training.precision=bf16", "training.loss_scale.initial=65536"},
       {"training.loss_scale.initial=65536: has no effect: only precision fp16 scales the loss; remove the key"}},
      {"growth interval in fp32", {"training.loss_scale.growth_interval=7"}, {"training.loss_scale.growth_interval=7: has no effect"}},
      {"loss scale that rounds",
       {"training.precision=fp16", "training.loss_scale.initial=1000"},
       {"training.loss_scale.initial=1000: not a power of two", "nearest valid 512 or 1024"}},
      {"loss scale below one",
       {"training.precision=fp16", "training.loss_scale.minimum=0"},
       {"training.loss_scale.minimum=0: out of range; allowed integer from 1 to 1073741824; nearest valid 1"}},
      {"loss scale of no range",
       {"training.precision=fp16", "training.loss_scale.minimum=64", "training.loss_scale.maximum=32"},
       {"training.loss_scale.minimum=64: above training.loss_scale.maximum 32", "nearest valid 32"}},
      {"loss scale out of its range",
       {"training.precision=fp16", "training.loss_scale.maximum=1024"},
       {"training.loss_scale.initial=65536: outside minimum 1 and maximum 1024", "nearest valid 1024"}},
      {"growth at once",
       {"training.precision=fp16", "training.loss_scale.growth_interval=0"},
       {"growth_interval=0: out of range", "nearest valid 1"}},
      {"unknown tokenizer", {"data.tokenizer=bpe"}, {"--set:data.tokenizer data.tokenizer=bpe: unknown tokenizer; allowed: bytes"}},
      {"path for a list", {"data.train=data/a"}, {"data.train=data/a: text where a list is expected", "nearest valid [data/a]"}},
      {"empty list", {"data.train=[]"}, {"data.train: an empty list"}},
      {"list in a list", {"data.train=[[a]]"}, {"data.train: a list where a path is expected"}},
      {"list for a number", {"model.layers=[4]"}, {"model.layers: a list where a plain value is expected"}},
      {"empty text", {"run.name=''"}, {"run.name: empty text"}},
      {"name that leaves the directory", {"run.name=../a"}, {"run.name=../a: not a valid directory name"}},
      {"steps without end", {"training.steps=2147483648"}, {"training.steps=2147483648: out of range; allowed integer from 1 to 2147483647"}},
      {"epochs without end", {"training.epochs=2147483648"}, {"training.epochs=2147483648: out of range"}},
      {"steps and epochs", {"training.epochs=2"}, {"--set:training.epochs training.epochs=2: steps and epochs are both given"}},
      {"warm-up longer than the run",
       {"training.schedule.warmup_steps=101"},
       {"training.schedule.warmup_steps=101: leaves too few", "nearest valid 100"}},
      {"warm-up that leaves no decay",
       {"training.schedule.warmup_steps=100", "training.schedule.name=wsd"},
       {"training.schedule.warmup_steps=100: leaves too few", "nearest valid 99"}},
      {"decay longer than the run",
       {"training.schedule.name=wsd", "training.schedule.warmup_steps=60", "training.schedule.decay_steps=41"},
       {"training.schedule.decay_steps=41: longer than", "nearest valid 40"}},
      {"decay without wsd", {"training.schedule.decay_steps=10"}, {"training.schedule.decay_steps=10: has no effect: schedule.name is not wsd"}},
      {"final learning rate of a constant",
       {"training.schedule.name=constant", "training.schedule.final_learning_rate=0"},
       {"training.schedule.final_learning_rate=0: has no effect"}},
      {"scaling without a reference",
       {"training.optimizer.learning_rate_scaling=linear"},
       {"training.optimizer.learning_rate_scaling=linear: needs training.optimizer.reference_batch_size"}},
      {"reference without scaling", {"training.optimizer.reference_batch_size=8"}, {"training.optimizer.reference_batch_size=8: has no effect"}},
      {"evaluation of nothing", {"data.validation=[]", "training.evaluate.every=5"}, {"training.evaluate.every=5: nothing to evaluate"}},
      {"batches of nothing", {"data.validation=[]", "training.evaluate.batches=5"}, {"training.evaluate.batches=5: nothing to evaluate"}},
      {"weights for other entries",
       {"data.train=[a, b, c]", "data.weights=[1, 2]"},
       {"data.weights=[1, 2]: 2 weights for the 3 entries of data.train", "allowed a list of 3, or auto"}},
      {"no weights", {"data.weights=[]"}, {"data.weights=[]"}},
      {"a weight of nothing", {"data.train=[a, b]", "data.weights=[1, 0]"}, {"data.weights=0: out of range"}},
      {"a negative weight", {"data.train=[a, b]", "data.weights=[1, -2]"}, {"data.weights=-2: out of range"}},
      {"a validation set without a name", {"data.validation=['=data/v']"}, {"data.validation=[\"=data/v\"]: '=data/v' lacks a name or a path"}},
      {"a validation set without data", {"data.validation=[code=]"}, {"'code=' lacks a name or a path"}},
      {"RoPE in gpt2", {"model.architecture=gpt2", "model.rope_theta=10000"}, {"model.rope_theta=10000: has no effect: architecture gpt2"}},
      {"norms of queries in gpt2",
       {"model.architecture=gpt2", "model.qk_norm=true"},
       {"model.qk_norm=true: has no effect: architecture gpt2 has no qk_norm"}},
      {"window layers without a window", {"model.window_layers=[0]"}, {"model.window_layers=[0]: has no effect: model.window is not set"}},
      {"an empty window", {"model.window=0"}, {"model.window=0: out of range", "integer from 1 to 2147483647, or null"}},
      {"a window that is no number", {"model.window=wide"}, {"model.window=wide: not an integer in decimal digits"}},
      {"a window of no layer",
       {"model.window=8", "model.window_layers=[]"},
       {"model.window_layers=[]: empty list: no layer would use the window; allowed all, or increasing integers from 0 to"}},
      {"a window layer twice",
       {"model.window=8", "model.window_layers=[1, 1]"},
       {"model.window_layers=[1, 1]: not in increasing order, or a layer is repeated"}},
      {"a window layer that is not there",
       {"model.layers=2", "model.window=8", "model.window_layers=[0, 2]"},
       {"model.window_layers=[0, 2]: contains layer 2, but model.layers is 2"}},
      {"the word of another key",
       {"model.window=8", "model.window_layers=auto"},
       {"model.window_layers=auto: text where a list is expected", "or all"}},
      {"scaled RoPE in gpt2",
       {"model.architecture=gpt2", "model.rope_scaling.type=linear"},
       {"model.rope_scaling.type=linear: has no effect: architecture gpt2 has learned positions"}},
      {"scaling of an unknown type",
       {"model.rope_scaling.type=yarn"},
       {"model.rope_scaling.type=yarn: not one of the choices", "none | linear | llama3"}},
      {"factor without scaling", {"model.rope_scaling.factor=2"}, {"model.rope_scaling.factor=2: has no effect: rope_scaling.type is none"}},
      {"factor below one", {"model.rope_scaling.type=linear", "model.rope_scaling.factor=0.5"}, {"model.rope_scaling.factor=0.5: out of range"}},
      {"bounds of llama3 in linear",
       {"model.rope_scaling.type=linear", "model.rope_scaling.low_frequency_factor=1"},
       {"model.rope_scaling.low_frequency_factor=1: has no effect"}},
      {"frequency bounds in the wrong order",
       {"model.rope_scaling.type=llama3", "model.rope_scaling.low_frequency_factor=4"},
       {"model.rope_scaling.high_frequency_factor=4: not above low_frequency_factor 4", "numbers above 4"}},
      {"gpt2 without biases",
       {"model.architecture=gpt2", "model.qkv_bias=false"},
       {"model.qkv_bias=false: architecture gpt2 always has these biases"}},
      {"vocabulary below the tokenizer's", {"model.vocab_size=255"}, {"model.vocab_size=255: smaller than the tokenizer's 256", "nearest valid 256"}},
      {"positions below the sequence",
       {"model.max_positions=31"},
       {"model.max_positions=31: shorter than training.sequence_length 32", "nearest valid 32"}},
      {"keep nothing", {"checkpoint.keep=0"}, {"checkpoint.keep=0: out of range", "nearest valid 1"}},
      {"the best of checkpoints that are not evaluated",
       {"checkpoint.keep_best=2", "checkpoint.every=5"},
       {"checkpoint.keep_best=2: training.evaluate.every is 0: only the last checkpoint is evaluated", "nearest valid 0"}},
      {"the best of no checkpoints",
       {"checkpoint.keep_best=2", "data.validation=[v]", "training.evaluate.every=5"},
       {"checkpoint.keep_best=2: checkpoint.every is 0: only the last checkpoint is evaluated"}},
      {"milestones between the checkpoints",
       {"checkpoint.keep_every=25", "checkpoint.every=10"},
       {"checkpoint.keep_every=25: not a multiple of checkpoint.every 10", "nearest valid 20 or 30"}},
      {"a word for the interval", {"checkpoint.every=daly"}, {"checkpoint.every=daly", "integer from 0", "or auto"}},
      {"the best of automatic checkpoints that are not evaluated",
       {"checkpoint.keep_best=2", "checkpoint.every=auto"},
       {"checkpoint.keep_best=2: training.evaluate.every is 0: only the last checkpoint is evaluated", "nearest valid 0"}},
      {"no time between failures", {"resilience.mean_time_between_failures=0"}, {"resilience.mean_time_between_failures=0: out of range", "or auto"}},
      {"a negative time between failures", {"resilience.mean_time_between_failures=-5"}, {"resilience.mean_time_between_failures=-5: out of range"}},
      {"milestones without checkpoints", {"checkpoint.keep_every=25"}, {"checkpoint.keep_every=25: checkpoint.every is 0", "nearest valid null"}},
      {"a patience without evaluations",
       {"training.stop.patience=3"},
       {"training.stop.patience=3: training.evaluate.every is 0: the run evaluates only at its end", "nearest valid null"}},
      {"no patience at all", {"training.stop.patience=0"}, {"training.stop.patience=0: out of range", "nearest valid 1"}},
      {"a minimum without a patience", {"training.stop.minimum=0.1"}, {"training.stop.minimum=0.1: has no effect: stop.patience is not set"}},
      {"a negative minimum", {"training.stop.patience=1", "training.stop.minimum=-1"}, {"training.stop.minimum=-1: out of range"}},
      {"a word that others take for a boolean",
       {"observe.tensorboard=on"},
       {"observe.tensorboard=on: not a boolean; allowed true | false | path; nearest valid true"}},
      {"no directory for TensorBoard",
       {"observe.tensorboard=[a]"},
       {"observe.tensorboard: a list where text is expected; allowed true | false | path"}},
      {"a port above 16 bits", {"observe.prometheus.port=70000"}, {"observe.prometheus.port=70000: out of range", "nearest valid 65535"}},
      {"port zero", {"observe.prometheus.port=0"}, {"observe.prometheus.port=0: out of range", "nearest valid 1"}},
      {"a host's name to listen on",
       {"observe.prometheus.port=9464", "observe.prometheus.address=localhost"},
       {"observe.prometheus.address=localhost: not an IPv4 or IPv6 address in digits", "nearest valid 127.0.0.1"}},
      {"an address without a port",
       {"observe.prometheus.address=0.0.0.0"},
       {"observe.prometheus.address=0.0.0.0: has no effect: prometheus.port is not set"}},
      {"a file that node_exporter does not read",
       {"observe.prometheus.textfile=run.txt"},
       {"observe.prometheus.textfile=run.txt: node_exporter reads only files whose names end with .prom", "nearest valid run.txt.prom"}},
  });
}

TEST_CASE("bad configuration: layouts") {
  check_cases({
      {"hidden_size over heads",
       {"model.hidden_size=100"},
       {"run.yaml:1:44 model.heads=12: does not divide hidden_size 100", "nearest valid 10 or 25"}},
      {"odd head_size", {"model.head_size=7"}, {"model.head_size=7: odd, but RoPE rotates pairs", "nearest valid 6 or 8"}},
      {"odd head_size by division", {"model.hidden_size=84"}, {"model.heads=12: makes head_size 7, which is odd", "nearest valid 7 or 14"}},
      {"kv_heads over heads", {"model.kv_heads=5"}, {"model.kv_heads=5: does not divide heads 12", "nearest valid 4 or 6"}},
      {"more kv_heads than heads", {"model.kv_heads=24"}, {"model.kv_heads=24: does not divide heads 12", "nearest valid 12"}},
      {"heads over tensor", {"parallel.tensor=5"}, {"parallel.tensor=5: does not divide model.heads 12", "nearest valid 4"}},
      {"tensor beyond heads", {"parallel.tensor=24"}, {"parallel.tensor=24: does not divide model.heads 12"}},
      {"kv_heads over tensor",
       {"parallel.tensor=3"},
       {"parallel.tensor=3: neither divides model.kv_heads 2 nor is a multiple of it", "nearest valid 2 or 4"}},
      {"ffn_size over tensor", {"model.ffn_size=255"}, {"parallel.tensor=2: does not divide model.ffn_size 255", "nearest valid 1"}},
      {"pipeline deeper than layers",
       {"parallel.pipeline=6"},
       {"parallel.pipeline=6: more stages than model.layers 5; allowed integer from 1 to 5; nearest valid 5"}},
      {"stage list too short", {"parallel.pipeline=3", "parallel.layers_per_stage=[2,3]"}, {"layers_per_stage=[2, 3]: 2 entries for pipeline 3"}},
      {"stage list with another sum", {"parallel.pipeline=2", "parallel.layers_per_stage=[2,2]"}, {"the sum is 4, but model.layers is 5"}},
      {"empty stage", {"parallel.pipeline=2", "parallel.layers_per_stage=[5,0]"}, {"parallel.layers_per_stage=0: out of range"}},
      {"stage list of text", {"parallel.pipeline=2", "parallel.layers_per_stage=[a,3]"}, {"parallel.layers_per_stage=a: not an integer"}},
      {"stage list as a number", {"parallel.layers_per_stage=5"}, {"parallel.layers_per_stage=5: text where a list is expected"}},
      {"replicate over data",
       {"parallel.data=4", "parallel.replicate=3", "parallel.zero_stage=1"},
       {"parallel.replicate=3: does not divide parallel.data 4; allowed divisors of data; nearest valid 2 or 4"}},
      {"replicate in ZeRO-0", {"parallel.data=4", "parallel.replicate=2"}, {"parallel.replicate=2: ZeRO-0 shards nothing", "allowed 1 or 4"}},
      {"sequence parallel over tokens",
       {"training.sequence_length=31", "parallel.sequence_parallel=true"},
       {"parallel.sequence_parallel=true: tensor 2 does not divide micro_batch_size x sequence_length = 31", "sequence_length 30 or 32"}},
      {"batch over data",
       {"parallel.data=3"},
       {"training.global_batch_size=8: not a multiple of micro_batch_size 1 x data 3 = 3", "nearest valid 6 or 9"}},
      {"batch below one micro-batch", {"training.micro_batch_size=16"}, {"training.global_batch_size=8: not a multiple", "nearest valid 16"}},
      {"micro-batch beyond 32 bits",
       {"training.micro_batch_size=65536", "training.sequence_length=65536", "training.global_batch_size=65536"},
       {"training.micro_batch_size=65536: 4294967296 tokens in one micro-batch do not fit 32 bits"}},
      {"product overflow",
       {"parallel.data=2147483647", "parallel.pipeline=5"},
       {"parallel.data=2147483647: tensor 2 x pipeline 5 x data 2147483647 ranks do not fit 32 bits"}},
      {"degree beyond 32 bits", {"parallel.tensor=2147483648"}, {"parallel.tensor=2147483648: out of range"}},
      {"negative degree", {"parallel.pipeline=-1"}, {"parallel.pipeline=-1: out of range", "nearest valid 1"}},
      {"sharded accumulation in ZeRO-1",
       {"parallel.zero_stage=1", "parallel.gradient_accumulation=sharded"},
       {"parallel.gradient_accumulation=sharded: zero_stage 1 keeps full gradients"}},
      {"compression of sharded accumulation",
       {"parallel.data=2", "parallel.zero_stage=2", "parallel.gradient_accumulation=sharded", "training.compression.method=int8"},
       {"parallel.gradient_accumulation=sharded: training.compression encodes a step's gradient once"}},
      {"drawn elements in a graph",
       {"kernels.cuda_graph=true", "training.compression.method=random_k"},
       {"kernels.cuda_graph=true: a captured step would send the same elements in every step; allowed false, or another "
        "training.compression.method"}},
      {"secondary shards without gathers of each use",
       {"parallel.data=4", "parallel.zero_stage=2", "parallel.secondary_shards=2"},
       {"parallel.secondary_shards=2: zero_stage 2 gathers parameters once a step; allowed 0, or zero_stage 3"}},
      {"secondary shards of parameters that stay",
       {"parallel.data=4", "parallel.zero_stage=3", "parallel.reshard=after_step", "parallel.secondary_shards=2"},
       {"parallel.secondary_shards=2: reshard after_step gathers parameters once a step; allowed 0, or reshard after_use"}},
      {"secondary shards that do not divide the shards",
       {"parallel.data=8", "parallel.replicate=2", "parallel.zero_stage=3", "parallel.secondary_shards=3"},
       {"parallel.secondary_shards=3: not a part of the 4 shards", "allowed 0, or divisors of 4 between 1 and 4; nearest valid 2"}},
      {"as many secondary shards as shards",
       {"parallel.data=4", "parallel.zero_stage=3", "parallel.secondary_shards=4"},
       {"parallel.secondary_shards=4: not a part of the 4 shards", "nearest valid 2"}},
      {"encoded parameters without a gather",
       {"parallel.zero_stage=0", "training.compression.parameters=int8"},
       {"training.compression.parameters=int8: with parallel.zero_stage 0 no parameters are gathered", "nearest valid none"}},
      {"blocks of encoded parameters of any size",
       {"parallel.data=2", "parallel.zero_stage=1", "training.compression.parameters=int8", "training.compression.block=20"},
       {"training.compression.block=20: not a multiple of 8", "16 or 24"}},
      {"compression with a loss scale",
       {"training.precision=fp16", "training.compression.method=sign"},
       {"training.compression.method=sign: the errors of earlier steps would have another loss scale"}},
      {"compression between replicas that do not exist",
       {"parallel.data=2", "parallel.zero_stage=1", "training.compression.method=int8", "training.compression.scope=replicate"},
       {"training.compression.scope=replicate: parallel.replicate is 1, so nothing would be compressed"}},
      {"an odd block",
       {"training.compression.method=int4", "training.compression.block=20"},
       {"training.compression.block=20: not a multiple of 8", "16 or 24"}},
      {"a ratio without a method that has one",
       {"training.compression.method=int8", "training.compression.ratio=0.1"},
       {"training.compression.ratio=0.1: has no effect: only top_k and random_k choose elements"}},
      {"factors beyond every matrix",
       {"training.compression.method=power_sgd", "training.compression.rank=28"},
       {"training.compression.rank=28: no matrix of the model would be compressed", "allowed 1 to 27", "nearest valid 27"}},
      {"factors of parts of matrices",
       {"parallel.data=2", "training.compression.method=power_sgd", "training.compression.scope=replicate"},
       {"training.compression.scope=replicate: power_sgd sums whole matrices over all data ranks; allowed data"}},
      {"factors on a GPU",
       {"run.device=cuda", "training.compression.method=power_sgd"},
       {"training.compression.method=power_sgd: power_sgd sums over all data ranks, which GPUs cannot do yet; allowed another method"}},
      {"a second moment of no steps",
       {"training.compression.method=one_bit_adam"},
       {"training.compression.warmup_steps=0: one_bit_adam keeps the second moment that these steps find; allowed 1 or more; nearest valid 1"}},
      {"a second moment of another optimizer",
       {"training.compression.method=one_bit_adam", "training.compression.warmup_steps=10", "training.optimizer.name=lion"},
       {"training.compression.method=one_bit_adam: of the optimizers only adamw has a second moment to keep; allowed another method, or adamw"}},
      {"a rank without factors",
       {"training.compression.method=int8", "training.compression.rank=2"},
       {"training.compression.rank=2: has no effect: only power_sgd has factors"}},
      {"a block of factors",
       {"training.compression.method=power_sgd", "training.compression.block=64"},
       {"training.compression.block=64: has no effect: power_sgd has no blocks"}},
      {"no factors",
       {"training.compression.method=power_sgd", "training.compression.rank=0"},
       {"training.compression.rank=0: out of range", "nearest valid 1"}},
      {"a dtype of sums that are compressed",
       {"training.reduce_dtype=bf16", "training.compression.method=int8"},
       {"training.reduce_dtype=bf16: training.compression has messages of its own"}},
      {"islands that never meet", {"parallel.islands=2"}, {"parallel.islands=2: training.local.steps is not set", "nearest valid 1"}},
      {"batch over islands",
       {"parallel.islands=3", "training.local.steps=2"},
       {"training.global_batch_size=8: not a multiple of micro_batch_size 1 x islands 3 x data 1 = 3", "nearest valid 6 or 9"}},
      {"packing over islands",
       {"parallel.islands=2", "training.local.steps=2", "data.document_mask=true", "data.packing=best_fit"},
       {"data.packing=best_fit: the tokens of a step would be counted over all islands"}},
      {"balance over islands",
       {"parallel.islands=2", "training.local.steps=2", "data.document_mask=true", "data.balance=cost"},
       {"data.balance=cost: the sequences of a step would be assigned over all islands"}},
      {"micro-batches that move from one data rank",
       {"resilience.rebalance=micro_batches"},
       {"resilience.rebalance=micro_batches: there is one data rank"}},
      {"micro-batches that a pipeline needs",
       {"resilience.rebalance=micro_batches", "parallel.data=2", "parallel.pipeline=4"},
       {"resilience.rebalance=micro_batches: a data rank has 4 micro-batches and needs 4 for its pipeline",
        "none, or training.global_batch_size from 10; nearest valid none"}},
      {"micro-batches that move between GPUs",
       {"resilience.rebalance=micro_batches", "parallel.data=2", "run.device=cuda"},
       {"resilience.rebalance=micro_batches: how long a GPU computes in a step is not measured"}},
      {"micro-batches that move between islands",
       {"resilience.rebalance=micro_batches", "parallel.data=2", "parallel.islands=2", "training.local.steps=2"},
       {"resilience.rebalance=micro_batches: islands exchange nothing within a round"}},
      {"micro-batches that move from a list",
       {"resilience.rebalance=micro_batches", "parallel.data=2", "parallel.schedule=file", "parallel.schedule_file=a"},
       {"resilience.rebalance=micro_batches: parallel.schedule_file is for one number of micro-batches"}},
      {"micro-batches that move from their rank by cost",
       {"resilience.rebalance=micro_batches", "parallel.data=2", "data.document_mask=true", "data.balance=cost"},
       {"resilience.rebalance=micro_batches: data.balance gives every data rank the same number of sequences"}},
      {"backup replicas of a synchronous step",
       {"resilience.backup_replicas=1", "parallel.islands=2", "training.local.steps=2"},
       {"training.asynchronous.mode=none: backup replicas are islands whose gradients parameter servers may leave out",
        "parameter_server, or resilience.backup_replicas 0; nearest valid parameter_server"}},
      {"backup replicas alone",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=2", "resilience.backup_replicas=2"},
       {"resilience.backup_replicas=2: leaves none of parallel.islands 2", "0 to 1; nearest valid 1"}},
      {"backup replicas that an update needs",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=4", "resilience.backup_replicas=1"},
       {"training.asynchronous.apply_after=1: with backup replicas an update needs a gradient of each of the other islands, 4 - 1",
        "nearest valid 3"}},
      {"backup replicas with stale gradients",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=2", "resilience.backup_replicas=1", "training.asynchronous.staleness=2"},
       {"training.asynchronous.staleness=2: with backup replicas every gradient of an update is by the newest weights"}},
      {"backup replicas that correct stale gradients",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=2", "resilience.backup_replicas=1",
        "training.asynchronous.compensation=delay"},
       {"training.asynchronous.compensation=delay: with backup replicas no gradient of an update is stale"}},
      {"islands beyond 32 bits",
       {"parallel.islands=2147483647", "training.local.steps=2"},
       {"islands 2147483647 x tensor 2 x pipeline 1 x data 1 ranks do not fit 32 bits"}},
      {"an outer step without rounds", {"training.local.outer_momentum=0.5"}, {"has no effect: local.steps is not set"}},
      {"fragments without rounds", {"training.local.fragments=2"}, {"has no effect: local.steps is not set"}},
      {"fragments that do not divide a round",
       {"training.local.steps=6", "training.local.fragments=4"},
       {"training.local.fragments=4: does not divide training.local.steps 6", "nearest valid 3"}},
      {"fragments that divide neither a round nor the blocks",
       {"training.local.steps=12", "training.local.fragments=7"},
       {"training.local.fragments=7: the model has 5 blocks; allowed 1 to 5; nearest valid 4",
        "training.local.fragments=7: does not divide training.local.steps 12; allowed divisors of 12; nearest valid 4"}},
      {"more fragments than blocks",
       {"training.local.steps=1000", "training.local.fragments=1000"},
       {"training.local.fragments=1000: the model has"}},
      {"a delay as long as the part of a round",
       {"training.local.steps=6", "training.local.fragments=2", "training.local.delay=3"},
       {"training.local.delay=3: a fragment synchronises every 3 steps, before its sum has arrived", "nearest valid 2"}},
      {"a blend of nothing", {"training.local.steps=2", "training.local.blend=0"}, {"training.local.blend=0: out of range"}},
      {"an outer momentum of 1", {"training.local.steps=2", "training.local.outer_momentum=1"}, {"training.local.outer_momentum=1: out of range"}},
      {"an outer learning rate of 0",
       {"training.local.steps=2", "training.local.outer_learning_rate=0"},
       {"training.local.outer_learning_rate=0: out of range"}},
      {"a round without steps", {"training.local.steps=0"}, {"training.local.steps=0: out of range", "nearest valid 1"}},
      {"local updates with compression",
       {"training.local.steps=2", "training.compression.method=int8"},
       {"training.compression.method=int8: training.local saves no errors of compression for each island"}},
      {"local updates with a moving average", {"training.local.steps=2", "training.ema.decay=0.9"}, {"training.ema.decay=0.9: between outer steps"}},
      {"local updates with a loss scale",
       {"training.local.steps=2", "training.precision=fp16"},
       {"training.precision=fp16: with training.local each island would have a loss scale of its own"}},
      {"local updates with decisions on anomalies",
       {"training.local.steps=2", "observe.anomalies.policy=skip"},
       {"observe.anomalies.policy=skip: with training.local the islands would not agree"}},
      {"a checkpoint within a round",
       {"training.local.steps=4", "checkpoint.every=10"},
       {"checkpoint.every=10: not a multiple of training.local.steps 4", "nearest valid 8 or 12"}},
      {"milestones of automatic checkpoints within rounds",
       {"training.local.steps=4", "checkpoint.every=auto", "checkpoint.keep_every=10"},
       {"checkpoint.keep_every=10: not a multiple of training.local.steps 4", "nearest valid 8 or 12"}},
      {"an evaluation within a round",
       {"training.local.steps=4", "training.evaluate.every=6", "data.validation=[a]"},
       {"training.evaluate.every=6: not a multiple of training.local.steps 4"}},
      {"a sample within a round",
       {"training.local.steps=4", "observe.samples.every=5", "observe.samples.prompts=[a]"},
       {"observe.samples.every=5: not a multiple of training.local.steps 4"}},
      {"an unknown asynchronous mode", {"training.asynchronous.mode=hogwilde"}, {"training.asynchronous.mode=hogwilde", "parameter_server"}},
      {"a momentum of sgd", {"training.optimizer.name=sgd", "training.optimizer.beta1=0.5"}, {"training.optimizer.beta1=0.5: has no effect: sgd"}},
      {"a second momentum of sgd",
       {"training.optimizer.name=sgd", "training.optimizer.beta2=0.5"},
       {"training.optimizer.beta2=0.5: has no effect: sgd"}},
      {"an epsilon of sgd",
       {"training.optimizer.name=sgd", "training.optimizer.epsilon=0.5"},
       {"training.optimizer.epsilon=0.5: has no effect: sgd"}},
      {"staleness without asynchronous updates", {"training.asynchronous.staleness=2"}, {"has no effect: asynchronous.mode is none"}},
      {"a weight of a delay that is not compensated",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.delay_weight=1"},
       {"training.asynchronous.delay_weight=1: has no effect: asynchronous.compensation is not delay"}},
      {"updates of more gradients than islands",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=2", "training.asynchronous.apply_after=4"},
       {"training.asynchronous.apply_after=4: more gradients than parallel.islands 2 compute at a time", "nearest valid 2"}},
      {"updates of no gradient",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.apply_after=0"},
       {"training.asynchronous.apply_after=0: out of range"}},
      {"a negative staleness",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.staleness=-1"},
       {"training.asynchronous.staleness=-1: out of range"}},
      {"a batch that is no whole number of gradients",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=3", "training.asynchronous.apply_after=3"},
       {"training.global_batch_size=8: not a multiple of micro_batch_size 1 x apply_after 3 x data 1 = 3", "nearest valid 6 or 9"}},
      {"asynchronous updates on GPUs",
       {"training.asynchronous.mode=parameter_server", "run.device=cuda"},
       {"run.device=cuda: training.asynchronous.mode parameter_server has no CUDA kernels"}},
      {"asynchronous updates with a loss scale",
       {"training.asynchronous.mode=parameter_server", "training.precision=fp16"},
       {"training.precision=fp16: with training.asynchronous the gradients of an update would have several loss scales"}},
      {"asynchronous updates with compression",
       {"training.asynchronous.mode=parameter_server", "training.compression.method=int8"},
       {"training.compression.method=int8: training.asynchronous sends whole gradients"}},
      {"asynchronous and local updates",
       {"training.asynchronous.mode=parameter_server", "parallel.islands=2", "training.local.steps=2"},
       {"training.local.steps=2: islands synchronise either by outer steps or by training.asynchronous"}},
      {"asynchronous updates with decisions on anomalies",
       {"training.asynchronous.mode=parameter_server", "observe.anomalies.policy=skip"},
       {"observe.anomalies.policy=skip: parameter servers apply an update of training.asynchronous before all ranks can judge it"}},
      {"asynchronous updates with activations",
       {"training.asynchronous.mode=parameter_server", "observe.activations.every=2"},
       {"observe.activations.every=2: with training.asynchronous the islands compute gradients of different steps"}},
      {"asynchronous updates with histograms",
       {"training.asynchronous.mode=parameter_server", "observe.histograms.every=2", "observe.tensorboard=true"},
       {"observe.histograms.every=2: with training.asynchronous the islands have gradients of different steps"}},
      {"asynchronous updates with packing",
       {"training.asynchronous.mode=parameter_server", "data.document_mask=true", "data.packing=best_fit"},
       {"data.packing=best_fit: with training.asynchronous the padding of a step is not counted"}},
      {"asynchronous updates with balance",
       {"training.asynchronous.mode=parameter_server", "data.document_mask=true", "data.balance=cost"},
       {"data.balance=cost: with training.asynchronous the batches of a step are assigned as workers arrive"}},
      {"asynchronous updates with rebalanced micro-batches",
       {"training.asynchronous.mode=parameter_server", "resilience.rebalance=micro_batches", "parallel.data=2"},
       {"resilience.rebalance=micro_batches: with training.asynchronous a fast island already computes more gradients"}},
      {"a checkpoint within an asynchronous round",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4", "checkpoint.every=10"},
       {"checkpoint.every=10: not a multiple of training.asynchronous.steps 4", "nearest valid 8 or 12"}},
      {"an evaluation within an asynchronous round",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4", "training.evaluate.every=6", "data.validation=[a]"},
       {"training.evaluate.every=6: not a multiple of training.asynchronous.steps 4"}},
      {"a sample within an asynchronous round",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4", "observe.samples.every=5", "observe.samples.prompts=[a]"},
       {"observe.samples.every=5: not a multiple of training.asynchronous.steps 4"}},
      {"a moving rate without a centre",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.moving_rate=0.5"},
       {"training.asynchronous.moving_rate=0.5: has no effect: asynchronous.mode is parameter_server"}},
      {"exchanges without a centre",
       {"training.asynchronous.mode=parameter_server", "training.asynchronous.every=5"},
       {"training.asynchronous.every=5: has no effect: asynchronous.mode is parameter_server"}},
      {"updates of gradients with elastic averaging",
       {"training.asynchronous.mode=elastic_averaging", "parallel.islands=2", "training.asynchronous.apply_after=2"},
       {"training.asynchronous.apply_after=2: has no effect: asynchronous.mode is elastic_averaging"}},
      {"a bound of elastic averaging",
       {"training.asynchronous.mode=elastic_averaging", "training.asynchronous.staleness=2"},
       {"training.asynchronous.staleness=2: has no effect: asynchronous.mode is elastic_averaging"}},
      {"compensation with elastic averaging",
       {"training.asynchronous.mode=elastic_averaging", "training.asynchronous.compensation=delay"},
       {"training.asynchronous.compensation=delay: has no effect: asynchronous.mode is elastic_averaging"}},
      {"a moving rate that moves beyond the centre",
       {"training.asynchronous.mode=elastic_averaging", "training.asynchronous.moving_rate=1.5"},
       {"training.asynchronous.moving_rate=1.5: out of range"}},
      {"exchanges that do not divide a round",
       {"training.asynchronous.mode=elastic_averaging", "training.asynchronous.steps=12", "training.asynchronous.every=5"},
       {"training.asynchronous.every=5: does not divide training.asynchronous.steps 12", "nearest valid 4 or 6"}},
      {"elastic averaging on GPUs",
       {"training.asynchronous.mode=elastic_averaging", "run.device=cuda"},
       {"run.device=cuda: training.asynchronous.mode elastic_averaging has no CUDA kernels"}},
      {"elastic averaging with a loss scale",
       {"training.asynchronous.mode=elastic_averaging", "training.precision=fp16"},
       {"training.precision=fp16: with elastic averaging each island would have a loss scale of its own"}},
      {"elastic averaging with compression",
       {"training.asynchronous.mode=elastic_averaging", "training.compression.method=int8"},
       {"training.compression.method=int8: elastic averaging saves no errors of compression"}},
      {"elastic averaging and local updates",
       {"training.asynchronous.mode=elastic_averaging", "parallel.islands=2", "training.local.steps=2"},
       {"training.local.steps=2: islands synchronise either by outer steps or by training.asynchronous"}},
      {"elastic averaging with a moving average of each island",
       {"training.asynchronous.mode=elastic_averaging", "training.ema.decay=0.9"},
       {"training.ema.decay=0.9: with elastic averaging the weights of islands differ, and so would their averages"}},
      {"elastic averaging with decisions on anomalies",
       {"training.asynchronous.mode=elastic_averaging", "observe.anomalies.policy=skip"},
       {"observe.anomalies.policy=skip: with elastic averaging the islands would not agree"}},
      {"elastic averaging with packing",
       {"training.asynchronous.mode=elastic_averaging", "data.document_mask=true", "data.packing=best_fit"},
       {"data.packing=best_fit: the tokens of a step would be counted over all islands"}},
      {"elastic averaging with balance",
       {"training.asynchronous.mode=elastic_averaging", "data.document_mask=true", "data.balance=cost"},
       {"data.balance=cost: the sequences of a step would be assigned over all islands"}},
      {"elastic averaging with rebalanced micro-batches",
       {"training.asynchronous.mode=elastic_averaging", "resilience.rebalance=micro_batches", "parallel.data=2"},
       {"resilience.rebalance=micro_batches: islands exchange only weights with elastic averaging"}},
      {"a checkpoint within a round of elastic averaging",
       {"training.asynchronous.mode=elastic_averaging", "training.asynchronous.steps=20", "checkpoint.every=30"},
       {"checkpoint.every=30: not a multiple of training.asynchronous.steps 20"}},
      {"hogwild with another optimizer",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=adamw"},
       {"training.optimizer.name=adamw: hogwild updates shared weights without a lock"}},
      {"hogwild with bf16",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.precision=bf16"},
       {"training.precision=bf16: hogwild updates shared weights in fp32"}},
      {"hogwild with fp64",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.precision=fp64"},
       {"training.precision=fp64: hogwild updates shared weights in fp32"}},
      {"hogwild with GPUs",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "run.device=cuda"},
       {"run.device=cuda: training.asynchronous.mode hogwild has no CUDA kernels"}},
      {"hogwild with tensor ranks",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "parallel.tensor=2"},
       {"parallel.tensor=2: an island of hogwild is one rank"}},
      {"hogwild with pipeline ranks",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "parallel.pipeline=2"},
       {"parallel.pipeline=2: an island of hogwild is one rank"}},
      {"hogwild with data ranks",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "parallel.data=2"},
       {"parallel.data=2: an island of hogwild is one rank"}},
      {"hogwild with ZeRO",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "parallel.zero_stage=1"},
       {"parallel.zero_stage=1: an island of hogwild is one rank"}},
      {"hogwild with compression",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.compression.method=int8"},
       {"training.compression.method=int8: hogwild sends no gradients"}},
      {"hogwild with local updates",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.local.steps=2"},
       {"training.local.steps=2: islands of hogwild have the same weights"}},
      {"hogwild with a moving average",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.ema.decay=0.9"},
       {"training.ema.decay=0.9: with hogwild"}},
      {"hogwild with decisions on anomalies",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "observe.anomalies.policy=skip"},
       {"observe.anomalies.policy=skip: with hogwild the islands would not agree"}},
      {"hogwild with packing",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "data.document_mask=true", "data.packing=best_fit"},
       {"data.packing=best_fit: the tokens of a step would be counted"}},
      {"hogwild with balance",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "data.document_mask=true", "data.balance=cost"},
       {"data.balance=cost: the sequences of a step would be assigned"}},
      {"hogwild with rebalanced micro-batches",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "resilience.rebalance=micro_batches"},
       {"resilience.rebalance=micro_batches: an island of hogwild has one data rank"}},
      {"hogwild with a logged order",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.asynchronous.replay=run"},
       {"training.asynchronous.replay=run: has no effect: asynchronous.mode is hogwild"}},
      {"hogwild with a bound",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.asynchronous.staleness=2"},
       {"training.asynchronous.staleness=2: has no effect: asynchronous.mode is hogwild"}},
      {"hogwild with gradients of an update",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.asynchronous.apply_after=2"},
       {"training.asynchronous.apply_after=2: has no effect: asynchronous.mode is hogwild"}},
      {"hogwild with a moving rate",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.asynchronous.moving_rate=0.5"},
       {"training.asynchronous.moving_rate=0.5: has no effect: asynchronous.mode is hogwild"}},
      {"hogwild with exchanges",
       {"training.asynchronous.mode=hogwild", "training.optimizer.name=sgd", "training.asynchronous.every=2"},
       {"training.asynchronous.every=2: has no effect: asynchronous.mode is hogwild"}},
      {"a robust rule without a number of wrong data ranks",
       {"parallel.data=4", "security.aggregation.rule=median"},
       {"security.aggregation.byzantine=0: rule median needs the number of data ranks that may be faulty", "nearest valid 1"}},
      {"a mean that tolerates wrong data ranks",
       {"security.aggregation.byzantine=1"},
       {"security.aggregation.byzantine=1: has no effect: rule is mean"}},
      {"a radius of another rule",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "security.aggregation.radius=2"},
       {"security.aggregation.radius=2: has no effect: only centered_clipping has a radius"}},
      {"too many wrong data ranks for the median",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=2"},
       {"security.aggregation.byzantine=2: rule median needs at least 5 data ranks for 2 faulty ones, and parallel.data is 4", "nearest valid 1"}},
      {"too many wrong data ranks for the trimmed mean",
       {"parallel.data=8", "security.aggregation.rule=trimmed_mean", "security.aggregation.byzantine=4"},
       {"security.aggregation.byzantine=4: rule trimmed_mean needs at least 9 data ranks", "nearest valid 3"}},
      {"too few data ranks for Krum",
       {"parallel.data=4", "security.aggregation.rule=krum", "security.aggregation.byzantine=1"},
       {"security.aggregation.byzantine=1: rule krum needs at least 5 data ranks for 1 faulty one, and parallel.data is 4; allowed a parallel.data "
        "from 5"}},
      {"too few data ranks for Multi-Krum",
       {"parallel.data=8", "security.aggregation.rule=multi_krum", "security.aggregation.byzantine=3"},
       {"security.aggregation.byzantine=3: rule multi_krum needs at least 9 data ranks", "nearest valid 2"}},
      {"too few data ranks for Bulyan",
       {"parallel.data=8", "security.aggregation.rule=bulyan", "security.aggregation.byzantine=2"},
       {"security.aggregation.byzantine=2: rule bulyan needs at least 11 data ranks", "nearest valid 1"}},
      {"centred clipping without momentum",
       {"parallel.data=4", "security.aggregation.rule=centered_clipping", "security.aggregation.byzantine=1", "security.aggregation.momentum=0"},
       {"security.aggregation.momentum=0: centered_clipping without momentum does not stop attackers", "nearest valid auto"}},
      {"a momentum of one",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "security.aggregation.momentum=1"},
       {"security.aggregation.momentum=1: out of range"}},
      {"a robust rule on GPUs",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "run.device=cuda"},
       {"run.device=cuda: robust rules have no CUDA kernels", "nearest valid cpu"}},
      {"a robust rule with a loss scale",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "training.precision=fp16"},
       {"training.precision=fp16: with a robust rule a data rank whose gradient overflows"}},
      {"a robust rule on gradients in bf16",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "training.reduce_dtype=bf16"},
       {"training.reduce_dtype=bf16: robust rules compare gradients in fp32"}},
      {"a robust rule with power_sgd",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "training.compression.method=power_sgd"},
       {"training.compression.method=power_sgd: power_sgd sums factors over the data ranks"}},
      {"a robust rule with compression of replicas alone",
       {"parallel.data=4", "parallel.zero_stage=1", "parallel.replicate=2", "security.aggregation.rule=median", "security.aggregation.byzantine=1",
        "training.compression.method=int8", "training.compression.scope=replicate"},
       {"training.compression.scope=replicate: a robust rule gets the gradients of all data ranks in one exchange"}},
      {"a robust rule with local updates",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "training.local.steps=2"},
       {"training.local.steps=2: islands exchange weights and not gradients"}},
      {"a robust rule with asynchronous updates",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "training.asynchronous.mode=parameter_server"},
       {"training.asynchronous.mode=parameter_server: the gradients of training.asynchronous arrive one by one"}},
      {"a robust rule with rebalanced micro-batches",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "resilience.rebalance=micro_batches"},
       {"resilience.rebalance=micro_batches: robust rules weigh data ranks alike"}},
      {"a robust rule with repeated steps",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "observe.anomalies.policy=rerun"},
       {"observe.anomalies.policy=rerun: with a robust rule the loss of one faulty data rank would decide"}},
      {"a robust rule with skipped steps",
       {"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1", "observe.anomalies.policy=skip"},
       {"observe.anomalies.policy=skip: with a robust rule the loss of one faulty data rank would decide"}},
      {"privacy without a noise",
       {"security.privacy.clip=1", "security.privacy.delta=1e-5", "security.privacy.key_file=k"},
       {"security.privacy.noise: neither noise nor target_epsilon is set"}},
      {"privacy without a delta",
       {"security.privacy.clip=1", "security.privacy.noise=1", "security.privacy.key_file=k"},
       {"security.privacy.delta: an epsilon means nothing without the delta", "nearest valid 1e-5"}},
      {"privacy without a key",
       {"security.privacy.clip=1", "security.privacy.noise=1", "security.privacy.delta=1e-5"},
       {"security.privacy.key_file: samples and noise must be unpredictable"}},
      {"noise without clipping", {"security.privacy.noise=1"}, {"security.privacy.noise=1: has no effect: clip is null"}},
      {"a clip of nothing", {"security.privacy.clip=0"}, {"security.privacy.clip=0: out of range"}},
      {"a delta of one", {"security.privacy.clip=1", "security.privacy.delta=1"}, {"security.privacy.delta=1: out of range"}},
      {"an unknown rule", {"security.aggregation.rule=multikrum"}, {"security.aggregation.rule=multikrum", "multi_krum"}},
      {"a name that would write to the terminal", {"run.name=\"a\\e[31m\""}, {"run.name", "contains a control character"}},
      {"samples in registered memory",
       {"parallel.register_buffers=true", "observe.samples.every=5", "observe.samples.prompts=[a]"},
       {"parallel.register_buffers=true: observe.samples needs memory that cannot be registered in advance"}},
      {"an unknown method", {"training.compression.method=topk"}, {"training.compression.method=topk", "top_k"}},
      {"reshard without ZeRO-3",
       {"parallel.zero_stage=2", "parallel.reshard=after_step"},
       {"parallel.reshard=after_step: zero_stage 2 does not shard"}},
      {"prefetch in ZeRO-0", {"parallel.prefetch=2"}, {"parallel.prefetch=2: has no effect"}},
      {"unknown schedule",
       {"parallel.schedule=zb_h3"},
       {"parallel.schedule=zb_h3: not one of the choices; allowed gpipe | 1f1b", "nearest valid zb_h1"}},
      {"virtual stages of a schedule that has one",
       {"parallel.schedule=zb_h1", "parallel.virtual_stages=2"},
       {"parallel.virtual_stages=2: schedule zb_h1 requires 1; allowed 1, auto, or schedule interleaved_1f1b; nearest valid 1"}},
      {"one stage of a V",
       {"parallel.schedule=zb_v", "parallel.virtual_stages=1"},
       {"parallel.virtual_stages=1: schedule zb_v requires 2", "nearest valid 2"}},
      {"a schedule file that is not named",
       {"parallel.schedule=file"},
       {"parallel.schedule=file: parallel.schedule_file is not given", "nearest valid 1f1b"}},
      {"a schedule file for another schedule",
       {"parallel.schedule_file=plan.txt"},
       {"parallel.schedule_file=plan.txt: has no effect: schedule is not file"}},
      {"more virtual stages than layers",
       {"parallel.schedule=interleaved_1f1b", "parallel.virtual_stages=6"},
       {"parallel.virtual_stages=6: more than model.layers 5; allowed integer from 1 to 5", "nearest valid 5"}},
      {"a V of more stages than layers",
       {"parallel.schedule=zb_v", "parallel.pipeline=3"},
       {"parallel.pipeline=3: more stages than model.layers 5: virtual_stages 2; allowed integer from 1 to 2; nearest valid 2"}},
      {"layers of ranks instead of stages",
       {"parallel.schedule=interleaved_1f1b", "parallel.pipeline=2", "parallel.layers_per_stage=[2, 3]"},
       {"parallel.layers_per_stage=[2, 3]: 2 entries for pipeline 2 x virtual_stages 2; allowed 4 integers from 1 with the sum 5"}},
      {"recomputation without its budget", {"training.recompute=budget"}, {"training.recompute=budget: training.recompute_budget is not given"}},
      {"a budget without recomputation",
       {"training.recompute_budget=1000000"},
       {"training.recompute_budget=1000000: has no effect: recompute is not budget"}},
      {"every second block of none", {"training.recompute_every=2"}, {"training.recompute_every=2: has no effect"}},
      {"another world",
       {"parallel.pipeline=2"},
       {"parallel.data=1: tensor 2 x pipeline 2 x data 1 = 4 ranks, but 2 were started", "nearest valid ", "or tensor 2 x pipeline 1 x data 1"},
       2},
      {"a world no layout fits", {}, {"were started", "a product of 7"}, 7},
  });
}

TEST_CASE("bad configuration: required keys") {
  check_answer(answer_of_text(""), 64,
               {"run.yaml:1:1 data.train: required key is missing", "run.yaml:1:1 training.steps: neither steps nor epochs is given"});
  check_answer(answer_of_text("run: {seed: 1}\ndata:\n  tokenizer: bytes\ntraining: {steps: 1}\n"), 64,
               {"run.yaml:2:1 data.train: required key is missing"});
}

TEST_CASE("bad configuration: a blend has no epochs") {
  check_answer(answer_of_text("training: {epochs: 2}\ndata: {train: [a, b], weights: [1, 2]}\n"), 64,
               {"run.yaml:1:20 training.epochs=2: with data.weights each source is repeated independently", "allowed training.steps"});
  CHECK(answer_of_text("training: {epochs: 2}\ndata: {train: [a, b]}\n").code == 0);
  CHECK(answer_of_text("training: {steps: 2}\ndata: {train: [a, b], weights: [1, 2.5]}\n").code == 0);
}

TEST_CASE("bad configuration: every violation is reported at once, in the order of the file and then of --set") {
  const Answer answer = answer_of_text(
      "model:\n  layers: 5\n  heads: 12\n  layers: 6\n  hidden_size: 1e2\n  kv_heads: 7\nparallel:\n  tensr: 2\ntraining: {steps: 10}\ndata:\n  "
      "train: a\n",
      {"run.seed=x", "checkpoint.keep=0"});
  std::istringstream lines(answer.message);
  const std::vector<std::string> expected = {"run.yaml:4:3 model.layers: duplicate key",
                                             "run.yaml:5:16 model.hidden_size=1e2: not an integer",
                                             "run.yaml:6:13 model.kv_heads=7: does not divide heads 12",
                                             "run.yaml:8:3 parallel.tensr=2: unknown key",
                                             "run.yaml:11:10 data.train=a: text where a list",
                                             "--set:run.seed run.seed=x: not an integer",
                                             "--set:checkpoint.keep checkpoint.keep=0: out"};
  std::string line;
  for (const std::string& start : expected) {
    REQUIRE(std::getline(lines, line));
    CHECK_THAT(line, Catch::Matchers::StartsWith(start));
  }
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("bad configuration: very many violations, and very long lines, are handled quickly") {
  std::string keys, items = "a";
  for (int i = 0; i < 90000; ++i) keys += concat("k", i, ": 1\n");
  const std::string message = answer_of_text(keys).message;
  CHECK(std::count(message.begin(), message.end(), '\n') == 100);
  CHECK_THAT(message, Catch::Matchers::EndsWith("run.yaml: and 89902 more violations"));  // data.train and training.steps are missing too
  for (int i = 0; i < 500000; ++i) items += ",a";
  CHECK(parse_config("training: {steps: 1}\ndata: {train: [" + items + "]}", "run.yaml").config.data.train.size() == 500001);
}

TEST_CASE("bad configuration: a message stays one line, whatever the value") {
  const Answer answer = answer_of_text(kBase + "run: {name: \"a/b\\nc\\e[31m" + repeated("\xC3\xA9", 500) + "\"}\n");
  CHECK(answer.code == 64);
  CHECK(answer.message.find_first_of("\n\x1B") == std::string::npos);
  CHECK(answer.message.size() < 300);
}

TEST_CASE("bad configuration: control characters in a --set are refused, because YAML would fold them") {
  for (const std::string& value : {std::string("a\nb"), std::string("a\tb"), std::string("a\rb"), std::string("\x1B[2J"), std::string("a\x7F"),
                                   std::string("a\xC2\x85"), std::string("a\0b", 3), std::string("a\n"), std::string("\na")}) {
    CAPTURE(value);
    const Answer answer = answer_of_text(kBase, {"run.name=" + value});
    check_answer(answer, 64, {"--set run.name: control character ", "in the value"});
    CHECK(std::all_of(answer.message.begin(), answer.message.end(), [](char c) { return c >= ' ' && c < 0x7F; }));
  }
  CHECK(parse_config(kBase, "run.yaml", {"data.train=[\"a\\nb\"]"}).config.data.train.at(0) == "a\nb");  // an escape sequence is allowed
  check_answer(answer_of_text(kBase, {"run.name=\"a\\nb\""}), 64, {"--set:run.name run.name=a?b: contains a control character"});
  check_answer(answer_of_text(kBase, {"run.na\nme=x"}), 64, {"--set: control character 10 in the key"});
  CHECK(answer_of_text(kBase, {"run.name=d\xC3\xA9j\xC3\xA0 vu"}).message == "");
}

TEST_CASE("bad configuration: files") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("trireme_config_test_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const auto path = [&](const char* name) { return (folder / name).string(); };
  std::ofstream(path("good.yaml")) << kBase;
  CHECK(answer_of([&] { load_config(path("good.yaml")); }).code == 0);
  check_answer(answer_of([&] { load_config(path("none.yaml")); }), 66, {path("none.yaml"), "no such configuration file"});
  check_answer(answer_of([&] { load_config(path("good.yaml/below")); }), 66, {"good.yaml/below"});
  check_answer(answer_of([&] { load_config(folder.string()); }), 74, {folder.string(), "a directory"});
  check_answer(answer_of([&] { load_config("/dev/zero"); }), 64, {"/dev/zero:1:1", "larger than"});
  REQUIRE(::mkfifo(path("pipe").c_str(), 0600) == 0);
  {
    std::jthread writer([&] {
      std::ofstream pipe(path("pipe"));
      pipe << kBase.substr(0, 20) << std::flush;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the reader waits for the rest
      pipe << kBase.substr(20);
    });
    CHECK(answer_of([&] { load_config(path("pipe")); }).message == "");
  }
  CHECK(answer_of([&] { check_read_again(path("good.yaml")); }).code == 0);
  CHECK(answer_of([&] { check_read_again(path("none.yaml")); }).code == 0);  // load_config reports it
  check_answer(answer_of([&] { check_read_again(path("pipe")); }), 64, {path("pipe"), "every rank reads", "not a regular file"});
  fs::permissions(path("good.yaml"), fs::perms::none);
  if (::geteuid() != 0) check_answer(answer_of([&] { load_config(path("good.yaml")); }), 74, {"cannot be opened"});  // root reads everything
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trireme
