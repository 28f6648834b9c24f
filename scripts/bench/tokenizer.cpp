// Encodes each line of a file, writes the ids to IDS and prints bytes and CPU seconds. Used by scripts/bench/tokenizer.sh.
//   tokenizer TOKENIZER FILE IDS
#include <cstdio>
#include <ctime>
#include <fstream>

#include "trainer/files/durable_file.h"
#include "trainer/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  trireme::Tokenizer tokenizer = trireme::Tokenizer::open(argv[1]);
  const std::string text = trireme::read_text(argv[2]);
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    lines.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<int32_t> ids;
  const std::clock_t begin = std::clock();
  for (const std::string_view line : lines) tokenizer.encode(line, ids);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::ofstream(argv[3], std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(4 * ids.size()));
  std::printf("{\"bytes\": %zu, \"seconds\": %.6f}\n", text.size() - lines.size(), seconds);
}
