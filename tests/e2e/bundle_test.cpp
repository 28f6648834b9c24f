// scripts/bundle.sh: the bundle runs in another place, from its own files only.
#include <fstream>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Runs a program with an empty environment except for a path of system tools.
Outcome bare(const TemporaryDirectory& directory, const Arguments& command, const Arguments& variables = {}) {
  return Process(Arguments{"env", "-i", "PATH=/usr/bin:/bin"} + variables + command, directory.path()).wait();
}

/// Lines of the dynamic linker's log (LD_DEBUG=libs) that load a library, and the text after "calling init: ".
std::vector<std::string> loaded_libraries(const fs::path& logs) {
  std::vector<std::string> loaded;
  for (const auto& log : fs::directory_iterator(logs)) {
    std::ifstream file(log.path());
    const std::string mark = "calling init: ";
    for (std::string line; std::getline(file, line);)
      if (const size_t at = line.find(mark); at != std::string::npos) loaded.push_back(line.substr(at + mark.size()));
  }
  return loaded;
}

bool is_of_the_c_library(const std::string& path) {
  const std::string name = fs::path(path).filename();
  for (const char* stem :
       {"ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so", "libutil.so", "libnss", "libmvec.so"})
    if (name.starts_with(stem)) return true;
  return false;
}

}  // namespace

TEST_CASE("bundle: runs from another directory with its own libraries, plugins and mpirun") {
  TemporaryDirectory directory;
  const std::string script = in_checkout("scripts/bundle.sh");
  const std::string build = fs::path(kBinary).parent_path();
  const Outcome packed = Process({script, "--build", build, "--output", (directory / "bundle.tar.gz").string()}, directory.path()).wait();
  INFO(packed.out << packed.err);
  REQUIRE(packed.code == 0);
  CHECK(fs::file_size(directory / "bundle.tar.gz") < (64u << 20));
  const Outcome unpacked = bare(directory, {"sh", "-c", "tar -xzf bundle.tar.gz && mv trireme-* 'another place'"});
  INFO(unpacked.err);
  REQUIRE(unpacked.code == 0);
  const fs::path root = directory / "another place";
  for (const char* unwanted : {"libcuda.so", "libcublas", "libcudnn", "libnccl", "libc.so.6"})
    for (const auto& file : fs::directory_iterator(root / "lib")) CHECK(file.path().filename().string().find(unwanted) == std::string::npos);

  const Outcome dry = bare(directory, {root / "scripts/gpu-check.sh", "--dry-run"});  // finds its parts and the programs of the bundle
  INFO(dry.err);
  CHECK(dry.code == 0);
  CHECK(dry.out.find((root / "trireme").string() + " train") != std::string::npos);
  CHECK(dry.out.find("pytorch") != std::string::npos);

  const std::string trireme = root / "trireme";
  CHECK(bare(directory, {trireme, "--version"}).out == run(directory, {"--version"}).out);
  build_data(directory);
  write_file(directory / "run.yaml", kConfig);
  fs::create_directories(directory / "loaded");
  const Outcome trained = bare(directory, Arguments{trireme, "train", "run.yaml"} + layout(2, 1, 1, 0) + sets({"run.directory=run"}),
                               {"LD_DEBUG=libs", "LD_DEBUG_OUTPUT=" + (directory / "loaded/log").string()});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  losses(directory / "run", 6);

  bool launcher = false;
  for (const std::string& library : loaded_libraries(directory / "loaded")) {
    INFO(library);
    launcher = launcher || library.find("mca_ess_hnp") != std::string::npos;  // a plugin of mpirun itself
    if (library.starts_with("/")) CHECK((library.starts_with(root.string()) || is_of_the_c_library(library)));
  }
  CHECK(launcher);
}

TEST_CASE("bundle: refuses invalid requests, and writes nothing") {
  TemporaryDirectory directory;
  const std::string script = in_checkout("scripts/bundle.sh");
  const auto before = directory.listing();
  CHECK(Process({script, "--build", directory.path().string(), "--output", (directory / "x.tar.gz").string()}, directory.path()).wait().code == 66);
  CHECK(Process({script, "--format", "zip"}, directory.path()).wait().code == 64);
  CHECK(Process({script, "--build"}, directory.path()).wait().code == 64);
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("gpu-check: prints its usage, and reports a missing GPU") {
  TemporaryDirectory directory;
  const std::string script = in_checkout("scripts/gpu-check.sh");
  fs::create_directories(directory / "tools");
  write_file(directory / "tools/nvidia-smi", "#!/bin/sh\nexit 9\n");  // hides any nvidia-smi of this machine
  fs::permissions(directory / "tools/nvidia-smi", fs::perms::owner_all);
  const auto before = directory.listing();
  const Outcome help = bare(directory, {script, "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("--bundle") != std::string::npos);
  const Outcome none =
      Process({"env", "PATH=" + (directory / "tools").string() + ":/usr/bin:/bin", script, "--work", "work"}, directory.path()).wait();
  CHECK(none.code == 1);
  CHECK(none.err.find("there is no GPU here") != std::string::npos);
  CHECK(bare(directory, {script, "--only", "everything"}).code == 64);
  CHECK(bare(directory, {script, "--bundle", "missing.tar.gz"}).code == 64);
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
