#pragma once
// Opens the data sets of a configuration.
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/data/dataset.h"

namespace trireme {

/// All entries of data.validation with the same name; entries without a name form the set "validation".
struct ValidationSet {
  std::string name;
  TokenDataset data;
};

struct RunData {
  TokenDataset train;
  std::vector<ValidationSet> validation;  ///< ordered by first entry
};

/// `config` is resolved. Errors: those of TokenDataset and Tokenizer::open; ConfigError if data.train and data.validation share a file, under any
/// path, or the tokenizer has more tokens than the model.
RunData open_run_data(const Config& config);

/// No training data and no validation sets, for the coordinator of a federation.
RunData no_run_data(const Config& config);

/// Opens only the training data. Errors: those of open_run_data.
TokenDataset open_training_data(const Config& config);

/// Opens only the validation sets.
std::vector<ValidationSet> open_validation(const Config& config);

/// True if an entry of data.validation has a name: then losses are reported for each set.
bool has_named_sets(const Config& config);

/// The number of steps of a configuration, with epochs converted to steps. `sequences`: size of the training set.
int64_t total_steps(const Config& config, int64_t sequences);

}  // namespace trireme
