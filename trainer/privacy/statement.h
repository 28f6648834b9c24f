#pragma once
// What a run says about its privacy: RUN/privacy.json and the line at its end.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/privacy/history.h"
#include "trainer/privacy/loss_distribution.h"

namespace trireme::privacy {

inline constexpr const char* kStatementName = "privacy.json";

/// What an auditor asks about a run besides its history.
struct Facts {
  std::optional<double> clip;   ///< unset: this job does not make its steps private
  std::optional<double> delta;  ///< unset without clip
  std::optional<double> target_epsilon;
  int64_t sequences = 0;        ///< of the training data
  int64_t sequence_length = 0;  ///< tokens
  int64_t noise_ranks = 0;      ///< number of data ranks that each add the noise to their own sum; 0: it is added once, to the sum of all
};

/// "by each of 8 data ranks, to the sum over its own sequences, ...": who adds the noise.
std::string noise_text(int64_t noise_ranks);

/// The contents of privacy.json. `history` counts every step that may have been released; `tight`: for the same steps, if known.
nlohmann::ordered_json statement(const Facts& facts, const History& history, const std::optional<Bracket>& tight);
/// The history in a text of privacy.json. Errors: DataError, prefixed with `where`.
History history_in(const std::string& text, const std::string& where);

/// "epsilon 2.11 (RDP; 1.83 tight) at delta 1e-05 for adding or removing one sequence of 256 tokens".
std::string text_of(const Facts& facts, const Epsilon& epsilon, const std::optional<Bracket>& tight);

/// The epsilon as JSON, which has no infinity: null if nothing bounds it.
nlohmann::ordered_json to_json(double epsilon);

}  // namespace trireme::privacy
