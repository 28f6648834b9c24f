#include "trainer/report/csv.h"

#include <charconv>
#include <cmath>
#include <map>

#include "trainer/files/clock_text.h"
#include "trainer/files/printable.h"

namespace trireme::report {
namespace {

std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "";
  return utc_text(WallClock::time_point(std::chrono::milliseconds(std::llround(seconds * 1000))));
}

}  // namespace

std::string csv_text(const std::string& name) {
  const std::string text = printable(name);
  std::string result = "\"";
  if (!text.empty() && std::string_view("=+-@\t").find(text[0]) != std::string_view::npos) result += '\'';
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

std::string csv_number(double value) {
  if (!std::isfinite(value)) return "";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::string csv_of(std::span<const RunView> runs) {
  std::string text = "run,step,time,elapsed_seconds";
  for (const char* name : kFigureNames) text += std::string(",") + name;
  text += ",validation_loss\n";
  for (const RunView& view : runs) {
    const std::string label = csv_text(view.label);
    const StepTable& steps = view.run->steps;
    std::map<int64_t, double> evaluated;
    for (const EvaluationRecord& one : view.run->evaluations) evaluated[one.step] = one.loss;
    for (size_t i = 0; i < steps.size(); ++i) {
      text += label + "," + std::to_string(steps.step[i]) + "," + time_text(steps.time[i]) + "," + csv_number(steps.elapsed_seconds[i]);
      for (const std::vector<double>& column : steps.figures) text += "," + csv_number(column[i]);
      const auto found = evaluated.find(steps.step[i]);
      text += "," + (found == evaluated.end() ? "" : csv_number(found->second)) + "\n";
    }
  }
  return text;
}

}  // namespace trireme::report
