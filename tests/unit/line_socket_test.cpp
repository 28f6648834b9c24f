// Line framing of LineSocket: lines arrive complete, in parts, or several per read.
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "trainer/resilience/wire.h"

namespace trireme::test {

TEST_CASE("line socket: lines are complete wherever reads split them") {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  LineSocket socket(ends[0]);
  const std::string text = "{\"a\":1}\n{\"b\":" + std::string(40000, '2') + "}\n{}\n{\"c\":3}\n";  // one line is longer than a read
  for (const size_t part : {size_t{1}, size_t{9}, size_t{11}, size_t{16391}, text.size() - 4}) {
    INFO("parts of " << part << " bytes");
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size(); at += part) {
      const std::string sent = text.substr(at, part);
      REQUIRE(::write(ends[1], sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
      REQUIRE(socket.receive(lines, 50000));
    }
    REQUIRE(lines.size() == 4);
    CHECK(lines[0] == "{\"a\":1}");
    CHECK(lines[1].size() == 40006);
    CHECK(lines[2] == "{}");
    CHECK(lines[3] == "{\"c\":3}");
  }
  ::close(ends[1]);
}

}  // namespace trireme::test
