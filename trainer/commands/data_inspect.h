#pragma once
#include <string>

namespace trireme {

/// Describes token ids on standard output: documents, tokens, lengths and a sample of text.
struct InspectOptions {
  std::string path;       ///< as an entry of data.train
  std::string tokenizer;  ///< decodes the sample; empty: a token directory's own, and ids where the format holds none
  bool verify = false;    ///< compare a token directory with its digests
  bool json = false;
};
void inspect_tokens(const InspectOptions& options);

}  // namespace trireme
