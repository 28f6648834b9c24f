#include "trainer/commands/manual_command.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/durable_file.h"
#include "trainer/machine/build_info.h"

namespace trireme {
namespace {

/// Text in which no character has a meaning for roff.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

struct Page {
  const CLI::App* command;
  std::string words;  ///< "trireme data build"
};

std::vector<const CLI::App*> children(const CLI::App& app) {
  std::vector<const CLI::App*> found = app.get_subcommands([](const CLI::App*) { return true; });
  std::erase_if(found, [](const CLI::App* child) { return child->get_name().empty(); });
  return found;
}

void collect_pages(const CLI::App& app, const std::string& words, std::vector<Page>& pages) {
  pages.push_back({&app, words});
  for (const CLI::App* child : children(app)) collect_pages(*child, words + " " + child->get_name(), pages);
}

/// "trireme-data-build".
std::string page_name(std::string words) {
  std::ranges::replace(words, ' ', '-');
  return words;
}

std::string synopsis(const Page& page) {
  std::string text = bold(page.words);
  if (!page.command->get_options([](const CLI::Option* option) { return !option->get_positional(); }).empty()) text += " [" + italic("options") + "]";
  for (const CLI::Option* option : page.command->get_options([](const CLI::Option* each) { return each->get_positional(); })) {
    const std::string name = italic(option->get_name(true, false)) + (option->get_items_expected_max() > 1 ? "..." : "");
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (!children(*page.command).empty()) text += " " + italic("command");
  return text + "\n";
}

/// "INT" of "INT:INT in [0 - 10]", and "NAME:{a,b}" as it is.
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.empty()) return "VALUE";
  return type.find(" in [") == type.npos ? type : type.substr(0, type.find(':'));
}

std::string entry(const CLI::Option& option) {
  std::string names;
  if (option.get_positional()) {
    names = italic(option.get_name(true, false));
  } else {
    for (const std::string& name : option.get_snames()) names += (names.empty() ? "" : ", ") + bold("-" + name);
    for (const std::string& name : option.get_lnames()) names += (names.empty() ? "" : ", ") + bold("--" + name);
    if (option.get_items_expected_max() > 0) names += " " + italic(type_of(option));
  }
  return ".TP\n" + names + "\n" + roff(option.get_description()) + "\n";
}

std::string entries(const CLI::App& command, bool positional) {
  std::string text;
  for (const CLI::Option* option : command.get_options([&](const CLI::Option* each) { return each->get_positional() == positional; }))
    text += entry(*option);
  return text;
}

std::string section(const std::string& title, const std::string& text) { return text.empty() ? "" : ".SH " + title + "\n" + text; }

std::string exit_status() {
  constexpr std::pair<int, const char*> kCodes[] = {{0, "Done."},
                                                    {1, "The command has found something bad, such as a difference."},
                                                    {64, "The command line or the configuration is wrong."},
                                                    {65, "Data or a checkpoint are damaged or do not fit."},
                                                    {66, "A file is missing."},
                                                    {70, "Anything else, such as a rank that died."},
                                                    {74, "A file cannot be read or written."},
                                                    {75, "Stopped on request, with a checkpoint; run the same command again to resume."}};
  std::string text;
  for (const auto& [code, meaning] : kCodes) text += ".TP\n" + bold(std::to_string(code)) + "\n" + roff(meaning) + "\n";
  return text;
}

std::string manual_page(const Page& page, const std::vector<Page>& pages) {
  const std::string name = page_name(page.words), about = page.command->get_description();
  std::string title = name, commands, also;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const CLI::App* child : children(*page.command)) commands += ".TP\n" + bold(child->get_name()) + "\n" + roff(child->get_description()) + "\n";
  for (const Page& other : pages)
    if (other.words != page.words && (other.words.starts_with(page.words + " ") || page.words.starts_with(other.words + " ")))
      also += (also.empty() ? "" : ", ") + bold(page_name(other.words)) + "(1)";
  std::string text = ".TH \"" + roff(title) + "\" 1 \"\" \"" + roff("trireme " + version()) +
                     "\" \"Trireme\"\n.nh\n.ad l\n";  // a key or option with a hyphen of the formatter would not be one
  text += section("NAME", roff(name) + " \\- " + roff(about) + "\n") + section("SYNOPSIS", synopsis(page)) +
          section("ARGUMENTS", entries(*page.command, true));
  text += section("OPTIONS", entries(*page.command, false)) + section("COMMANDS", commands) + section("EXIT STATUS", exit_status());
  return text + section("SEE ALSO", also.empty() ? "" : also + "\n");
}

void write_pages(const std::vector<Page>& pages, const std::filesystem::path& directory) {
  make_directories(directory);
  for (const Page& page : pages) write_durably(directory / (page_name(page.words) + ".1"), manual_page(page, pages));
}

}  // namespace

void add_manual_command(CLI::App& app, int& exit_code) {
  CLI::App* manual = app.add_subcommand("manual", "Print the manual page of a command in man(7) form: trireme manual train | man -l -");
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto output = std::make_shared<std::string>();
  manual->add_option("COMMAND", *words, "The command, such as train or data build; without it the program");
  manual->add_option("--output", *output, "Write the pages of all commands to this directory instead");
  manual->callback([&app, words, output, &exit_code] {
    std::vector<Page> pages;
    collect_pages(app, app.get_name(), pages);
    std::string wanted = app.get_name();
    for (const std::string& word : *words) wanted += " " + word;
    const auto page = std::ranges::find(pages, wanted, &Page::words);
    if (page == pages.end()) throw ConfigError(concat("manual: unknown command: ", wanted, "; see trireme --help"));
    if (!output->empty() && !words->empty()) throw ConfigError("--output: writes the pages of all commands; allowed without COMMAND");
    if (output->empty())
      std::cout << manual_page(*page, pages);
    else
      write_pages(pages, *output);
    finish_output();
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
