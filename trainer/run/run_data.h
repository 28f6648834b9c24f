#pragma once
// The data sets of a configuration, opened.
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/data/dataset.h"

namespace trireme {

/// Sequences of data.validation under one name; "validation" is the name of the entries that have none.
struct ValidationSet {
  std::string name;
  TokenDataset data;
};

struct RunData {
  TokenDataset train;
  std::vector<ValidationSet> validation;  ///< in the order of their first entries
};

/// `config` is resolved. Errors: those of TokenDataset and Tokenizer::open; ConfigError where an entry of data.train stands in data.validation too, under
/// whatever path, or the tokenizer has more tokens than the model.
RunData open_run_data(const Config& config);

/// The validation sets alone.
std::vector<ValidationSet> open_validation(const Config& config);

/// Some entry of data.validation has a name, so losses are reported for each set.
bool has_named_sets(const Config& config);

/// The steps a configuration asks for, epochs counted out.
int64_t total_steps(const Config& config, int64_t sequences);

}  // namespace trireme
