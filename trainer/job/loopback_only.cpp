#include "trainer/job/loopback_only.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "kernels/core/check.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

bool listens(int socket) {
  int accepts = 0;
  socklen_t size = sizeof accepts;
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 && accepts != 0;
}

bool is_internet(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && (address.ss_family == AF_INET || address.ss_family == AF_INET6);
}

/// Binds the current listening sockets of `process` (its pidfd is `handle`) to loopback, and adds them to `done`.
void confine(pid_t process, int handle, std::set<std::string>& done) {
  constexpr std::string_view kLoopback = "lo";
  std::error_code error;
  for (fs::directory_iterator item(concat("/proc/", process, "/fd"), error), end; !error && item != end; item.increment(error)) {
    std::error_code gone;
    const std::string name = fs::read_symlink(item->path(), gone).string();
    if (gone || !name.starts_with("socket:") || done.contains(name)) continue;
    const auto socket = static_cast<int>(::syscall(SYS_pidfd_getfd, handle, std::atoi(item->path().filename().c_str()), 0));
    if (socket < 0) continue;
    if (is_internet(socket) && listens(socket)) {
      ::setsockopt(socket, SOL_SOCKET, SO_BINDTODEVICE, kLoopback.data(), kLoopback.size());
      done.insert(name);
    }
    ::close(socket);
  }
}

/// True if the process has started a child: mpirun opens its listening sockets before it starts the first rank.
bool has_children(pid_t process) {
  std::ifstream children(concat("/proc/", process, "/task/", process, "/children"));
  pid_t child = 0;
  return static_cast<bool>(children >> child);
}

void watch(pid_t process, const std::atomic<bool>& stop) {
  constexpr auto kInterval = std::chrono::milliseconds(10);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);  // in case no child ever appears
  const auto handle = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (handle < 0) return;
  std::set<std::string> done;
  for (bool started = false; !stop && !started && std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(kInterval)) {
    started = has_children(process);  // read before confine(), so that its last pass covers all sockets
    confine(process, handle, done);
  }
  ::close(handle);
}

}  // namespace

LoopbackOnly::LoopbackOnly(pid_t mpirun) {
  try {
    thread_ = std::thread([this, mpirun] { watch(mpirun, stop_); });
  } catch (const std::system_error&) {  // no thread available: the sockets are left unchanged
  }
}

LoopbackOnly::~LoopbackOnly() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace trireme
