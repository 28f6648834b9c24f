#include "trainer/checkpoint/tokenizer_copy.h"

#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;

namespace trireme {

TokenizerCopy copy_of(const Tokenizer& tokenizer) {
  TokenizerCopy copy{{tokenizer.name(), tokenizer.digest(), {}}, tokenizer.copies()};
  const std::string own = "tokenizer" + fs::path(tokenizer.file()).extension().string();
  if (copy.texts.contains(own)) copy.entry.files.push_back(own);  // CheckpointReader::tokenizer_spec names the first
  for (const auto& [name, text] : copy.texts)
    if (name != own) copy.entry.files.push_back(name);
  return copy;
}

void write_tokenizer(const std::map<std::string, std::string>& texts, const fs::path& checkpoint, Contents& contents) {
  for (const auto& [name, text] : texts) {
    write_durably(checkpoint / name, text);
    contents.files[name] = {static_cast<int64_t>(text.size()), digest_of(text)};
  }
}

}  // namespace trireme
