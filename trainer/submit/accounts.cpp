#include "trainer/submit/accounts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>

#include "kernels/core/check.h"
#include "trainer/files/clock_text.h"
#include "trainer/files/printable.h"
#include "trainer/job/spawn.h"
#include "trainer/submit/run_program.h"

namespace trireme::submit {
namespace {

constexpr std::chrono::seconds kAccountingTimeout{20}, kQueueTimeout{5};

/// A number with a unit of 1024: "1234K", "1.50G". NaN if it is none.
double bytes_in(const std::string& text) {
  constexpr std::string_view kUnits = "KMGTP";
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = std::string_view(text).substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || !std::isfinite(value) || value < 0 || unit.size() > 1) return JobAccount::kUnknown;
  if (unit.empty()) return value;
  const size_t power = kUnits.find(unit[0]);
  return power == kUnits.npos ? JobAccount::kUnknown : std::ldexp(value, 10 * static_cast<int>(power + 1));
}

int64_t integer_in(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

/// "2026-11-27T17:00:05", in UTC, which Slurm's programs are asked for. NaN for "Unknown", "None" and "N/A".
double slurm_clock_in(const std::string& text) {
  const auto time = time_of_utc(text + ".000Z");
  return time ? seconds_since_1970(*time) : JobAccount::kUnknown;
}

/// GPUs of "cpu=2,gres/gpu=2,gres/gpu:h100=2,mem=8000M": the sum without a type, else those of the types.
int64_t gpus_in_tres(const std::string& text) {
  std::istringstream parts(text);
  int64_t all = 0, typed = 0;
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals), number = part.substr(std::min(equals + 1, part.size()));
    if (name == "gres/gpu") all = integer_in(number);
    if (name.starts_with("gres/gpu:")) typed += integer_in(number);
  }
  return all > 0 ? all : typed;
}

bool is_job_id(const std::string& text) {
  constexpr size_t kMostDigits = 18;
  return !text.empty() && text.size() <= kMostDigits && text.find_first_not_of("0123456789") == text.npos;
}

std::string named_nodes(const std::string& text) { return text == "None assigned" || text == "(null)" || text == "N/A" ? "" : text; }

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t end = 0; (end = line.find(separator, at)) != line.npos; at = end + 1) parts.push_back(line.substr(at, end - at));
  parts.push_back(line.substr(at));
  return parts;
}

std::string trimmed(const std::string& text) {
  const size_t end = text.find_last_not_of(' ');
  return end == text.npos ? "" : text.substr(0, end + 1);
}

double larger(double a, double b) { return std::isnan(a) || b > a ? b : a; }

/// Slurm's programs say last why they end.
std::string last_line(const std::string& text) {
  const std::string whole = text.substr(0, text.find_last_not_of(" \n") + 1);
  return whole.substr(whole.rfind('\n') + 1);
}

/// What a program of Slurm prints, with times in UTC. Otherwise `why` says why there is nothing.
std::optional<std::string> answer_of(const std::vector<std::string>& command, std::chrono::seconds timeout, std::string& why) {
  try {
    const std::optional<ProgramResult> result = run_program(command, timeout, environment_with({{"TZ", "UTC0"}, {"SLURM_TIME_FORMAT", "standard"}}));
    if (result && result->code == 0) return result->out;
    if (!result)
      why = concat(command[0], " was not found in PATH");
    else
      why = result->err.empty() ? concat(command[0], " has ended with exit code ", result->code) : printable(last_line(result->err));
  } catch (const Error& error) {
    why = error.what();
  }
  return std::nullopt;
}

std::vector<std::string> queue_command(const std::string& jobs) {
  return {"squeue", "--noheader", "--states=all", "--jobs=" + jobs, std::string("--Format=") + kQueueFormat};
}

}  // namespace

std::vector<JobAccount> accounts_in_sacct(const std::string& text) {
  enum Column : size_t { kJob, kPartition, kNodes, kState, kExit, kSubmit, kStart, kEnd, kCpus, kTres, kRss, kJoules, kColumns };
  std::vector<JobAccount> jobs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> row = split(line, '|');
    if (row.size() != kColumns) continue;
    const std::string job = row[kJob].substr(0, row[kJob].find('.'));
    const bool is_step = job.size() < row[kJob].size();
    if (!is_job_id(job) || (is_step && (jobs.empty() || jobs.back().job != job))) continue;
    if (!is_step)
      jobs.push_back({.job = job,
                      .partition = row[kPartition],
                      .nodes = named_nodes(row[kNodes]),
                      .state = row[kState],
                      .exit_code = row[kExit],
                      .submitted = slurm_clock_in(row[kSubmit]),
                      .started = slurm_clock_in(row[kStart]),
                      .ended = slurm_clock_in(row[kEnd]),
                      .cpus = integer_in(row[kCpus]),
                      .gpus = gpus_in_tres(row[kTres])});
    jobs.back().max_rss = larger(jobs.back().max_rss, bytes_in(row[kRss]));
    if (const int64_t joules = integer_in(row[kJoules]); joules > 0) jobs.back().joules = larger(jobs.back().joules, static_cast<double>(joules));
  }
  return jobs;
}

std::vector<JobAccount> accounts_in_squeue(const std::string& text) {
  constexpr std::array<size_t, 9> kWidths{20, 100, 40, 40, 40, 40, 20, 400, 4000};
  std::vector<JobAccount> jobs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::array<std::string, kWidths.size()> row;
    for (size_t i = 0, at = 0; i < row.size() && at < line.size(); at += kWidths[i++]) row[i] = trimmed(line.substr(at, kWidths[i]));
    const auto& [job, partition, state, submit, start, end, cpus, tres, nodes] = row;
    if (!is_job_id(job)) continue;
    JobAccount account{.job = job, .partition = partition, .nodes = named_nodes(nodes), .state = state, .exit_code = ""};
    account.submitted = slurm_clock_in(submit);
    account.started = slurm_clock_in(start);
    const bool has_ended = state != "RUNNING" && state != "PENDING" && state != "SUSPENDED" && state != "COMPLETING";
    if (has_ended) account.ended = slurm_clock_in(end);  // else it is the time limit
    account.cpus = integer_in(cpus);
    account.gpus = gpus_in_tres(tres);
    jobs.push_back(std::move(account));
  }
  return jobs;
}

Accounts ask_accounts(const std::vector<std::string>& jobs) {
  constexpr size_t kMostJobs = 1000;
  std::vector<std::string> ids;
  std::ranges::copy_if(jobs, std::back_inserter(ids), is_job_id);
  if (ids.empty()) return {};
  std::string list;
  for (size_t i = ids.size() - std::min(ids.size(), kMostJobs); i < ids.size(); ++i) list += (list.empty() ? "" : ",") + ids[i];
  std::string why, why_not_queued;
  const std::vector<std::string> command{
      "sacct", "--allusers", "--duplicates", "--noheader", "--parsable2", "--jobs=" + list, std::string("--format=") + kAccountFormat};
  if (const auto text = answer_of(command, kAccountingTimeout, why)) {
    Accounts accounts{accounts_in_sacct(*text)};
    if (accounts.jobs.empty()) accounts.note = "sacct knows none of these jobs: the figures are those that the run itself has recorded";
    return accounts;
  }
  const auto text = answer_of(queue_command(list), kQueueTimeout, why_not_queued);
  return {text ? accounts_in_squeue(*text) : std::vector<JobAccount>(),
          concat("no figures from Slurm's accounting (", why, "): memory, energy and exit states of the jobs are not known")};
}

std::vector<JobAccount> ask_queue(const std::string& job) {
  std::string why;
  if (!is_job_id(job)) return {};
  const auto text = answer_of(queue_command(job), kQueueTimeout, why);
  return text ? accounts_in_squeue(*text) : std::vector<JobAccount>();
}

}  // namespace trireme::submit
