#pragma once
#include <string>
#include <vector>

namespace trireme {

/// IPv4 addresses at which processes can connect to this one. `others`: also from other hosts, at every interface that is up; loopback comes last.
std::vector<std::string> own_addresses(bool others);

/// 32 random hexadecimal digits, which a process of another job cannot guess. Errors: IoError.
std::string random_token();

}  // namespace trireme
