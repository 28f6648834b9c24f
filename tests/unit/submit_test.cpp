// `trireme submit`: what a cluster's own commands say about it, what a job asks for, and a script in which no text means anything to a shell.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/scratch.h"
#include "trainer/report/slurm_tries.h"
#include "trainer/submit/allocation_hosts.h"
#include "trainer/submit/batch_script.h"
#include "trainer/submit/quote.h"
#include "trainer/submit/run_program.h"

namespace trireme::submit {
namespace {

using test::Scratch;

const std::string kPartitions =
    "PartitionName=cpu AllowGroups=ALL Default=YES DefaultTime=NONE GraceTime=0 MaxNodes=UNLIMITED MaxTime=1-00:00:00 PreemptMode=OFF State=UP "
    "TotalNodes=4\n"
    "PartitionName=gpu AllowGroups=ALL Default=NO GraceTime=30 MaxNodes=16 MaxTime=UNLIMITED PreemptMode=REQUEUE State=UP TotalNodes=20\n"
    "PartitionName=mixed Default=NO GraceTime=0 MaxNodes=UNLIMITED MaxTime=08:00:00 PreemptMode=OFF State=DOWN TotalNodes=5\n";
const std::string kNodes =
    "cpu|3|16|64000|(null)|idle\n"
    "cpu|1|16|32000+|(null)|down*\n"
    "gpu|18|96|1000000|gpu:h100:8(S:0-1),shard:16|mix\n"
    "gpu|2|96|1000000|gpu:h100:8(S:0-1),shard:16|drain\n"
    "mixed|2|64|500000|gpu:a100:4|idle\n"
    "mixed|3|32|1|gpu:v100:2(S:0,1),nic:1|idle\n";

Cluster cluster() {
  Cluster out{.partitions = partitions_in(kPartitions), .mpi = {"none", "pmi2", "pmix"}, .max_array_size = 1001};
  add_nodes(out.partitions, kNodes);
  return out;
}

Allocation on_cpus(int64_t ranks, const Request& request = {}) { return allocate(cluster(), {.world = ranks, .device = DeviceType::kCpu}, request); }
Allocation on_gpus(int64_t ranks, Request request = {}) {
  if (!request.partition) request.partition = "gpu";
  return allocate(cluster(), {.world = ranks, .device = DeviceType::kCuda}, request);
}

Job job_of(const Allocation& allocation) {
  Job job{.allocation = allocation, .run_name = "r", .working_directory = "/w", .run_directory = "/w/runs/r", .log_directory = "/w/runs/r/slurm"};
  job.command = {"/bin/trireme", "train", "/w/run.yaml"};
  return job;
}

std::string script_of(const Job& job) { return batch_script(job, default_template(), "default"); }

bool has_line(const std::string& text, const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; }

/// Texts that mean something to a shell.
const std::vector<std::string> kNasty{
    "a b", "it's",     "\"quoted\"", "$(touch hacked)", "`touch hacked`", "a\nb",         "-rf", "--set", "*", "~", "$HOME", "a;b", "a&&b", "a\\b",
    "",    "x'\"'\"y", "#no",        "a=b c",           "{a,b}",          "\xc3\xa4 \x01"};

}  // namespace

TEST_CASE("submit: every text is one word of the shell, unchanged") {
  const Scratch scratch;
  for (const std::string& text : kNasty) {
    CAPTURE(text);
    const auto said = run_program({"bash", "-c", concat("cd ", shell_word(scratch / ""), " && printf '<%s>' ", shell_word(text), " end")});
    REQUIRE(said);
    CHECK(said->out == concat("<", text, "><end>"));
    const auto element =
        run_program({"bash", "-c", concat("SLURM_ARRAY_TASK_ID='7 8'; printf '<%s>' ", shell_word_of_element(text + "{array}" + text))});
    REQUIRE(element);
    CHECK(element->out == concat("<", text, "7 8", text, ">"));
  }
  CHECK_FALSE(std::filesystem::exists(scratch / "hacked"));
  CHECK(shell_word("run.directory=runs/a-1,b:c@d%e+f") == "run.directory=runs/a-1,b:c@d%e+f");
  CHECK(text_of_element("a={array}/{array}", "12") == "a=12/12");
}

TEST_CASE("submit: the name of a job has harmless characters only") {
  CHECK(job_name_of("llama-8b_v1.2+x") == "llama-8b_v1.2+x");
  CHECK(job_name_of("-rf $(x)\n\"'") == "_-rf___x____");
  CHECK(job_name_of("") == "_");
  CHECK(job_name_of(std::string(100, 'a')).size() == 64);
}

TEST_CASE("submit: values of #SBATCH lines are quoted, or refused with the name of the option") {
  CHECK(directive_value("--output", "/a/%j.log") == "/a/%j.log");
  CHECK(directive_value("--output", "/a b/$(x)#'%j") == "\"/a b/$(x)#'%j\"");
  CHECK(directive_value("--output", "") == "\"\"");
  for (const std::string text : {"a\nb", "a\"b", "a\\b", "a\x7f"})
    CHECK_THROWS_WITH(directive_value("--account", text),
                      Catch::Matchers::StartsWith("--account: ") && Catch::Matchers::Contains("cannot be written"));
  CHECK(without_patterns("/a%j/100%") == "/a%%j/100%%");
}

TEST_CASE("submit: times are read as Slurm reads them") {
  const std::vector<std::pair<std::string, int64_t>> good{{"90", 5400},        {"90:30", 5430},        {"1:30:00", 5400}, {"2-12", 216000},
                                                          {"2-12:30", 217800}, {"2-12:30:15", 217815}, {"0:20", 20},      {"1-0", 86400}};
  for (const auto& [text, seconds] : good) {
    CAPTURE(text);
    CHECK(seconds_of(text) == seconds);
  }
  for (const char* bad : {"", "x", "1h", "-5", "1:2:3:4", "1-2:3:4:5", "1-", "-", "1.5", " 5", "1:", ":1", "UNLIMITED", "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(seconds_of(bad));
  }
  CHECK(slurm_time(5430) == "01:30:30");
  CHECK(slurm_time(217815) == "2-12:30:15");
  CHECK(seconds_of(slurm_time(217815)) == 217815);
}

TEST_CASE("submit: the numbers of an array") {
  using Numbers = std::vector<int64_t>;
  CHECK(array_indices("0-5", 1001) == Numbers{0, 1, 2, 3, 4, 5});
  CHECK(array_indices("7", 1001) == Numbers{7});
  CHECK(array_indices("9,1-7:3,2%4", 1001) == Numbers{1, 2, 4, 7, 9});
  for (const char* bad : {"", "a", "5-1", "1-", "-1", "1,,2", "1-2-3", "1:2", "1-9:0", "1%0", "1%", "1%2%3", "0-5;ls", "0x3", "1 2"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH(array_indices(bad, 1001), Catch::Matchers::StartsWith("--array: "));
  }
  CHECK_THROWS_WITH(array_indices("0-1001", 1001), Catch::Matchers::Contains("0 to 1000"));
  CHECK_THROWS_WITH(array_indices("1,1-3", 1001), Catch::Matchers::Contains("1 occurs twice"));
}

TEST_CASE("submit: GPUs, partitions and nodes as sinfo and scontrol print them") {
  CHECK(gpus_in("gpu:a100:4(S:0,1),shard:16,gpu:v100:2") == std::vector<GpuCount>{{"a100", 4}, {"v100", 2}});
  CHECK(gpus_in("gpu:2") == std::vector<GpuCount>{{"", 2}});
  CHECK(gpus_in("(null)").empty());
  CHECK(gpus_in("nic:2,mps:100,gpu:0,gpu").empty());
  const Cluster found = cluster();
  REQUIRE(found.partitions.size() == 3);
  CHECK(found.partitions[0].is_default);
  CHECK(found.partitions[0].max_seconds == 86400);
  CHECK_FALSE(found.partitions[0].max_nodes);
  CHECK(found.partitions[0].nodes() == 4);
  CHECK_FALSE(found.partitions[0].groups[1].in_service());
  CHECK_FALSE(found.partitions[1].max_seconds);
  CHECK(found.partitions[1].max_nodes == 16);
  CHECK(found.partitions[1].grace_seconds == 30);
  CHECK(found.partitions[1].groups[0].gpus_of("") == 8);
  CHECK(found.partitions[1].groups[0].in_service());
  CHECK(found.partitions[2].state == "DOWN");
  CHECK_THROWS_AS(partitions_in("slurm_load_partitions: error"), DataError);
  std::vector<Partition> partitions = partitions_in(kPartitions);
  CHECK_THROWS_AS(add_nodes(partitions, "cpu|x|16|1|(null)|idle"), DataError);
  CHECK_THROWS_AS(add_nodes(partitions, "cpu|1"), DataError);
  const std::string new_list = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v3,pmix_v4\n";
  CHECK(mpi_plugins_in(new_list) == std::vector<std::string>{"pmix", "none", "pmi2", "pmix_v3", "pmix_v4"});
  CHECK(mpi_plugins_in("srun: MPI types are...\nsrun: pmi2\nsrun: pmix_v2\n") == std::vector<std::string>{"pmi2", "pmix_v2"});
  CHECK(max_array_size_in("KillWait = 30 sec\nMaxArraySize            = 4001\n") == 4001);
  CHECK_FALSE(max_array_size_in("KillWait = 30 sec\n"));
}

TEST_CASE("submit: ranks, CPUs, memory and GPUs of a node, and whether the job takes it whole") {
  const Allocation whole = on_cpus(16);
  CHECK(whole.partition == "cpu");
  CHECK(whole.nodes == 1);
  CHECK(whole.ranks_per_node == 16);
  CHECK(whole.cpus_per_rank == 1);
  CHECK(whole.whole_nodes);
  CHECK(on_cpus(24).nodes == 2);
  CHECK(on_cpus(24).ranks_per_node == 12);
  const Allocation wide = on_cpus(8, {.nodes = 2});
  CHECK(wide.ranks_per_node == 4);
  CHECK(wide.cpus_per_rank == 4);
  const Allocation part = on_cpus(4, {.cpus_per_rank = 1});
  CHECK_FALSE(part.whole_nodes);
  CHECK(part.megabytes == 32000 / 4);

  const Allocation gpus = on_gpus(16);
  CHECK(gpus.nodes == 2);
  CHECK(gpus.gpus_per_node == 8);
  CHECK(gpus.cpus_per_rank == 12);
  CHECK(gpus.whole_nodes);
  const Allocation few = on_gpus(2);
  CHECK(few.gpus_per_node == 2);
  CHECK(few.cpus_per_rank == 12);
  CHECK_FALSE(few.whole_nodes);
  CHECK(few.megabytes == 250000);
  const Allocation shared = allocate(cluster(), {.world = 4, .device = DeviceType::kCuda, .ranks_per_gpu = 2}, {.partition = "gpu"});
  CHECK(shared.gpus_per_node == 2);
  CHECK(shared.cpus_per_rank == 6);
  CHECK(allocate(cluster(), {.world = 3, .device = DeviceType::kCuda, .ranks_per_gpu = 2}, {.partition = "gpu"}).gpus_per_node == 2);

  // Most nodes of "mixed" have V100s; their memory is not configured.
  const Allocation v100 = on_gpus(4, {.partition = "mixed"});
  CHECK(v100.gpu_type == "v100");
  CHECK(v100.nodes == 2);
  CHECK(v100.megabytes == 0);
  REQUIRE(v100.notes.size() == 2);
  CHECK_THAT(v100.notes[0], Catch::Matchers::Contains("several types, a100, v100; the job takes v100"));
  CHECK_THAT(v100.notes[1], Catch::Matchers::Contains("mixed is DOWN"));
  CHECK(on_gpus(4, {.partition = "mixed", .gpu_type = "a100"}).nodes == 1);

  // run.device=auto takes GPUs where there are some.
  CHECK(allocate(cluster(), {.world = 8}, {.partition = "gpu"}).gpus_per_node == 8);
  CHECK(allocate(cluster(), {.world = 8}, {.partition = "cpu"}).gpus_per_node == 0);
  // parallel.data=auto takes what the job gives.
  CHECK(allocate(cluster(), {.world = {}, .unit = 4}, {.partition = "gpu", .nodes = 3}).world() == 24);
  CHECK(allocate(cluster(), {.world = {}, .unit = 2}, {.nodes = 3, .ranks_per_node = 4}).world() == 12);
}

TEST_CASE("submit: what the cluster has no place for is refused by name") {
  using Catch::Matchers::Contains;
  const auto refuses = [](const auto& of, const std::string& begin, const std::string& part) {
    CHECK_THROWS_WITH(of(), Catch::Matchers::StartsWith(begin) && Contains(part));
  };
  refuses([] { on_cpus(4, {.partition = "gpus"}); }, "--partition: \"gpus\"", "allowed cpu, gpu, mixed; nearest gpu");
  refuses([] { on_cpus(65); }, "--nodes: 65 ranks need 5 nodes of 13 ranks", "allowed in partition cpu: 4 nodes");
  refuses([] { on_gpus(17 * 8); }, "--nodes: 136 ranks need 17 nodes", "16 nodes a job (MaxNodes)");
  refuses([] { on_gpus(16, {.nodes = 1}); }, "--nodes: 16 ranks a node",
          "have 8 GPUs each; allowed divisors of 16 with at most 8 ranks a node; nearest 2");
  refuses([] { on_cpus(8, {.nodes = 3}); }, "--nodes: 8 ranks do not divide evenly over 3 nodes", "nearest 2 or 4");
  refuses([] { on_cpus(8, {.nodes = 2, .ranks_per_node = 2}); }, "--nodes: 2 nodes of 2 ranks are 4 ranks", "has 8");
  refuses([] { on_cpus(8, {.ranks_per_node = 3}); }, "--ranks-per-node: 8 ranks do not divide", "divisors of 8");
  refuses([] { on_cpus(32, {.ranks_per_node = 32}); }, "--ranks-per-node: 32", "have 16 CPUs each; allowed 1 to 16");
  refuses([] { on_cpus(8, {.cpus_per_rank = 17}); }, "--cpus-per-rank: 17", "allowed 1 to 16");
  refuses([] { on_gpus(8, {.partition = "cpu"}); }, "run.device=cuda", "no node of partition cpu has GPUs; allowed --partition gpu, mixed");
  refuses([] { on_gpus(4, {.partition = "mixed", .gpu_type = "a10"}); }, "--gpu-type", "allowed a100, v100; nearest a100");
  refuses([] { on_cpus(8, {.gpu_type = "a100"}); }, "--gpu-type", "uses no GPU");
  refuses([] { on_cpus(8, {.time = "1h"}); }, "--time: \"1h\"", "DAYS-HOURS:MINUTES:SECONDS");
  refuses([] { on_cpus(8, {.time = "0"}); }, "--time: \"0\"", "allowed");
  refuses([] { on_cpus(8, {.time = "1-00:00:01"}); }, "--time: 1-00:00:01 is over the limit of partition cpu", "up to 1-00:00:00");
  refuses([] { on_cpus(8, {.time = "5", .signal_seconds = 240}); }, "--signal: 240", "allowed 1 to 239");
  refuses([] { allocate(cluster(), {.world = {}, .device = DeviceType::kCpu}, {}); }, "--ranks-per-node: parallel.data is auto", "1 to 16");
  refuses([] { allocate(cluster(), {.world = {}, .unit = 3}, {.partition = "gpu"}); }, "--nodes: 1 node of 8 ranks", "a multiple of 3");
  Cluster old = cluster();
  old.mpi = {"none", "pmi2"};
  refuses([&] { allocate(old, {.world = 8, .device = DeviceType::kCpu}, {}); }, "srun --mpi: MPI needs pmix", "none, pmi2");
  old.mpi = {"pmix_v3", "none"};
  CHECK(allocate(old, {.world = 8, .device = DeviceType::kCpu}, {}).mpi == "pmix_v3");
  old.partitions[0].is_default = false;
  refuses([&] { allocate(old, {.world = 8, .device = DeviceType::kCpu}, {}); }, "--partition: this cluster has no default",
          "allowed cpu, gpu, mixed");
}

TEST_CASE("submit: the signal comes early enough for a save, and never at the start of a job") {
  CHECK(on_cpus(8).signal_seconds == 120);
  CHECK(on_cpus(8, {.time = "4"}).signal_seconds == 60);
  CHECK(on_cpus(8, {.time = "1"}).signal_seconds == 15);
  CHECK(on_cpus(8, {.time = "5", .signal_seconds = 239}).signal_seconds == 239);
  CHECK(on_gpus(8).signal_seconds == 120);
  REQUIRE(on_gpus(8).notes.size() == 1);
  CHECK_THAT(on_gpus(8).notes[0], Catch::Matchers::Contains("preempted with 30 s of notice"));
  CHECK(on_gpus(8, {.signal_seconds = 30}).notes.empty());
  CHECK_THAT(on_cpus(64).notes.at(0), Catch::Matchers::Contains("of the 4 nodes only 3 are in service"));
  Cluster few{.partitions = partitions_in(kPartitions), .mpi = {"pmix"}, .max_array_size = 1001};
  add_nodes(few.partitions, "cpu|1|16|64000|(null)|idle\ncpu|3|16|64000|(null)|down*\n");
  CHECK_THAT(allocate(few, {.world = 32, .device = DeviceType::kCpu}, {}).notes.at(0),
             Catch::Matchers::Contains("of the 4 nodes only 1 is in service"));
}

TEST_CASE("submit: memory of the ranks is reserved, and refused where a node has too little") {
  Allocation small = on_cpus(4, {.cpus_per_rank = 1});
  reserve_memory(small, cluster(), 1e6);
  CHECK(small.megabytes == 8000);
  reserve_memory(small, cluster(), 4.0 * (1 << 30));
  CHECK(small.megabytes == 19047);
  CHECK_THROWS_WITH(reserve_memory(small, cluster(), 10.0 * (1 << 30)),
                    Catch::Matchers::StartsWith("--nodes: 4 ranks a node need") && Catch::Matchers::Contains("at most 2 ranks a node"));
}

TEST_CASE("submit: the lines of a script for whole GPU nodes") {
  Job job = job_of(on_gpus(16, {.time = "1-12"}));
  job.account = "lab";
  job.qos = "high prio";
  job.after = {"12", "13_4"};
  const std::string script = script_of(job);
  for (const char* line : {"job-name=r", "partition=gpu", "nodes=2", "ntasks-per-node=8", "cpus-per-task=12", "gpus-per-node=8", "gpu-bind=none",
                           "exclusive", "mem=0", "time=1-12:00:00", "signal=USR1@120", "requeue", "open-mode=append", "account=lab",
                           "qos=\"high prio\"", "dependency=afterok:12:13_4", "kill-on-invalid-dep=yes", "output=/w/runs/r/slurm/%j.log"}) {
    CAPTURE(line);
    CHECK(has_line(script, std::string("#SBATCH --") + line));
  }
  CHECK(has_line(script, "command=(/bin/trireme train /w/run.yaml)"));
  CHECK(has_line(script,
                 "srun_options=(--mpi=pmix --ntasks=16 --ntasks-per-node=8 --cpus-per-task=12 --kill-on-bad-exit=0 --wait=60 --gpu-bind=none)"));
  CHECK(script.find("{{") == std::string::npos);
}

TEST_CASE("submit: a script for part of a CPU node asks for no GPU and not for all of it") {
  const std::string script = script_of(job_of(on_cpus(4, {.cpus_per_rank = 1})));
  CHECK(has_line(script, "#SBATCH --mem=8000M"));
  for (const char* absent :
       {"#SBATCH --exclusive", "gpu-bind", "gpus-per-node", "#SBATCH --array", "#SBATCH --dependency", "#SBATCH --time", "#SBATCH --qos"}) {
    CAPTURE(absent);
    CHECK(script.find(absent) == std::string::npos);
  }
  const std::string typed = script_of(job_of(on_gpus(2, {.partition = "mixed", .gpu_type = "v100"})));
  CHECK(has_line(typed, "#SBATCH --gpus-per-node=v100:2"));
  CHECK(typed.find("#SBATCH --mem") == typed.find("#SBATCH --mem=0"));
}

TEST_CASE("submit: every element of an array has its own words and log") {
  Job job = job_of(on_cpus(4));
  job.array = "0-5%2";
  job.run_directory = "/w/runs/r/{array}";
  job.command = {"/bin/trireme", "train", "/w/run.yaml", "--set", "run.seed={array}", "--set", "run.directory=runs/a b/{array}"};
  const std::string script = script_of(job);
  CHECK(has_line(script, "#SBATCH --array=0-5%2"));
  CHECK(has_line(script, "#SBATCH --output=/w/runs/r/slurm/%A_%a.log"));
  CHECK(has_line(script, "run=/w/runs/r/\"$SLURM_ARRAY_TASK_ID\""));
  CHECK(has_line(
      script,
      "command=(/bin/trireme train /w/run.yaml --set run.seed=\"$SLURM_ARRAY_TASK_ID\" --set 'run.directory=runs/a b/'\"$SLURM_ARRAY_TASK_ID\")"));
}

TEST_CASE("submit: scripts of any names are whole, and pass them on unchanged") {
  const Scratch scratch;
  for (const std::string& text : kNasty) {
    CAPTURE(text);
    Job job = job_of(on_cpus(4));
    job.run_name = text;
    job.working_directory = job.run_directory = "/w/" + text;
    job.command = {"printf", "<%s>", text, "--set", "run.name=" + text};
    const std::string path = scratch.write("job.sbatch", script_of(job));
    const auto parsed = run_program({"bash", "-n", path});
    REQUIRE(parsed);
    CHECK(parsed->code == 0);
    CHECK(parsed->err.empty());
    // The assignments of the script alone, without what it runs.
    const std::string script = script_of(job);
    const size_t begin = script.find("\nrun="), end = script.find("\nsrun_options=");
    REQUIRE(begin < end);
    const auto said =
        run_program({"bash", "-c", concat("cd ", shell_word(scratch / ""), script.substr(begin, end - begin), "\n\"${command[@]}\" \"$run\"")});
    REQUIRE(said);
    CHECK(said->out == concat("<", text, "><--set><run.name=", text, "></w/", text, ">"));
  }
  CHECK_FALSE(std::filesystem::exists(scratch / "hacked"));
  Job job = job_of(on_cpus(4));
  job.log_directory = "/w/a\nb/slurm";
  CHECK_THROWS_WITH(script_of(job), Catch::Matchers::StartsWith("--output: \"/w/a\nb/slurm/%j.log\" cannot be written"));
  job.log_directory = "/w/a%jb/slurm";
  CHECK(has_line(script_of(job), "#SBATCH --output=/w/a%%jb/slurm/%j.log"));
}

TEST_CASE("submit: placeholders of a template") {
  const Job job = job_of(on_cpus(4));
  const std::string needed = "#!/bin/bash\n{{directives}}\n";
  CHECK(batch_script(job, needed + "{{command}} ${#x[@]} {{ $x }}\n{{requeues}} {{strikes}}", "t")
            .find("/bin/trireme train /w/run.yaml ${#x[@]} {{ $x }}\n3 2") != std::string::npos);
  CHECK_THROWS_WITH(
      batch_script(job, needed + "{{command}}\n{{run_dir}}\n", "t"),
      Catch::Matchers::StartsWith("t:4: --template: unknown placeholder {{run_dir}}") && Catch::Matchers::Contains("nearest {{run_directory}}"));
  CHECK_THROWS_WITH(batch_script(job, needed, "t"), "t: --template: {{command}} is missing");
  CHECK_THROWS_WITH(batch_script(job, "{{command}}", "t"), "t: --template: {{directives}} is missing");
  for (const std::string& name : placeholders()) {
    CAPTURE(name);
    CHECK(default_template().find("{{" + name + "}}") != std::string::npos);
    CHECK(batch_script(job, needed + "{{command}}{{" + name + "}}", "t").find("{{") == std::string::npos);
  }
  // What stands in for a placeholder is not looked at again.
  Job odd = job;
  odd.command = {"{{directives}}"};
  CHECK(batch_script(odd, needed + "{{command}}", "t").ends_with("\n'{{directives}}'"));
}

TEST_CASE("submit: programs are run without a shell, with their streams and codes, and not without end") {
  const auto said = run_program({"sh", "-c", "echo out; echo err >&2; exit 3"});
  REQUIRE(said);
  CHECK(said->code == 3);
  CHECK(said->out == "out\n");
  CHECK(said->err == "err\n");
  CHECK(run_program({"printf", "%s", "$(id) 'x'"})->out == "$(id) 'x'");
  CHECK(run_program({"sh", "-c", "kill -TERM $$"})->code == 128 + 15);
  CHECK(run_program({"sh", "-c", "cat"})->code == 0);  // standard input is empty
  CHECK_FALSE(run_program({"no-such-program-of-slurm"}));
  CHECK_THROWS_AS(run_program({"sleep", "20"}, std::chrono::seconds(1)), IoError);
}

TEST_CASE("submit: the nodes of an allocation that are in service, with their slots, for an elastic job") {
  CHECK(counts_of_nodes("4") == std::vector<int>{4});
  CHECK(counts_of_nodes("2(x3),1,16(x2)") == std::vector<int>{2, 2, 2, 1, 16, 16});
  for (const char* wrong : {"", "x", "2(x", "2(x3", "2(x3)1", "2,", "0", "-1", "2(y3)"}) {
    INFO(wrong);
    CHECK_THROWS_AS(counts_of_nodes(wrong), DataError);
  }
  CHECK(hosts_of_allocation({"n1", "n2", "n3"}, {2, 2, 1}, {"n3", "n1", "n9"}) == "n1 slots=2\nn3 slots=1\n");
  CHECK(hosts_of_allocation({"n1"}, {2}, {}).empty());
  CHECK_THROWS_AS(hosts_of_allocation({"n1", "n2"}, {2}, {"n1"}), DataError);
}

TEST_CASE("submit: the hosts of a PBS job are those of its node file, unless it has one host") {
  CHECK(hosts_of_node_file("n1\nn1\nn2.site.org\n\nn1\r\nn3") == "n1 slots=3\nn2.site.org slots=1\nn3 slots=1\n");
  CHECK(hosts_of_node_file("").empty());
  for (const char* wrong : {"n1 slots=9\n", "-x\n", "n1\n#n2\n", "n\x1b[1m\n", "a/b\n"}) {
    INFO(wrong);
    CHECK_THROWS_WITH(hosts_of_node_file(wrong), Catch::Matchers::StartsWith("PBS_NODEFILE: \"") && !Catch::Matchers::Contains("\x1b"));
  }
  const Scratch scratch;
  LaunchEnvironment environment;
  CHECK_FALSE(pbs_hosts(environment));
  environment.pbs_node_file = scratch / "nodes";
  CHECK_THROWS_WITH(pbs_hosts(environment), Catch::Matchers::StartsWith("PBS_NODEFILE "));
  scratch.write("nodes", "n1\nn1\n");
  CHECK_FALSE(pbs_hosts(environment));
  scratch.write("nodes", "n1\nn2\nn1\n");
  CHECK(pbs_hosts(environment) == "n1 slots=2\nn2 slots=1\n");
  environment.slurm_job = "7";  // a shell that was opened in both has the nodes of Slurm
  CHECK_FALSE(pbs_hosts(environment));
}

TEST_CASE("submit: the jobs of a run are read for its report, and damaged lines skipped") {
  const Scratch scratch;
  CHECK(report::slurm_tries(scratch / "").empty());
  scratch.write(
      "slurm/jobs.jsonl",
      R"({"time": "2026-11-27T13:18:42Z", "job": "5", "restart": 0, "event": "start", "nodes": "n[1-2]", "partition": "low", "tasks": 4})"
      "\n"
      R"({"time": "2026-11-27T13:18:54Z", "job": "5", "restart": 0, "event": "end", "code": 75, "seconds": 12, "next": "requeued"})"
      "\n{damaged\n[1]\n"
      R"({"time": "2026-11-27T13:19:42Z", "job": "5", "restart": 1, "array": "4_1", "event": "start", "nodes": "n3", "partition": "low", "tasks": 4})"
      "\n"
      R"({"job": "6", "restart": 1, "event": "end", "code": 0, "seconds": 1, "next": "ends"})"
      "\n");
  const auto tries = report::slurm_tries(scratch / "");
  REQUIRE(tries.size() == 2);
  CHECK(tries[0].nodes == "n[1-2]");
  CHECK(tries[0].tasks == 4);
  CHECK(tries[0].seconds == 12);
  CHECK(tries[0].code == 75);
  CHECK(tries[0].next == "requeued");
  CHECK(tries[1].restart == 1);
  CHECK(tries[1].array == "4_1");
  CHECK_FALSE(tries[1].code);
}

}  // namespace trireme::submit
