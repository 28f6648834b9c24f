#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/loop/memory.h"

namespace trireme {

/// Text table with a column per pipeline rank, followed by its measured column if `measured` is given: the peak of each category and of their sum,
/// and the phase of that peak; below, the maximum over ranks in each phase. If there are more pipeline ranks than columns, shows those with the
/// highest peaks.
/// `first`: the pipeline rank of the first entry.
std::string memory_table(const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured = {}, int first = 0);

/// Per pipeline rank: {"parameters": bytes, ..., "peak": bytes of the sum, "phases": {"forward": {"parameters", ..., "peak"}, ...}}.
nlohmann::ordered_json memory_json(const std::vector<RankMemory>& ranks);

/// True if parallel.gradient_accumulation may be full or sharded: ZeRO-2 and 3 with several micro-batches.
bool accumulation_is_a_choice(const Config& config);
/// `config` with full and sharded accumulation exchanged.
Config with_other_accumulation(const Config& config);
/// One line with gradient memory and traffic of both, each the maximum over ranks.
std::string accumulation_text(const Config& config, const std::vector<RankMemory>& chosen, const std::vector<RankMemory>& other);

}  // namespace trireme
