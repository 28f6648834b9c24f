#include "trainer/commands/checkpoint_command.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <set>

#include "trainer/bench/table.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using nlohmann::ordered_json;

/// The checkpoint meant by `directory`: itself, or the newest of a run. Not the newest whole one, for which a damaged one would be passed over in silence.
fs::path checkpoint_at(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found)
    throw MissingFileError(concat(directory.string(), ": does not exist; name a checkpoint or a run directory"));
  if (status.type() == fs::file_type::none) throw IoError(concat(directory.string(), ": ", error.message()));
  if (!fs::is_directory(status)) throw DataError(concat(directory.string(), ": not a directory; name a checkpoint or a run directory"));
  if (fs::exists(fs::symlink_status(directory / kManifestName, error)) || !fs::is_directory(directory / "checkpoints", error)) return directory;
  const std::vector<fs::path> checkpoints = checkpoints_of(directory);
  if (checkpoints.empty()) throw MissingFileError(concat(directory.string(), ": this run has no checkpoint yet"));
  return checkpoints.front();
}

const char* files_word(size_t count) { return count == 1 ? " file" : " files"; }

/// Output may go to a full disk.
void finish_output() {
  if (!std::cout.flush()) throw IoError("cannot write to standard output");
}

ordered_json facts_of(const CheckpointReader& reader) {
  const CheckpointDescription& about = reader.description();
  int64_t parameters = 0;
  std::set<std::string> dtypes;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.rfind("weight/", 0) != 0) continue;
    parameters += tensor.shape[0] * tensor.shape[1];
    dtypes.insert(name_of(tensor.dtype));
  }
  ordered_json facts = {{"checkpoint", reader.directory().string()},
                        {"step", about.step},
                        {"optimizer_steps", about.optimizer_steps},
                        {"tokens", about.tokens},
                        {"samples", about.samples},
                        {"seed", about.seed},
                        {"tokenizer", about.tokenizer},
                        {"layout", about.layout},
                        {"model", about.model},
                        {"parameters", parameters},
                        {"dtype", dtypes},
                        {"bytes", reader.bytes()}};
  if (about.loss_scale) facts["loss_scale"] = {{"scale", about.loss_scale->scale}, {"clean_steps", about.loss_scale->clean_steps}};
  facts["files"] = facts["tensors"] = ordered_json::array();
  for (const auto& [name, file] : reader.files()) facts["files"].push_back({{"file", name}, {"bytes", file.bytes}, {"digest", file.digest}});
  for (const auto& [name, tensor] : reader.tensors()) {
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.dims);
    facts["tensors"].push_back({{"tensor", name}, {"dtype", name_of(tensor.dtype)}, {"shape", shape}, {"boxes", tensor.boxes.size()}});
  }
  return facts;
}

/// A value on a line of its own: strings bare, objects as "a 1, b 2". Escaped, so that nothing in a file moves the cursor of a terminal.
std::string line_of(const ordered_json& value) {
  std::string text;
  if (value.is_string()) {
    text = value.dump(-1, ' ', true);
    return text.substr(1, text.size() - 2);
  }
  if (!value.is_structured()) return value.dump(-1, ' ', true);
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += key + " ";
    text += item.is_structured() ? "(" + line_of(item) + ")" : line_of(item);
  }
  return text;
}

void inspect(const std::string& directory, bool json) {
  ordered_json facts = facts_of(CheckpointReader(checkpoint_at(directory)));
  if (json) {
    std::cout << facts.dump(2) << '\n';
    return finish_output();
  }
  for (const auto& [key, value] : facts.items()) {
    if (key == "files" || key == "tensors") continue;
    std::cout << key << std::string(17 - key.size(), ' ') << line_of(value);
    if (key == "bytes")
      std::cout << " (" << bench::bytes_text(value.get<double>()) << ") in " << facts["files"].size() << files_word(facts["files"].size());
    std::cout << '\n';
  }
  for (auto& tensor : facts["tensors"]) tensor["shape"] = "[" + line_of(tensor["shape"]) + "]";
  std::cout << '\n' << bench::table_of(facts["files"]) << '\n' << bench::table_of(facts["tensors"]);
  finish_output();
}

/// A bar that rewrites its line on a terminal; nothing elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total) : total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (shown_) std::cerr << "\r\033[K" << std::flush;
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void advance(int64_t bytes) {
    constexpr size_t kWidth = 40;
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || (shown_ && now - last_ < std::chrono::milliseconds(100))) return;
    last_ = now;
    shown_ = true;
    const double share = static_cast<double>(done_) / static_cast<double>(total_);
    const auto full = static_cast<size_t>(share * kWidth);
    std::cerr << "\r[" << std::string(full, '#') << std::string(kWidth - full, '.') << "] " << static_cast<int>(share * 100) << " % of "
              << bench::bytes_text(static_cast<double>(total_)) << "\033[K" << std::flush;
  }

 private:
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

void verify(const std::string& directory) {
  CheckpointReader reader(checkpoint_at(directory));
  const int64_t bytes = reader.bytes();
  std::cerr << "verifying " << reader.directory().string() << '\n';
  {
    ProgressBar bar(bytes);
    reader.verify_digests([&](int64_t more) { bar.advance(more); });
  }
  std::cout << "whole: " << reader.tensors().size() << " tensors, " << bytes << " bytes in " << reader.files().size()
            << files_word(reader.files().size()) << '\n';
  finish_output();
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& exit_code) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Look into a checkpoint, or check that it is whole");
  checkpoint->require_subcommand(1);
  const auto add = [&](const char* name, const char* doc) {
    CLI::App* command = checkpoint->add_subcommand(name, doc);
    const auto directory = std::make_shared<std::string>();
    command->add_option("directory", *directory, "checkpoint, or run directory: its newest checkpoint")->required()->type_name("DIR");
    return std::pair(command, directory);
  };
  const auto [inspect_command, inspected] = add("inspect", "Describe a checkpoint: run, model, layout, files and tensors");
  const auto json = std::make_shared<bool>(false);
  inspect_command->add_flag("--json", *json, "for programs");
  inspect_command->callback([directory = inspected, json, &exit_code] {
    inspect(*directory, *json);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
  const auto [verify_command, verified] = add("verify", "Read a whole checkpoint and compare every digest; exit code 65 where it is damaged");
  verify_command->callback([directory = verified, &exit_code] {
    verify(*directory);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
