// Compares forecasts with published runs: `published_table FILE [--rows] [--left-out]`. Prints the errors of step time and memory by
// source, and the runs that are wrongly forecast to fit or not to fit; with --left-out also the rows without an equivalent configuration.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <utility>

#include "kernels/core/check.h"
#include "tests/plan/published_rows.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/stack.h"

namespace {

using namespace trireme;

constexpr int kWidth = 32;  ///< characters in the column of sources

}  // namespace

int run(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: published_table FILE [--rows] [--left-out]" << std::endl;
    return 64;
  }
  bool each = false, left_out = false;
  for (int i = 2; i < argc; ++i) {
    each = each || std::strcmp(argv[i], "--rows") == 0;
    left_out = left_out || std::strcmp(argv[i], "--left-out") == 0;
  }
  const published::Rows rows = published::read_rows(argv[1]);
  std::map<std::string, std::vector<double>> by_source;
  std::vector<double> all;
  std::map<std::string, std::vector<double>> memory;
  std::vector<std::string> misjudged;
  for (const published::Run& run : rows.runs) {
    const double bytes = largest_peak(formula_memory(run.config, run.cluster));
    if (run.memory_bytes) memory[run.source].push_back(bytes / *run.memory_bytes - 1);
    if (run.memory_bytes && each)
      std::cout << std::left << std::setw(64) << run.id << std::right << std::fixed << std::setprecision(2) << std::setw(10)
                << *run.memory_bytes / 1e9 << std::setw(10) << bytes / 1e9 << std::setprecision(1) << std::setw(8)
                << 100 * (bytes / *run.memory_bytes - 1) << " %   GB\n";
    if ((bytes > *run.cluster.device.memory) != run.out_of_memory)
      misjudged.push_back(concat(run.id, run.out_of_memory ? " ran out of memory: forecast " : " ran: forecast ", bytes / 1e9, " GB of ",
                                 *run.cluster.device.memory / 1e9));
    if (!run.step_seconds) continue;
    const Forecast forecast = forecast_time(run.config, run.cluster);
    const double error = forecast.step_seconds / *run.step_seconds - 1;
    by_source[run.source].push_back(error);
    all.push_back(error);
    if (!each) continue;
    const StepParts& p = forecast.parts;
    std::cout << std::left << std::setw(64) << run.id << std::right << std::fixed << std::setprecision(3) << std::setw(10) << *run.step_seconds
              << std::setw(10) << forecast.step_seconds << std::setprecision(1) << std::setw(8) << 100 * error << " %   compute "
              << std::setprecision(3) << p.compute << " recompute " << p.recompute << " bubble " << p.bubble << " transfer " << p.transfer
              << " tensor " << p.tensor << " gather " << p.gather << " reduce " << p.reduce << " optimizer " << p.optimizer << '\n';
  }
  published::print_header("step time", kWidth);
  for (const auto& [source, errors] : by_source) published::print_errors(source, kWidth, errors);
  published::print_errors("all", kWidth, all);
  std::cout << '\n';
  published::print_header("memory", kWidth);
  std::vector<double> all_memory;
  for (const auto& [source, errors] : memory) {
    published::print_errors(source, kWidth, errors);
    all_memory.insert(all_memory.end(), errors.begin(), errors.end());
  }
  published::print_errors("all", kWidth, all_memory);
  std::cout << '\n' << misjudged.size() << " of " << rows.runs.size() << " runs misjudged\n";
  for (const std::string& line : misjudged) std::cout << "  " << line << '\n';
  if (left_out)
    for (const std::string& line : rows.left_out) std::cout << line << '\n';
  std::cout << rows.left_out.size() << " rows have no equivalent configuration in Trireme\n";
  return 0;
}

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "published_table: " << error.what() << std::endl;
    return 1;
  }
}
