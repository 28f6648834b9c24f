#pragma once
// manifest.json, the table of contents of a checkpoint: what was trained, which box of which global tensor lies where, and what every file must look like.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/core/dtype.h"
#include "kernels/ops/optimizer.h"
#include "parallel/param.h"

namespace trireme {

constexpr const char* kManifestName = "manifest.json";

/// The tokenizer of the data, of which a checkpoint carries a copy.
struct StoredTokenizer {
  std::string name = "bytes";       ///< Tokenizer::name(); empty where none is known, as of imported weights
  std::string digest = "bytes-v1";  ///< Tokenizer::digest()
  std::vector<std::string> files;   ///< its file and what belongs to it, all of Contents::files; none for bytes and where none is known
};

/// What a checkpoint says about its run; the same on every rank.
struct CheckpointDescription {
  int64_t step = 0;                     ///< steps done
  int64_t tokens = 0;                   ///< tokens consumed
  int64_t optimizer_steps = 0;          ///< of those steps, the ones not rejected: what AdamW's bias correction counts
  std::string config;                   ///< the resolved configuration, as config.yaml has it
  nlohmann::json model;                 ///< its model section, for readers without YAML
  StoredTokenizer tokenizer;            ///< whose ids the model was trained on
  std::string training_data;            ///< TokenDataset::identity of the tokens it was trained on
  int64_t seed = 0;                     ///< with `step` the whole random state: initial values, sample order and dropout are functions of the two
  int64_t samples = 0;                  ///< sequences consumed: where the sampler stands
  nlohmann::json layout;                ///< for people; no reader depends on it
  std::optional<LossScale> loss_scale;  ///< of a run with dynamic loss scaling
  int64_t rejected_steps = 0;           ///< in a row up to `step`, as RejectedSteps counts them
};

struct StoredBox {
  Box box;
  std::string file;   ///< name in the checkpoint's directory
  int64_t begin = 0;  ///< bytes from the start of the file
  int64_t end = 0;
  std::string digest;  ///< of those bytes
  int64_t non_finite = 0;  ///< elements that are infinite or no number, counted when they were written
};

struct StoredTensor {
  DType dtype = DType::kF32;
  int dims = 2;
  std::array<int64_t, 2> shape{0, 1};  ///< global; [n,1] for a vector
  std::vector<StoredBox> boxes;        ///< each element in exactly one
};

struct StoredFile {
  int64_t bytes = 0;
  std::string digest;  ///< of its header and of the digests of its tensors, in their order in the file (safetensors.h); the tokenizer's: of its bytes
};

/// Tensors and files by name: of a whole checkpoint, or of one rank's part of it.
struct Contents {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, StoredFile> files;
};

struct Manifest {
  CheckpointDescription description;
  Contents contents;
};

/// The name of a box in its safetensors file: "weight/blocks.0.mlp.up.weight@128,0".
std::string entry_name(const std::string& tensor, const Box& box);

std::string contents_text(const Contents& contents);
/// Errors: DataError that starts with `where`.
Contents parse_contents(const std::string& text, const std::string& where);
/// Adds another rank's part. Errors: DataError where the two disagree on a tensor.
void merge(Contents& into, const Contents& part, const std::string& where);

/// A manifest begins with the digest of all its other characters.
std::string manifest_text(const Manifest& manifest);
/// The text with its digest put right, for who has changed it. Errors: DataError where it does not begin with one.
std::string with_digest(std::string text);
/// Checks the digest, format, version, types, that the boxes of every tensor tile it exactly and that the boxes in every file tile its data. Errors: DataError
/// that starts with `where`.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Errors: DataError naming the tensor whose boxes leave a gap, overlap, lie outside or do not take as many bytes as they hold.
void check_tiling(const std::map<std::string, StoredTensor>& tensors, const std::string& where);

}  // namespace trireme
