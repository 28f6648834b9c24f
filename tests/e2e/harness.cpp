#include "tests/e2e/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {

const std::string kConfig = R"(run: {directory: run, device: cpu}
model: {layers: 4, hidden_size: 16, heads: 4, kv_heads: 2, ffn_size: 32, dropout: 0.1}
training:
  steps: 6
  sequence_length: 16
  global_batch_size: 8
  optimizer: {learning_rate: 1.0e-2}
  schedule: {name: cosine, warmup_steps: 2, final_learning_rate: 1.0e-3}
  evaluate: {every: 3}
data: {train: [train], validation: [validation]}
checkpoint: {every: 2}
observe: {print_every: 1}  # tests wait for the line of a step, also in runs that would print every hundredth
)";

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::temp_directory_path() / "trireme-e2e-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  if (kept_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryDirectory::listing() const {
  std::vector<std::string> lines;
  for (const auto& item : fs::recursive_directory_iterator(path_)) {
    struct stat status {};
    REQUIRE(::lstat(item.path().c_str(), &status) == 0);
    std::ostringstream line;
    line << item.path().string() << ' ' << status.st_mode << ' ' << status.st_ino << ' ' << status.st_size << ' ' << status.st_mtim.tv_sec << '.'
         << status.st_mtim.tv_nsec;
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string TemporaryDirectory::changes_since(const std::vector<std::string>& before) const {
  const std::vector<std::string> now = listing();
  std::vector<std::string> changed;
  std::set_symmetric_difference(before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(changed));
  std::string text;
  for (const std::string& line : changed) text += line + "\n";
  return text;
}

Process::Process(const Arguments& command, const fs::path& directory, std::chrono::seconds limit) : deadline_(begin_ + limit) {
  std::array<int, 2> out{}, err{};
  REQUIRE(::pipe2(out.data(), O_CLOEXEC) == 0);
  REQUIRE(::pipe2(err.data(), O_CLOEXEC) == 0);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    if (::chdir(directory.c_str()) == 0) ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  pipes_[0] = out[0];
  pipes_[1] = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (int& pipe : pipes_)
    if (pipe >= 0) ::close(pipe);
}

void Process::signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }

bool Process::running() const {
  siginfo_t ended{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
}

bool Process::read_some() {
  std::array<pollfd, 2> sources{pollfd{pipes_[0], POLLIN, 0}, pollfd{pipes_[1], POLLIN, 0}};
  if (pipes_[0] < 0 && pipes_[1] < 0) return false;
  if (std::chrono::steady_clock::now() > deadline_) {
    ::kill(-pid_, SIGKILL);
    FAIL("time limit; so far: " << outcome_.out << outcome_.err);
  }
  ::poll(sources.data(), sources.size(), 100);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].revents == 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(pipes_[i], bytes.data(), bytes.size());
    if (count > 0) {
      (i == 0 ? outcome_.out : outcome_.err).append(bytes.data(), static_cast<size_t>(count));
    } else {
      ::close(std::exchange(pipes_[i], -1));
    }
  }
  return true;
}

bool Process::wait_for(const std::string& text) {
  while (outcome_.out.find(text) == std::string::npos)
    if (!read_some()) return false;
  return true;
}

Outcome Process::wait() {
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return outcome_;
}

Outcome run(const TemporaryDirectory& directory, const Arguments& arguments) {
  return Process(Arguments{kBinary} + arguments, directory.path()).wait();
}

Outcome shell(const TemporaryDirectory& directory, const std::string& line) {
  return Process({"env", "T=" + kBinary, "bash", "-c", line}, directory.path()).wait();
}

Arguments mpirun_command() {
  // As recommended for root and for more ranks than cores.
  return {"env",
          "OMPI_ALLOW_RUN_AS_ROOT=1",
          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMPI_MCA_rmaps_base_oversubscribe=1",
          "PRTE_ALLOW_RUN_AS_ROOT=1",
          "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
          "OMPI_MCA_mpi_yield_when_idle=1",
          "mpirun",
          "--bind-to",
          "none"};
}

Outcome run_under_mpirun(const TemporaryDirectory& directory, int ranks, const Arguments& arguments) {
  return Process(mpirun_command() + Arguments{"-n", std::to_string(ranks), kBinary} + arguments, directory.path()).wait();
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  REQUIRE(file.flush().good());
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) names.insert(item.path().filename().string());
  return names;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path.string());
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

void build_data(const TemporaryDirectory& directory) {
  std::string text;
  for (int i = 0; text.size() < 16100; ++i)
    text += "Ship " + std::to_string(i) + " has three banks of " + std::to_string(i * i % 31) + " oars, and all of them pull together.\n";
  write_file(directory / "train.txt", text);
  write_file(directory / "validation.txt", text.substr(3000, 700));
  for (const std::string name : {"train", "validation"}) {
    const Outcome built = run(directory, {"data", "build", "--tokenizer", "bytes", "--output", name, name + ".txt"});
    INFO(built.err);
    REQUIRE(built.code == 0);
  }
}

void prepare_run(const TemporaryDirectory& directory) {
  build_data(directory);
  write_file(directory / "run.yaml", kConfig);
}

std::set<std::string> checkpoint_names(const fs::path& run_directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(run_directory / "checkpoints"))
    if (!item.is_symlink()) names.insert(item.path().filename().string());
  return names;
}

Outcome must(const Outcome& outcome, int code) {
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == code);
  return outcome;
}

Outcome must(const TemporaryDirectory& directory, const Arguments& arguments, int code) { return must(run(directory, arguments), code); }

void check(const Outcome& outcome, int code, const std::string& words) {
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == code);
  CHECK_THAT(code == 0 ? outcome.out : outcome.err, Catch::Matchers::Contains(words));
}

void check_error(const Outcome& outcome, int code, const std::string& words) {
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == code);
  CHECK_THAT(outcome.err, Catch::Matchers::Contains(words));
}

bool says(const Outcome& outcome, const std::string& words) { return outcome.err.find(words) != std::string::npos; }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Arguments in(const std::string& run_directory) { return sets({"run.directory=" + run_directory}); }

Arguments sets(const Arguments& assignments) {
  Arguments arguments;
  for (const std::string& assignment : assignments) arguments.insert(arguments.end(), {"--set", assignment});
  return arguments;
}

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Arguments exporting(const std::string& from, const std::string& to, const Arguments& more) {
  return Arguments{"checkpoint", "export", "--format", "hf", "--output", to, from} + more;
}

Arguments layout(int tensor, int pipeline, int data, int zero_stage) {
  return sets({"parallel.tensor=" + std::to_string(tensor), "parallel.pipeline=" + std::to_string(pipeline), "parallel.data=" + std::to_string(data),
               "parallel.zero_stage=" + std::to_string(zero_stage)});
}

std::vector<nlohmann::json> metrics(const fs::path& run_directory) {
  std::istringstream text(read_file(run_directory / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    INFO(line);
    REQUIRE(lines.back().is_object());
  }
  return lines;
}

std::vector<double> losses(const fs::path& run_directory, size_t steps) {
  std::vector<double> found;
  for (const nlohmann::json& line : metrics(run_directory)) {
    if (!line.contains("loss")) continue;
    REQUIRE(line["step"] == found.size() + 1);
    found.push_back(line["loss"].get<double>());
  }
  REQUIRE(found.size() == steps);
  return found;
}

double validation_loss(const fs::path& run_directory) {
  const auto lines = metrics(run_directory);
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const nlohmann::json& line) { return line.contains("validation_loss"); });
  REQUIRE(last != lines.rend());
  return (*last)["validation_loss"].get<double>();
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& item : fs::directory_iterator("/proc")) {
    const std::string name = item.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // Tests poll this function beside a job that needs the cores, so it reads without a stream. A process that has just ended reads as empty.
    const int file = ::open((item.path() / "cmdline").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    std::string command;
    std::array<char, 4096> bytes;
    for (ssize_t count; (count = ::read(file, bytes.data(), bytes.size())) > 0;) command.append(bytes.data(), static_cast<size_t>(count));
    ::close(file);
    if (command.find(text) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

}  // namespace trireme::test
