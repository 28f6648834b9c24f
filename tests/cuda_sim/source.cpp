// Places in the code as file and line.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>

#include "tests/cuda_sim/state.h"

namespace cuda_sim {
namespace {

std::string look_up(const void* code) {
  Dl_info info{};
  if (code == nullptr || dladdr(code, &info) == 0) return "?";
  const auto offset = reinterpret_cast<uintptr_t>(code) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  std::array<char, 64> number{};
  std::snprintf(number.data(), number.size(), "0x%zx", offset);
  const std::string command = std::string("addr2line -i -e '") + info.dli_fname + "' " + number.data() + " 2> /dev/null";
  std::string lines;  // one for each inlined function, the innermost first
  if (FILE* const pipe = popen(command.c_str(), "r")) {
    std::array<char, 512> line{};
    while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
      const std::string text(line.data());
      if (text.find("device_code.h") != std::string::npos) continue;
      lines += (lines.empty() ? "" : " in ") + text.substr(0, text.find_first_of(" \n"));
    }
    pclose(pipe);
  }
  return lines.empty() || lines.front() == '?' ? number.data() : lines;
}

}  // namespace

std::string source_of(const void* code) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;  // the tool takes a fifth of a second
  const std::lock_guard lock(mutex);
  const auto found = known.find(code);
  return found != known.end() ? found->second : known[code] = look_up(code);
}

}  // namespace cuda_sim
