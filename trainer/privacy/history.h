#pragma once
// What a run has released of its training data, over all its jobs. It is saved in every checkpoint and, ahead of the steps, in RUN/privacy.json, so
// that no step that a crash, an older checkpoint or another key has hidden is forgotten.
//
// A step that is repeated with the same key, on the same weights, releases the same value again and counts once. A step that is repeated differently
// must not reuse its noise, because the difference of both values would reveal the gradients. So each series of steps has a lineage, of which its
// random numbers are a function, and a resume that changes anything begins a new one.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/privacy/accountant.h"

namespace trireme::privacy {

/// How steps are made private.
struct Mechanism {
  double sampling_rate = 0;
  double noise = 0;
  std::string key = {};  ///< fingerprint of the key file together with the data; empty: none
  bool operator==(const Mechanism&) const = default;
};
/// Steps without privacy: each reveals everything.
inline Mechanism no_privacy() { return {1, 0, ""}; }

/// A series of steps of one lineage.
struct Segment {
  std::string lineage;
  Mechanism mechanism;
  int64_t first = 0;  ///< number of steps of the run before it
  int64_t steps = 0;  ///< that may have been released
  bool operator==(const Segment&) const = default;
};

/// All segments of a run. The last one is that of the next step; segments before it may contain steps with the same numbers.
using History = std::vector<Segment>;

/// The steps of all segments, of the last one as many as may have been released.
std::vector<PrivateSteps> steps_of(const History& history);
/// The number of steps that steps_of() has.
int64_t count_of(std::span<const PrivateSteps> steps);

/// Digest of two texts, as the lineage of a new run and of a change: 32 hexadecimal digits.
std::string lineage_of(std::string_view before, std::string_view changes);

/// The history of a job that begins after step `step`.
/// - `saved`: of the checkpoint; empty for a new run
/// - `known`: of RUN/privacy.json: what jobs since the checkpoint may have released; empty if there is no file
/// - `now`: how this job makes its steps private
/// - `changes`: what this job changes of the run as a text; empty if nothing. For a new run: what distinguishes it from other runs
/// The job continues the last segment of the checkpoint if nothing has changed, or a segment of `known` that began with the same change; otherwise it
/// begins a segment. No step of `saved` and `known` gets lost.
History continued(const History& saved, const History& known, int64_t step, const Mechanism& now, std::string_view changes);
/// True if a job that makes its steps private like `now` continues the last segment of the checkpoint.
bool continues(const History& saved, const Mechanism& now, std::string_view changes);

/// Sets the number of steps that may have been released up to step `step`; it never becomes smaller.
void release(History& history, int64_t step);

nlohmann::ordered_json to_json(const History& history);
/// Errors: DataError, prefixed with `where`.
History parse_history(const nlohmann::json& list, const std::string& where);

}  // namespace trireme::privacy
