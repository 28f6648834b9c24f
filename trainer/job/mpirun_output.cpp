#include "trainer/job/mpirun_output.h"

#include <cstdlib>
#include <regex>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {

/// True for "[host:01234] 7 more processes have sent help message ...", for errors inside mpirun and its event library, which occur when several
/// ranks abort at once, and for notices about forwarded signals. prterun is the mpirun of Open MPI 5, mpirun.openmpi that of Debian's alternatives.
static bool is_mpirun_line(std::string_view line) {
  for (const std::string_view program : {"mpirun.openmpi", "mpirun", "prterun"})
    if (line.starts_with(program))
      for (const char* says : {": ", " detected", " noticed"})
        if (line.substr(program.size()).starts_with(says)) return true;
  if (line.starts_with("[warn] Epoll ")) return true;
  if (line.starts_with("Abort(") && line.find(": application called MPI_Abort(") != line.npos) return true;  // MPICH
  return line.starts_with("[") && (line.find("] Set MCA parameter \"orte_base_help_aggregate\"") != line.npos ||
                                   line.find(" sent help message help-") != line.npos || line.find("] ORTE_ERROR_LOG: ") != line.npos);
}

bool MpirunOutputFilter::is_echo(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  if (!line.starts_with(kRank)) return false;
  const size_t digits_end = line.find_first_not_of("0123456789", kRank.size());
  if (digits_end == kRank.size() || digits_end == line.npos || !line.substr(digits_end).starts_with(": ")) return false;
  return !failures_.emplace(line.substr(digits_end)).second;
}

/// The announcement need not begin the line: Open MPI may prefix a tag ("[1,0]<stderr>:") or a time, and a rank may have left a line incomplete.
bool MpirunOutputFilter::take_announcement(std::string_view& line) {
  for (const std::string_view announcement : {kStartedLine, kReadyLine}) {
    const size_t at = line.find(announcement);
    if (at == line.npos) continue;
    started_ = true;
    ready_ = ready_ || announcement == kReadyLine;
    line = line.substr(0, at);
    if (line.ends_with(">:") || line.ends_with(">")) line = {};
    return true;
  }
  return false;
}

bool MpirunOutputFilter::is_own(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  constexpr size_t kFrame = 70;  // mpirun frames its notices in lines of 74 to 76 dashes
  if (line.size() >= kFrame && line.find_first_not_of('-') == line.npos) {
    framed_ = !framed_;
    return false;
  }
  if (!framed_ && !is_mpirun_line(line)) return !is_echo(line);
  notices_.append(line).append("\n");
  return false;
}

std::string MpirunOutputFilter::feed(std::string_view bytes) {
  std::string own;
  partial_.append(bytes);
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != partial_.npos; begin = end + 1) {
    std::string_view line(partial_.data() + begin, end - begin);
    const bool announced = take_announcement(line);
    if (!(announced && line.empty()) && is_own(line)) own.append(line).append("\n");
  }
  partial_.erase(0, begin);
  return own;
}

std::string MpirunOutputFilter::first_exit_notice() const {
  static const std::regex by_signal(R"re(process rank (\d+) .*exited on\s+(signal \d+ \(.*\)))re");
  static const std::regex by_code(R"re(Process name: \[(?:\[\d+,\d+\]|prterun-\S+@\d+),(\d+)\]\s+Exit code: +(\d+))re");
  static const std::regex by_itself(R"re(has exited due to process rank (\d+) with PID \d+ on\s+node \S+\s+(?!calling))re");  // MPI_Abort is a report
  std::smatch match;
  if (std::regex_search(notices_, match, by_signal)) return concat("rank ", match[1].str(), " ended first, by ", match[2].str());
  if (std::regex_search(notices_, match, by_itself)) return concat("rank ", match[1].str(), " ended first, without reporting an error");
  if (std::regex_search(notices_, match, by_code) && match[2] != std::to_string(static_cast<int>(ExitCode::kInternal)))
    return concat("rank ", match[1].str(), " ended first, with exit code ", match[2].str());
  return "";
}

int MpirunOutputFilter::first_rank() const {
  constexpr std::string_view kRank = "rank ";
  const std::string first = first_exit_notice();
  return first.empty() ? -1 : std::atoi(first.c_str() + kRank.size());
}

std::string MpirunOutputFilter::finish() {
  std::string rest = std::exchange(partial_, {});
  return !rest.empty() && is_own(rest) ? rest : "";
}

}  // namespace trireme
