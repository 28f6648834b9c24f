#include "trainer/commands/verify_command.h"

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/load.h"
#include "trainer/files/progress_line.h"
#include "trainer/layout/resolve.h"
#include "trainer/verify/verify.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  std::string config;
  std::optional<std::string> layouts;
  std::vector<std::string> sets;
  VerifyOptions options;
  bool json = false;
};

template <class T>
Json or_null(const T& value, bool applies) {
  return applies ? Json(value) : Json(nullptr);
}

/// JSON has no infinities: non-finite values become null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

bool was_compared(const LayoutVerdict& v) { return v.acts.empty() && (v.kind == LayoutVerdict::Kind::kSame || v.max_difference > 0); }

Json to_json(const LayoutVerdict& v) {
  const bool wrong = v.kind != LayoutVerdict::Kind::kSame;
  const bool figures = wrong && v.acts.empty() && v.expected != v.actual;  // otherwise nothing was compared
  return {{"layout", v.layout},
          {"verdict", name_of(v.kind)},
          {"max_difference", was_compared(v) ? number(v.max_difference) : Json(nullptr)},
          {"tensor", or_null(v.tensor, !v.tensor.empty())},
          {"layer", or_null(v.layer, v.layer >= 0)},
          {"stage", or_null(v.stage, v.stage >= 0)},
          {"ranks", or_null(v.ranks, !v.ranks.empty())},
          {"axis", or_null(v.diagnosis.axis, wrong)},
          {"layer_kind", or_null(v.diagnosis.layer, wrong)},
          {"trap", or_null(v.diagnosis.trap, wrong)},
          {"step", or_null(v.step, v.step > 0)},
          {"what", or_null(v.what, wrong)},
          {"expected", figures ? number(v.expected) : Json(nullptr)},
          {"actual", figures ? number(v.actual) : Json(nullptr)},
          {"smallest", or_null(v.smallest, wrong && !v.smallest.empty())}};
}

std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) text += concat(i > 0 ? ", " : "", ranks[i]);
  return ranks.size() > kShown ? text + ", ..." : text;
}

void print(const std::string& label, const LayoutVerdict& v) {
  std::cout << std::left << std::setw(40) << label << ' ' << std::setw(9) << name_of(v.kind);
  if (was_compared(v)) std::cout << "largest difference " << std::setprecision(2) << v.max_difference;
  std::cout << '\n';
  if (v.kind == LayoutVerdict::Kind::kSame) return;
  const std::string indent(4, ' ');
  std::cout << indent << v.what << '\n';
  if (!v.tensor.empty())
    std::cout << indent << "first tensor " << v.tensor << ", stage " << v.stage << (v.ranks.empty() ? "" : ", owned by rank " + list_of(v.ranks))
              << '\n';
  for (size_t rank = 0; rank < std::min<size_t>(v.acts.size(), 8); ++rank) std::cout << indent << "rank " << rank << ": " << v.acts[rank] << '\n';
  if (!v.smallest.empty())
    std::cout << indent << "axis " << (v.diagnosis.axis == "none" ? "none (every layout)" : v.diagnosis.axis) << ", layer " << v.diagnosis.layer
              << "; smallest failing layout " << v.smallest << '\n';
  std::cout << indent << "likely cause: " << v.diagnosis.trap << '\n';
}

/// Returns true if all layouts agree.
bool verify(const VerifyArguments& arguments) {
  const Config config = resolve(load_config(arguments.config, arguments.sets));
  const std::vector<Layout> layouts = arguments.layouts ? parse_layouts(*arguments.layouts) : default_layouts(config);
  VerifyOptions options = arguments.options;
  ProgressLine line("layouts", ProgressUnit::kItems, static_cast<int64_t>(layouts.size()) + 1);
  options.progress = [&](const std::string& doing) { line.advance(0, doing); };
  Verifier verifier(config, layouts, options);
  Json report;
  const auto tell = [&](const std::string& label, const LayoutVerdict& verdict) {
    line.advance(1);
    line.clear();
    if (!arguments.json) print(label, verdict);
    std::cout << std::flush;  // before the next progress line, which is on standard error
    return to_json(verdict);
  };
  const ModelConfig& m = verifier.clone().config.model;
  if (!arguments.json)
    std::cout << m.architecture << " of " << counted(m.layers, "layer") << ", hidden size " << m.hidden_size << ", heads " << m.heads << ", kv heads "
              << *m.kv_heads << ", vocabulary " << *m.vocab_size << "; " << counted(options.steps, "step") << " in fp64 on threads"
              << (config.training.compression == CompressionConfig{} ? "" : ", without training.compression")
              << (is_robust(config.security) ? ", without security.aggregation" : "")
              << (is_private(config.security) ? ", without security.privacy" : "")
              << (is_federated(config.security) ? ", without security.federation" : "")
              << (config.training.local.steps ? ", as one island without training.local" : "")
              << (is_asynchronous(config.training) ? ", as one island without training.asynchronous" : "")
              << (config.resilience.rebalance == Rebalance::kMicroBatches ? ", data ranks with different numbers of micro-batches" : "") << std::endl;
  bool same = true;
  const auto note = [&](const LayoutVerdict& verdict) {
    same = same && verdict.kind == LayoutVerdict::Kind::kSame;
    return verdict;
  };
  report["baseline"] = tell("one rank", note(verifier.baseline()));
  report["layouts"] = Json::array();
  for (const Layout& layout : layouts) report["layouts"].push_back(tell(layout.text, note(verifier.layout(layout))));
  if (arguments.json) std::cout << report.dump() << '\n';
  finish_output();
  // A hung thread would keep the process alive, or crash while its data is destroyed.
  if (verifier.stuck()) std::_Exit(static_cast<int>(ExitCode::kInternal));
  return same;
}

}  // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("verify", "Prove on a small clone that layouts train the same model (fp64, on CPU threads)");
  const auto arguments = std::make_shared<VerifyArguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run")->required();
  command->add_option("--layouts", arguments->layouts,
                      "Layouts such as \"tp2 tp2pp2dp2z3sp pp2-interleaved_1f1b\"; default: the configured layout and each axis alone");
  command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command->add_option("--steps", arguments->options.steps, "Number of training steps")->check(CLI::Range(2, 50))->capture_default_str();
  command->add_option("--seed", arguments->options.seed, "Random seed of the clone's weights, data and dropout masks")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &exit_code] { exit_code = static_cast<int>(verify(*arguments) ? ExitCode::kOk : ExitCode::kInternal); });
}

}  // namespace trireme
