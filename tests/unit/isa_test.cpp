// Instruction-set levels of kernels/cpu: the program contains all of them, and the linker must never merge code of different levels.
#include "kernels/core/isa.h"

#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace trireme;

#ifdef TRIREME_LOOP_OBJECTS
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  REQUIRE(pipe != nullptr);
  std::string text;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) text.push_back(static_cast<char>(c));
  return text;
}

}  // namespace

// The linker keeps one definition of an inline function in two object files: a std::max compiled for AVX-512 could then run on every CPU.
TEST_CASE("isa: object files of a level define only symbols in the namespace of that level") {
  std::istringstream objects(TRIREME_LOOP_OBJECTS);
  int symbols = 0;
  for (std::string object; std::getline(objects, object, ':');) {
    const std::string mark = "trireme_loops_";
    const size_t begin = object.find(mark) + mark.size();
    const std::string isa = object.substr(begin, object.find('.', begin) - begin);
    REQUIRE(parse_isa(isa).has_value());
    const std::string own = "3cpu" + std::to_string(isa.size()) + isa;  // trireme::cpu::ISA, mangled
    std::istringstream lines(output_of("nm --defined-only '" + object + "'"));
    for (std::string address, type, name; lines >> address >> type >> name;) {
      const bool local = type[0] >= 'a' && type[0] <= 'z' && type != "u" && type != "w" && type != "v";
      INFO(object << ": " << type << " " << name);
      CHECK((local || name.find(own) != name.npos));
      ++symbols;
    }
  }
  CHECK(symbols > 0);
}
#endif

TEST_CASE("isa: parse_isa is the inverse of name_of") {
  for (int i = 0; i < kIsas; ++i) CHECK(parse_isa(name_of(static_cast<Isa>(i))) == static_cast<Isa>(i));
  CHECK_FALSE(parse_isa("mmx").has_value());
  CHECK(best_isa() >= Isa::kPortable);
}
