#pragma once
// TCP connections between hosts, apart from MPI: MPI hangs where a host cannot reach another one.
#include <memory>
#include <string>
#include <vector>

namespace trireme::doctor {

/// Accepts TCP connections on every interface and answers those that send its token, from construction to destruction.
class Door {
 public:
  Door();
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  /// "TOKEN@ADDRESS:PORT,ADDRESS:PORT" of the IPv4 addresses of this host; empty if no port could be opened.
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Tries all addresses of all doors at the same time, for at most `seconds`. True for a door that answered on one of its addresses; false for an empty
/// text.
std::vector<bool> reaches(const std::vector<std::string>& doors, double seconds);

}  // namespace trireme::doctor
