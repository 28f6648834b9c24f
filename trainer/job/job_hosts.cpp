#include "trainer/job/job_hosts.h"

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/mpirun_command.h"

namespace trireme {
namespace {

constexpr std::chrono::seconds kLook{1};    ///< between two looks at the hosts file
constexpr std::chrono::seconds kProbe{30};  ///< between two questions to a lost host

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
  if (!options_.hosts_file) return;
  text_ = hosts_text(*options_.hosts_file);
  const std::vector<Host> hosts = parse_hosts(text_);
  if (all_have_slots(hosts)) {
    directory_.emplace(std::filesystem::temp_directory_path());
    if (directory_->path().empty()) throw IoError(concat("cannot create a directory in ", std::filesystem::temp_directory_path().string()));
    pool_.emplace(hosts, options_.strikes);
  } else if (options_.worlds.size() > 1) {
    const auto without = std::ranges::find_if(hosts, [](const Host& host) { return !host.slots; });
    throw ConfigError(concat("hosts file ", *options_.hosts_file, ": host ", without->name,
                             " has no slots=N, and resilience.elastic must know how many ranks each host can take"));
  }
}

/// Reads the hosts file again. Returns true if the hosts have changed. A file that cannot be used, as while it is being written, changes nothing.
bool JobHosts::read_hosts() {
  std::string text;
  try {
    text = hosts_text(*options_.hosts_file);
  } catch (const Error&) {
    return false;
  }
  if (text == text_) return false;
  const std::vector<Host> hosts = parse_hosts(text);
  if (!all_have_slots(hosts)) return false;
  text_ = text;
  if (hosts == pool_->hosts()) return false;
  pool_.emplace(hosts, options_.strikes);
  lost_.clear();
  return true;
}

void JobHosts::start_probe(const std::vector<Host>& hosts) {
  next_probe_ = Clock::now() + kProbe;
  if (!hosts.empty()) probe_.emplace(environment_, hosts, directory_->path());
}

void JobHosts::take_answers(const std::vector<HostProbe::Answer>& answers) {
  for (const auto& [host, reachable] : answers) {
    pool_->set_reachable(host, reachable);
    std::erase(lost_, host);
    if (!reachable) lost_.push_back(host);
  }
}

std::vector<Host> JobHosts::unreachable_hosts() const {
  std::vector<Host> hosts = pool_->hosts();
  std::erase_if(hosts, [&](const Host& host) { return std::ranges::count(lost_, host.name) == 0; });
  return hosts;
}

std::optional<JobHosts::World> JobHosts::next(const StopRequest& stop) {
  if (!chooses()) return World{options_.worlds.front(), options_.hosts_file};
  const auto begin = Clock::now();
  waited_ = 0;
  bool asks = std::exchange(has_failed_, false) && pool_->hosts().size() > 1, waits = false;
  for (;;) {
    if (asks) {
      start_probe(pool_->hosts());
      take_answers(probe_->wait());
      probe_.reset();
    }
    read_hosts();
    if (const std::optional<Placement> placement = pool_->place(options_.worlds)) return use(*placement);
    // The hosts file never had enough: mpirun starts more ranks than slots, as on a laptop.
    if (!current_ && options_.worlds.size() == 1 && lost_.empty()) return World{options_.worlds.front(), options_.hosts_file};
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited >= options_.wait_seconds) {
      say_(concat("giving up: the hosts that can be reached have no room for ", counted(options_.worlds.back(), "rank")));
      return std::nullopt;
    }
    if (!std::exchange(waits, true))
      say_(concat("waiting up to ", options_.wait_seconds, " s for hosts: those that can be reached have no room for ",
                  counted(options_.worlds.back(), "rank"), lost_.empty() ? "" : concat("; not reachable: ", joined(lost_))));
    const bool goes_on = stop.sleep(kLook);
    waited_ = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!goes_on) return std::nullopt;
    asks = !lost_.empty() && Clock::now() > next_probe_;
  }
}

JobHosts::World JobHosts::use(const Placement& placement) {
  if (current_ ? placement != *current_ : placement.ranks != options_.worlds.front()) report(placement);
  current_ = placement;
  if (placement.hosts == pool_->hosts()) return {placement.ranks, options_.hosts_file};
  std::string text;
  for (const Host& host : placement.hosts) text += host.lines;
  const std::filesystem::path file = directory_->path() / "hosts";
  write_durably(file, text);
  return {placement.ranks, file.string()};
}

void JobHosts::report(const Placement& placement) const {
  const std::vector<std::string> without = pool_->reasons_against(placement);
  say_(concat("using ", placement.ranks, " of ", counted(options_.worlds.front(), "rank"), " on ", counted(std::ssize(placement.hosts), "host"),
              without.empty() ? "" : concat(", without ", joined(without))));
}

void JobHosts::failed(const std::optional<Verdict>& verdict) {
  has_failed_ = true;
  if (!chooses() || !current_ || !verdict || !blames_hosts(verdict->kind)) return;
  std::set<std::string> hosts;
  for (const int rank : verdict->ranks) hosts.insert(current_->host_of(rank));
  pool_->strike(hosts);
}

bool JobHosts::should_move() {
  const auto now = Clock::now();
  if (!chooses() || !current_ || now < next_look_) return false;
  next_look_ = now + kLook;
  bool changed = read_hosts();
  if (probe_) {
    const std::vector<HostProbe::Answer> answers = probe_->take();
    take_answers(answers);
    changed = changed || !answers.empty();
    if (probe_->done()) probe_.reset();
  } else if (current_->ranks < options_.worlds.front() && now > next_probe_) {
    start_probe(unreachable_hosts());
  }
  if (!changed) return false;
  const std::optional<Placement> placement = pool_->place(options_.worlds);
  return placement && *placement != *current_;
}

}  // namespace trireme
