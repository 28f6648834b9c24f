// The section of the jobs that Slurm has started for a run.
#include "kernels/core/check.h"
#include "trainer/plan/text.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

std::string end_of(const SlurmTry& one) {
  if (!one.code) return "no end recorded: it runs, or was killed with its node or by Slurm";
  return concat("exit code ", *one.code, one.next.starts_with("requeued") ? ", requeued" : *one.code == 0 ? ", done" : "");
}

}  // namespace

std::string slurm_section(std::span<const RunView> runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<SlurmTry>& tries = runs[i].run->slurm;
    if (tries.empty()) continue;
    std::string rows;
    for (const SlurmTry& one : tries)
      rows += concat("<tr><th scope=\"row\">", markup(one.array.empty() ? one.job : concat(one.array, " (", one.job, ")")), "</th><td>", one.restart,
                     "</td><td>", markup(one.begin), "</td><td>", markup(one.nodes), "</td><td>", one.tasks, "</td><td>", markup(one.partition),
                     "</td><td>", one.seconds ? value_text(static_cast<double>(*one.seconds), Quantity::kDuration) : "–", "</td><td>", end_of(one),
                     "</td></tr>\n");
    text += run_heading(runs, i);
    text += "<div class=\"scroll\"><table class=\"figures\"><thead><tr>";
    for (const char* head : {"job", "restart", "start", "nodes", "tasks", "partition", "elapsed", "end"})
      text += concat("<th scope=\"col\">", head, "</th>");
    text += concat("</tr></thead><tbody>", rows, "</tbody></table></div>\n");
  }
  return text;
}

}  // namespace trireme::report
