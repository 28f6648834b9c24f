#pragma once
#include <string>

namespace trireme {

/// Describes token ids on standard output: documents, tokens, lengths and a sample of text.
struct InspectOptions {
  std::string path;       ///< like an entry of data.train
  std::string tokenizer;  ///< decodes the sample; empty: that of the token directory; other formats print ids
  bool verify = false;    ///< compare a token directory with its digests
  bool json = false;
};
void inspect_tokens(const InspectOptions& options);

}  // namespace trireme
