#include "trainer/data/build/piece.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/data/build/text_check.h"
#include "trainer/files/strict_json.h"

namespace trireme {

nlohmann::json Position::to_json() const { return {{"input", input}, {"offset", offset}, {"line", line}}; }

Position Position::parse(const nlohmann::json& json, const std::string& where) {
  require_known_keys(json, {"input", "offset", "line"}, where);
  return {integer_member(json, "input", where), integer_member(json, "offset", where), integer_member(json, "line", where)};
}

void read_pieces(const Input& input, const Position& start, bool lines, const Tokenizer& tokenizer,
                 const std::function<void(std::string_view start, bool lines)>& check_look, const std::function<void()>& interrupted,
                 const std::function<void(Piece)>& push) {
  InputReader reader(input, start.offset);
  Position at = start;
  std::string window;
  size_t wanted = kPieceBytes;
  for (bool more = true; more;) {
    more = reader.fill(window, wanted, interrupted);
    if (at.offset == 0 && wanted == kPieceBytes) {
      check_magic(window, input.path);
      if (!lines) check_utf8(window, input.path);
      check_look(window, lines);
    }
    if (!lines) check_no_nul(window, at.offset, input.path);  // a JSON line with a NUL byte is reported with its number when it is parsed
    size_t bytes = window.size();
    if (more) bytes = lines ? window.rfind('\n') + 1 : tokenizer.cut(window, at.offset == 0);
    if (more && bytes == 0) {
      const size_t most = lines ? kMaxLineBytes : kMaxUnsplitBytes;
      if (wanted >= most)
        throw DataError(lines ? concat(input.path, ":", at.line + 1, ": line longer than ", most >> 20, " MiB")
                              : concat(input.path, ": after byte ", at.offset, ": more than ", most >> 20, kUnsplittableMessage));
      wanted = std::min(2 * wanted, most);
      continue;
    }
    wanted = kPieceBytes;
    Piece piece;
    piece.path = input.path;
    piece.bytes = static_cast<int64_t>(bytes);
    piece.lines = lines;
    piece.line = at.line + 1;
    piece.first = at.offset == 0;
    piece.last = !more;
    std::string rest = window.substr(bytes);
    window.resize(bytes);
    piece.text = std::exchange(window, std::move(rest));
    at.offset += piece.bytes;
    if (lines) at.line += std::count(piece.text.begin(), piece.text.end(), '\n');
    if (piece.last && at.offset == 0 && input.named) throw DataError(concat(input.path, ": is empty"));
    piece.end = piece.last ? Position{start.input + 1} : at;
    push(std::move(piece));
  }
}

}  // namespace trireme
