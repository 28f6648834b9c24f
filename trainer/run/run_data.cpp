#include "trainer/run/run_data.h"

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/validation_entry.h"
#include "trainer/data/sampler.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

DatasetOptions options_of(const Config& config) {
  const Tokenizer tokenizer = Tokenizer::open(config.data.tokenizer);
  if (tokenizer.vocab_size() > *config.model.vocab_size)
    throw ConfigError(concat("model.vocab_size=", *config.model.vocab_size, ": data.tokenizer=", config.data.tokenizer, " has ",
                             tokenizer.vocab_size(), " tokens; allowed integer from ", tokenizer.vocab_size(), ", or auto"));
  return {config.training.sequence_length, *config.model.vocab_size, tokenizer.digest(), config.data.document_mask};
}

/// Complete sets: of their last, short window the rest counts too.
std::vector<ValidationSet> open_validation(const Config& config, DatasetOptions options) {
  options.whole = true;
  std::vector<std::pair<std::string, std::vector<std::string>>> sets;
  for (const std::string& text : config.data.validation) {
    const ValidationEntry entry = validation_entry(text);
    const std::string name = entry.named ? entry.name : "validation";
    auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& other) { return other.first == name; });
    if (set == sets.end()) set = sets.insert(set, {name, {}});
    set->second.push_back(entry.path);
  }
  std::vector<ValidationSet> opened;
  for (const auto& [name, paths] : sets) opened.push_back({name, TokenDataset(paths, options)});
  return opened;
}

/// Refuses validation on training data.
void check_apart(const RunData& data) {
  std::error_code ignored;
  for (const ValidationSet& set : data.validation)
    for (const std::string& file : set.data.files())
      for (const std::string& train : data.train.files())
        if (std::filesystem::equivalent(file, train, ignored))
          throw ConfigError(
              concat("data.validation: ", file, " is also training data, as ", train, " of data.train; allowed files that are not in data.train"));
}

}  // namespace

TokenDataset open_training_data(const Config& config) {
  DatasetOptions options = options_of(config);
  if (config.data.weights) options.weights = *config.data.weights;
  if (config.data.packing == Packing::kBestFit) options.packing_window = config.data.packing_window;
  return {config.data.train, options};
}

RunData open_run_data(const Config& config) {
  RunData data{open_training_data(config), open_validation(config)};
  check_apart(data);
  return data;
}

RunData no_run_data(const Config& config) { return {TokenDataset({}, options_of(config)), {}}; }

std::vector<ValidationSet> open_validation(const Config& config) { return open_validation(config, options_of(config)); }

bool has_named_sets(const Config& config) {
  const std::vector<std::string>& entries = config.data.validation;
  return std::any_of(entries.begin(), entries.end(), [](const std::string& entry) { return validation_entry(entry).named; });
}

int64_t total_steps(const Config& config, int64_t sequences) {
  if (config.training.steps) return *config.training.steps;
  return Sampler(0, {{sequences, 1.0}}, config.training.global_batch_size).steps_for(config.training.epochs.value());
}

}  // namespace trireme
