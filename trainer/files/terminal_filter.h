#pragma once
#include <cstdint>
#include <mutex>
#include <ostream>
#include <streambuf>
#include <string>

namespace trireme {

/// What a stream writes to a terminal, made printable(): a model, a tokenizer or a file may say anything, and must not command the terminal. A pipe or a
/// file gets the bytes as they are, and needs no filter. Thread-safe, as the standard streams are.
class TerminalFilter : public std::streambuf {
 public:
  enum class CarriageReturn : uint8_t { kEscaped, kPasses };  ///< progress lines begin with one
  /// Stands before the buffer of `stream` while it lives.
  explicit TerminalFilter(std::ostream& stream, CarriageReturn carriage_return = CarriageReturn::kEscaped);
  ~TerminalFilter() override;
  TerminalFilter(const TerminalFilter&) = delete;
  TerminalFilter& operator=(const TerminalFilter&) = delete;

 private:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;
  /// Writes all whole characters. False if the terminal is gone.
  bool write(size_t held_back);

  std::ostream& stream_;
  std::streambuf* const terminal_;
  const CarriageReturn carriage_return_;
  std::mutex mutex_;
  std::string waiting_;
};

}  // namespace trireme
