#pragma once
// A small checkpoint of three ranks, and what must be said of it once somebody has tampered with it.
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

/// CheckpointManager step 7 of a run in <directory>/checkpoints: matrices cut by rows and by columns, a vector, a tensor of one rank, a tokenizer. Returns the checkpoint.
std::filesystem::path save_small_checkpoint(const std::filesystem::path& directory);

/// Reads the tokenizer and every tensor whole, as a rank that owns everything does. Errors: those of CheckpointReader.
void load_whole(const std::filesystem::path& checkpoint);

/// What loading it whole and verifying it end with: the messages of their DataErrors, or that there was none.
std::vector<std::string> errors_of(const std::filesystem::path& checkpoint);

}  // namespace trireme::test
