#include "trainer/report/text_escape.h"

#include "trainer/files/printable.h"

namespace trireme::report {

std::string markup(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace trireme::report
