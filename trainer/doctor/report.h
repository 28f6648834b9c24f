#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/doctor/facts.h"
#include "trainer/doctor/finding.h"

namespace trireme::doctor {

/// A line for each finding: grade, check, facts, the ranks and hosts that it holds for unless it holds for all, the host whose facts they are if others are
/// better; below it the remedy. Then a summary.
std::string report_text(const JobFacts& job, const std::vector<Finding>& findings);

/// {"grade": of the worst finding, "seconds", "ranks": count, "hosts": [name], "findings": [{"check", "grade", "text", "remedy", "ranks": [rank], "hosts":
/// [name], "worst_host": name, or "" if all are alike}], "links": [{"from", "to", "one_host", "latency", "bandwidth"}], "unreachable": [[from, to]],
/// "facts": [of each rank]}. Seconds, bytes and bytes/s; -1: unknown, or no limit.
nlohmann::ordered_json report_json(const JobFacts& job, const std::vector<Finding>& findings, double seconds);

/// "0-3, 7".
std::string ranges_of(const std::vector<int>& ranks);

}  // namespace trireme::doctor
