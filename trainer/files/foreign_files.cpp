#include "trainer/files/foreign_files.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/files/lfs_pointer.h"

namespace fs = std::filesystem;
using namespace std::string_view_literals;

namespace trireme {
namespace {

constexpr const char* kToSafetensors =
    "load it with the program that wrote it and save a Hugging Face folder, e.g. model.save_pretrained(DIR, safe_serialization=True) of transformers";

bool exists_here(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> sorted_names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < 10000; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_bytes_of(const fs::path& path) {
  std::string bytes(64, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// "DIR/NAME" of the last name, which among numbers of the same length is the largest.
std::string last_numbered(const fs::path& folder, std::vector<std::string> names) {
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
  return (folder / names.back()).string();
}

std::vector<std::string> with_prefix(const std::vector<std::string>& names, std::string_view prefix) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), [&](const std::string& name) { return name.starts_with(prefix); });
  return found;
}

bool any_ends_with(const std::vector<std::string>& names, std::string_view suffix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.ends_with(suffix); });
}

/// The snapshot that a cache of huggingface_hub calls main, or else the last one.
std::string snapshot_in(const fs::path& cache) {
  std::ifstream file(cache / "refs" / "main");
  std::string revision;
  if (std::getline(file, revision) && !revision.empty() && revision.find('/') == revision.npos && exists_here(cache / "snapshots" / revision))
    return (cache / "snapshots" / revision).string();
  const std::vector<std::string> all = sorted_names_in(cache / "snapshots");
  return all.empty() ? "" : (cache / "snapshots" / all.back()).string();
}

/// A file or folder that only one program writes, and what it means.
struct Mark {
  const char* name;
  const char* text;
};
constexpr Mark kFolderMarks[] = {
    {"adapter_config.json",
     "is an adapter of PEFT, not a whole model; generate, eval, checkpoint export and training.initial_weights read it with its base"},
    {"latest_checkpointed_iteration.txt", "is a checkpoint of Megatron-LM; convert it to a Hugging Face folder with its own tools first"},
    {"zero_to_fp32.py", "is a checkpoint of DeepSpeed; make a Hugging Face folder of it first: its zero_to_fp32.py writes the whole weights"},
    {".metadata", "is a sharded checkpoint of torch.distributed.checkpoint; convert it to a Hugging Face folder first"},
    {"lit_model.pth", "is a checkpoint of LitGPT; convert it first: litgpt convert_from_litgpt"},
    {"ckpt.pt", "holds a checkpoint of nanoGPT, a pickle of PyTorch; save its weights as a Hugging Face folder first"},
    {"model_index.json", "is a pipeline of diffusers, not a language model"},
    {"consolidated.00.pth", "is a model in Meta's own format; convert it to a Hugging Face folder first"},
    {"consolidated.safetensors", "is a model in Mistral's own format; name its Hugging Face folder, with config.json and model.safetensors"},
};

}  // namespace

std::string foreign_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  const std::string start = first_bytes_of(path), name = path.filename().string();
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (static_cast<int64_t>(fs::file_size(path, ignored)) <= kLongestLfsPointer && is_lfs_pointer(start))
    return "is a Git LFS pointer, not the file itself; fetch the file with git lfs pull in its repository, or download it again";
  if (start.starts_with("GGUF") || ends(".gguf"))
    return "is a GGUF file of llama.cpp, whose weights are often quantized; download the model's Hugging Face folder instead, with config.json and "
           "*.safetensors";
  const bool pickle = start.starts_with("\x80\x02"sv) || start.starts_with("\x80\x04"sv), zip = start.starts_with("PK\x03\x04");
  if (pickle || (zip && (ends(".bin") || ends(".pt") || ends(".pth") || ends(".ckpt"))) || ends(".pt") || ends(".pth") || ends(".ckpt"))
    return concat("is a file of PyTorch, a pickle that can run programs when it is read; ", kToSafetensors);
  if (start.starts_with("\x93NUMPY"))
    return "is an array of NumPy with a header; write its ids alone: numpy.load(FILE).astype(\"uint16\").tofile(\"FILE.bin\")";
  if (ends(".safetensors") || name == "config.json" || name == "model.safetensors.index.json" || name == "generation_config.json")
    return concat("is a file of a model; name the folder that contains it: ", parent);
  if (name == "manifest.json") return concat("is a file of a checkpoint; name the folder that contains it: ", parent);
  return "";
}

std::string foreign_folder(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return "";
  const std::vector<std::string> names = sorted_names_in(path);
  const auto has = [&](const char* name) { return std::binary_search(names.begin(), names.end(), name); };
  if (has("snapshots") && (has("refs") || has("blobs"))) {
    const std::string snapshot = snapshot_in(path);
    return snapshot.empty() ? "is a cache of huggingface_hub without a snapshot; download the model first"
                            : concat("is a cache of huggingface_hub; name the folder of a snapshot: ", snapshot);
  }
  if (const std::vector<std::string> models = with_prefix(names, "models--"); !models.empty())
    return concat("is the root of a cache of huggingface_hub with ", models.size(), models.size() == 1 ? " model" : " models",
                  "; name the folder of a snapshot: ", snapshot_in(path / models.front()));
  if (has("hub") && !with_prefix(sorted_names_in(path / "hub"), "models--").empty())
    return concat("is the home of huggingface_hub; name the folder of a snapshot in ", (path / "hub").string());
  for (const Mark& mark : kFolderMarks)
    if (has(mark.name)) return mark.text;
  if (!with_prefix(names, "global_step").empty())
    return "is a checkpoint of DeepSpeed; make a Hugging Face folder of it first: zero_to_fp32.py of DeepSpeed writes the whole weights";
  if (any_ends_with(names, ".distcp")) return "is a sharded checkpoint of torch.distributed.checkpoint; convert it to a Hugging Face folder first";
  if (const std::vector<std::string> checkpoints = with_prefix(names, "checkpoint-"); !checkpoints.empty() && !has("model.safetensors"))
    return concat("holds the checkpoints of a trainer of transformers, not a model; name one of them: ", last_numbered(path, checkpoints));
  const bool safetensors = any_ends_with(names, ".safetensors");
  if (!safetensors && any_ends_with(names, ".gguf"))
    return "holds GGUF files of llama.cpp, whose weights are often quantized; download the model's Hugging Face folder instead, with config.json and "
           "*.safetensors";
  if (!safetensors &&
      (has("pytorch_model.bin") || has("pytorch_model.bin.index.json") || any_ends_with(names, ".pth") || any_ends_with(names, ".pt")))
    return concat("holds weights of PyTorch, pickles that can run programs when they are read; ", kToSafetensors);
  if (!safetensors && (has("flax_model.msgpack") || has("tf_model.h5")))
    return concat(
        "holds weights of Flax or TensorFlow; load it with transformers, from_flax or from_tf, and save it with model.save_pretrained(DIR)");
  return "";
}

std::string foreign_path(const fs::path& path) {
  const std::string file = foreign_file(path);
  return file.empty() ? foreign_folder(path) : file;
}

}  // namespace trireme
