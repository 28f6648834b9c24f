// `trireme doctor` on this machine, and on this machine with something broken.
#include <signal.h>

#include <algorithm>
#include <map>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace trireme::test {
namespace {

using nlohmann::json;

constexpr double kLongest = 20;  // seconds that the doctor may take

const Arguments kDoctorOnTwoRanks = layout(1, 1, 2, 1);

/// The findings of a report by their check; several lines of one check are joined, with the worst grade.
struct Report {
  int code = 0;
  json all;
  std::map<std::string, std::string> grade = {}, text = {}, remedy = {};
};

Report read_report(const Outcome& outcome) {
  INFO(outcome.err);
  INFO(outcome.out);
  CHECK(outcome.seconds < kLongest);
  Report report{.code = outcome.code, .all = json::parse(outcome.out, nullptr, false)};
  REQUIRE(report.all.is_object());
  for (const json& finding : report.all["findings"]) {
    const std::string check = finding["check"], grade = finding["grade"];
    CHECK((grade == "good") == finding["remedy"].get<std::string>().empty());
    std::string& worst = report.grade[check];
    if (worst.empty() || grade == "bad" || (grade == "weak" && worst == "good")) worst = grade;
    report.text[check] += finding["text"].get<std::string>() + "\n";
    report.remedy[check] += finding["remedy"].get<std::string>() + "\n";
  }
  CHECK((report.code == 1) == (report.all["grade"] == "bad"));
  CHECK((report.code == 0 || report.code == 1));
  return report;
}

Report doctor(const TemporaryDirectory& directory, const Arguments& arguments) {
  return read_report(run(directory, Arguments{"doctor"} + arguments + Arguments{"--json"}));
}

/// The same by a shell command, in which "$@" is the doctor with its arguments.
Report doctor_in(const TemporaryDirectory& directory, const std::string& command, const Arguments& arguments) {
  return read_report(Process(Arguments{"sh", "-c", command, "sh", kBinary, "doctor"} + arguments + Arguments{"--json"}, directory.path()).wait());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// True as root with a mount namespace.
bool can_mount(const TemporaryDirectory& directory) {
  const bool can = Process({"unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"}, directory.path()).wait().code == 0;
  if (!can) WARN("skipped: no permission to mount");
  return can;
}

}  // namespace

TEST_CASE("doctor: reports on this machine without a configuration, and leaves nothing behind") {
  TemporaryDirectory directory;
  const auto before = directory.listing();
  const Report report = doctor(directory, {});
  CHECK(directory.changes_since(before) == "");
  for (const char* check : {"ranks",         "cores",     "instructions",  "load",          "memory",      "gpus",      "nccl", "mpi",
                            "transports",    "network",   "clocks",        "run_directory", "write_speed", "space",     "data", "open_files",
                            "locked_memory", "processes", "shared_memory", "slurm",         "permissions", "encryption"})
    CHECK(report.grade.contains(check));
  CHECK(report.grade.size() == 22);
  CHECK(report.all["ranks"] == 1);
  CHECK(report.all["facts"].size() == 1);
  const Outcome text = run(directory, {"doctor"});
  CHECK(text.code == report.code);
  CHECK(contains(text.out, "weak") + contains(text.out, "good") > 0);
  CHECK(contains(text.out, "1 rank on 1 host"));
}

TEST_CASE("doctor: starts the ranks of a configuration and asks all of them") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const Report report = doctor(directory, Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(directory.changes_since(before) == "");
  CHECK(report.code == 0);
  CHECK(report.all["ranks"] == 2);
  CHECK(report.all["facts"].size() == 2);
  CHECK(report.all["links"].size() == 1);
  CHECK(contains(report.text.at("mpi"), "started by mpirun"));
  CHECK(contains(report.text.at("memory"), "the ranks of a host need"));
  CHECK(contains(report.text.at("data"), "training sequences"));
  CHECK(contains(report.text.at("space"), "checkpoint"));
  const Report joined = read_report(run_under_mpirun(directory, 2, Arguments{"doctor", "run.yaml", "--json"} + kDoctorOnTwoRanks));
  CHECK(joined.all["ranks"] == 2);
  CHECK(joined.grade.at("ranks") == "good");
}

TEST_CASE("doctor: another number of ranks than the layout has") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Report report = read_report(run_under_mpirun(directory, 3, Arguments{"doctor", "run.yaml", "--json"} + kDoctorOnTwoRanks));
  CHECK(report.code == 1);
  CHECK(report.grade.at("ranks") == "bad");
  CHECK(contains(report.remedy.at("ranks"), "mpirun -n 2"));
}

TEST_CASE("doctor: data that are missing") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const Report report = doctor(directory, Arguments{"run.yaml"} + layout(1, 1, 1, 0));
  CHECK(report.code == 1);
  CHECK(report.grade.at("data") == "bad");
  CHECK(contains(report.remedy.at("data"), "trireme data build"));
}

TEST_CASE("doctor: a tiny /dev/shm") {
  TemporaryDirectory directory;
  prepare_run(directory);
  if (!can_mount(directory)) return;
  const Report report = doctor_in(directory, "exec unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\"' sh \"$@\"",
                                  Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(report.code == 1);
  CHECK(report.grade.at("shared_memory") == "bad");
  CHECK(contains(report.remedy.at("shared_memory"), "mount -o remount,size="));
  CHECK(report.grade.at("ranks") == "bad");
  CHECK(contains(report.text.at("ranks"), "see shared_memory"));
}

TEST_CASE("doctor: few file descriptors") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Report report = doctor_in(directory, "ulimit -n 40; exec \"$@\"", Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(report.code == 1);
  CHECK(report.grade.at("open_files") == "bad");
  CHECK(contains(report.remedy.at("open_files"), "ulimit -Hn"));
}

TEST_CASE("doctor: a full disk, and one with room for one checkpoint only") {
  TemporaryDirectory directory;
  prepare_run(directory);
  if (!can_mount(directory)) return;
  std::filesystem::create_directory(directory / "full");
  const auto on = [&](const std::string& size, const std::string& filled) {
    return doctor_in(directory,
                     "exec unshare -m sh -c 'mount -t tmpfs -o size=" + size + " none full && head -c " + filled +
                         " /dev/zero > full/filler; exec \"$@\"' sh \"$@\"",
                     Arguments{"run.yaml"} + layout(1, 1, 1, 0) + in("full/run") + sets({"checkpoint.every=1", "training.steps=9"}));
  };
  const Report full = on("1m", "2m");
  CHECK(full.code == 1);
  CHECK(full.grade.at("run_directory") == "bad");
  CHECK(contains(full.text.at("run_directory"), "No space left on device"));
  CHECK(full.grade.at("space") == "bad");
  CHECK(contains(full.remedy.at("space"), "checkpoint.keep: 1"));
  const double bytes = full.all["facts"][0]["run"]["free"];
  CHECK(bytes < 5000);
}

TEST_CASE("doctor: a missing mpirun") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Report needed = doctor_in(directory, "PATH=/nowhere; export PATH; exec \"$@\"", Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(needed.code == 1);
  CHECK(needed.grade.at("mpi") == "bad");
  CHECK(contains(needed.remedy.at("mpi"), "apt install openmpi-bin"));
  CHECK(contains(needed.text.at("ranks"), "see mpi"));
  const Report alone = doctor_in(directory, "PATH=/nowhere; export PATH; exec \"$@\"", Arguments{"run.yaml"} + layout(1, 1, 1, 0));
  CHECK(alone.code == 0);
  CHECK(alone.grade.at("mpi") == "weak");
}

TEST_CASE("doctor: a disk that is slow to sync, and one that hangs") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string slow_disk = "LD_PRELOAD=" + shim("slow") + " TRIREME_SHIM_FSYNC_MS=";
  const Report slow = doctor_in(directory, slow_disk + "300 exec \"$@\"", Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(slow.grade.at("write_speed") == "weak");
  CHECK(contains(slow.text.at("write_speed"), "slow to sync"));
  CHECK(contains(slow.remedy.at("write_speed"), "run.directory: DIR"));
  const Report hung = doctor_in(directory, slow_disk + "60000 exec \"$@\"", Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(hung.code == 1);
  CHECK(hung.grade.at("write_speed") == "bad");
  CHECK(contains(hung.text.at("write_speed"), "did not return in time"));
}

TEST_CASE("doctor: a clock that is wrong on one rank of another host") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // The second rank gets a host name of its own, so that it counts as another host.
  write_file(directory / "rank.sh", "#!/bin/sh\n[ $OMPI_COMM_WORLD_RANK = 0 ] || { hostname galley-b; }\nexec \"$@\"\n");
  const Outcome names = Process({"unshare", "--uts", "hostname", "galley-b"}, directory.path()).wait();
  if (names.code != 0) {
    WARN("skipped: no permission to set a host name");
    return;
  }
  const Report report = doctor_in(directory,
                                  "binary=$1; shift; LD_PRELOAD=" + shim("slow") +
                                      " TRIREME_SHIM_RANK=1 TRIREME_SHIM_CLOCK_AHEAD=400 exec mpirun --allow-run-as-root "
                                      "--oversubscribe -n 2 unshare --uts sh rank.sh $binary \"$@\"",
                                  Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(report.code == 1);
  CHECK(report.all["hosts"].size() == 2);
  CHECK(report.grade.at("clocks") == "bad");
  CHECK(contains(report.text.at("clocks"), " ahead of rank 0's"));
  CHECK(contains(report.remedy.at("clocks"), "timedatectl set-ntp true"));
  CHECK(report.grade.at("encryption") == "weak");
}

TEST_CASE("doctor: a rank that does not answer is named in time") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Report report =
      doctor_in(directory,
                "LD_PRELOAD=" + shim("slow") + " TRIREME_SHIM_RANK=1 TRIREME_SHIM_STOP=1 exec mpirun --allow-run-as-root --oversubscribe -n 2 \"$@\"",
                Arguments{"run.yaml"} + kDoctorOnTwoRanks);
  CHECK(report.code == 1);
  CHECK(report.grade.at("ranks") == "bad");
  CHECK(contains(report.text.at("ranks"), "rank 0 waits for an answer of rank 1"));
}

TEST_CASE("doctor: bad usage ends with 64 and writes nothing") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const auto before = directory.listing();
  for (const auto& [arguments, code] : std::vector<std::pair<Arguments, int>>{{{"none.yaml"}, 66},
                                                                              {{"run.yaml", "--set", "model.heads=3"}, 64},
                                                                              {{"--set", "model.heads=4"}, 64},
                                                                              {{"--hosts", "hosts"}, 64},
                                                                              {{"run.yaml", "--frequency"}, 64}}) {
    const Outcome outcome = run(directory, Arguments{"doctor"} + arguments);
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK(outcome.out == "");
    CHECK(outcome.err != "");
  }
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
