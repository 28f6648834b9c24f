// The section of the jobs that Slurm has started for a run.
#include "kernels/core/check.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/slurm_jobs.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {

std::string slurm_section(std::span<const RunView> runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const submit::Accounts& accounts = runs[i].run->accounts;
    const std::vector<SlurmJob> jobs = slurm_jobs(*runs[i].run, accounts.jobs);
    if (jobs.empty()) continue;
    const std::vector<SlurmColumn> columns = slurm_columns(jobs);
    std::string rows;
    for (const SlurmJob& one : jobs) {
      std::string cells;
      for (const SlurmColumn& column : columns)
        cells += concat(cells.empty() ? "<th scope=\"row\">" : "<td>", markup(column.text(one)), cells.empty() ? "</th>" : "</td>");
      rows += concat("<tr>", cells, "</tr>\n");
    }
    text += run_heading(runs, i);
    text += "<div class=\"scroll\"><table class=\"figures\"><thead><tr>";
    for (const SlurmColumn& column : columns) text += concat("<th scope=\"col\">", column.name, "</th>");
    text += concat("</tr></thead><tbody>", rows, "</tbody></table></div>\n");
    if (!accounts.note.empty()) text += concat("<p>", markup(accounts.note), "</p>\n");
  }
  return text;
}

}  // namespace trireme::report
