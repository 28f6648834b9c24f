// What a run shows on a terminal: a pseudo-terminal of some width is the program's controlling terminal.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

/// What `trireme arguments...` prints to a terminal with `columns` columns.
std::string on_terminal(const TemporaryDirectory& directory, unsigned short columns, const Arguments& arguments) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE((master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0));
  const std::string name = ::ptsname(master);
  std::vector<char*> words{const_cast<char*>(kBinary.c_str())};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setsid();
    const int terminal = ::open(name.c_str(), O_RDWR);  // the first terminal that a session leader opens controls it
    const winsize size{24, columns, 0, 0};
    ::ioctl(terminal, TIOCSWINSZ, &size);
    for (const int standard : {0, 1, 2}) ::dup2(terminal, standard);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    if (::chdir(directory.path().c_str()) == 0) ::execv(words[0], words.data());
    ::_exit(127);
  }
  std::string text, part(4096, '\0');
  pollfd source{master, POLLIN, 0};
  while (::poll(&source, 1, 60000) > 0) {  // the read fails once the last process has closed the terminal
    const ssize_t bytes = ::read(master, part.data(), part.size());
    if (bytes <= 0) break;
    text.append(part, 0, static_cast<size_t>(bytes));
  }
  int status = 0;
  ::kill(-child, SIGKILL);
  ::waitpid(child, &status, 0);
  ::close(master);
  INFO(text);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return text;
}

/// The states of the progress line, without the spaces that erase an earlier one.
std::vector<std::string> progress_lines(const std::string& text) {
  std::vector<std::string> lines;
  const std::regex line("\r([^\r\n]*/600000  [^\r\n]*)");
  for (auto found = std::sregex_iterator(text.begin(), text.end(), line); found != std::sregex_iterator(); ++found) lines.push_back((*found)[1]);
  return lines;
}

TEST_CASE("terminal: the progress line never wraps, and leaves out whole fields") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const bool launched = GENERATE(false, true);
  const Arguments train = Arguments{"train", "run.yaml", "--max-steps", "6"} +
                          sets({"training.steps=600000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"}) +
                          (launched ? layout(1, 1, 2, 1) : Arguments{});
  for (const uint16_t columns : std::initializer_list<uint16_t>{200, 80, 40}) {
    CAPTURE(columns, launched);
    const std::string text = on_terminal(directory, columns, train + in("run-" + std::to_string(columns)));
    INFO(text);
    CHECK(text.find('\x1b') == std::string::npos);  // no escape sequences: TERM=dumb and NO_COLOR need no exception
    const std::vector<std::string> lines = progress_lines(text);
    REQUIRE((lines.size() >= 2 && lines.size() <= 6));  // drawings are at least a tenth of a second apart
    CHECK(lines.back().find("step 6/600000") != std::string::npos);
    for (const std::string& line : lines) {
      CAPTURE(line);
      CHECK(line.size() < columns);
      CHECK(std::regex_match(line, std::regex(R"((\d\d:\d\d:\d\d  )?step \d/600000       loss \d\.\d{4}(  grad_norm \d+\.\d{3} *)?(  lr \S+ *)?)"
                                              R"((  \S+ tokens/s *)?(  left \S+ *)?(  \[=*>? *\])? *)")));
      CHECK((line.find("lr ") != std::string::npos) == (columns == 200));
      CHECK((line.find("tokens/s") != std::string::npos) == (columns > 40));
      CHECK((line.find('[') != std::string::npos) == (columns > 40));
    }
  }
}

TEST_CASE("terminal: a run ends with the curve of its losses, as wide as the terminal") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string text = on_terminal(directory, 80, Arguments{"train", "run.yaml"} + sets({"training.steps=12"}));
  INFO(text);
  const size_t curve = text.find("\nloss of steps 1 to 12 (*), of validation (o)\r\n");
  REQUIRE(curve != std::string::npos);
  CHECK(curve < text.find("\ndone: 12 of 12 steps"));
  size_t width = 0, stars = 0;
  std::istringstream rows(text.substr(curve + 1));
  std::string row;
  for (int i = 0; i < 13 && std::getline(rows, row); ++i) {
    width = std::max(width, row.size() - 1);  // the terminal turns \n into \r\n
    stars += static_cast<size_t>(std::count(row.begin(), row.end(), '*'));
  }
  CHECK(width == 79);
  CHECK(stars >= 8);
}

TEST_CASE("terminal: a redirected run prints plain lines at the configured interval, and metrics.jsonl has every step") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome outcome =
      must(directory, Arguments{"train", "run.yaml"} + sets({"observe.print_every=4", "training.evaluate.every=0", "data.validation=[]"}));
  std::istringstream log(outcome.out);
  std::string shown;
  for (std::string line; std::getline(log, line);) {
    CHECK(std::regex_search(line, std::regex(shown.empty() ? R"(^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  step )" : R"(^\d\d:\d\d:\d\d  step )")));
    shown += line.substr(line.find("step "), 7) + " ";
  }
  CHECK(shown == "step 1/ step 4/ step 6/ ");
  CHECK(losses(directory / "run", 6).size() == 6);
  for (const nlohmann::json& line : metrics(directory / "run"))
    CHECK(std::regex_match(line.value("time", ""), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
}

TEST_CASE("terminal: what a model says cannot command it, and a pipe gets every byte") {
  TemporaryDirectory directory;
  std::string escapes;
  for (int i = 0; i < 4000; ++i) escapes += "\x1b[31m\x1b]0;pwned\x07";
  write_file(directory / "escapes.txt", escapes);
  must(directory, {"data", "build", "escapes.txt", "--output", "train"});
  must(directory, {"data", "build", "escapes.txt", "--output", "validation"});
  write_file(directory / "run.yaml", kConfig);
  must(directory,
       kTrain + in("run") +
           sets({"training.steps=60", "training.optimizer.learning_rate=0.02", "training.evaluate.every=0", "data.validation=[]", "model.dropout=0",
                 "observe.samples.prompts=[a]", "observe.samples.max_tokens=10", "observe.samples.every=30", "checkpoint.every=60"}));
  const Arguments generate = {"generate", "--checkpoint", "run", "--prompt", "\x1b[31m", "--max-tokens", "40", "--temperature", "0"};
  const std::string shown = on_terminal(directory, 80, generate), bytes = must(directory, generate).out;
  INFO(shown);
  CHECK(count(bytes, "\x1b") >= 3);
  CHECK(count(shown, "\x1b") == 0);
  CHECK(count(shown, "\x07") == 0);
  CHECK(count(shown, "\\x1b") == count(bytes, "\x1b"));
  CHECK(count(on_terminal(directory, 80, generate + Arguments{"--tensor", "2"}), "\x1b") == 0);
  std::filesystem::create_directory_symlink("run", directory / "run\x1b]0;pwned\x07");
  const std::string messages = on_terminal(directory, 200, {"checkpoint", "verify", "run\x1b]0;pwned\x07"});  // standard error says what is verified
  CHECK(count(messages, "\x1b") == 0);
  CHECK(count(messages, "verifying run\\x1b]0;pwned\\x07") == 1);
  write_file(directory / "ids", "27 91 51 49 109 7 226 128 174");
  CHECK(count(on_terminal(directory, 80, {"tokenizer", "decode", "--tokenizer", "bytes", "ids"}), "\\x1b[31m\\x07\\xe2\\x80\\xae") == 1);
  CHECK(must(directory, {"tokenizer", "decode", "--tokenizer", "bytes", "ids"}).out == "\x1b[31m\x07\xe2\x80\xae");
}

}  // namespace
}  // namespace trireme::test
