#include "trainer/files/terminal_line.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace trireme {

size_t terminal_columns(int descriptor) {
  constexpr size_t kUsual = 80;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return kUsual;
  const bool known = ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  ::close(terminal);
  return known ? size.ws_col : kUsual;
}

std::string TerminalLine::replace(const std::string& text, size_t columns) {
  std::string shown = text.substr(0, columns - 1);
  const size_t length = shown.size();
  shown.resize(std::max(length, std::min(length_, columns - 1)), ' ');  // spaces over the end of a longer line
  length_ = length;
  return '\r' + shown;
}

}  // namespace trireme
