#include "trainer/job/job_hosts.h"

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/mpirun_command.h"

namespace trireme {
namespace {

constexpr std::chrono::seconds kLook{1};         ///< between two looks at the hosts file
constexpr std::chrono::seconds kAllocation{10};  ///< between two questions to Slurm
constexpr std::chrono::seconds kProbe{30};       ///< between two probes of a lost host

bool all_have_slots(const std::vector<Host>& hosts) {
  return std::ranges::all_of(hosts, [](const Host& host) { return host.slots.has_value(); });
}

/// Whether the host of the ranks may be the cause, as opposed to the program.
bool blames_hosts(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::kDead:
    case Verdict::Kind::kFailed:
    case Verdict::Kind::kAbsent:
    case Verdict::Kind::kSilent:
    case Verdict::Kind::kHung: return true;
    case Verdict::Kind::kLeft:
    case Verdict::Kind::kDisagreement:
    case Verdict::Kind::kDeadlock:
    case Verdict::Kind::kLauncher: return false;
  }
  return false;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : ", ", word);
  return text;
}

}  // namespace

JobHosts::JobHosts(const LaunchEnvironment& environment, JobHostsOptions options, std::function<void(const std::string&)> say)
    : environment_(environment), options_(std::move(options)), say_(std::move(say)) {
  TRIREME_CHECK(!options_.worlds.empty(), "no number of ranks");
  if (!options_.hosts_file && !options_.allocation_hosts) return;
  text_ = read_text_of_hosts();
  const std::vector<Host> hosts = parse_hosts(text_);
  if (all_have_slots(hosts)) {
    pool_.emplace(hosts, options_.strikes);
  } else if (options_.worlds.size() > 1) {
    const auto without = std::ranges::find_if(hosts, [](const Host& host) { return !host.slots; });
    throw ConfigError(concat("hosts file ", options_.hosts_file.value(), ": host ", without->name,
                             " has no slots=N, or several lines, and resilience.elastic must know how many ranks each host can take"));
  }
}

std::string JobHosts::read_text_of_hosts() const { return options_.hosts_file ? hosts_text(*options_.hosts_file) : options_.allocation_hosts(); }

/// Private to this launcher, made at first use. Errors: IoError.
const std::filesystem::path& JobHosts::directory() {
  std::error_code error;
  const std::filesystem::path place = std::filesystem::temp_directory_path(error);
  if (!directory_) directory_.emplace(error ? "/tmp" : place);
  if (directory_->path().empty()) throw IoError(concat("cannot create a directory in ", place.string()));
  return directory_->path();
}

/// Reads the hosts file again. Returns true if the hosts have changed. A file that cannot be used, as while it is being written, changes nothing.
bool JobHosts::read_hosts() {
  std::string text;
  try {
    text = read_text_of_hosts();
  } catch (const Error&) {
    return false;
  }
  if (text == text_) return false;
  text_ = text;
  const std::vector<Host> hosts = parse_hosts(text);
  if (!all_have_slots(hosts)) {
    say_(concat("warning: hosts file ", options_.hosts_file.value(),
                " has changed, but not every host has one line with slots=N; the hosts stay as they were"));
    return false;
  }
  if (hosts == pool_->hosts()) return false;
  pool_.emplace(hosts, options_.strikes);
  return true;
}

/// Returns false if nothing could be started, as on a full disk: then nothing is known about the hosts.
bool JobHosts::start_probe(const std::vector<Host>& hosts) {
  next_probe_ = Clock::now() + kProbe;
  if (hosts.empty()) return false;
  try {
    probe_.emplace(environment_, hosts, directory());
    return true;
  } catch (const Error&) {
    return false;
  }
}

void JobHosts::probe_all(const StopRequest& stop) {
  if (start_probe(pool_->hosts())) take_answers(probe_->wait(stop));
  probe_.reset();
}

void JobHosts::take_answers(const std::vector<HostProbe::Answer>& answers) {
  for (const auto& [host, reachable] : answers) pool_->set_reachable(host, reachable);
}

std::optional<JobHosts::World> JobHosts::next(const StopRequest& stop) {
  waited_ = 0;
  if (stop.requested()) return std::nullopt;
  if (!chooses()) return undecided();
  const auto begin = Clock::now();
  bool asks = std::exchange(has_failed_, false) && pool_->hosts().size() > 1, waits = false;
  for (;;) {
    if (asks) probe_all(stop);
    if (stop.requested()) return std::nullopt;
    read_hosts();
    if (const std::optional<Placement> placement = pool_->place(options_.worlds)) return use(*placement);
    std::vector<std::string> lost;
    for (const Host& host : pool_->unreachable_hosts()) lost.push_back(host.name);
    // The hosts file never had enough: mpirun starts more ranks than slots, as on a laptop.
    if (!current_ && options_.worlds.size() == 1 && lost.empty()) return undecided();
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited >= options_.wait_seconds) {
      say_(concat("giving up: the hosts that can be reached have no room for ", counted(options_.worlds.back(), "rank")));
      return std::nullopt;
    }
    if (!std::exchange(waits, true))
      say_(concat("waiting up to ", options_.wait_seconds, " s for hosts: those that can be reached have no room for ",
                  counted(options_.worlds.back(), "rank"), lost.empty() ? "" : concat("; not reachable: ", joined(lost))));
    const bool goes_on = stop.sleep(kLook);
    waited_ = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!goes_on) return std::nullopt;
    asks = !lost.empty() && Clock::now() > next_probe_;
  }
}

/// All ranks on all hosts, where mpirun decides.
JobHosts::World JobHosts::undecided() {
  const int ranks = options_.worlds.front();
  int hosts = environment_.allocated_nodes.value_or(1);
  if (!text_.empty()) hosts = static_cast<int>(parse_hosts(text_).size());
  return {ranks, options_.allocation_hosts && !text_.empty() ? written(text_) : options_.hosts_file, (ranks + hosts - 1) / std::max(1, hosts)};
}

/// A hostfile for mpirun with this text.
std::string JobHosts::written(const std::string& text) {
  const std::filesystem::path path = directory() / "hosts";
  write_durably(path, text);
  return path;
}

JobHosts::World JobHosts::use(const Placement& placement) {
  if (current_ ? placement != *current_ : placement.ranks != options_.worlds.front()) report(placement);
  current_ = placement;
  World world{placement.ranks, options_.hosts_file};
  std::string text;
  int left = placement.ranks;
  for (const Host& host : placement.hosts) {
    text += host.lines;
    world.host_ranks = std::max(world.host_ranks, std::min(left, *host.slots));
    left -= *host.slots;
  }
  if (options_.hosts_file && options_.worlds.size() == 1 && placement.hosts == pool_->hosts()) return world;
  world.hosts_file = written(text);  // a copy, because the file may change before mpirun reads it
  return world;
}

void JobHosts::report(const Placement& placement) const {
  const std::vector<std::string> without = pool_->reasons_against(placement);
  say_(concat("using ", placement.ranks, " of ", counted(options_.worlds.front(), "rank"), " on ", counted(std::ssize(placement.hosts), "host"),
              without.empty() ? "" : concat(", without ", joined(without))));
}

bool JobHosts::failed(const std::optional<Verdict>& verdict, std::optional<int> first_rank) {
  has_failed_ = true;
  if (!chooses() || !current_) return false;
  std::set<std::string> hosts;
  if (verdict && blames_hosts(verdict->kind))
    for (const int rank : verdict->ranks) hosts.insert(current_->host_of(rank));
  if (!verdict && first_rank && *first_rank < current_->ranks) hosts.insert(current_->host_of(*first_rank));
  if (hosts.size() == 1) pool_->strike(hosts);
  return !pool_->can_keep(*current_) && pool_->place(options_.worlds) != current_;
}

bool JobHosts::should_move() {
  const auto now = Clock::now();
  if (!current_ || options_.worlds.size() == 1 || now < next_look_) return false;
  next_look_ = now + (options_.hosts_file ? kLook : kAllocation);
  bool changed = read_hosts();
  if (probe_) {
    const std::vector<HostProbe::Answer> answers = probe_->take();
    take_answers(answers);
    changed = changed || !answers.empty();
    if (probe_->done()) probe_.reset();
  } else if (current_->ranks < options_.worlds.front() && now > next_probe_) {
    start_probe(pool_->unreachable_hosts());
  }
  if (!changed) return false;
  const std::optional<Placement> placement = pool_->place(options_.worlds);
  return placement && (placement->ranks != current_->ranks || !pool_->can_keep(*current_));
}

}  // namespace trireme
