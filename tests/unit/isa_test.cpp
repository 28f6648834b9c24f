// The levels of instructions of kernels/cpu: the program has them all, and the linker must never take code of one for another.
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

// Of an inline function that two object files define the linker keeps either: a std::max compiled for AVX-512 would then run on every CPU.
TEST_CASE("isa: object files of one level define no symbol that is not named after it") {
  std::istringstream objects(TRIREME_LOOP_OBJECTS);
  int symbols = 0;
  for (std::string object; std::getline(objects, object, ':');) {
    const std::string mark = "trireme_loops_";
    const size_t begin = object.find(mark) + mark.size();
    const std::string isa = object.substr(begin, object.find('.', begin) - begin);
    REQUIRE(isa_named(isa).has_value());
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

TEST_CASE("isa: names are known, and come back") {
  for (int i = 0; i < kIsas; ++i) CHECK(isa_named(name_of(static_cast<Isa>(i))) == static_cast<Isa>(i));
  CHECK_FALSE(isa_named("mmx").has_value());
  CHECK(best_isa() >= Isa::kPortable);
}
