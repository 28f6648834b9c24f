#include "trainer/commands/completion_command.h"

#include <iostream>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "trainer/commands/finish_output.h"

namespace trireme {
namespace {

struct Command {
  std::string path;  ///< words after the program's name: "", "train", "data build"
  std::vector<std::string> subcommands, options;
};

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  const size_t index = commands.size();
  commands.push_back({.path = path, .subcommands = {}, .options = {}});
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) commands[index].options.push_back("--" + name);
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (child->get_name().empty()) continue;
    commands[index].subcommands.push_back(child->get_name());
    collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), commands);
  }
}

/// For bash, and for zsh through its bashcompinit: the commands typed so far select the words that may follow; other words complete to files.
std::string bash_script(const std::vector<Command>& commands) {
  std::string paths, cases;
  for (const Command& command : commands) {
    if (!command.path.empty()) paths += (paths.empty() ? "\"" : " | \"") + command.path + "\"";
    cases += "    \"" + command.path + "\") words=\"" + joined(command.subcommands, " ") + "\" options=\"" + joined(command.options, " ") + "\" ;;\n";
  }
  return R"(# Completion of trireme for bash and zsh: source <(trireme completion bash)
if [ -n "$ZSH_VERSION" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_trireme() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="" next words options i
  for ((i = 1; i < COMP_CWORD; i++)); do
    next="${command:+$command }${COMP_WORDS[i]}"
    case "$next" in
      )" +
         paths +
         R"() command="$next" ;;
    esac
  done
  case "$command" in
)" + cases +
         R"(  esac
  if [[ "$word" == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$word")); else COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}
complete -o default -o bashdefault -F _trireme trireme
)";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string text = "# Completion of trireme for fish: trireme completion fish | source\n";
  for (const Command& command : commands) {
    std::string condition = "__fish_use_subcommand";
    if (!command.path.empty()) {
      condition.clear();
      for (size_t begin = 0; begin < command.path.size();) {
        const size_t end = std::min(command.path.find(' ', begin), command.path.size());
        condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + command.path.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    if (!command.subcommands.empty()) text += "complete -c trireme -f -n '" + condition + "' -a '" + joined(command.subcommands, " ") + "'\n";
    for (const std::string& option : command.options) text += "complete -c trireme -n '" + condition + "' -l " + option.substr(2) + "\n";
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app, int& exit_code) {
  CLI::App* completion = app.add_subcommand("completion", "Print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, shell, &exit_code] {
    std::vector<Command> commands;
    collect(app, "", commands);
    std::cout << (*shell == "fish" ? fish_script(commands) : bash_script(commands));
    finish_output();
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
