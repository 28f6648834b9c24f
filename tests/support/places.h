#pragma once
#include <string>

// Paths of this checkout and its build. They are compiled into places.cpp (and objects into isa_test.cpp) alone, so that a compiler cache shares
// all other objects between checkouts.
namespace trireme::test {

/// "/home/me/trireme/tests/golden" for "tests/golden"; the root of the checkout for "".
std::string in_checkout(const std::string& path = "");

const char* trireme_program();
const char* faulty_train_program();
const char* comm_mpi_program();
/// The library that `name` stands for: BUILD/tests/libshim_NAME.so.
std::string shim(const std::string& name);

}  // namespace trireme::test
