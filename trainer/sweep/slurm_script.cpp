#include "trainer/sweep/slurm_script.h"
#include "trainer/submit/quote.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "kernels/core/check.h"

namespace trireme::sweep {
namespace {

/// "0-3,7": Slurm limits the length of the list.
std::string ranges_text(std::vector<size_t> indices) {
  std::ranges::sort(indices);
  std::string text;
  for (size_t begin = 0; begin < indices.size();) {
    size_t end = begin + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(indices[begin]);
    if (end > begin + 1) text += "-" + std::to_string(indices[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace

void require_sbatch(const LaunchEnvironment& environment, const SweepFile& file) {
  if (find_program(environment, {"sbatch"})) return;
  throw ConfigError(concat(file.sources.name_of(file.sources.locate("where.place")),
                           " where.place=slurm: sbatch was not found in PATH, so this host is not one of a Slurm cluster; allowed local"));
}

std::string array_script(const Results& results, int64_t at_once, const std::string& program) {
  std::vector<size_t> open;
  int ranks = 1;
  for (const ResultRow& row : results.rows) {
    ranks = std::max(ranks, row.run->ranks);
    if (row.standing.state == PointState::kWaiting || row.standing.state == PointState::kBegun) open.push_back(row.run->point.index);
  }
  if (open.empty()) return "";
  return concat(
      "#!/usr/bin/env bash\n# An array job of a sweep: each task runs one point. Written by trireme sweep; submit it from the directory where that "
      "ran.\n",
      "#SBATCH --array=", ranges_text(open), "%", at_once, "\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=", ranks,
      "\n#SBATCH --signal=B:USR1@120\n#SBATCH --requeue\n#SBATCH --open-mode=append\nset -u\n",
      "unset SLURM_NTASKS SLURM_NTASKS_PER_NODE  # the task starts the ranks of its point itself\n", submit::quoted_word(program), " sweep ",
      submit::quoted_word(results.file->path), " --point \"$SLURM_ARRAY_TASK_ID\" &\n", "child=$!\ntrap 'kill -USR1 \"$child\"' USR1 TERM\n",
      "while :; do\n  wait \"$child\"\n  code=$?\n  kill -0 \"$child\" 2>/dev/null || break\ndone\n",
      "# After scancel the task ends. A task that has been requeued twenty times does, too: its time may be too short for a step.\n",
      "if [ \"$code\" -eq 75 ] && [ \"${SLURM_RESTART_COUNT:-0}\" -lt 20 ]; then\n  id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n",
      "  if scontrol show job -o \"$id\" | grep -qE ' JobState=RUNNING | Reason=TimeLimit '; then scontrol requeue \"$id\"; fi\nfi\n",
      "exit \"$code\"\n");
}

}  // namespace trireme::sweep
