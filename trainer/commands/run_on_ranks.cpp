#include "trainer/commands/run_on_ranks.h"

#include <iostream>

#include "trainer/files/printable.h"
#include "trainer/job/world.h"
#include "trainer/machine/collectively.h"

namespace trireme {
namespace {

ExitCode run_body(const World& world, std::optional<Machine>& machine, const RankBody& body) {
  try {
    return body(world.communicator(), world.place(), machine);
  } catch (const AgreedError& error) {
    if (error.is_reporter) std::cerr << printable(error) << std::endl;
    return error.code();
  }
}

}  // namespace

ExitCode run_on_ranks(const LaunchEnvironment& environment, const RankBody& body) {
  const World world = make_world(environment);
  std::optional<Machine> machine;
  if (!world.has_launcher()) return run_body(world, machine, body);
  try {
    return run_body(world, machine, body);
  } catch (const std::exception& error) {
    world.fail(error);
  }
}

void add_oversubscribe_flag(CLI::App& command, bool& oversubscribe) {
  command.add_flag("--oversubscribe", oversubscribe, "Start the ranks even if a host gets more than 64 ranks and more than 16 per core");
}

}  // namespace trireme
