#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/loop/memory.h"

namespace trireme {

/// A column for each pipeline rank, and beside it one of what was measured, where given: the peak of each category and of the sum, and the phase in which
/// that was; below, the most of any rank in each phase. Of more pipeline ranks than stand side by side, those that take most.
/// `first`: the pipeline rank that the first column is of.
std::string memory_table(const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured = {}, int first = 0);

/// For each pipeline rank {"parameters": bytes, ..., "peak": bytes of the sum, "phases": {"forward": {"parameters", ..., "peak"}, ...}}.
nlohmann::ordered_json memory_json(const std::vector<RankMemory>& ranks);

/// Whether parallel.gradient_accumulation is a choice: ZeRO-2 and 3 with several micro-batches.
bool accumulation_is_a_choice(const Config& config);
/// `config` with the other one of full and sharded.
Config with_other_accumulation(const Config& config);
/// What both hold and send, the most of any rank.
std::string accumulation_text(const Config& config, const std::vector<RankMemory>& chosen, const std::vector<RankMemory>& other);

}  // namespace trireme
