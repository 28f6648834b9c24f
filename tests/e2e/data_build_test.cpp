// `trireme data build` from the command line: stopped, killed, started twice, fed by a pipe, on a full disk; and a gigabyte in little memory.
#include <sys/mount.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "kernels/core/rng.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/files/digest.h"
#include "trainer/files/mapped_file.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const std::string kTokenizer = in_checkout("tests/golden/tokenizers/llama3.json");

/// Sentences of artificial words, whose parts recur as in natural language.
std::string sentences(size_t bytes, uint64_t seed) {
  static const char* const kParts[] = {"ba", "re", "me", "tri", "oar", "ship", "s", "ing", "ed", "the", "of", "sea", "un", "der", "al", "on"};
  std::string text;
  text.reserve(bytes + 64);
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    uint64_t bits = random_bits(seed, i);
    for (uint64_t parts = 1 + bits % 3; parts > 0; --parts, bits /= 16) text += kParts[bits / 4 % 16];
    text += bits % 17 == 0 ? ".\n" : bits % 13 == 0 ? ", " : " ";
  }
  return text;
}

/// Digests of the files of a directory, by name.
std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const MappedFile file(entry.path().string());
    Digest digest;
    digest.update(file.data(), static_cast<size_t>(file.bytes()));
    files[entry.path().filename().string()] = digest.str();
  }
  return files;
}

/// Waits until the build has written `bytes` bytes of tokens. Returns false if it has ended.
bool wait_for_tokens(const Process& process, const fs::path& partial, uintmax_t bytes) {
  std::error_code ignored;
  while (process.running()) {
    const uintmax_t size = fs::file_size(partial / "tokens.bin", ignored);
    if (size != static_cast<uintmax_t>(-1) && size >= bytes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

Arguments build_arguments(const std::string& output, const Arguments& more) {
  return Arguments{kBinary, "data", "build", "--tokenizer", kTokenizer, "--output", output} + more;
}

/// Peak memory of a process so far, in MB.
double peak_megabytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024 / 1e6;
  return 0;
}

/// Runs a build to its end and returns its peak memory in MB.
double build_watched(const TemporaryDirectory& directory, const Arguments& arguments) {
  Process process(arguments, directory.path(), std::chrono::seconds(3600));
  double peak = 0;
  while (process.running()) {
    peak = std::max(peak, peak_megabytes(process.pid()));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  WARN(outcome.err << "peak " << peak << " MB");
  return peak;
}

}  // namespace

TEST_CASE("data build: stopped and killed, it resumes and writes identical output") {
  const TemporaryDirectory directory;
  for (uint64_t i = 0; i < 4; ++i) write_file(directory / ("in" + std::to_string(i)), sentences(1'500'000, i));
  const Arguments inputs{"in0", "in1", "in2", "in3", "--threads", "1"};
  REQUIRE(Process(build_arguments("whole", inputs), directory.path()).wait().code == 0);
  const auto expected = files_of(directory / "whole");
  CHECK(expected.size() == 4);

  {
    Process killed(build_arguments("out", inputs), directory.path());
    REQUIRE(wait_for_tokens(killed, directory / "out.partial", 1));
    killed.signal(SIGKILL);
    CHECK(killed.wait().code == 128 + SIGKILL);
    CHECK_FALSE(fs::exists(directory / "out"));
  }
  uintmax_t reached = 1;
  for (const int signal : {SIGTERM, SIGINT}) {
    Process stopped(build_arguments("out", inputs), directory.path());
    REQUIRE(wait_for_tokens(stopped, directory / "out.partial", reached + 300'000));
    stopped.signal(signal);
    const Outcome outcome = stopped.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 75);
    CHECK(outcome.err.find("stopped by signal " + std::to_string(signal)) != std::string::npos);
    CHECK(outcome.err.find("out.partial") != std::string::npos);
    CHECK_FALSE(fs::exists(directory / "out"));
    const auto journal = nlohmann::json::parse(read_file(directory / "out.partial/progress.json"));
    const auto tokens = 2 * journal["tokens"].get<uintmax_t>();
    CHECK(tokens > reached);
    reached = tokens;
  }
  const Outcome last = Process(build_arguments("out", inputs), directory.path()).wait();
  INFO(last.err);
  CHECK(last.code == 0);
  CHECK(files_of(directory / "out") == expected);
  CHECK_FALSE(fs::exists(directory / "out.partial"));
}

TEST_CASE("data build: two builds of one output, and a pipe") {
  const TemporaryDirectory directory;
  const std::string text = sentences(700'000, 1);
  write_file(directory / "in", text);
  REQUIRE(Process(build_arguments("file", {"in"}), directory.path()).wait().code == 0);

  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  Process first(build_arguments("out", {"pipe"}), directory.path());
  std::ofstream pipe(directory / "pipe", std::ios::binary);  // blocks until both ends are open
  pipe << text.substr(0, 400'000) << std::flush;
  while (!fs::exists(directory / "out.partial/tokens.bin")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Outcome second = Process(build_arguments("out", {"in"}), directory.path()).wait();
  INFO(second.err);
  CHECK(second.code == 64);
  CHECK(second.err.find("another process is writing it") != std::string::npos);
  pipe << text.substr(400'000);
  pipe.close();
  CHECK(first.wait().code == 0);
  CHECK(files_of(directory / "out") == files_of(directory / "file"));

  const std::string command = kBinary + " data build --tokenizer " + kTokenizer + " --output shell <(cat in)";
  CHECK(Process({"bash", "-c", command}, directory.path()).wait().code == 0);
  CHECK(files_of(directory / "shell") == files_of(directory / "file"));

  Process stopped(build_arguments("stopped", {"pipe"}), directory.path());
  std::ofstream again(directory / "pipe", std::ios::binary);
  again << text << std::flush;
  stopped.signal(SIGTERM);  // while it waits for more input
  const Outcome outcome = stopped.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  CHECK(outcome.err.find("no progress was saved") != std::string::npos);
  CHECK_FALSE(fs::exists(directory / "stopped.partial"));
}

#ifndef __SANITIZE_ADDRESS__  // needs more address space than the limit set here
TEST_CASE("data build: more threads than the system allows, and data inspect on a full disk") {
  const TemporaryDirectory directory;
  write_file(directory / "in", "text");
  const auto shell = [&](const std::string& line) { return Process({"env", "T=" + kBinary, "bash", "-c", line}, directory.path()).wait(); };
  const Outcome outcome = shell("ulimit -v 2000000; $T data build --threads 1024 --output out in");
  INFO(outcome.err);
  CHECK(outcome.code == 74);
  CHECK(outcome.err.find("--threads=1024: only ") != std::string::npos);
  CHECK(directory.listing().size() == 1);
  CHECK(shell("$T data build --threads 4 --output out in").code == 0);
  CHECK(shell("$T data inspect out > /dev/full").code == 74);
  CHECK(shell("$T data inspect --json out > /dev/full").code == 74);
}
#endif

TEST_CASE("data build: a full disk is reported, and nothing is left on it") {
  const TemporaryDirectory directory;
  write_file(directory / "in", sentences(3'000'000, 1));
  fs::create_directory(directory / "disk");
  if (::mount("none", (directory / "disk").c_str(), "tmpfs", 0, "size=400k") != 0) {
    WARN("a file system cannot be mounted here: not tested");
    return;
  }
  const Outcome outcome = Process(build_arguments("disk/out", {"in"}), directory.path()).wait();
  const bool clean = fs::is_empty(directory / "disk");
  ::umount2((directory / "disk").c_str(), MNT_DETACH);
  INFO(outcome.err);
  CHECK(outcome.code == 74);
  CHECK(outcome.err.find("No space left on device") != std::string::npos);
  CHECK(clean);
}

TEST_CASE("data build: a gigabyte in less than 500 MB, killed three times", "[slow]") {
  const TemporaryDirectory directory;
  {
    std::ofstream text(directory / "text", std::ios::binary);
    for (uint64_t i = 0; i < 40; ++i) text << sentences(20'000'000, i);
    std::ofstream lines(directory / "lines.jsonl", std::ios::binary);
    for (uint64_t i = 0; i < 40'000; ++i) lines << nlohmann::json{{"text", sentences(5000, 100 + i)}}.dump() << '\n';
  }
  const Arguments inputs{"text", "lines.jsonl"};
  CHECK(build_watched(directory, build_arguments("whole", inputs)) < 500);
  const auto expected = files_of(directory / "whole");
  const uintmax_t all = fs::file_size(directory / "whole/tokens.bin");
  for (const uintmax_t part : {2, 5, 8}) {
    Process killed(build_arguments("out", inputs), directory.path(), std::chrono::seconds(3600));
    REQUIRE(wait_for_tokens(killed, directory / "out.partial", all * part / 10));
    killed.signal(SIGKILL);
    killed.wait();
    const auto tokens = nlohmann::json::parse(read_file(directory / "out.partial/progress.json"))["tokens"].get<uintmax_t>();
    CHECK(tokens > 0);
  }
  CHECK(build_watched(directory, build_arguments("out", inputs)) < 500);
  CHECK(files_of(directory / "out") == expected);
}

TEST_CASE("data build: the longest JSON lines on 32 threads in less than 500 MB", "[slow]") {
  const TemporaryDirectory directory;
  for (int i = 0; i < 3; ++i)
    std::ofstream(directory / "lines.jsonl", std::ios::app) << nlohmann::json{{"text", std::string((64 << 20) - 100, 'x')}}.dump() << '\n';
  write_file(directory / "text", std::string(200'000'000, 'x'));
  CHECK(build_watched(directory, {kBinary, "data", "build", "--output", "bytes", "--threads", "32", "lines.jsonl", "text"}) < 500);
}

}  // namespace trireme::test
