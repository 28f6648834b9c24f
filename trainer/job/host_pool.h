#pragma once
// Which hosts a job uses: those of an mpirun hostfile that have not failed too often and can be reached. Pure logic, without clocks and processes.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {

struct Host {
  std::string name;
  std::optional<int> slots;  ///< number of ranks; nullopt: the hostfile does not say
  std::string lines;         ///< of the hostfile, to be passed on
  bool operator==(const Host&) const = default;
};

/// The hosts of an mpirun hostfile of Open MPI (`name slots=N`) or Hydra (`name:N`), in its order. A host with several lines has no known slots, because
/// Open MPI refuses two numbers.
std::vector<Host> parse_hosts(const std::string& text);

/// The program that reads a hostfile: the two have forms of their own.
enum class HostfileForm : uint8_t { kOpenMpi, kHydra };
/// What is wrong in the first line that mpirun would refuse, or misread, with its number: "3: slots=-1: ...". Empty: nothing.
std::string problem_in_hosts(const std::string& text, HostfileForm form);
/// The number of the line that names a host first; 0 if none does.
int line_of_host(const std::string& text, const std::string& name);

/// A number of ranks, and hosts for them. mpirun fills the slots of one host after the other.
struct Placement {
  int ranks = 0;
  std::vector<Host> hosts;
  bool operator==(const Placement&) const = default;

  /// Name of the host on which mpirun starts the rank.
  const std::string& host_of(int rank) const;
};

class HostPool {
 public:
  /// `strikes`: resilience.host_strikes. All hosts have slots.
  HostPool(std::vector<Host> hosts, int64_t strikes);

  /// A failure that the ranks of these hosts caused.
  void strike(const std::set<std::string>& hosts);
  void set_reachable(const std::string& host, bool reachable);

  /// The first of `worlds`, numbers of ranks in descending order, that fits the hosts that can be used. Excluded hosts are used again, those with the fewest
  /// strikes first, if no world fits otherwise. nullopt if none fits all reachable hosts.
  std::optional<Placement> place(const std::vector<int>& worlds) const;

  /// True if every host of the placement can still be used, with the same slots.
  bool can_keep(const Placement& placement) const;

  /// Hosts that place() leaves out, each with its reason: "b (2 failures)", "c (not reachable)".
  std::vector<std::string> reasons_against(const Placement& placement) const;

  std::vector<Host> hosts() const;
  std::vector<Host> unreachable_hosts() const;

 private:
  struct Member {
    Host host;
    int64_t strikes = 0;
    bool reachable = true;
  };
  /// Uses hosts with fewer than `strikes` strikes.
  std::optional<Placement> place(const std::vector<int>& worlds, int64_t strikes) const;

  std::vector<Member> members_;
  int64_t strikes_;
};

}  // namespace trireme
