#include "trainer/commands/checkpoint_command.h"

#include <iostream>
#include <memory>
#include <set>

#include "kernels/core/counted.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/commands/checkpoint_export.h"
#include "trainer/commands/checkpoint_import.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/table.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using nlohmann::ordered_json;

/// True if no other checkpoint of the run has a lower recorded loss.
bool is_best(const fs::path& checkpoint, double loss) {
  for (const auto& other : fs::directory_iterator(checkpoint.parent_path()))
    if (is_checkpoint_name(other.path().filename().string()) && recorded_loss(other.path()).value_or(loss) < loss) return false;
  return true;
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
                        {"tokenizer", {{"name", about.tokenizer.name}, {"digest", about.tokenizer.digest}, {"files", about.tokenizer.files}}},
                        {"layout", ordered_json(about.layout)},
                        {"model", ordered_json(about.model)},
                        {"parameters", parameters},
                        {"dtype", dtypes},
                        {"bytes", reader.bytes()}};
  if (const auto loss = recorded_loss(reader.directory())) {
    facts["validation_loss"] = *loss;
    facts["best"] = is_best(reader.directory(), *loss);
  }
  if (about.early_stopping.step > 0) facts["early_stopping"] = to_json(about.early_stopping);
  if (about.rejected_steps > 0) facts["rejected_steps"] = about.rejected_steps;
  if (!about.island_steps.empty()) facts["island_steps"] = about.island_steps;
  if (!about.micro_batches.empty()) facts["micro_batches"] = about.micro_batches;
  if (!about.island_rejections.empty()) facts["island_rejections"] = about.island_rejections;
  if (!about.branch.empty()) facts["branch"] = to_json(about.branch);
  if (const NonFinite found = reader.recorded_non_finite(); !found.empty()) facts["non_finite"] = found;
  if (reader.audit()) facts["audit"] = ordered_json(to_json(*reader.audit()));
  if (about.loss_scale) facts["loss_scale"] = {{"scale", about.loss_scale->scale}, {"clean_steps", about.loss_scale->clean_steps}};
  facts["files"] = facts["tensors"] = ordered_json::array();
  for (const auto& [name, file] : reader.files()) facts["files"].push_back({{"file", name}, {"bytes", file.bytes}, {"digest", file.digest}});
  for (const auto& [name, tensor] : reader.tensors()) {
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.dims);
    facts["tensors"].push_back({{"tensor", name}, {"dtype", name_of(tensor.dtype)}, {"shape", shape}, {"boxes", tensor.boxes.size()}});
  }
  return facts;
}

/// Formats a value on one line: strings without quotes, objects as "a 1, b 2". Escaped, so that text from a file cannot control the terminal.
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
  const CheckpointReader reader(checkpoint_at(directory));
  if (const std::string problem = reader.name_mismatch(); !problem.empty()) std::cerr << "warning: " << problem << '\n';
  ordered_json facts = facts_of(reader);
  if (json) {
    std::cout << facts.dump(2) << '\n';
    return finish_output();
  }
  for (const auto& [key, value] : facts.items()) {
    if (key == "files" || key == "tensors") continue;
    std::cout << key << std::string(17 - key.size(), ' ') << (key == "non_finite" ? to_string(reader.recorded_non_finite()) : line_of(value));
    if (key == "bytes") std::cout << " (" << binary_bytes_text(value.get<double>()) << ") in " << counted(facts["files"].size(), "file");
    std::cout << '\n';
  }
  for (auto& tensor : facts["tensors"]) tensor["shape"] = "[" + line_of(tensor["shape"]) + "]";
  std::cout << '\n' << table_of(facts["files"]) << '\n' << table_of(facts["tensors"]);
  finish_output();
}

void verify(const std::string& directory) {
  CheckpointReader reader(checkpoint_at(directory));
  const int64_t bytes = reader.bytes();
  std::cerr << "verifying " << reader.directory().string() << '\n';
  if (const std::string problem = reader.name_mismatch(); !problem.empty()) throw DataError(problem);
  NonFinite found;
  {
    ProgressLine progress("verifying", ProgressUnit::kBytes, bytes);
    found = reader.verify_digests([&](int64_t more) { progress.advance(more); });
  }
  if (!found.empty())
    throw DataError(
        concat(reader.directory().string(), ": intact, but contains non-finite values: ", to_string(found), "; training cannot resume from it"));
  std::cout << "complete: " << counted(reader.tensors().size(), "tensor") << ", " << bytes << " bytes in " << counted(reader.files().size(), "file")
            << '\n';
  finish_output();
}

}  // namespace

void add_checkpoint_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Inspect, verify, export or import a checkpoint");
  checkpoint->require_subcommand(1);
  const auto add = [&](const char* name, const char* doc) {
    CLI::App* command = checkpoint->add_subcommand(name, doc);
    const auto directory = std::make_shared<std::string>();
    command->add_option("directory", *directory, "Checkpoint, or run directory (its newest checkpoint)")->required()->type_name("DIR");
    return std::pair(command, directory);
  };
  const auto [inspect_command, inspected] = add("inspect", "Describe a checkpoint: run, model, layout, files and tensors");
  const auto json = std::make_shared<bool>(false);
  inspect_command->add_flag("--json", *json, "Print one JSON object");
  inspect_command->callback([directory = inspected, json, &exit_code] {
    inspect(*directory, *json);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
  const auto [verify_command, verified] =
      add("verify", "Read all of a checkpoint and compare every digest; exit code 65 if it is damaged or contains non-finite values");
  verify_command->callback([directory = verified, &exit_code] {
    verify(*directory);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
  add_checkpoint_export(*checkpoint, environment, exit_code);
  add_checkpoint_import(*checkpoint, exit_code);
}

}  // namespace trireme
