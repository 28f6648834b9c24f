// `trireme train CONFIG --set KEY=VALUE...` whose program has a bug on one rank, above everything that watches it: it leaves out collectives that the others
// enter, or never comes to the next one. Or some ranks lie about their gradients, in every step and after every restart alike.
//   FAULT_RANK     the world rank with the bug; the first of those that lie
//   FAULT_DO       skip: from then on the rank enters no operation of the group any more | spin: it computes forever instead of entering one |
//                  lie: this rank sends minus ten times its gradient over the group, and those after it send bytes that are no numbers
//   FAULT_GROUP    name of the group whose next operation triggers it: tensor, shard, world, ...
//   FAULT_TRIGGER  a file: the bug waits for it; skip and spin only
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "parallel/comm/forwarding.h"
#include "parallel/comm/watched.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/layout/resolve.h"
#include "trainer/resilience/stacks.h"
#include "trainer/resilience/watch.h"
#include "trainer/run/run.h"

using namespace trireme;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

volatile uint64_t turns = 0;

__attribute__((noinline)) void loop_without_end() {
  for (;;) turns = turns + 1;
}

class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  FaultyCommunicator(Communicator& inner, bool chosen) : ForwardingCommunicator(inner), chosen_(chosen) {}
  FaultyCommunicator(std::unique_ptr<Communicator> inner, bool chosen) : ForwardingCommunicator(std::move(inner)), chosen_(chosen) {}

  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    const bool lies = variable("FAULT_DO") == "lie" && name() == variable("FAULT_GROUP") && rank() >= std::atoi(variable("FAULT_RANK").c_str());
    if (lies && chosen_) reverse(in);
    if (lies && !chosen_) std::memset(in.raw(), 0xFF, static_cast<size_t>(in.bytes()));
    return ForwardingCommunicator::all_to_all_v(ctx, in, send_counts, out, receive_counts);
  }

 protected:
  Work perform(Context& /*ctx*/, const char* /*verb*/, int64_t /*bytes*/, const Call& call) override {
    if (variable("FAULT_DO") == "lie") return call();
    if (!begun_ && chosen_ && name() == variable("FAULT_GROUP") && std::filesystem::exists(variable("FAULT_TRIGGER"))) begun_ = true;
    if (!begun_) return call();
    if (variable("FAULT_DO") == "spin") loop_without_end();
    return {};
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    return std::make_unique<FaultyCommunicator>(std::move(made), chosen_);
  }

 private:
  /// Multiplies the fp32 numbers in a buffer by minus ten. The indices of top_k are integers that no such number has the bits of.
  static void reverse(const Tensor& buffer) {
    auto* const bytes = static_cast<char*>(buffer.raw());
    for (int64_t i = 0; i + 4 <= buffer.bytes(); i += 4) {
      float value;
      std::memcpy(&value, bytes + i, sizeof value);
      if (std::isnormal(value)) value *= -10;
      std::memcpy(bytes + i, &value, sizeof value);
    }
  }
  bool chosen_, begun_ = false;
};

ExitCode train_as_rank(const LaunchEnvironment& environment, const std::string& file, const std::vector<std::string>& sets) {
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    Config config = resolve(load_config(file, sets), world->size());
    const bool chosen = std::to_string(world->rank()) == variable("FAULT_RANK");
    Watch watch(*world, true, hang_seconds(config, false, true), environment.hub_address);
    const StackRequest stacks([&] { watch.record().request_stacks("requested by SIGQUIT"); });
    machine.emplace(std::move(world), place, config);
    const std::unique_ptr<Communicator> noted = watched(machine->world(), watch.progress());
    FaultyCommunicator faulty(*noted, chosen);
    RunOptions options;
    options.ranks_per_host = place.local_size;
    options.environment = environment;
    options.record = &watch.record();
    return run_training(machine->ctx(), faulty, config, options, watch.progress());
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    start_signal_thread();
    const std::vector<std::string> words{argv + 1, argv + argc};
    if (words.size() == 3 && words[0] == "inspect") {  // `inspect --process PID`, as StackWriter starts it
      std::cout << stacks_of(std::stoi(words[2]));
      return 0;
    }
    const StopRequest stop;
    const SaveRequest save;
    std::vector<std::string> sets;
    for (size_t i = 3; i < words.size(); i += 2) sets.push_back(words[i]);  // train FILE --set A --set B
    const LaunchEnvironment environment = read_launch_environment();
    if (environment.is_rank()) return static_cast<int>(train_as_rank(environment, words.at(1), sets));
    const Config config = resolve(load_config(words.at(1), sets));
    return launch(environment, mesh_shape(config.parallel).world(), words,
                  {.silence_seconds = hang_seconds(config, false, true), .run_directory = config.run.directory, .output_is_log = true});
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
