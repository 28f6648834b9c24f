// The run directory, its disk, and the data.
#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"
#include "kernels/core/joined.h"
#include "trainer/data/dataset.h"
#include "trainer/doctor/judge.h"
#include "trainer/files/table.h"
#include "trainer/plan/text.h"

namespace trireme::doctor {
namespace {

constexpr unsigned kGroupWrites = 0020, kOthersWrite = 0002, kOthersRead = 0004, kSticky = 01000;

/// "runs/a", or with the directory that was looked at in its place.
std::string place_of(const DirectoryFacts& run) { return run.path == run.probed ? run.path : concat(run.path, " (", run.probed, ")"); }

/// Adds to the space of a disk that it has room for `files` more files only.
void add_few_files(double files, Finding& finding) {
  const bool is_full = finding.grade != Grade::kGood;
  finding.group += " and files";
  if (!is_full) finding.severity = -files;
  finding.grade = std::max(finding.grade, files < 16 ? Grade::kBad : Grade::kWeak);
  finding.text += concat("; ", counted(std::llround(files), "more file"), " can be created");
  finding.remedy = is_full ? "remove files there (df -i); " + finding.remedy : "remove files there (df -i), or run.directory: DIR on another disk";
}

/// Adds what a run says of the key files that it opens.
void add_keys(const std::vector<KeyFileFacts>& keys, Finding& finding) {
  if (keys.empty()) finding.text += "; no key file is read here";
  std::vector<std::string> own;
  bool refused = false;
  for (const KeyFileFacts& key : keys) {
    if (key.error.empty()) own.push_back(key.key);
    if (!key.error.empty()) finding.text += concat("; ", key.error);
    refused = refused || !key.error.empty();
  }
  if (!own.empty()) finding.text += concat("; no other user can read ", joined(own));
  if (!refused) return;
  finding.grade = Grade::kBad;
  if (!finding.remedy.empty()) finding.remedy += "; ";
  finding.remedy += "put the file there on every host that is named, owned by the user of the run, with mode 0600 (chown, chmod 600 FILE)";
}

}  // namespace

Finding judge_run_directory(const JobFacts& job, const RankFacts& rank) {
  const DirectoryFacts& run = rank.run;
  const bool several = hosts_of(job) > 1;
  Finding finding{.text = concat(place_of(run), " on ", run.kind,
                                 several       ? "; every rank sees the same directory"
                                 : run.network ? ", which hosts can share"
                                               : ", local to the host")};
  if (!run.error.empty())
    return {.grade = Grade::kBad,
            .text = concat(place_of(run), " on ", run.kind, ": ", run.error),
            .remedy = run.error.find("No space") != run.error.npos ? "free space there, or run.directory: DIR on another disk"
                                                                   : "run.directory: DIR where this user may write, or chown and chmod it"};
  if (!run.same_as_rank_0)
    return {.grade = Grade::kBad,
            .text = concat(place_of(run), " on ", run.kind, ": not the directory of rank 0, whose files this rank does not see"),
            .remedy = "run.directory: DIR on a file system that all hosts share (findmnt -T DIR)"};
  if (run.kind == "tmpfs") {
    finding.grade = Grade::kWeak;
    finding.text = concat(place_of(run), " on tmpfs: checkpoints take memory and are lost at a restart of the host");
    finding.remedy = "run.directory: DIR on a disk";
  }
  return finding;
}

Finding judge_write_speed(const JobFacts& job, const RankFacts& rank) {
  const DirectoryFacts& run = rank.run;
  constexpr double kSlow = 50e6, kUseless = 1e6, kSlowSync = 0.1, kUselessSync = 5, kLongSave = 60;
  const char* const remedy = "run.directory: DIR on a faster disk (findmnt lists them); checkpoint.asynchronous: true; a longer checkpoint.every";
  if (run.stalled)
    return {.grade = Grade::kBad,
            .text = concat(run.probed, ": a write with fsync did not return in time"),
            .remedy = "dmesg and the file server's log; run.directory: DIR on another disk",
            .group = "stalled"};
  if (run.write_rate == kNone) return {.text = "not measured: nothing can be written", .group = "unmeasured"};
  const double save = job.needs ? job.needs->checkpoint / hosts_of(job) / run.write_rate : 0;
  Finding finding{.text = concat(binary_bytes_text(run.write_rate), "/s with fsync, a small fsync ", time_text(run.sync_seconds)),
                  .group = "speed",
                  .severity = std::max(1 / run.write_rate, run.sync_seconds / kSlowSync / kSlow)};
  if (save > 0) finding.text += concat("; a checkpoint of ", binary_bytes_text(job.needs->checkpoint), " takes ", time_text(save));
  if (run.write_rate >= kSlow && run.sync_seconds <= kSlowSync && save <= kLongSave) return finding;
  finding.grade = run.write_rate < kUseless || run.sync_seconds > kUselessSync ? Grade::kBad : Grade::kWeak;
  finding.group = run.sync_seconds > kSlowSync ? "slow to sync" : run.write_rate < kSlow ? "slow" : "long save";
  finding.text += run.sync_seconds > kSlowSync ? ": the disk is slow to sync" : run.write_rate < kSlow ? ": the disk is slow" : "";
  finding.remedy = remedy;
  return finding;
}

Finding judge_space(const JobFacts& job, const RankFacts& rank) {
  const DirectoryFacts& run = rank.run;
  constexpr double kSome = 1 << 30, kFewFiles = 1000;
  Finding finding{.text = concat(binary_bytes_text(run.free), " free"), .group = "space", .severity = -run.free};
  if (run.free == kNone) finding = {.text = "unknown", .group = "unknown"};
  const double one = job.needs ? job.needs->checkpoint : 0, all = job.needs ? job.needs->storage : 0;
  if (all > 0) {
    const auto count = std::llround(std::ceil(all / one));
    finding.text +=
        concat("; ", counted(count, "checkpoint"), " of ", binary_bytes_text(one), count == 1 ? " needs " : " need ", binary_bytes_text(all));
  }
  if (run.free != kNone && job.needs && run.free < one) {
    finding.grade = Grade::kBad;
    finding.group = "too little space";
    finding.text += ": not even one fits";
  } else if (run.free != kNone && run.free < std::max(all, job.needs ? 0 : kSome)) {
    finding.grade = Grade::kWeak;
    finding.group = "little space";
    finding.text += job.needs ? ": they do not all fit" : ": little for checkpoints";
  }
  if (finding.grade != Grade::kGood) finding.remedy = "free space there (df -h), checkpoint.keep: 1, or run.directory: DIR on another disk";
  if (run.files != kNone && run.files < kFewFiles) add_few_files(run.files, finding);
  return finding;
}

Finding judge_data(const JobFacts& job, const RankFacts& rank) {
  if (!job.needs) return {.text = "no configuration is given"};
  const DataFacts& data = rank.data;
  if (!data.error.empty())
    return {.grade = Grade::kBad, .text = data.error, .remedy = "trireme data build --output DIR FILE..., or data.train: [DIR] where the data are"};
  const auto sequences = std::llround(data.sequences);
  if (!same_data(data.identity, job.ranks.front().data.identity))
    return {.grade = Grade::kBad,
            .text = concat(counted(sequences, "sequence"), " in ", binary_bytes_text(data.bytes), ": other data than those of rank 0"),
            .remedy = "data.train: [DIR] on a file system that all hosts share, or the same copy on every host"};
  return {.text = concat(counted(sequences, "training sequence"), "; ", binary_bytes_text(data.bytes), " of data can be opened")};
}

Finding judge_permissions(const JobFacts& job, const RankFacts& rank) {
  const DirectoryFacts& run = rank.run;
  const auto mode = static_cast<unsigned>(run.mode);
  Finding finding{.text = concat(run.probed, " has mode ", print("%04o", static_cast<unsigned>(run.mode & 07777)))};
  const bool writable = (mode & (kGroupWrites | kOthersWrite)) != 0 && (mode & kSticky) == 0;
  if (writable) {
    finding.grade = (mode & kOthersWrite) != 0 ? Grade::kBad : Grade::kWeak;
    finding.text += (mode & kOthersWrite) != 0 ? ": every user of the host can replace checkpoints" : ": its group can replace checkpoints";
    finding.remedy = concat("chmod go-w ", run.probed);
  } else if (!run.own) {
    finding.grade = Grade::kWeak;
    finding.text += ", and another user owns it";
    finding.remedy = "run.directory: DIR of this user";
  } else if ((mode & kOthersRead) != 0) {
    finding.text += concat("; others can read it (chmod 700 ", run.probed, " keeps it private)");
  }
  if (job.needs) add_keys(rank.keys, finding);
  return finding;
}

}  // namespace trireme::doctor
