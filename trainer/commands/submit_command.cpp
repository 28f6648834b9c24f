#include "trainer/commands/submit_command.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "parallel/mesh.h"
#include "trainer/commands/restart_planner.h"
#include "trainer/commands/train_command.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/doctor/needs.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/rerouting.h"
#include "trainer/layout/resolve.h"
#include "trainer/submit/batch_script.h"
#include "trainer/submit/quote.h"
#include "trainer/submit/run_program.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using submit::kArrayIndex;

struct SubmitArguments {
  std::string config;
  submit::Request request;
  std::optional<std::string> account, qos, array, script_template, output;
  std::vector<std::string> after, sets, train_options;
  int64_t requeues = 3, strikes = 2;
  bool dry_run = false, print_template = false;
};

/// Refuses what `trireme train` would refuse, and what has to stand before "--" to be part of the script.
void check_train_options(const SubmitArguments& arguments) {
  CLI::App app;
  const auto [train, arguments_of_train] = declare_train_command(app);
  std::vector<std::string> words{"train", arguments.config};
  words.insert(words.end(), arguments.train_options.begin(), arguments.train_options.end());
  std::ranges::reverse(words);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw ConfigError(concat("--: the options of trireme train behind it: ", printable(error.what()), "; see trireme train --help"));
  }
  for (const char* const option : {"--set", "--hosts", "--restarts", "--oversubscribe"})
    if (train->count(option) > 0)
      throw ConfigError(concat(option, ": ",
                               std::string_view(option) == "--set" ? "stands behind --; allowed before it"
                                                                   : "is for ranks that trireme train starts; under Slurm srun starts them"));
}

void check_after(const std::vector<std::string>& jobs) {
  for (const std::string& job : jobs) {
    const size_t bar = std::min(job.find('_'), job.size());
    const auto number = [](std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; };
    if (!number(job.substr(0, bar)) || (bar < job.size() && !number(job.substr(bar + 1))))
      throw ConfigError(concat("--after: \"", printable(job), "\" is no job id; allowed numbers such as 123 or, for an element of an array, 123_4"));
  }
}

/// The overrides of one element of an array. The run directory is its own: <run.directory>/<number>, unless the overrides say where.
std::vector<std::string> sets_with_directory(const SubmitArguments& arguments, const std::string& run_directory) {
  std::vector<std::string> sets = arguments.sets;
  const bool placed =
      std::ranges::any_of(sets, [](const std::string& one) { return one.starts_with("run.directory=") && one.find(kArrayIndex) != one.npos; });
  if (arguments.array && !placed) sets.push_back(concat("run.directory=", run_directory, "/", kArrayIndex));
  return sets;
}

std::vector<std::string> of_element(std::vector<std::string> sets, int64_t index) {
  for (std::string& one : sets) one = submit::text_of_element(one, std::to_string(index));
  return sets;
}

submit::RunNeeds needs_of(const LoadedConfig& loaded) {
  const Config config = resolve(loaded);
  const ParallelConfig& parallel = loaded.config.parallel;
  submit::RunNeeds needs{.world = std::nullopt,
                         .unit = parallel.islands * parallel.tensor * parallel.pipeline,
                         .device = config.run.device,
                         .ranks_per_gpu = config.run.ranks_per_gpu};
  if (parallel.data) needs.world = mesh_shape(config.parallel).world();
  return needs;
}

/// The configurations of all elements that differ by more than run.*, the first one first. All must be the same job for Slurm. Errors: ConfigError.
std::vector<LoadedConfig> checked_configs(const SubmitArguments& arguments, const std::vector<std::string>& sets,
                                          const std::vector<int64_t>& indices) {
  std::vector<LoadedConfig> different{load_config(arguments.config, indices.empty() ? sets : of_element(sets, indices.front()))};
  const RunConfig run = different.front().config.run;
  const auto world = needs_of(different.front()).world;
  std::set<std::string> seen{to_yaml(different.front().config)};
  constexpr size_t kMostRead = 1000;
  for (size_t i = 1; i < std::min(indices.size(), kMostRead); ++i) {
    LoadedConfig other = load_config(arguments.config, of_element(sets, indices[i]));
    if (needs_of(other).world != world || other.config.run.device != run.device)
      throw ConfigError(concat("--array: elements ", indices.front(), " and ", indices[i],
                               " differ in the number of ranks or run.device; allowed what leaves them alike"));
    other.config.run = run;
    if (seen.insert(to_yaml(other.config)).second) different.push_back(std::move(other));
  }
  return different;
}

double largest_rank(const Config& config) {
  double most = 0;
  for (int pipeline = 0; pipeline < config.parallel.pipeline; ++pipeline)
    for (const int rank : ranks_to_forecast(config, pipeline)) most = std::max(most, doctor::forecast_bytes(config, rank));
  return most;
}

fs::path own_path() { return fs::read_symlink("/proc/self/exe"); }

submit::Job job_of(const SubmitArguments& arguments, const submit::Cluster& cluster) {
  check_after(arguments.after);
  const std::vector<int64_t> indices = arguments.array ? submit::array_indices(*arguments.array, cluster.max_array_size) : std::vector<int64_t>{};
  for (const std::string& one : arguments.sets)
    if (!arguments.array && one.find(kArrayIndex) != one.npos)
      throw ConfigError(concat("--set ", printable(one), ": ", kArrayIndex, " is the number of an element; allowed with --array"));
  const std::string base =
      resolve(load_config(arguments.config, indices.empty() ? arguments.sets : of_element(arguments.sets, indices.front()))).run.directory;
  const std::vector<std::string> sets = sets_with_directory(arguments, base);
  const std::vector<LoadedConfig> all = checked_configs(arguments, sets, indices);
  const LoadedConfig& loaded = all.front();
  submit::Job job{.allocation = submit::allocate(cluster, needs_of(loaded), arguments.request),
                  .run_name = loaded.config.run.name,
                  .working_directory = fs::current_path().string(),
                  .array = arguments.array,
                  .after = arguments.after,
                  .output = arguments.output,
                  .account = arguments.account,
                  .qos = arguments.qos,
                  .requeues = arguments.requeues,
                  .strikes = arguments.strikes};
  double largest = 0;
  for (const LoadedConfig& one : all) largest = std::max(largest, largest_rank(resolve(one, job.allocation.world())));
  if (job.allocation.gpus_per_node == 0) submit::reserve_memory(job.allocation, cluster, largest);
  std::string directory = base;
  for (const std::string& one : sets)
    if (one.starts_with("run.directory=") && arguments.array) directory = one.substr(std::string("run.directory=").size());
  job.run_directory = fs::absolute(directory).lexically_normal().string();
  // For an array, the directory above the run directories, which are made by the elements.
  const size_t index = job.run_directory.find(kArrayIndex);
  fs::path logs = arguments.array ? fs::path(job.run_directory.substr(0, index)).parent_path() : fs::path(job.run_directory);
  job.log_directory = (logs / "slurm").string();
  job.command = {own_path().string(), "train", fs::absolute(arguments.config).string()};
  for (const std::string& one : sets) job.command.insert(job.command.end(), {"--set", one});
  job.again = job.command;
  job.command.insert(job.command.end(), arguments.train_options.begin(), arguments.train_options.end());
  const std::vector<std::string> later = without("--resume", arguments.train_options);
  job.again.insert(job.again.end(), later.begin(), later.end());
  return job;
}

/// sbatch would follow SBATCH_* of the environment in place of the script, which was checked.
void ignore_sbatch_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (const std::string_view text = *entry; text.starts_with("SBATCH_")) names.emplace_back(text.substr(0, text.find('=')));
  for (const std::string& name : names) {
    std::cerr << "note: " << printable(name) << " of the environment is not used; the options of trireme submit take its place\n";
    ::unsetenv(name.c_str());
  }
}

/// Slurm opens the log of a job under a name that contains the job's number, and follows a link that waits there. Errors: IoError.
void refuse_foreign_files(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const bool is_file = entry.symlink_status().type() == fs::file_type::regular;
    if (!is_file || entry.hard_link_count() > 1)
      throw IoError(concat(entry.path().string(), ": is ", is_file ? "a file with a second name (a hard link)" : "not a regular file",
                           ", and a job would write into it; remove it"));
  }
}

/// Keeps the script and submits it. A script that sbatch refuses is removed.
void submit_script(const submit::Job& job, const std::string& script) {
  const fs::path file = fs::path(job.log_directory) / "submit.sbatch";
  make_directories(fs::path(job.log_directory).parent_path());
  make_directories_in(fs::path(job.log_directory).parent_path(), fs::path(job.log_directory).filename());
  refuse_foreign_files(job.log_directory);
  write_durably(file, script);
  ignore_sbatch_variables();
  const auto result = submit::run_program({"sbatch", "--parsable", file.string()});
  if (!result || result->code != 0) {
    fs::remove(file);
    std::error_code not_empty;
    if (fs::remove(job.log_directory, not_empty)) fs::remove(fs::path(job.log_directory).parent_path(), not_empty);
    if (!result) throw MissingFileError("sbatch: not found in PATH; run the same command on a login node of the cluster");
    throw ConfigError(concat("sbatch has refused the job: ", printable(result->err)));
  }
  std::cerr << printable(result->err);
  const std::string id = result->out.substr(0, result->out.find_first_of(";\n"));
  std::cout << id << std::endl;
  std::cerr << "submitted job " << id << "; script " << printable(file.string()) << "; log in "
            << printable(job.output ? *job.output : job.log_directory) << "; squeue --job " << id << " shows it, scancel " << id
            << " saves a checkpoint and ends it" << std::endl;
}

int submit_run(const SubmitArguments& arguments) {
  if (arguments.print_template) {
    std::cout << submit::default_template();
    return 0;
  }
  if (arguments.config.empty()) throw ConfigError("CONFIG: is missing; allowed the YAML file of a run");
  check_train_options(arguments);
  check_read_again(arguments.config);
  const std::string text = arguments.script_template ? read_text(*arguments.script_template, 1 << 20) : submit::default_template();
  const submit::Job job = job_of(arguments, submit::find_cluster());
  const std::string script = submit::batch_script(job, text, arguments.script_template.value_or("the default template"));
  for (const std::string& note : job.allocation.notes) std::cerr << "note: " << printable(note) << '\n';
  if (arguments.dry_run)
    std::cout << script;
  else
    submit_script(job, script);
  return 0;
}

void add_resource_options(CLI::App& command, submit::Request& request) {
  constexpr int64_t kMost = 1 << 20;
  command.add_option("--nodes", request.nodes, "Nodes; default: as few as the ranks need")->check(CLI::Range(int64_t{1}, kMost));
  command.add_option("--ranks-per-node", request.ranks_per_node, "Ranks of a node; default: one a GPU, or one a CPU")
      ->check(CLI::Range(int64_t{1}, kMost));
  command.add_option("--cpus-per-rank", request.cpus_per_rank, "CPUs of a rank; default: its share of the node")
      ->check(CLI::Range(int64_t{1}, kMost));
  command.add_option("--gpu-type", request.gpu_type, "Type of the GPUs, where a partition has several");
  command.add_option("--partition", request.partition, "Partition; default: that of the cluster");
  command.add_option("--time", request.time,
                     "Time limit, as sbatch reads it; default: that of the partition. The run continues after it in the same job");
  command
      .add_option(
          "--signal", request.signal_seconds,
          "Seconds before the time limit at which the run saves and stops: more than a step and a save; default 120, or a quarter of the limit")
      ->check(CLI::Range(int64_t{1}, int64_t{65535}));
}

}  // namespace

void add_submit_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("submit", "Submit a run to Slurm: a job that saves, requeues itself and continues until the run is done");
  const auto arguments = std::make_shared<SubmitArguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run");
  add_resource_options(*command, arguments->request);
  command->add_option("--account", arguments->account, "Account to charge");
  command->add_option("--qos", arguments->qos, "Quality of service");
  command->add_option(
      "--array", arguments->array,
      "A job array, such as 0-5: as many runs, whose --set may contain {array}, the number of the run; each in <run.directory>/<number>");
  command->add_option("--after", arguments->after, "Jobs JOB,JOB... that must have succeeded before")->delimiter(',')->allow_extra_args(false);
  command->add_option("--requeues", arguments->requeues, "How often in a row the job is requeued without a new checkpoint")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  command->add_option("--strikes", arguments->strikes, "After how many failures a node is excluded from the job")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--template", arguments->script_template, "Template of the batch script, with placeholders");
  command->add_flag("--print-template", arguments->print_template, "Print the default template, and nothing else");
  command->add_option("--output", arguments->output, "Log file, with the patterns of sbatch; default: <run.directory>/slurm/%j.log");
  command->add_flag("--dry-run", arguments->dry_run, "Print the script; write and submit nothing");
  command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command->add_option("OPTIONS", arguments->train_options, "Behind --: further options of trireme train, such as -- --resume never");
  command->callback([arguments, &exit_code] { exit_code = submit_run(*arguments); });
}

}  // namespace trireme
