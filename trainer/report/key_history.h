#pragma once
// The configurations with which two runs trained their steps. `train --resume --change` changes keys between steps.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/report/comparison.h"

namespace trireme::report {

/// A value as a line shows it: "[a, b]" for a list, "" for null.
std::string value_text(const nlohmann::ordered_json& value);
/// The first step that two runs train with different values of a key; nullopt if there is none.
std::optional<int64_t> first_step_with_other_values(const RunRecord& a, const RunRecord& b, const std::string& key);
/// The keys of either run whose values differ at some step or at the end.
std::vector<KeyValues> differing_keys(const RunRecord& a, const RunRecord& b);

}  // namespace trireme::report
