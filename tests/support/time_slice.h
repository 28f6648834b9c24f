#pragma once
#include <cstdint>

namespace trireme::test {

/// Nanoseconds of the time slices of the calling thread; 0 if this Linux has one length for all (before 6.12).
uint64_t time_slice_nanoseconds();

}  // namespace trireme::test
