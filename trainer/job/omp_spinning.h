#pragma once
#include "trainer/job/launch_environment.h"

namespace trireme {

/// GOMP_SPINCOUNT where the user has chosen neither that nor OMP_WAIT_POLICY: polls of a thread that waits at the end of a parallel region, before it
/// sleeps. 1000 polls take about as long as waking a thread, so an idle machine loses nothing, and a thread whose partner has lost its core to
/// another process soon gives its own core away. libgomp's default of 300,000 polls made steps up to 40 times slower on a busy machine.
inline constexpr const char* kSpinCount = "1000";

/// Starts this program again with kSpinCount, because libgomp reads the variable when it is loaded, before main. Returns in the second start, with
/// the environment as the user left it; also returns, without any effect, if the user has chosen or there is only one thread.
void limit_spinning(char** argv, const LaunchEnvironment& environment);

}  // namespace trireme
