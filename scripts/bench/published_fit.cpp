// Fits the figures of other systems' stacks to published runs: `published_fit FILE [--rows | --mechanisms]`. Prints the fitted figures beside those of
// trainer/plan/stack.cpp, and how forecasts do on runs that they were not fitted to: each table of a document is left out in turn, all figures are fitted
// anew without it, and its runs are forecast. --rows prints each of these forecasts, --mechanisms what each mechanism gains alone and last. Takes about a
// minute; --mechanisms takes several.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>

#include "kernels/core/check.h"
#include "tests/plan/published_rows.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/forecast_range.h"
#include "trainer/plan/stack.h"
#include "trainer/plan/step_costs.h"

namespace {

using namespace trireme;
using Runs = std::vector<const published::Run*>;

const std::string& stack_name(const published::Run& run) { return run.cluster.software.stack; }
Stack& stack_called(const std::string& name) { return const_cast<Stack&>(stack_of(name)); }

/// Step time by the figures that are being fitted. Profiles and schedules do not depend on them.
double seconds_of(const std::string& id, const Config& config, const ClusterConfig& cluster) {
  struct Fixed {
    explicit Fixed(const Config& config) : profiles(config.model), schedule(step_schedule(config)) {}
    PartProfiles profiles;
    StepSchedule schedule;
  };
  static std::map<std::string, Fixed> all;
  Fixed& fixed = all.try_emplace(concat(id, " ", config.training.micro_batch_size), config).first->second;
  const StepCosts costs = step_costs(config, cluster, model_seconds(config, cluster, fixed.profiles), fixed.schedule.stage_ranks());
  return step_seconds(config, cluster, costs, fixed.schedule);
}

/// Forecast / measured step time. A micro-batch size that the authors tuned is chosen anew.
double ratio_of(const published::Run& run) {
  if (run.tuned.empty()) return seconds_of(run.id, run.config, run.cluster) / *run.step_seconds;
  double fastest = std::numeric_limits<double>::infinity();
  for (const Config& config : run.tuned) fastest = std::min(fastest, seconds_of(run.id, config, run.cluster));
  return fastest / *run.step_seconds;
}

/// A figure that several stacks share.
struct Parameter {
  const char* name;
  std::vector<std::string> stacks;
  double Stack::*figure;
  double expected;                                  ///< without runs
  double spread;                                    ///< standard deviation of its logarithm around `expected`, or of its value if `expected` is 0
  double value = expected > 0 ? expected : spread;  ///< a rank or a layer without cost is a local minimum

  bool positive() const { return expected > 0; }
  /// The value after a step of the fit: times exp(by), or plus by * spread, not below 0.
  double moved(double by) const { return positive() ? value * std::exp(by) : std::max(0.0, value + by * spread); }
  /// Distance from `expected` in standard deviations.
  double deviation() const { return positive() ? std::log(value / expected) / spread : value / spread; }
  /// d deviation / d step.
  double slope() const { return positive() ? 1 / spread : 1; }
  void apply() const {
    for (const std::string& stack : stacks) stack_called(stack).*figure = value;
  }
};

std::vector<Parameter> parameters() {
  const std::vector<std::string> unfused = {"megatron-2021", "megatron-deepspeed", "zero-bubble", "deepspeed-zero3"},
                                 pytorch = {"torchtitan", "nanotron", "pytorch-fsdp"};
  constexpr double kProduct = 0.9, kProductSpread = 0.2, kDataSpread = 0.7;
  return {
      {"products, Megatron 2021", unfused, &Stack::product_rate, kProduct, kProductSpread},
      {"products, Megatron 2023", {"megatron-2023"}, &Stack::product_rate, kProduct, kProductSpread},
      {"products, Megatron 2024", {"megatron-2024", "llama-3"}, &Stack::product_rate, kProduct, kProductSpread},
      {"products, llm-foundry", {"llm-foundry"}, &Stack::product_rate, kProduct, kProductSpread},
      {"products, PyTorch", pytorch, &Stack::product_rate, kProduct, kProductSpread},
      {"products, llm.c", {"llm.c"}, &Stack::product_rate, kProduct, kProductSpread},
      {"traffic, Megatron and llm-foundry",
       {"megatron-2021", "megatron-deepspeed", "zero-bubble", "deepspeed-zero3", "megatron-2023", "megatron-2024", "llama-3", "llm-foundry",
        "torchtitan"},
       &Stack::elementwise,
       1.5,
       0.5},
      {"data ranks, Megatron-DeepSpeed", {"megatron-deepspeed"}, &Stack::data_factor, 1, kDataSpread},
      {"data ranks, DeepSpeed ZeRO-3", {"deepspeed-zero3"}, &Stack::data_factor, 1, kDataSpread},
      {"data ranks, Megatron 2023", {"megatron-2023"}, &Stack::data_factor, 1, kDataSpread},
      {"data ranks, nanotron", {"nanotron"}, &Stack::data_factor, 1, kDataSpread},
      {"a layer, Megatron-DeepSpeed", {"megatron-deepspeed"}, &Stack::layer_seconds, 0, 1e-3},
      {"a data rank, nanotron", {"nanotron"}, &Stack::rank_seconds, 0, 2e-3},
  };
}

/// Solves a x = b by elimination; `a` is positive definite.
std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < n; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

/// Moves the parameters to the most likely values: Gauss-Newton steps on the logarithms of the ratios, with weights that fall for runs far from their
/// forecasts (Cauchy), and on the deviations from the expected values.
void fit(std::vector<Parameter>& parameters, const Runs& runs) {
  constexpr double kNoise = 0.03, kMostSteps = 12, kProbe = 0.02;
  const size_t n = parameters.size();
  for (int step = 0; step < kMostSteps; ++step) {
    for (const Parameter& parameter : parameters) parameter.apply();
    std::vector<double> errors, weights;
    for (const published::Run* run : runs) {
      errors.push_back(std::log(ratio_of(*run)));
      const double outlier = errors.back() / (2 * kNoise);
      weights.push_back(1 / (1 + outlier * outlier) / (kNoise * kNoise));
    }
    std::vector<std::vector<double>> slopes(n, std::vector<double>(runs.size(), 0.0)), a(n, std::vector<double>(n, 0.0));
    std::vector<double> b(n, 0.0);
    for (size_t p = 0; p < n; ++p) {
      Parameter moved = parameters[p];
      moved.value = moved.moved(kProbe);
      moved.apply();
      for (size_t r = 0; r < runs.size(); ++r)
        if (std::ranges::find(moved.stacks, stack_name(*runs[r])) != moved.stacks.end())
          slopes[p][r] = (std::log(ratio_of(*runs[r])) - errors[r]) / kProbe;
      parameters[p].apply();
    }
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = 0; q < n; ++q)
        for (size_t r = 0; r < runs.size(); ++r) a[p][q] += slopes[p][r] * weights[r] * slopes[q][r];
      for (size_t r = 0; r < runs.size(); ++r) b[p] -= slopes[p][r] * weights[r] * errors[r];
      const double slope = parameters[p].slope();
      a[p][p] += slope * slope;
      b[p] -= slope * parameters[p].deviation();
    }
    double most = 0;
    const std::vector<double> by = solved(a, b);
    for (size_t p = 0; p < n; ++p) {
      constexpr double kLargestStep = 0.5;
      const double before = parameters[p].value;
      parameters[p].value = parameters[p].moved(std::clamp(by[p], -kLargestStep, kLargestStep));
      if (before != parameters[p].value) most = std::max(most, std::abs(by[p]));
    }
    if (most < 1e-3) break;
  }
  for (const Parameter& parameter : parameters) parameter.apply();
}

constexpr int kWidth = 92;  ///< characters in the column of names

void print(const std::string& name, const std::vector<double>& errors) { published::print_errors(name, kWidth, errors); }

Runs timed_runs(const published::Rows& rows) {
  Runs runs;
  for (const published::Run& run : rows.runs)
    if (run.step_seconds) runs.push_back(&run);
  return runs;
}

using Errors = std::map<const published::Run*, double>;  ///< in the order of the file
using Group = std::function<std::string(const published::Run&)>;

std::string table_name(const published::Run& run) { return concat(stack_name(run), ": ", run.table); }

/// Leaves each group of runs out in turn, fits all figures anew without it, and forecasts its runs.
Errors leave_out(const Runs& runs, const std::vector<Parameter>& fitted, const Group& group) {
  std::map<std::string, Runs> groups;
  for (const published::Run* run : runs) groups[group(*run)].push_back(run);
  Errors errors;
  for (const auto& [name, left_out] : groups) {
    Runs others;
    std::ranges::copy_if(runs, std::back_inserter(others), [&, name = name](const published::Run* run) { return group(*run) != name; });
    std::vector<Parameter> again = fitted;
    fit(again, others);
    for (const published::Run* run : left_out) errors[run] = ratio_of(*run) - 1;
  }
  for (const Parameter& parameter : fitted) parameter.apply();
  return errors;
}

std::map<std::string, std::vector<double>> errors_by(const Errors& errors, const Group& group) {
  std::map<std::string, std::vector<double>> by_group;
  for (const auto& [run, error] : errors) by_group[group(*run)].push_back(error);
  return by_group;
}

std::vector<double> values_of(const Errors& errors) {
  std::vector<double> values;
  for (const auto& [run, error] : errors) values.push_back(error);
  return values;
}

/// Something that the forecast knows about some runs, and how to take it away.
struct Mechanism {
  const char* name;
  std::function<bool(const published::Run&)> concerns;
  std::function<void(Stack&)> from_stack = [](Stack&) {};
  std::function<void(published::Run&)> from_run = [](published::Run&) {};
  std::vector<double Stack::*> figures = {};  ///< fitted figures that go with it
};

std::vector<Mechanism> mechanisms() {
  const auto of_stack = [](const char* stack) { return [stack](const published::Run& run) { return stack_name(run) == stack; }; };
  return {
      {"traffic of separate elementwise kernels",
       [](const published::Run& run) { return stack_of(stack_name(run)).elementwise > 1; },
       [](Stack& stack) { stack.elementwise = 1; },
       [](published::Run&) {},
       {&Stack::elementwise}},
      {"fp8 products", [](const published::Run& run) { return run.cluster.software.fp8 != "none"; }, [](Stack&) {},
       [](published::Run& run) { run.cluster.software.fp8 = "none"; }},
      {"traffic between data ranks, by system",
       [](const published::Run& run) { return stack_of(stack_name(run)).data_factor != 1; },
       [](Stack& stack) { stack.data_factor = 1; },
       [](published::Run&) {},
       {&Stack::data_factor}},
      {"time for each layer, Megatron-DeepSpeed",
       of_stack("megatron-deepspeed"),
       [](Stack& stack) { stack.layer_seconds = 0; },
       [](published::Run&) {},
       {&Stack::layer_seconds}},
      {"time for each data rank, nanotron",
       of_stack("nanotron"),
       [](Stack& stack) { stack.rank_seconds = 0; },
       [](published::Run&) {},
       {&Stack::rank_seconds}},
      {"gathers of single tensors, DeepSpeed ZeRO-3", of_stack("deepspeed-zero3"), [](Stack& stack) { stack.gathers_per_block = 1; }},
      {"searched schedules and updates without waiting, zero bubble",
       [](const published::Run& run) { return stack_name(run) == "zero-bubble" && run.config.parallel.schedule != "1f1b"; },
       [](Stack& stack) { stack.searched_schedules = stack.post_validation = false; }},
      {"PyTorch's ring attention, torchtitan with context parallelism",
       [](const published::Run& run) { return run.cluster.software.context > 1 && stack_of(stack_name(run)).ring_attention_rate > 0; },
       [](Stack& stack) { stack.ring_attention_rate = 0; }},
      {"micro-batches tuned as by their authors",
       [](const published::Run& run) {
         return stack_name(run) == "megatron-2023" || (stack_name(run) == "megatron-2021" && run.id.starts_with("sc21-t1"));
       }},
  };
}

/// Errors on left-out tables without the mechanisms for which `off` holds, in the order of the file.
std::vector<double> errors_without(const std::string& path, const std::function<bool(size_t)>& off) {
  const std::vector<Stack> before = stacks();
  const std::vector<Mechanism> all = mechanisms();
  published::Rows rows = published::read_rows(path, !off(all.size() - 1));
  std::vector<Parameter> fitted = parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!off(i)) continue;
    for (const Stack& stack : before)
      if (!stack.own) all[i].from_stack(stack_called(stack.name));
    for (published::Run& run : rows.runs) all[i].from_run(run);
    std::erase_if(fitted, [&](const Parameter& parameter) { return std::ranges::find(all[i].figures, parameter.figure) != all[i].figures.end(); });
  }
  const Runs runs = timed_runs(rows);
  fit(fitted, runs);
  const std::vector<double> errors = values_of(leave_out(runs, fitted, table_name));
  for (const Stack& stack : before) stack_called(stack.name) = stack;
  return errors;
}

void compare_mechanisms(const std::string& path) {
  const published::Rows rows = published::read_rows(path);
  const Runs runs = timed_runs(rows);
  const std::vector<Mechanism> all = mechanisms();
  const std::vector<double> with_all = errors_without(path, [](size_t) { return false; });
  const std::vector<double> with_none = errors_without(path, [](size_t) { return true; });
  published::print_header("left out", kWidth);
  print("all runs, all mechanisms", with_all);
  print("all runs, none", with_none);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<double> without = errors_without(path, [i](size_t other) { return other == i; });
    const std::vector<double> alone = errors_without(path, [i](size_t other) { return other != i; });
    const auto concerned = [&](const std::vector<double>& errors) {
      std::vector<double> some;
      for (size_t r = 0; r < runs.size(); ++r)
        if (all[i].concerns(*runs[r])) some.push_back(errors[r]);
      return some;
    };
    std::cout << all[i].name << '\n';
    print("  last: its runs with it", concerned(with_all));
    print("  last: its runs without it", concerned(without));
    print("  last: all runs without it", without);
    print("  alone: its runs with it", concerned(alone));
    print("  alone: its runs without it", concerned(with_none));
    std::cout << std::flush;
  }
}

/// Whether no size of `run` is far beyond those of its system's other tables.
bool resembles_others(const published::Run& run, const Runs& runs) {
  RunSpan span;
  for (const published::Run* other : runs)
    if (stack_name(*other) == stack_name(run) && other->table != run.table) span.add(sizes_of_run(other->config, other->cluster));
  return span.first_beyond(sizes_of_run(run.config, run.cluster)) == nullptr;
}

/// The row of a stack in seen_runs(). `within`: errors of its left-out runs that resemble others.
std::string seen_row(const std::string& stack, const Runs& runs, const std::vector<double>& within, const Errors& left_out) {
  RunSpan span;
  int count = 0;
  bool fp8 = false;
  double bandwidth = 1;
  for (const published::Run* run : runs) {
    if (stack_name(*run) != stack) continue;
    bandwidth = std::min(bandwidth, bandwidth_share(run->cluster.device));
    fp8 = fp8 || run->cluster.software.fp8 != "none";
    span.add(sizes_of_run(run->config, run->cluster));
    ++count;
  }
  const auto text = [](const RunSizes& sizes) {
    return concat("{", sizes.devices, ", ", sizes.hidden, ", ", sizes.sequence, ", ", sizes.microbatch, "}");
  };
  const auto ninth = [](const std::vector<double>& errors) { return published::quantile(published::sizes_of(errors), 0.9); };
  // Few errors say little: where fewer than 20 runs resemble others, those of all runs of the system and of all systems count.
  constexpr size_t kFewest = 20;
  const double of_system = ninth(within.size() >= kFewest ? within : errors_by(left_out, stack_name).at(stack)), of_all = ninth(values_of(left_out));
  const bool own = within.size() >= kFewest || of_system > of_all;
  const double error = own ? of_system : of_all;
  return concat("{\"", stack, "\", ", count, ", {", text(span.least), ", ", text(span.most), "}, ", fp8 ? "true, " : "false, ",
                std::floor(100 * bandwidth) / 100, ", ", own ? "true, " : "false, ", std::ceil(1000 * error) / 1000, "},");
}

}  // namespace

int run(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: published_fit FILE [--rows | --mechanisms]" << std::endl;
    return 64;
  }
  const std::string option = argc > 2 ? argv[2] : "";
  if (option == "--mechanisms") {
    compare_mechanisms(argv[1]);
    return 0;
  }
  const bool each = option == "--rows";
  const published::Rows rows = published::read_rows(argv[1]);
  const Runs runs = timed_runs(rows);
  std::vector<Parameter> fitted = parameters();
  std::vector<double> given;
  for (const Parameter& parameter : fitted) given.push_back(stack_called(parameter.stacks.front()).*parameter.figure);
  fit(fitted, runs);
  std::cout << "figure                                 fitted   in use\n";
  for (size_t p = 0; p < fitted.size(); ++p)
    std::cout << std::left << std::setw(36) << fitted[p].name << std::right << std::defaultfloat << std::setprecision(4) << std::setw(9)
              << fitted[p].value << std::setw(9) << given[p] << '\n';
  std::vector<double> errors;
  for (const published::Run* run : runs) errors.push_back(ratio_of(*run) - 1);
  const Errors left_out = leave_out(runs, fitted, table_name);
  if (each)
    for (const auto& [run, error] : left_out)
      std::cout << std::left << std::setw(64) << run->id << std::right << std::fixed << std::setprecision(1) << std::setw(8) << 100 * error << " %\n";
  std::cout << '\n';
  published::print_header("left out", kWidth);
  for (const auto& [table, of_table] : errors_by(left_out, table_name)) print(table, of_table);
  std::cout << '\n';
  const auto by_stack = errors_by(left_out, stack_name);
  for (const auto& [stack, of_stack] : by_stack) print(stack, of_stack);
  print("all, left out", values_of(left_out));
  print("all, fitted", errors);

  std::cout << "\nleft out, by whether other tables of the system have such runs\n";
  std::map<std::string, std::vector<double>> within;
  std::vector<double> beyond;
  int outside = 0;
  for (const auto& [run, error] : left_out) {
    const bool near = resembles_others(*run, runs);
    (near ? within[stack_name(*run)] : beyond).push_back(error);
    const SeenRuns& seen = *std::ranges::find(seen_runs(), stack_name(*run), &SeenRuns::stack);
    outside += std::abs(error) > (near ? seen.error : std::max(seen.error, kErrorBeyond));
  }
  for (const auto& [stack, of_stack] : within) print(concat("within, ", stack), of_stack);
  print("beyond", beyond);
  std::cout << outside << " of " << left_out.size() << " runs outside their range\n\nrows of seen_runs() in trainer/plan/forecast_range.cpp\n";
  for (const auto& [stack, of_stack] : by_stack) std::cout << seen_row(stack, runs, within[stack], left_out) << '\n';

  const Errors unseen = leave_out(runs, fitted, stack_name);
  for (const auto& [stack, of_stack] : errors_by(unseen, stack_name)) print(concat("system left out: ", stack), of_stack);
  print("systems left out", values_of(unseen));
  return 0;
}

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "published_fit: " << error.what() << std::endl;
    return 1;
  }
}
