// What Slurm says about the jobs of a run: its texts, and to which try of which job they belong.
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/scratch.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/page.h"
#include "trainer/report/slurm_jobs.h"

namespace trireme::report {
namespace {

using Catch::Matchers::Contains;
using submit::JobAccount;
using test::ScopedVariable;
using test::Scratch;

double utc(const std::string& time) { return seconds_since_1970(*time_of_utc("2026-11-27T" + time + ".000Z")); }

/// What Slurm 22.05 has printed about a job that was requeued, beside one with GPUs.
const std::string kSacct =
    "2|low|node[1-2]|REQUEUED|0:0|2026-11-27T17:24:44|2026-11-27T17:24:44|2026-11-27T17:24:47|2|billing=2,cpu=2,node=2||\n"
    "2.batch||node1|CANCELLED|0:15|2026-11-27T17:24:44|2026-11-27T17:24:44|2026-11-27T17:24:47|1|cpu=1,mem=0,node=1|3112K|0\n"
    "2|low|node[1-2]|COMPLETED|0:0|2026-11-27T17:24:47|2026-11-27T17:24:53|2026-11-27T17:24:54|2|billing=2,cpu=2,node=2||0\n"
    "2.batch||node1|COMPLETED|0:0|2026-11-27T17:24:53|2026-11-27T17:24:53|2026-11-27T17:24:54|1|cpu=1,mem=0,node=1|10876K|5\n"
    "2.0||node[1-2]|COMPLETED|0:0|2026-11-27T17:24:53|2026-11-27T17:24:53|2026-11-27T17:24:54|2|cpu=2,mem=0,node=2|1.50M|3600\n"
    "7|gpu|None assigned|CANCELLED by "
    "1000|0:9|2026-11-27T18:00:00|Unknown|Unknown|96|cpu=96,gres/gpu:a=3,gres/gpu:b=5,mem=1G||18446744073709551614\n";

/// A row of `squeue --Format=kQueueFormat`.
std::string queue_row(const std::vector<std::string>& cells) {
  const std::vector<size_t> widths{20, 100, 40, 40, 40, 40, 20, 400, 4000};
  std::string row;
  for (size_t i = 0; i < widths.size(); ++i) row += cells.at(i) + std::string(widths[i] - cells[i].size(), ' ');
  return row + "\n";
}

/// A program in a directory that is the search path.
void write_program(const Scratch& scratch, const std::string& name, const std::string& body) {
  scratch.write("bin/" + name, "#!/bin/bash\n" + body);
  REQUIRE(::chmod((scratch / ("bin/" + name)).c_str(), 0755) == 0);
}

std::string script_line(const std::string& job, int restart, const std::string& time, const std::string& more) {
  return concat(R"({"time": "2026-11-27T)", time, R"(Z", "job": ")", job, R"(", "restart": )", restart, more, "}\n");
}
std::string record_line(const std::string& event, const std::string& time, const std::string& more) {
  return concat(R"({"event":")", event, '"', more, R"(,"time":"2026-11-27T)", time, ".000Z\"}\n");
}
std::string started_line(const std::string& job, int restart, const std::string& time) {
  return record_line("start", time, concat(R"(,"step":0,"slurm_job":")", job, R"(","slurm_restarts":)", restart));
}
std::string slurm_line(const std::string& submitted, const std::string& started, const std::string& time) {
  return record_line("slurm", time,
                     concat(R"(,"partition":"low","nodes":"node[1-2]","cpus":2,"gpus":8,"submitted":"2026-11-27T)", submitted,
                            R"(.000Z","started":"2026-11-27T)", started, R"(.000Z")"));
}

RunRecord run_with(const std::string& records, const std::string& script = "") {
  const Scratch scratch;
  scratch.write("metrics.jsonl", R"({"step":1,"loss":2.5,"step_seconds":1,"time":"2026-11-27T17:25:00.000Z"})"
                                 "\n");
  if (!records.empty()) scratch.write("jobs.jsonl", records);
  if (!script.empty()) scratch.write("slurm/jobs.jsonl", script);
  return read_run(scratch / "");
}

}  // namespace

TEST_CASE("slurm accounts: what sacct prints, tries and steps apart", "[report]") {
  const std::vector<JobAccount> jobs =
      submit::accounts_in_sacct("sacct: a warning\n\n2|low\n" + kSacct + "x|a|b|c|d|e|f|g|h|i|j|k\n8.0||n|COMPLETED|0:0|||||||9K|\n");
  REQUIRE(jobs.size() == 3);
  CHECK(jobs[0].state == "REQUEUED");
  CHECK(jobs[0].max_rss == 3112 * 1024);
  CHECK(std::isnan(jobs[0].joules));
  CHECK(jobs[0].ended == utc("17:24:47"));
  CHECK(jobs[1].job == "2");
  CHECK(jobs[1].partition == "low");
  CHECK(jobs[1].nodes == "node[1-2]");
  CHECK(jobs[1].exit_code == "0:0");
  CHECK(jobs[1].submitted == utc("17:24:47"));
  CHECK(jobs[1].started == utc("17:24:53"));
  CHECK(jobs[1].cpus == 2);
  CHECK(jobs[1].gpus == 0);
  CHECK(jobs[1].max_rss == 10876 * 1024);
  CHECK(jobs[1].joules == 3600);
  CHECK(jobs[2].nodes.empty());
  CHECK(jobs[2].state == "CANCELLED by 1000");
  CHECK(std::isnan(jobs[2].started));
  CHECK(jobs[2].gpus == 8);
  CHECK(std::isnan(jobs[2].joules));  // Slurm's number for "not known"
}

TEST_CASE("slurm accounts: what squeue prints, by columns", "[report]") {
  const std::string running = queue_row({"17", "low", "RUNNING", "2026-11-27T17:00:00", "2026-11-27T17:00:30", "2026-11-28T17:00:30", "4",
                                         "cpu=4,gres/gpu=2,gres/gpu:h100=2,node=1", "node[1-2]"});
  const std::string ended =
      queue_row({"18", "a|b", "COMPLETED", "2026-11-27T17:00:00", "2026-11-27T17:00:30", "2026-11-27T17:00:40", "4", "N/A", ""});
  const std::vector<JobAccount> jobs = submit::accounts_in_squeue(running + "slurm_load_jobs error\n" + ended);
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].state == "RUNNING");
  CHECK(jobs[0].started - jobs[0].submitted == 30);
  CHECK(std::isnan(jobs[0].ended));  // that is its time limit
  CHECK(jobs[0].gpus == 2);
  CHECK(jobs[0].nodes == "node[1-2]");
  CHECK(jobs[1].partition == "a|b");
  CHECK(jobs[1].ended - jobs[1].started == 10);
}

TEST_CASE("slurm accounts: Slurm is asked in UTC, about job ids only, and what it does not say is a note", "[report]") {
  const Scratch scratch;
  scratch.write("bin/answer", kSacct);
  const ScopedVariable path("PATH", (scratch / "bin").c_str()), zone("TZ", "Asia/Tokyo"), format("SLURM_TIME_FORMAT", "relative");
  const std::string row = queue_row({"2", "low", "RUNNING", "", "", "", "4", "cpu=4", "node1"});
  // Neither program.
  submit::Accounts accounts = submit::ask_accounts({"2"});
  CHECK(accounts.jobs.empty());
  CHECK_THAT(accounts.note, Contains("sacct was not found in PATH"));
  CHECK(submit::ask_queue("2").empty());
  // A cluster without accounting.
  write_program(scratch, "sacct", "echo 'sacct: error: a detail' >&2; echo 'Slurm accounting storage is disabled' >&2; exit 1\n");
  write_program(scratch, "squeue", concat("printf '%s\\n' \"$TZ $SLURM_TIME_FORMAT $*\" > '", scratch / "asked", "'\nprintf '", row, "'\n"));
  accounts = submit::ask_accounts({"2"});
  REQUIRE(accounts.jobs.size() == 1);
  CHECK(accounts.jobs[0].cpus == 4);
  CHECK_THAT(accounts.note, Contains("(Slurm accounting storage is disabled)"));
  CHECK_THAT(test::slurp(scratch / "asked"), Catch::Matchers::StartsWith("UTC0 standard ") && Contains(" --jobs=2 "));
  REQUIRE(submit::ask_queue("2").size() == 1);
  CHECK(submit::ask_queue("2 --help").empty());
  // With accounting.
  write_program(scratch, "sacct",
                concat("printf '%s\\n' \"$TZ $SLURM_TIME_FORMAT $*\" > '", scratch / "asked", "'\necho \"$(< '", scratch / "bin/answer", "')\"\n"));
  accounts = submit::ask_accounts({"2", "--help", "7,8", "", "7"});
  CHECK(accounts.jobs.size() == 3);
  CHECK(accounts.note.empty());
  CHECK_THAT(test::slurp(scratch / "asked"), Catch::Matchers::StartsWith("UTC0 standard ") && Contains(" --jobs=2,7 ") && Contains("--duplicates"));
  // Nothing to ask.
  REQUIRE(std::remove((scratch / "asked").c_str()) == 0);
  CHECK(submit::ask_accounts({"x"}).note.empty());
  CHECK(test::slurp(scratch / "asked").empty());
}

TEST_CASE("slurm jobs: each try has its own account, and none of another cluster", "[report]") {
  const std::vector<JobAccount> accounts = submit::accounts_in_sacct(kSacct);
  const std::string script = script_line("2", 0, "17:24:45", R"(, "event": "start", "nodes": "node[1-2]", "partition": "low", "tasks": 2)") +
                             script_line("2", 1, "17:24:54", R"(, "event": "start", "nodes": "node[1-2]", "partition": "low", "tasks": 2)") +
                             script_line("2", 1, "17:24:54", R"(, "event": "end", "code": 75, "seconds": 1, "next": "requeued")");
  const std::string records = started_line("2", 0, "17:24:46") + slurm_line("17:24:00", "17:24:44", "17:24:46") + started_line("2", 1, "17:24:55") +
                              started_line("2", 1, "17:24:56") + started_line("9", 0, "18:00:00") + slurm_line("17:59:00", "17:59:58", "18:00:00");
  const RunRecord run = run_with(records, script);
  CHECK(slurm_job_ids(run) == std::vector<std::string>{"2", "9"});

  std::vector<SlurmJob> jobs = slurm_jobs(run, accounts);
  REQUIRE(jobs.size() == 3);
  CHECK(jobs[0].state == "REQUEUED");
  CHECK(jobs[0].queued == 0);
  CHECK(jobs[0].elapsed == 3);
  CHECK(jobs[0].exit_code == "0:0");
  CHECK(jobs[0].tasks == 2);
  CHECK(jobs[0].gpus == 8);
  CHECK(jobs[1].restart == 1);
  CHECK(jobs[1].state == "COMPLETED");
  CHECK(jobs[1].queued == 6);
  CHECK(jobs[1].exit_code == "75");  // of the script
  CHECK(jobs[1].joules == 3600);
  CHECK(jobs[2].job == "9");  // which the accounting does not know
  CHECK(jobs[2].state.empty());
  CHECK(jobs[2].queued == 58);
  CHECK(jobs[2].cpus == 2);
  CHECK(jobs[2].nodes == "node[1-2]");

  // The job 2 of another cluster: an hour later, or at another second than the one that was recorded.
  std::vector<JobAccount> foreign = accounts;
  for (JobAccount& one : foreign)
    for (double* time : {&one.submitted, &one.started, &one.ended}) *time += 3600;
  CHECK(slurm_jobs(run, foreign)[1].state.empty());
  for (JobAccount& one : foreign)
    for (double* time : {&one.submitted, &one.started, &one.ended}) *time -= 3599;
  jobs = slurm_jobs(run, foreign);
  CHECK(jobs[0].state.empty());
  CHECK(jobs[0].queued == 44);
  CHECK(jobs[1].state == "COMPLETED");  // its start was not recorded, and the clocks of hosts differ
  // An account that ended before the try began.
  foreign = {accounts[0]};
  foreign[0].started -= 600;
  foreign[0].ended -= 600;
  CHECK(slurm_jobs(run, foreign)[1].state.empty());
}

TEST_CASE("slurm jobs: an end belongs to the last try of its own job, and tries are in the order of their begins", "[report]") {
  const std::string begins = R"(, "event": "start", "nodes": "n1", "partition": "low", "tasks": )";
  const std::string script = script_line("2", 0, "17:10:00", begins + "2") + script_line("9", 0, "17:11:00", begins + R"(3, "array": "8_4")") +
                             script_line("2", 0, "17:12:00", begins + "4") +
                             script_line("2", 0, "17:13:00", R"(, "event": "end", "code": 3, "seconds": 60, "next": "ends")") +
                             script_line("9", 0, "17:13:30", R"(, "event": "end", "code": 4, "seconds": 150, "next": "requeued-by-slurm")") +
                             script_line("5", 0, "17:14:00", R"(, "event": "end", "code": 5, "seconds": 1, "next": "ends")");
  const RunRecord run = run_with(started_line("4", 0, "17:09:00") + started_line("2", 0, "17:10:01") + started_line("4", 1, "17:20:00"), script);
  CHECK(slurm_job_ids(run) == std::vector<std::string>{"2", "9", "4"});
  const std::vector<SlurmJob> jobs = slurm_jobs(run, {});
  std::vector<std::string> order;
  for (const SlurmJob& one : jobs) order.push_back(concat(one.job, " ", one.restart, " ", one.tasks, " ", one.exit_code, " ", one.next));
  CHECK(order == std::vector<std::string>{"4 0 0  ", "2 0 2  ", "9 0 3 4 requeued-by-slurm", "2 0 4 3 ends", "4 1 0  "});
  const auto cells = [&](const std::string& name) {
    std::vector<std::string> texts;
    for (const SlurmColumn& column : slurm_columns(jobs))
      for (const SlurmJob& one : jobs)
        if (name == column.name) texts.push_back(column.text(one));
    return texts;
  };
  CHECK(cells("job") == std::vector<std::string>{"4", "2", "8_4 (9)", "2", "4"});
  CHECK(cells("start") == std::vector<std::string>{"17:09:00", "17:10:00", "17:11:00", "17:12:00", "17:20:00"});
  CHECK(cells("elapsed") == std::vector<std::string>{"–", "–", "2.5 min", "60 s", "–"});
  CHECK(cells("then") == std::vector<std::string>{"no end recorded", "no end recorded", "requeued", "ended", "no end recorded"});
  CHECK(cells("energy").empty());
  // A try whose time is unknown comes last, wherever its line is.
  const RunRecord damaged = run_with("", script_line("9", 0, "17:12:00", begins + "1") + script_line("3", 0, "?", begins + "1") +
                                             script_line("2", 0, "17:10:00", begins + "1") + script_line("4", 0, "17:11:00", begins + "1"));
  std::string sorted;
  for (const SlurmJob& job : slurm_jobs(damaged, {})) sorted += job.job;
  CHECK(sorted == "2493");
}

TEST_CASE("slurm jobs: an account is that of a try if it covers its begin up to a minute, and of several the nearest", "[report]") {
  const std::string script = script_line("2", 0, "17:30:00", R"(, "event": "start", "nodes": "n7", "partition": "short", "tasks": 1)");
  const RunRecord run = run_with("", script);
  const double begin = utc("17:30:00"), unknown = JobAccount::kUnknown;
  const auto account = [&](const std::string& state, double started, double ended) {
    return JobAccount{.job = "2", .state = state, .started = started, .ended = ended};
  };
  for (const auto& [started, ended, belongs] : {std::tuple(begin + 60, begin + 100, true),
                                                {begin + 61, begin + 100, false},
                                                {begin - 600, begin - 60, true},
                                                {begin - 600, begin - 61, false},
                                                {begin - 600, unknown, true},
                                                {unknown, unknown, false}}) {
    CAPTURE(started - begin, ended - begin);
    CHECK(slurm_jobs(run, {account("X", started, ended)})[0].state == (belongs ? "X" : ""));
  }
  const double end = begin + 50;
  const JobAccount far = account("FAR", begin - 300, end), near = account("NEAR", begin - 2, end), later = account("LATER", begin + 10, end);
  for (const std::vector<JobAccount>& accounts : {std::vector{far, near, later}, {later, near, far}, {near, far, later}})
    CHECK(slurm_jobs(run, accounts)[0].state == "NEAR");

  // While it runs Slurm has an exit code that says nothing, and what an account does not know stays.
  JobAccount running = account("RUNNING", begin - 10, unknown);
  running.exit_code = "0:0";
  running.submitted = begin - 50;
  running.gpus = 4;
  const SlurmJob job = slurm_jobs(run, {running})[0];
  CHECK(job.exit_code.empty());
  CHECK(std::isnan(job.elapsed));
  CHECK(job.queued == 40);
  CHECK((job.partition == "short" && job.nodes == "n7" && job.gpus == 4 && job.cpus == 0));
  // The script knows partition and nodes better than the run, and Slurm's account better than both.
  const RunRecord recorded =
      run_with(started_line("2", 0, "17:30:04") + slurm_line("17:29:00", "17:30:00", "17:30:05"),
               script + script_line("2", 0, "17:40:00", R"(, "event": "end", "code": 75, "seconds": 600, "next": "requeued")"));
  const SlurmJob alone = slurm_jobs(recorded, {})[0];
  CHECK((alone.partition == "short" && alone.nodes == "n7" && alone.cpus == 2 && alone.gpus == 8));
  CHECK((alone.queued == 60 && alone.elapsed == 600 && alone.exit_code == "75"));
  JobAccount ended = account("FAILED", begin, begin + 599);
  ended.exit_code = "1:0";
  const SlurmJob sparse = slurm_jobs(recorded, {ended})[0];
  CHECK((sparse.partition == "short" && sparse.nodes == "n7" && sparse.cpus == 2 && sparse.gpus == 8 && sparse.queued == 60));
  CHECK((sparse.elapsed == 599 && sparse.exit_code == "1:0"));
  ended.partition = "long";
  ended.nodes = "n8";
  ended.cpus = 3;
  ended.gpus = 5;
  ended.submitted = begin - 7;
  const SlurmJob full = slurm_jobs(recorded, {ended})[0];
  CHECK((full.partition == "long" && full.nodes == "n8" && full.cpus == 3 && full.gpus == 5 && full.queued == 7));
}

TEST_CASE("slurm jobs: the page and the table show what is known, as text", "[report]") {
  RunRecord run = run_with(started_line("2", 0, "17:24:46") + slurm_line("17:24:00", "17:24:44", "17:24:46"));
  run.accounts.note = "no <b>accounting</b>";
  std::vector<RunView> views;
  views.emplace_back(run, "r");
  std::string page = page_html(views, "0.1.0");
  CHECK_THAT(page, Contains("<h2>Slurm jobs</h2>") && Contains("<th scope=\"col\">queued</th>") && Contains("no &lt;b&gt;accounting"));
  CHECK_THAT(page, !Contains("<th scope=\"col\">energy</th>") && !Contains("<th scope=\"col\">tasks</th>"));
  std::string text = slurm_jobs_text(slurm_jobs(run, {}), run.accounts.note);
  CHECK_THAT(text, Contains("Slurm jobs\n") && Contains("44") && Contains("note: no <b>accounting") && !Contains("energy"));

  run.accounts = {submit::accounts_in_sacct(kSacct)};
  run.accounts.jobs[0].nodes = "<script>alert(1)</script>";
  run.accounts.jobs[0].joules = 3.6e6;
  page = page_html(views, "0.1.0");
  CHECK_THAT(page,
             Contains("&lt;script&gt;alert(1)") && !Contains("<script>alert(1)") && Contains("<td>1 kWh</td>") && Contains("<td>REQUEUED</td>"));
  const nlohmann::ordered_json row = slurm_jobs_json(slurm_jobs(run, run.accounts.jobs)).at(0);
  CHECK(row["state"] == "REQUEUED");
  CHECK(row["queued_seconds"] == 0);
  CHECK(row["max_rss_bytes"] == 3112 * 1024);
  CHECK(row["array"].is_null());
  CHECK(slurm_jobs_text({}, "note").empty());
  const RunRecord plain = run_with("");
  views.clear();
  views.emplace_back(plain, "r");
  CHECK_THAT(page_html(views, "0.1.0"), !Contains("<h2>Slurm jobs"));
}

}  // namespace trireme::report
