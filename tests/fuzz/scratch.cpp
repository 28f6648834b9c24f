#include <cstdlib>
#include <fstream>

#include "tests/fuzz/fuzz.h"

namespace trireme::fuzz {
namespace fs = std::filesystem;

Scratch::Scratch() {
  const bool memory = std::getenv("TMPDIR") == nullptr && fs::is_directory("/dev/shm");
  std::string path = (memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "trireme-fuzz-XXXXXX";
  TRIREME_CHECK(::mkdtemp(path.data()) != nullptr, path, " cannot be created");
  path_ = path;
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path Scratch::put(const char* name, std::string_view bytes) const {
  fs::path path = path_ / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TRIREME_CHECK(file, path.string(), " cannot be written");
  return path;
}

}  // namespace trireme::fuzz
