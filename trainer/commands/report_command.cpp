#include "trainer/commands/report_command.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "kernels/core/writable_file.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/output_files.h"
#include "trainer/files/printable.h"
#include "trainer/machine/build_info.h"
#include "trainer/report/csv.h"
#include "trainer/report/heat_map.h"
#include "trainer/report/page.h"
#include "trainer/report/run_facts.h"
#include "trainer/report/slurm_jobs.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
  bool svg = false, csv = false;
};

std::string default_output(const ReportArguments& arguments) { return arguments.svg ? "report-svg" : arguments.csv ? "report.csv" : "report.html"; }

/// Name and content of every SVG file.
std::vector<std::pair<std::string, std::string>> drawings(const std::vector<report::RunView>& views) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const report::NamedPlot& plot : report::all_plots(views)) files.emplace_back(plot.name, report::plot_svg(plot.plot));
  for (size_t i = 0; i < views.size(); ++i) {
    const report::RunRecord& run = *views[i].run;
    const std::string number = views.size() > 1 ? concat("-", i + 1) : "";
    const std::vector<report::Bars> memory = report::memory_bars(run);
    for (size_t rank = 0; rank < memory.size(); ++rank)
      files.emplace_back(concat("memory", number, memory.size() > 1 ? concat("-", rank + 1) : ""), report::bars_svg(memory[rank]));
    if (const auto causes = report::cause_bars(run)) files.emplace_back("causes" + number, report::bars_svg(*causes));
    if (!run.ranks.empty()) files.emplace_back("slow-ranks" + number, report::heat_map_svg(run.ranks));
  }
  return files;
}

/// All curves in one file, or a directory with a file for each drawing.
std::string write_svg(const std::vector<report::RunView>& views, const fs::path& output) {
  if (output.extension() == ".svg") {
    std::vector<report::Plot> plots;
    for (const report::NamedPlot& plot : report::all_plots(views)) plots.push_back(plot.plot);
    if (plots.empty()) throw DataError("nothing to draw: no step has been recorded yet");
    write_outputs({{"--output", output.string()}}, {report::plots_svg(plots)});
    return output.string();
  }
  const auto files = drawings(views);
  if (files.empty()) throw DataError("nothing to draw: no step has been recorded yet");
  make_directories(output);
  for (const auto& [name, text] : files) write_durably(output / (name + ".svg"), text);
  return concat(output.string(), ": ", counted(files.size(), "file"));
}

void write_report(const ReportArguments& arguments) {
  const std::string output = arguments.output.empty() ? default_output(arguments) : arguments.output;
  const bool directory = arguments.svg && fs::path(output).extension() != ".svg";
  if (!directory) check_outputs({{"--output", output}}, {});
  std::vector<report::RunRecord> runs;
  for (const std::string& run : arguments.runs) {
    runs.push_back(report::read_run(run));
    if (!arguments.svg && !arguments.csv) runs.back().accounts = submit::ask_accounts(report::slurm_job_ids(runs.back()));
    for (const std::string& problem : runs.back().problems) std::cerr << printable(concat("warning: ", run, ": ", problem)) << '\n';
  }
  const std::vector<std::string> labels = report::labels_of(runs);
  std::vector<report::RunView> views;
  for (size_t i = 0; i < runs.size(); ++i) views.emplace_back(runs[i], labels[i]);
  std::string written = output;
  if (arguments.svg)
    written = write_svg(views, output);
  else
    write_outputs({{"--output", output}}, {arguments.csv ? report::csv_of(views) : report::page_html(views, version())});
  std::cout << printable(written) << '\n';
  finish_output();
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("report", "Write an HTML report of one or several runs, their plots, or their figures");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("RUN", arguments->runs, "Run directories, also of runs that are being trained")->required()->type_name("DIR");
  command->add_option(
      "--output", arguments->output,
      "File to write: report.html, or report.csv with --csv. With --svg a directory for one file per drawing (report-svg), or NAME.svg "
      "for one file with all curves");
  CLI::Option* svg = command->add_flag("--svg", arguments->svg, "Write the plots as SVG, for papers");
  command->add_flag("--csv", arguments->csv, "Write the figures of every step as CSV")->excludes(svg);
  command->callback([arguments, &exit_code] {
    write_report(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
