#include "trainer/privacy/statement.h"

#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"

namespace trireme::privacy {
namespace {

constexpr int64_t kStatementVersion = 1;

/// Rounded up, so that no reader is promised more than was computed, apart from an excess that is rounding itself.
std::string rounded_up(double epsilon) {
  if (std::isinf(epsilon)) return "unbounded";
  const double digits = epsilon < 0.01 ? 1e4 : 100;
  std::ostringstream text;
  text << std::fixed << std::setprecision(epsilon < 0.01 ? 4 : 2) << std::ceil(epsilon * digits - 1e-9) / digits;
  return text.str();
}

}  // namespace

nlohmann::ordered_json to_json(double epsilon) { return std::isfinite(epsilon) ? nlohmann::ordered_json(epsilon) : nlohmann::ordered_json(); }

std::string noise_text(int64_t noise_ranks) {
  return noise_ranks == 0 ? "once, to the sum over all sequences"
                          : concat("by each of ", noise_ranks, " data ranks, to the sum over its own sequences, before compression and robust rules");
}

nlohmann::ordered_json statement(const Facts& facts, const History& history, const std::optional<Bracket>& tight) {
  const std::vector<PrivateSteps> steps = steps_of(history);
  const Epsilon epsilon = facts.delta ? rdp_epsilon(steps, *facts.delta) : Epsilon{std::numeric_limits<double>::infinity()};
  const Mechanism now = history.empty() ? no_privacy() : history.back().mechanism;
  nlohmann::ordered_json result = {
      {"format", "trireme-privacy"},
      {"version", kStatementVersion},
      {"epsilon", to_json(epsilon.value)},
      {"delta", facts.delta ? nlohmann::ordered_json(*facts.delta) : nlohmann::ordered_json()},
      {"unit", concat("one sequence of ", facts.sequence_length, " tokens and the token after it")},
      {"neighbours", "data sets that differ by one added or removed sequence"},
      {"sequences", facts.sequences},
      {"sampling",
       "Poisson: every step includes each sequence with probability sampling_rate, independently; sums are divided by the expected number"},
      {"sampling_rate", now.sampling_rate},
      {"clip", facts.clip ? nlohmann::ordered_json(*facts.clip) : nlohmann::ordered_json()},
      {"noise", now.noise},
      {"noise_added", facts.clip ? nlohmann::ordered_json(noise_text(facts.noise_ranks)) : nlohmann::ordered_json()},
      {"steps", count_of(steps)},
      {"target_epsilon", facts.target_epsilon ? nlohmann::ordered_json(*facts.target_epsilon) : nlohmann::ordered_json()},
      {"accountant",
       {{"method", concat("RDP of the Poisson-subsampled Gaussian mechanism (arXiv:1908.10530), integer orders ", kFirstOrder, " to ", kLastOrder,
                          ", conversion of arXiv:2004.00010, proposition 12")},
        {"order", epsilon.order}}}};
  if (tight)
    result["tight"] = {{"method", "numerical privacy loss distribution (arXiv:2207.04380): a bracket of the smallest epsilon"},
                       {"lower", to_json(tight->lower)},
                       {"upper", to_json(tight->upper)}};
  result["key"] = now.key;
  result["outside"] = {"the statement covers the weights and what is computed from them alone",
                       "metrics.jsonl, logs and other records of training, which contain losses and norms of the training data without noise",
                       "validation losses, and choices made by them, such as early stopping and the choice of hyper-parameters",
                       "other runs on the same data: their epsilons add up",
                       "the number of sequences, and how the data are cut into them",
                       "digests of the training data in checkpoints and in the audit log, by which a guess of all data can be checked",
                       "weights that the run started from, if they were trained on the same data",
                       "the key file: who has it can compute the samples and the noise of every step",
                       "the finite precision of the noise and of the sums that it is added to"};
  result["history"] = to_json(history);
  return result;
}

History history_in(const std::string& text, const std::string& where) {
  const nlohmann::json object = parse_object(text, where);
  if (string_member(object, "format", where) != "trireme-privacy") throw DataError(where + ": format is not \"trireme-privacy\"");
  if (const int64_t version = integer_member(object, "version", where); version != kStatementVersion)
    throw DataError(concat(where, ": version ", version, " is not supported; allowed ", kStatementVersion));
  return parse_history(array_member(object, "history", where), where + ": \"history\"");
}

std::string text_of(const Facts& facts, const Epsilon& epsilon, const std::optional<Bracket>& tight) {
  if (!facts.delta || std::isinf(epsilon.value))
    return concat("nothing bounds epsilon for adding or removing one sequence of ", facts.sequence_length, " tokens");
  const std::string second = tight && std::isfinite(tight->upper) ? concat("; ", rounded_up(tight->upper), " tight") : "";
  return concat("epsilon ", rounded_up(epsilon.value), " (RDP", second, ") at delta ", *facts.delta, " for adding or removing one sequence of ",
                facts.sequence_length, " tokens");
}

}  // namespace trireme::privacy
