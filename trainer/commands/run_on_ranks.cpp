#include "trainer/commands/run_on_ranks.h"

#include <iostream>

#include "trainer/files/printable.h"
#include "trainer/job/world.h"
#include "trainer/loop/collectively.h"

namespace trireme {
namespace {

using Body = std::function<ExitCode(std::unique_ptr<Communicator>, const RankPlace&)>;

ExitCode run_body(const World& world, const Body& body) {
  try {
    return body(world.communicator(), world.place());
  } catch (const AgreedError& error) {
    if (error.is_reporter) std::cerr << printable(error) << std::endl;
    return error.code();
  }
}

}  // namespace

ExitCode run_on_ranks(const LaunchEnvironment& environment, const Body& body) {
  const World world = make_world(environment);
  if (!world.has_launcher()) return run_body(world, body);
  try {
    return run_body(world, body);
  } catch (const std::exception& error) {
    world.fail(error);
  }
}

void add_oversubscribe_flag(CLI::App& command, bool& oversubscribe) {
  command.add_flag("--oversubscribe", oversubscribe, "Start the ranks even if a host gets more than 64 ranks and more than 16 per core");
}

}  // namespace trireme
