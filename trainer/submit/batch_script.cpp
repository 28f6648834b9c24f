#include "trainer/submit/batch_script.h"

#include <algorithm>
#include <map>

#include "kernels/core/check.h"
#include "trainer/config/fields.h"
#include "trainer/submit/quote.h"

namespace trireme::submit {
namespace {

std::string directives_of(const Job& job) {
  const Allocation& a = job.allocation;
  std::vector<std::string> options{"job-name=" + job_name_of(job.run_name), "partition=" + directive_value("--partition", a.partition),
                                   concat("nodes=", a.nodes), concat("ntasks-per-node=", a.ranks_per_node),
                                   concat("cpus-per-task=", a.cpus_per_rank)};
  if (a.gpus_per_node > 0) {
    options.push_back(concat("gpus-per-node=", a.gpu_type.empty() ? "" : directive_value("--gpu-type", a.gpu_type) + ":", a.gpus_per_node));
    // Every task sees all GPUs of its node and takes its own by its local rank: NCCL copies directly between GPUs that both ranks see.
    options.emplace_back("gpu-bind=none");
  }
  if (a.whole_nodes) options.emplace_back("exclusive");
  if (a.megabytes > 0) options.push_back(a.whole_nodes ? "mem=0" : concat("mem=", a.megabytes, "M"));
  if (a.seconds) options.push_back("time=" + slurm_time(*a.seconds));
  options.push_back(concat("signal=USR1@", a.signal_seconds));
  options.emplace_back("requeue");
  options.emplace_back("open-mode=append");
  if (job.account) options.push_back("account=" + directive_value("--account", *job.account));
  if (job.qos) options.push_back("qos=" + directive_value("--qos", *job.qos));
  if (job.array) options.push_back("array=" + *job.array);
  if (!job.after.empty()) {
    std::string list;
    for (const std::string& one : job.after) list += ":" + one;
    options.push_back("dependency=afterok" + list);
    options.emplace_back("kill-on-invalid-dep=yes");  // otherwise the job would wait without end for one that has failed
  }
  const std::string log = job.log_directory + (job.array ? "/%A_%a.log" : "/%j.log");
  options.push_back(
      "output=" + directive_value("--output", job.output ? *job.output : without_patterns(job.log_directory) + log.substr(job.log_directory.size())));
  std::string text;
  for (const std::string& option : options) text += "#SBATCH --" + option + "\n";
  text.pop_back();
  return text;
}

std::string srun_options_of(const Allocation& a) {
  // srun does not take --cpus-per-task over from sbatch. With another --mpi every task would be a world of its own, which trireme refuses. A rank that ends
  // ends the others by itself; --wait is for those that cannot.
  std::vector<std::string> options{"--mpi=" + a.mpi,
                                   concat("--ntasks=", a.world()),
                                   concat("--ntasks-per-node=", a.ranks_per_node),
                                   concat("--cpus-per-task=", a.cpus_per_rank),
                                   "--kill-on-bad-exit=0",
                                   "--wait=60"};
  if (a.gpus_per_node > 0) options.emplace_back("--gpu-bind=none");
  return shell_words(options);
}

std::map<std::string, std::string> values_of(const Job& job) {
  const auto quoted = [&](const std::vector<std::string>& words) {
    std::vector<std::string> out;
    for (const std::string& word : words) out.push_back(job.array ? shell_word_of_element(word) : shell_word(word));
    return shell_words(out);
  };
  return {{"job_name", job_name_of(job.run_name)},
          {"directives", directives_of(job)},
          {"working_directory", shell_word(job.working_directory)},
          {"run_directory", job.array ? shell_word_of_element(job.run_directory) : shell_word(job.run_directory)},
          {"command", quoted(job.command)},
          {"command_again", quoted(job.again.empty() ? job.command : job.again)},
          {"srun_options", srun_options_of(job.allocation)},
          {"requeues", std::to_string(job.requeues)},
          {"strikes", std::to_string(job.strikes)}};
}

bool is_name(std::string_view text) { return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == text.npos; }

}  // namespace

std::vector<std::string> placeholders() {
  return {"command", "command_again", "directives", "job_name", "requeues", "run_directory", "srun_options", "strikes", "working_directory"};
}

std::string batch_script(const Job& job, const std::string& text, const std::string& name) {
  const std::map<std::string, std::string> values = values_of(job);
  const std::vector<std::string> known = placeholders();
  std::string allowed;
  for (const std::string& one : known) allowed += (allowed.empty() ? "{{" : ", {{") + one + "}}";
  for (const char* needed : {"directives", "command"})
    if (text.find(concat("{{", needed, "}}")) == text.npos) throw ConfigError(concat(name, ": --template: {{", needed, "}} is missing"));
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = text.find("{{", at), close = open == text.npos ? open : text.find("}}", open);
    out += text.substr(at, open == text.npos ? open : open - at);
    if (open == text.npos) return out;
    const std::string word = close == text.npos ? "" : text.substr(open + 2, close - open - 2);
    if (!is_name(word)) {  // something of the shell's, such as ${names[@]}
      out += "{{";
      at = open + 2;
      continue;
    }
    const auto value = values.find(word);
    if (value == values.end()) {
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(open), '\n');
      throw ConfigError(concat(name, ":", line, ": --template: unknown placeholder {{", word, "}}; allowed ", allowed, "; nearest {{",
                               nearest_word(word, known), "}}"));
    }
    out += value->second;
    at = close + 2;
  }
}

}  // namespace trireme::submit
