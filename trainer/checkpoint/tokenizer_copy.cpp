#include "trainer/checkpoint/tokenizer_copy.h"

#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;

namespace trireme {

TokenizerCopy copy_of(const Tokenizer& tokenizer) {
  constexpr const char* kCompanions[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};
  TokenizerCopy copy{{tokenizer.name(), tokenizer.digest(), {}}, {}};
  const fs::path file = tokenizer.file();
  if (file.empty()) return copy;
  const auto keep = [&](const std::string& name, const fs::path& from) {
    copy.texts[name] = read_text(from);
    copy.entry.files.push_back(name);
  };
  keep("tokenizer" + file.extension().string(), file);
  std::error_code ignored;
  for (const char* companion : kCompanions)
    if (fs::is_regular_file(file.parent_path() / companion, ignored)) keep(companion, file.parent_path() / companion);
  return copy;
}

void write_tokenizer(const std::map<std::string, std::string>& texts, const fs::path& checkpoint, Contents& contents) {
  for (const auto& [name, text] : texts) {
    write_durably(checkpoint / name, text);
    contents.files[name] = {static_cast<int64_t>(text.size()), digest_of(text)};
  }
}

}  // namespace trireme
