#include "trainer/files/terminal_filter.h"

#include <algorithm>

#include "trainer/files/printable.h"

namespace trireme {

TerminalFilter::TerminalFilter(std::ostream& stream, CarriageReturn carriage_return)
    : stream_(stream), terminal_(stream.rdbuf(this)), carriage_return_(carriage_return) {}

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
  const std::lock_guard lock(mutex_);
  waiting_.append(text, static_cast<size_t>(count));
  return write(unfinished_character(waiting_)) ? count : 0;
}

int TerminalFilter::sync() {
  const std::lock_guard lock(mutex_);
  return terminal_->pubsync();
}

bool TerminalFilter::write(size_t held_back) {
  std::string shown;
  for (std::string_view whole = std::string_view(waiting_).substr(0, waiting_.size() - held_back); !whole.empty();) {
    const size_t line = carriage_return_ == CarriageReturn::kPasses ? std::min(whole.find('\r'), whole.size()) : whole.size();
    shown += printable(whole.substr(0, line));
    if (line < whole.size()) shown += '\r';
    whole.remove_prefix(std::min(line + 1, whole.size()));
  }
  waiting_.erase(0, waiting_.size() - held_back);
  return terminal_->sputn(shown.data(), static_cast<std::streamsize>(shown.size())) == static_cast<std::streamsize>(shown.size());
}

}  // namespace trireme
