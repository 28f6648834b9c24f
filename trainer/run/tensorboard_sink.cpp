// Event files for TensorBoard: observe.tensorboard.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/config/fields.h"
#include "trainer/config/write.h"
#include "trainer/files/append_file.h"
#include "trainer/loop/histograms.h"
#include "trainer/run/sinks.h"
#include "trainer/run/tensorboard_records.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

double seconds_of(WallClock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

/// TensorBoard reads the files of a directory in the order of their names, which begin with a time. Each start of a run makes a file whose name comes
/// after those that are there, also within the same second and after a correction of the clock.
fs::path next_file(const fs::path& directory, WallClock::time_point now) {
  const std::string prefix = "events.out.tfevents.";
  int64_t number = static_cast<int64_t>(seconds_of(now));
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    int64_t other = 0;
    if (name.starts_with(prefix) && std::from_chars(name.data() + prefix.size(), name.data() + name.size(), other).ec == std::errc())
      number = std::max(number, other + 1);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return directory / concat(prefix, number, ".", host.data(), ".", ::getpid(), ".0");
}

/// Markdown that shows the text as it is.
std::string code_block(const std::string& text) {
  std::istringstream lines(text);
  std::string markdown;
  for (std::string line; std::getline(lines, line);) markdown += "    " + line + "\n";
  return markdown;
}

/// The keys that decide what is trained, and how it is split over ranks.
std::vector<HyperParameter> hyper_parameters(const Config& config) {
  std::vector<HyperParameter> parameters;
  for (const FieldRow& row : table_of(config).fields) {
    const std::string written = written_value(row);
    if (row.field.decides == Aspect::kOperation || written.empty()) continue;
    HyperParameter parameter{row.path, shown_value(row)};
    if (const auto* flag = std::get_if<bool>(&row.value)) parameter.second = *flag;
    if (const auto* integer = std::get_if<int64_t>(&row.value)) parameter.second = static_cast<double>(*integer);
    if (const auto* number = std::get_if<double>(&row.value)) parameter.second = *number;
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

class TensorBoardSink final : public EventSink {
 public:
  TensorBoardSink(const fs::path& directory, const Config& config, int64_t done, WallClock::time_point now)
      : file_(next_file(directory, now), AppendFile::Open::kNew), prompts_(config.observe.samples.prompts) {
    const double seconds = seconds_of(now);
    file_.append(file_version_record(seconds));
    // A resumed run repeats the steps after its checkpoint; a new run replaces one that has left no checkpoint.
    file_.append(session_start_record(seconds, done > 0 ? done + 1 : 0));
    file_.append(text_record(seconds, done, "configuration", code_block(to_yaml(config))));
    file_.append(hyper_parameters_record(seconds, hyper_parameters(config), config.run.name));
  }

  void write(const Event& event) override {
    if (event.kind == "sample") return write_sample(event);
    std::vector<ScalarValue> scalars;
    for (const auto& [name, part, value] : figures_of(event))
      scalars.emplace_back(part.empty() ? name : name + "/" + part, static_cast<float>(value));
    if (scalars.empty()) return;
    file_.append(scalars_record(seconds_of(event.time.value_or(WallClock::now())), *event.step, scalars));
  }
  /// From the first to the last bin that has values.
  void histograms(int64_t step, const std::vector<Histogram>& histograms) override {
    const std::vector<double>& limits = histogram_limits();
    const double seconds = seconds_of(WallClock::now());
    const auto has_values = [](int64_t count) { return count > 0; };
    for (const Histogram& one : histograms) {
      std::vector<HistogramBin> bins;
      const auto first = std::ranges::find_if(one.counts, has_values);
      const auto last = std::find_if(one.counts.rbegin(), one.counts.rend(), has_values).base();
      for (auto count = first; count < last; ++count) {
        const auto bin = static_cast<size_t>(count - one.counts.begin());
        bins.push_back({limits[std::max<size_t>(bin, 1) - 1], limits[bin], *count});
      }
      file_.append(histogram_record(seconds, step, one.name, bins));
    }
  }
  std::string write_error() const override { return file_.error(); }
  void sync() const override { file_.sync(); }

 private:
  /// A tag for each prompt, by its number in the configuration.
  void write_sample(const Event& event) {
    const auto prompt = event.fields.at("prompt").get<std::string>();
    const auto number = std::ranges::find(prompts_, prompt) - prompts_.begin() + 1;
    file_.append(text_record(seconds_of(event.time.value_or(WallClock::now())), *event.step, concat("sample/", number),
                             code_block(prompt + event.fields.at("text").get<std::string>())));
  }

  AppendFile file_;
  std::vector<std::string> prompts_;
};

}  // namespace

std::unique_ptr<EventSink> make_tensorboard_sink(const SinkSettings& settings) {
  const SwitchOrPath& asked = settings.config.observe.tensorboard;
  const auto* const path = std::get_if<std::string>(&asked);
  if (path == nullptr && !std::get<bool>(asked)) return nullptr;
  if (path != nullptr) make_directories(*path);
  const fs::path directory = path != nullptr ? fs::path(*path) : make_directories_in(settings.config.run.directory, "tensorboard");
  return std::make_unique<TensorBoardSink>(directory, settings.config, settings.history.step, WallClock::now());
}

}  // namespace trireme
