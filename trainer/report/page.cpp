#include "trainer/report/page.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/report/page_parts.h"
#include "trainer/report/page_style.h"
#include "trainer/report/run_facts.h"
#include "trainer/report/text_escape.h"

namespace trireme::report {
namespace {

std::string section(const std::string& id, const std::string& title, const std::string& body) {
  return body.empty() ? "" : concat("<section id=\"", id, "\"><h2>", markup(title), "</h2>\n", body, "</section>\n");
}

std::string tiles(const RunView& run) {
  std::string text = "<dl class=\"tiles\">\n";
  for (const Fact& fact : facts_of(run)) {
    if (!fact.headline || fact.text == "–") continue;
    text += concat("<div class=\"tile\"><dt>", markup(fact.name), "</dt><dd>", markup(fact.text));
    if (!fact.remark.empty()) text += concat("<small>", markup(fact.remark), "</small>");
    text += "</dd></div>\n";
  }
  return text + "</dl>\n";
}

/// Facts of all runs side by side.
std::string results_table(std::span<const RunView> runs) {
  std::vector<std::vector<Fact>> facts;
  for (const RunView& run : runs) facts.push_back(facts_of(run));
  std::string rows;
  for (size_t row = 0; row < facts.front().size(); ++row) {
    rows += concat("<tr><th scope=\"row\">", markup(facts.front()[row].name), "</th>");
    for (size_t i = 0; i < runs.size(); ++i) {
      const Fact& fact = facts[i][row];
      rows += concat("<td class=\"r", i, "\">", markup(fact.text));
      if (!fact.remark.empty()) rows += concat("<small>", markup(fact.remark), "</small>");
      rows += "</td>";
    }
    rows += "</tr>\n";
  }
  return concat("<div class=\"scroll\"><table class=\"", runs.size() == 1 ? "single" : "several", "\">", table_head(runs, ""), "<tbody>", rows,
                "</tbody></table></div>\n");
}

std::string notices(std::span<const RunView> runs) {
  std::string text;
  for (const RunView& view : runs)
    for (const std::string& problem : view.run->problems)
      text += concat("<p class=\"notice\">", runs.size() > 1 ? markup(view.label) + ": " : "", markup(problem), "</p>\n");
  return text;
}

std::string controls(std::span<const RunView> runs) {
  std::string text = "<div class=\"bar-top\"><div><span class=\"choice\" role=\"group\" aria-label=\"x axis\">";
  for (const char* name : kProgressNames) text += concat("<label for=\"x-", name, "\">", name, "</label>");
  text += "</span>";
  if (runs.size() > 1) {
    text += "<span class=\"runs\">";
    for (size_t i = 0; i < runs.size(); ++i)
      text += concat("<label for=\"run-", i, "\" id=\"label-", i, "\"><i class=\"line c", i % kColors, "\"></i>", markup(runs[i].label), "</label>");
    text += "</span>";
  }
  return text + "</div></div>\n";
}

/// The inputs whose state the style sheet reads: they work without a script. They come before everything that they show or hide.
std::string states(std::span<const RunView> runs) {
  std::string text;
  for (const char* name : kProgressNames)
    text += concat("<input class=\"state\" type=\"radio\" name=\"x\" id=\"x-", name, "\" aria-label=\"x axis: ", name, "\"",
                   std::string_view(name) == "steps" ? " checked" : "", ">\n");
  text += "<input class=\"state\" type=\"checkbox\" id=\"config-all\" aria-label=\"show keys with default values\">\n";
  if (runs.size() > 1)
    for (size_t i = 0; i < runs.size(); ++i)
      text += concat("<input class=\"state\" type=\"checkbox\" id=\"run-", i, "\" aria-label=\"show ", markup(runs[i].label), "\" checked>\n");
  return text;
}

std::string run_styles(std::span<const RunView> runs) {
  std::string text;
  if (runs.size() > 1)
    for (size_t i = 0; i < runs.size(); ++i)
      text +=
          concat("#run-", i, ":not(:checked)~main .r", i, "{display:none}#run-", i, ":not(:checked)~.bar-top #label-", i,
                 "{opacity:.45;text-decoration:line-through}#run-", i, ":focus-visible~.bar-top #label-", i, "{outline:2px solid var(--accent)}\n");
  return text;
}

std::string header(std::span<const RunView> runs) {
  if (runs.size() == 1)
    return concat("<header><h1>", markup(runs[0].label), "</h1>\n<p class=\"sub\">", markup(description_of(*runs[0].run)), "</p>\n<p class=\"sub\">",
                  markup(runs[0].run->directory.string()), "</p></header>\n");
  std::string text = concat("<header><h1>", counted(runs.size(), "run"), "</h1>\n");
  for (size_t i = 0; i < runs.size(); ++i)
    text += concat("<p class=\"sub r", i, "\"><i class=\"band c", i % kColors, "\"></i> <b>", markup(runs[i].label), "</b> ",
                   markup(description_of(*runs[i].run)), "</p>\n");
  return text + "</header>\n";
}

}  // namespace

std::string run_heading(std::span<const RunView> runs, size_t i) {
  if (runs.size() == 1) return "";
  return concat("<h3 class=\"r", i, "\"><i class=\"band c", i % kColors, "\"></i> ", markup(runs[i].label), "</h3>\n");
}

std::string table_head(std::span<const RunView> runs, const std::string& first, const std::string& last) {
  std::string text = concat("<thead><tr><th scope=\"col\">", first, "</th>");
  for (size_t i = 0; i < runs.size(); ++i)
    text += runs.size() == 1
                ? "<th scope=\"col\">value</th>"
                : concat("<th scope=\"col\" class=\"r", i, "\"><i class=\"band c", i % kColors, "\"></i> ", markup(runs[i].label), "</th>");
  if (!last.empty()) text += concat("<th scope=\"col\">", last, "</th>");
  return text + "</tr></thead>\n";
}

std::string shortened(const std::string& text, size_t most) { return text.size() <= most ? text : text.substr(0, most) + " ..."; }

std::string json_text(const nlohmann::ordered_json& value) { return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace); }

std::string page_html(std::span<const RunView> runs, const std::string& version) {
  PlotNumbers numbers;
  const std::string title = runs.size() == 1 ? runs[0].label : counted(runs.size(), "run");
  const bool any_steps = std::ranges::any_of(runs, [](const RunView& view) { return view.run->steps.size() > 0; });
  std::string body = notices(runs);
  body += runs.size() == 1 ? tiles(runs[0]) : section("results", "Results", results_table(runs));
  body += section("differences", "What differs in the configuration", differences_section(runs));
  body += section("curves", "Training", any_steps ? curves_section(runs, numbers) : "<p>No step has been recorded yet.</p>\n");
  body += section("time-line", "Time line", time_line_section(runs, numbers));
  body += section("memory", "Memory", memory_section(runs));
  body += section("causes", "Step time by cause, mean over ranks", causes_section(runs));
  body += section("ranks", "Ranks", ranks_section(runs, numbers));
  body += section("samples", "Samples of text", samples_section(runs));
  if (runs.size() == 1) body += section("all", "All results", results_table(runs));
  body += section("slurm", "Slurm jobs", slurm_section(runs));
  body += section("configuration", "Configuration", configuration_section(runs));
  body += section("environment", "Environment", environment_section(runs));
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", markup(title),
      "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '",
      kPageScriptSource, "'\">\n<link rel=\"icon\" href=\"data:,\">\n<style>", kPageStyle, run_styles(runs), "</style>\n</head>\n<body>\n",
      states(runs), header(runs), any_steps ? controls(runs) : "", "<main>\n", body, "</main>\n<footer>Made by trireme report, version ",
      markup(version), ".</footer>\n<script type=\"application/json\" id=\"numbers\">", numbers.json(), "</script>\n<script>", kPageScript,
      "</script>\n</body>\n</html>\n");
}

}  // namespace trireme::report
