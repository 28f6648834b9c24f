#pragma once
// Compares the checkpoints of two runs, tensor by tensor, whatever layouts they were saved by.
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// Elements of a tensor of which two checkpoints have different bits.
struct ElementDifference {
  std::array<int64_t, 2> first{0, 0};  ///< row and column of the first one, in the global tensor
  std::array<double, 2> values{0, 0};  ///< of the first one
  int64_t elements = 0;                ///< how many differ
  int64_t bits = 0;                    ///< how many bits differ, over all elements
};

/// A tensor that is not the same in both checkpoints.
struct TensorDifference {
  int64_t step = 0;  ///< of the checkpoints
  std::string tensor;
  std::string what;                           ///< other than its elements: in one run only, another dtype or shape; empty otherwise
  std::optional<ElementDifference> elements;  ///< of the stored bytes, whether they match their digests or not
  std::array<std::string, 2> damage;          ///< by run: why the file does not match its manifest; empty if it does
};

struct CheckpointComparison {
  std::vector<int64_t> steps;                ///< that both runs have a checkpoint of, ascending
  std::array<std::vector<int64_t>, 2> only;  ///< steps of which only this run has one; they do not count as a difference
  std::vector<TensorDifference> tensors;     ///< of the first step with a difference: weights first, then in the order of the model
  std::vector<TensorDifference> damaged;     ///< tensors of any step that do not match their manifest
  std::vector<std::string> unreadable;       ///< checkpoints that cannot be opened
  std::array<std::string, 2> training_data;  ///< identity of the training data of the newest checkpoint; empty: no checkpoint
  std::array<std::string, 2> tokenizer;      ///< digest
  bool equal() const { return tensors.empty() && damaged.empty() && unreadable.empty(); }
};

/// Reads every checkpoint that both runs have of the same step, both completely, and compares the digest of every box. `progress` is called with the
/// number of bytes compared since the last call.   Errors: IoError.
CheckpointComparison compare_checkpoints(const std::array<std::filesystem::path, 2>& runs, const std::function<void(int64_t bytes)>& progress = {});

/// Bytes of the checkpoints that compare_checkpoints() will read.
int64_t bytes_to_compare(const std::array<std::filesystem::path, 2>& runs);

}  // namespace trireme::report
