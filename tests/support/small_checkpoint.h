#pragma once
// A small checkpoint of three ranks, and the errors reported for it after tampering.
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

/// Saves step 7 of a run in <directory>/checkpoints: matrices split by rows and by columns, a vector, a tensor of one rank, a tokenizer. Returns the
/// checkpoint.
std::filesystem::path save_small_checkpoint(const std::filesystem::path& directory);

/// Reads the tokenizer and every tensor completely, as a rank that owns everything does. Errors: those of CheckpointReader.
void load_whole(const std::filesystem::path& checkpoint);

/// The messages of the DataErrors of load_whole and of verification, in this order; "no error" for one that succeeds.
std::vector<std::string> errors_of(const std::filesystem::path& checkpoint);

}  // namespace trireme::test
