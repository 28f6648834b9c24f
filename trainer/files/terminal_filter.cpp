#include "trainer/files/terminal_filter.h"

#include "trainer/files/printable.h"

namespace trireme {

TerminalFilter::TerminalFilter(std::ostream& stream) : stream_(stream), terminal_(stream.rdbuf(this)) {}

TerminalFilter::~TerminalFilter() {
  write(0);
  terminal_->pubsync();
  stream_.rdbuf(terminal_);
}

TerminalFilter::int_type TerminalFilter::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
  const char one = traits_type::to_char_type(character);
  return xsputn(&one, 1) == 1 ? character : traits_type::eof();
}

std::streamsize TerminalFilter::xsputn(const char* text, std::streamsize count) {
  waiting_.append(text, static_cast<size_t>(count));
  return write(unfinished_character(waiting_)) ? count : 0;
}

int TerminalFilter::sync() { return terminal_->pubsync(); }

bool TerminalFilter::write(size_t held_back) {
  const std::string shown = printable(std::string_view(waiting_).substr(0, waiting_.size() - held_back));
  waiting_.erase(0, waiting_.size() - held_back);
  return terminal_->sputn(shown.data(), static_cast<std::streamsize>(shown.size())) == static_cast<std::streamsize>(shown.size());
}

}  // namespace trireme
