#include "trainer/run/tracer.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/durable_file.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

std::optional<int64_t> step_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

/// Gathers the strings of all ranks on rank 0; returns an empty list elsewhere. Sends one message at a time, because traces are large and there may
/// be many ranks. The string of a rank is empty if it would be 2 GiB or more.
std::vector<std::string> gather_strings(Communicator& world, const std::string& mine) {
  constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int32_t>::max());
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const auto send_or_receive = [&](PointToPoint::Kind kind, const Tensor& buffer, int peer) {
    const PointToPoint message{kind, buffer, peer};
    world.exchange(host, {&message, 1}).wait(host);
  };
  const Tensor length = Tensor::zeros(host, {1}, DType::kI32, MemoryCategory::kCommunication);
  const auto buffer = [&](int64_t bytes) { return Tensor::empty(host, {bytes}, DType::kU8, MemoryCategory::kCommunication); };
  if (world.rank() != 0) {
    *length.data<int32_t>() = mine.size() <= kMost ? static_cast<int32_t>(mine.size()) : 0;
    send_or_receive(PointToPoint::Kind::kSend, length, 0);
    if (*length.data<int32_t>() == 0) return {};
    const Tensor bytes = buffer(static_cast<int64_t>(mine.size()));
    std::copy(mine.begin(), mine.end(), bytes.data<uint8_t>());
    send_or_receive(PointToPoint::Kind::kSend, bytes, 0);
    return {};
  }
  std::vector<std::string> all{mine};
  for (int rank = 1; rank < world.size(); ++rank) {
    send_or_receive(PointToPoint::Kind::kRecv, length, rank);
    if (*length.data<int32_t>() == 0) {
      all.emplace_back();
      continue;
    }
    const Tensor bytes = buffer(*length.data<int32_t>());
    send_or_receive(PointToPoint::Kind::kRecv, bytes, rank);
    all.emplace_back(reinterpret_cast<const char*>(bytes.data<uint8_t>()), static_cast<size_t>(bytes.numel()));
  }
  return all;
}

/// Identifies the monotonic clock: all processes of one booted system share it.
std::string name_of_clock() {
  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), name);
  return name.empty() ? host_name() : name;
}

/// Means over ranks; the causes add up to step_seconds.
nlohmann::ordered_json fields_of(const std::vector<ExposedTime>& ranks) {
  ExposedTime mean{};
  double seconds = 0;
  for (const ExposedTime& rank : ranks)
    for (size_t cause = 0; cause < kCauses; ++cause) mean[cause] += rank[cause] / static_cast<double>(ranks.size());
  for (const double part : mean) seconds += part;
  nlohmann::ordered_json fields = {{"step_seconds", seconds}};
  for (size_t cause = 0; cause < kCauses; ++cause) fields[name_of(static_cast<Cause>(cause))] = mean[cause];
  return fields;
}

}  // namespace

StepRange step_range(const std::string& text) {
  const size_t colon = text.find(':');
  const auto first = step_number(std::string_view(text).substr(0, colon));
  const auto last = colon == text.npos ? first : step_number(std::string_view(text).substr(colon + 1));
  if (!first || !last || *first > *last)
    throw ConfigError(concat("--trace-steps=", text, ": invalid range of steps; allowed A:B with 1 <= A <= B, steps counted from 1"));
  constexpr int64_t kMost = 100;
  if (*last - *first >= kMost)
    throw ConfigError(concat("--trace-steps=", text, ": ", *last - *first + 1, " steps; allowed at most ", kMost,
                             ", because the trace is kept in memory until the last"));
  return {*first, *last};
}

std::string to_string(const StepRange& steps) { return concat(steps.first, ":", steps.last); }

Tracer::Tracer(Trainer& trainer, CommunicationLog& log, const StepRange& steps, std::filesystem::path run_directory)
    : trainer_(trainer), log_(log), steps_(steps), run_directory_(std::move(run_directory)), clock_(name_of_clock()) {}

void Tracer::begin(int64_t step) {
  if (!traces(step)) return;
  trainer_.mesh().step.barrier();
  trace_ = {};
  trace_.origin = DeviceClock::Host::now();
  DeviceClock& clock = device_clock_.emplace(trainer_.context(), trace_.origin);
  trainer_.trace(&trace_, &actions_.emplace(clock));
  if (!std::exchange(detailed_, true)) trainer_.context().log = &kernels_.emplace(clock);
  log_.start(clock);
}

void Tracer::end(int64_t step) {
  if (!traces(step)) return;
  trace_.seconds = device_clock_->seconds(device_clock_->mark(trainer_.context()));
  trace_.clock = clock_;
  trace_.timeline = actions_->take();
  trace_.operations = log_.stop();
  trainer_.trace(nullptr, nullptr);
  if (kernels_) {
    trainer_.context().log = nullptr;
    for (const OperationRecord& one : kernels_->take()) {
      if (one.kind == OperationKind::kCollective) continue;  // recorded by its communicator
      trace_.kernels.push_back({concat(one.layer, *one.layer != 0 ? " " : "", one.name), one.begin, one.begin + one.seconds});
    }
    kernels_.reset();
  }
  ended_[step] = to_bytes(trace_);
}

void Tracer::report(Reporter& reporter) {
  Communicator& world = trainer_.mesh().world;
  for (const auto& [step, bytes] : std::exchange(ended_, {})) {
    const std::vector<std::string> all = gather_strings(world, bytes);
    if (world.rank() == 0) add(step, all, reporter);
    if (step == steps_.last) finish(reporter);
  }
  world.barrier();  // so that the others do not wait for rank 0 with the timeout of a step
}

void Tracer::add(int64_t step, const std::vector<std::string>& all, Reporter& reporter) {
  const auto too_long = std::ranges::find(all, "");
  if (too_long != all.end())
    return reporter.message(concat("step ", step, " is not traced: the trace of rank ", too_long - all.begin(), " takes 2 GiB or more"));
  const MeshShape& shape = trainer_.mesh().shape;
  std::vector<StepTrace> steps;
  std::vector<TracedRank> ranks;
  for (const std::string& bytes : all) steps.push_back(step_trace_from(bytes));
  align(steps);
  if (!origin_) origin_ = steps.front().origin;
  for (int rank = 0; rank < shape.world(); ++rank) ranks.push_back(traced_rank(shape, rank, steps[static_cast<size_t>(rank)]));
  chrome_.add(concat("step ", step), std::chrono::duration<double>(steps.front().origin - *origin_).count(), ranks);
  const std::vector<ExposedTime> exposed = exposed_time(steps, shape);
  reporter.event("exposed", step, fields_of(exposed));
  sums_.resize(exposed.size());
  for (size_t rank = 0; rank < exposed.size(); ++rank)
    for (size_t cause = 0; cause < kCauses; ++cause) sums_[rank][cause] += exposed[rank][cause];
  ++count_;
  last_ = step;
}

void Tracer::finish(Reporter& reporter) {
  if (count_ == 0 || std::exchange(written_, true)) return;
  try {
    write_durably(run_directory_ / "trace.json", chrome_.text());
  } catch (const IoError& error) {  // not worth ending a run
    reporter.message(concat("no trace was written: ", error.what()));
  }
  std::vector<ExposedTime> means = sums_;
  for (ExposedTime& rank : means)
    for (double& seconds : rank) seconds /= static_cast<double>(count_);
  reporter.message(concat("seconds per traced step by cause (steps traced: ", count_, ", last: ", last_, "): mean and maximum over ",
                          counted(means.size(), "rank"), ", share of the step\n", exposed_table(means)));
}

}  // namespace trireme
