// Keys, options, commands, files and folders of other programs are named for what they are.
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/config/fields.h"
#include "trainer/config/foreign_keys.h"
#include "trainer/config/load.h"
#include "trainer/data/token_source.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/foreign_files.h"
#include "trainer/files/random_access_file.h"
#include "trainer/huggingface/weight_source.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using test::Scratch;

constexpr const char* kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 123\n";

}  // namespace

TEST_CASE("foreign keys: every key in the table exists here, and no name twice", "[config]") {
  const FieldTable table = table_of(Config{});
  std::set<std::string> names;
  CHECK(foreign_names().size() >= 120);
  for (const ForeignName& row : foreign_names()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(std::string(row.name).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos);
    CHECK(row.programs[0] != '\0');
    const std::string key = row.key;
    CHECK((!key.empty() || row.note[0] != '\0'));
    const auto has = [&](const auto& rows) { return std::ranges::any_of(rows, [&](const auto& one) { return one.path == key; }); };
    CHECK((key.empty() || has(table.fields)));
    // A name that is a key of this program under the same section would never be unknown.
    CHECK(foreign_name(row.name) == &row);
  }
}

TEST_CASE("foreign keys: they are found in any spelling, and named in the message about an unknown key", "[config]") {
  CHECK(foreign_suggestion("num_hidden_layers") == "; num_hidden_layers of Hugging Face is model.layers here");
  CHECK(foreign_suggestion("--max-iters") == "; max_iters of nanoGPT is training.steps here");
  CHECK(foreign_suggestion("--train-iters=5") == "; train_iters of Megatron-LM is training.steps here");
  CHECK(foreign_suggestion("optimizer.lr") == "; lr of torchtitan and Megatron-LM is training.optimizer.learning_rate here");
  CHECK_THAT(foreign_suggestion("bf16"), Contains("is training.precision here: bf16"));
  CHECK_THAT(foreign_suggestion("LoRA_R"), Contains("adapter.rank"));
  CHECK(foreign_suggestion("model.type") == "; model.type of other programs is model.architecture here: llama, gpt2, gpt_neox or gemma3");
  CHECK(foreign_suggestion("training.optimizer.type") == "; optimizer.type of DeepSpeed is training.optimizer.name here");
  CHECK(foreign_suggestion("type").empty());
  CHECK(foreign_suggestion("lerning_rate").empty());
  const auto refused = [](const std::string& yaml) {
    try {
      parse_config(yaml, "run.yaml");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string text = refused(
      "model: {num_hidden_layers: 4, n_layer: 4, d_model: 128, n_embd: 128, n_head: 4, num_attention_heads: 4, num_key_value_heads: 2, "
      "intermediate_size: 256, "
      "max_position_embeddings: 128, rms_norm_eps: 1.0e-5, type: llama}\n"
      "parallel: {tp: 2, pp: 1, dp: 1, tensor_parallel_size: 2, fsdp: true, zero: 3}\n"
      "training: {max_steps: 10, max_iters: 10, seq_len: 128, block_size: 128, batch_size: 8, gradient_accumulation_steps: 2, lr: 1.0e-3, "
      "max_grad_norm: 1.0, "
      "grad_clip: 1.0, dtype: bf16, bf16: true, activation_checkpointing: true, warmup_ratio: 0.1, num_epochs: 1}\n"
      "data: {train: [x], train_files: [a], dataset: b, tokenizer_path: c}\n"
      "checkpoint: {save_interval: 10, output_dir: out}\n"
      "train_micro_batch_size_per_gpu: 1\n");
  size_t unknown = 0, named = 0;
  for (size_t at = 0; (at = text.find("unknown key", at)) != text.npos; ++at) {
    ++unknown;
    const std::string line = text.substr(at, text.find('\n', at) - at);
    CAPTURE(line);
    const bool says = line.find(" here") != line.npos;
    CHECK(says);
    named += says ? 1 : 0;
  }
  CHECK(unknown == 37);
  CHECK(named == unknown);
  // The keys of this program keep their own advice.
  CHECK_THAT(refused("training: {step: 5}\ndata: {train: [x]}\n"), Contains("did you mean training.steps?"));
  CHECK_THAT(refused("training: {steps: 5}\ndata: {train: [x]}\nmodel: {layer: 4}\n"), Contains("did you mean model.layers?"));
}

TEST_CASE("foreign keys: configurations of other languages are named", "[config]") {
  const auto check = [](const std::string& text, const std::string& words) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_config(text, "run.toml"), Contains(words));
  };
  check("# a comment\n[training]\nsteps = 10\n",
        "run.toml:2:1: is TOML, but this file is read as YAML: [training] with steps = 10 is training: {steps: 10}");
  check("[job.config]\r\n  a = 1\r\n", "is TOML");
  check("batch_size = 12\nlearning_rate = 6e-4\n", "run.toml:1:1: is TOML or Python");
  check("import torch\nx = 1\n", "is Python");
  check("{\"architectures\": [\"LlamaForCausalLM\"],\n \"model_type\": \"llama\"}", "is the config.json of a Hugging Face model");
  // JSON is YAML, and a list is a value of --set.
  CHECK(parse_config("{\"training\": {\"steps\": 3},\n \"data\": {\"train\": [\"x\"]}}", "run.json").config.training.steps == 3);
  CHECK(parse_config("training: {steps: 3}\ndata: {train: [x]}\n", "run.yaml", {"data.train=[y]"}).config.data.train ==
        std::vector<std::string>{"y"});
}

TEST_CASE("foreign commands: those of other programs, and typos", "[config]") {
  const std::vector<std::string> commands = {"train", "eval", "generate", "data", "plan", "bench"};
  CHECK(command_suggestion("trian", commands) == "; did you mean train?");
  CHECK(command_suggestion("evl", commands) == "; did you mean eval?");
  CHECK(command_suggestion("pretrain", commands) == "; here it is trireme train");
  CHECK_THAT(command_suggestion("finetune", commands), Contains("trireme train, with training.initial_weights"));
  CHECK(command_suggestion("xylophone", commands).empty());
  CHECK(command_suggestion("", commands).empty());
}

TEST_CASE("foreign files: a Git LFS pointer is refused wherever a file is opened", "[files]") {
  const Scratch scratch;
  for (const char* name : {"model.safetensors", "tokenizer.json", "config.json", "tokens.bin"}) {
    const std::string path = scratch.write(name, kPointer);
    CHECK_THROWS_WITH(read_text(path), Contains(concat(name, ": is a Git LFS pointer, not the file itself; fetch the file with git lfs pull")));
    CHECK_THROWS_AS(RandomAccessFile(path), DataError);
    CHECK_THAT(foreign_file(path), StartsWith("is a Git LFS pointer"));
  }
  CHECK_NOTHROW(read_text(scratch.write("text", std::string("about ") + kPointer)));
  CHECK_NOTHROW(read_text(scratch.write("long", kPointer + std::string(2000, 'x'))));  // a document that begins like one
  CHECK_NOTHROW(read_text(scratch.write("empty", "")));
}

TEST_CASE("foreign files: what is no model folder is named, with what to do", "[files]") {
  const Scratch scratch;
  const auto at = [&](const std::string& name) { return std::filesystem::path(scratch / name); };
  struct Case {
    std::vector<std::string> files;
    std::string words;
  };
  const std::vector<Case> folders = {
      {{"refs/main", "blobs/x", "snapshots/aaa/config.json"}, "is a cache of huggingface_hub; name the folder of a snapshot: "},
      {{"models--org--name/refs/main", "models--org--name/snapshots/aaa/config.json"}, "is the root of a cache of huggingface_hub with 1 model"},
      {{"checkpoint-9/model.safetensors", "checkpoint-10/model.safetensors"},
       "holds the checkpoints of a trainer of transformers, not a model; name one of them: "},
      {{"adapter_config.json", "adapter_model.safetensors"}, "is an adapter of PEFT, not a whole model"},
      {{"model-q4.gguf"}, "holds GGUF files of llama.cpp"},
      {{"config.json", "pytorch_model.bin"}, "holds weights of PyTorch, pickles"},
      {{"consolidated.00.pth", "params.json"}, "is a model in Meta's own format"},
      {{"global_step10/mp_rank_00_model_states.pt", "latest"}, "is a checkpoint of DeepSpeed"},
      {{"latest_checkpointed_iteration.txt", "iter_0000010/x"}, "is a checkpoint of Megatron-LM"},
      {{".metadata", "__0_0.distcp"}, "is a sharded checkpoint of torch.distributed.checkpoint"},
      {{"lit_model.pth", "model_config.yaml"}, "is a checkpoint of LitGPT"},
      {{"ckpt.pt"}, "holds a checkpoint of nanoGPT"},
  };
  int number = 0;
  for (const Case& one : folders) {
    const std::string folder = concat("folder", number++);
    for (const std::string& file : one.files) scratch.write(folder + "/" + file, file == "refs/main" ? "aaa" : "{}");
    CAPTURE(one.words);
    CHECK_THAT(foreign_folder(at(folder)), StartsWith(one.words));
    CHECK(foreign_path(at(folder)) == foreign_folder(at(folder)));
    if (one.files.front() != "config.json" && one.files.front() != "adapter_config.json")
      CHECK_THROWS_WITH(WeightSource(at(folder)), Contains(one.words));
  }
  CHECK_THAT(foreign_folder(at("folder0")), Contains("folder0/snapshots/aaa"));
  CHECK_THAT(foreign_folder(at("folder1")), Contains("folder1/models--org--name/snapshots/aaa"));
  CHECK_THAT(foreign_folder(at("folder2")), Contains("folder2/checkpoint-10"));
  const std::vector<std::pair<std::string, std::string>> files = {
      {"eos/model.safetensors", "is a file of a model; name the folder that contains it: "},
      {"eos/config.json", "is a file of a model; name the folder that contains it: "},
      {"eos/model.gguf", "is a GGUF file of llama.cpp"},
      {"eos/ckpt.pt", "is a file of PyTorch, a pickle"},
      {"eos/manifest.json", "is a file of a checkpoint; name the folder that contains it: "},
  };
  for (const auto& [name, words] : files) {
    const std::string path = scratch.write(name, "{}");
    CHECK_THAT(foreign_file(path), StartsWith(words));
    CHECK_THROWS_WITH(WeightSource(path), Contains(concat(path, ": ", words)));
  }
  // A model folder is neither a checkpoint nor data.
  scratch.write("hf/config.json", "{}");
  scratch.write("hf/model.safetensors", "");
  CHECK_THROWS_WITH(CheckpointReader(at("hf")), Contains("is a Hugging Face folder, of which `trireme checkpoint import` makes a checkpoint"));
  CHECK_THROWS_WITH(CheckpointReader(at("folder3")), Contains("is incomplete: manifest.json is missing; it is an adapter of PEFT"));
  CHECK_THROWS_WITH(TokenSource(scratch / "hf"), Contains("is the folder of a model, not a token directory"));
  scratch.write("plain/notes.txt", "text");
  CHECK(foreign_path(at("plain")).empty());
  CHECK(foreign_path(at("nothing")).empty());
  CHECK(foreign_path(scratch.write("file.txt", "text")).empty());
}

}  // namespace trireme
