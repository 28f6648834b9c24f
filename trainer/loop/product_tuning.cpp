#include "trainer/loop/product_tuning.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/core/counted.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kTuningFormat = "trireme-products";
constexpr int64_t kTuningVersion = 1;
constexpr int64_t kMaxTuningBytes = int64_t{64} << 20;

AlgorithmsByGpu parse_tuning(const std::string& text) {
  const std::string where = "not a file of algorithms";
  const json file = parse_object(text, where);
  require_known_keys(file, {"format", "version", "products"}, where);
  if (string_member(file, "format", where) != kTuningFormat) throw DataError(concat(where, ": \"format\" is not \"", kTuningFormat, "\""));
  integer_member(file, "version", where, kTuningVersion, kTuningVersion);
  AlgorithmsByGpu all;
  for (const auto& [gpu, algorithms] : object_member(file, "products", where).items()) all[gpu] = strings_of(algorithms, where);
  return all;
}

/// Returns nothing if the file does not exist. Errors: as check_tuning_file.
AlgorithmsByGpu read_tuning(const fs::path& path) {
  const std::string key = concat("kernels.tuning_file=", path.string(), ": ");
  try {
    check_replaceable(path);
    std::error_code ignored;
    return fs::exists(path, ignored) ? parse_tuning(read_text(path, kMaxTuningBytes)) : AlgorithmsByGpu();
  } catch (const DataError& error) {
    throw DataError(concat(key, printable(error.what()), "; allowed a file that Trireme wrote, or a new name"));
  } catch (const IoError& error) {
    throw IoError(key + error.what());
  }
}

/// Writes through a file of its own, because other jobs may write at the same time: the last rename wins.
void write_tuning(const fs::path& path, const AlgorithmsByGpu& all) {
  const fs::path own = concat(path.string(), ".", host_name(), "-", ::getpid());
  write_durably(own, json{{"format", kTuningFormat}, {"version", kTuningVersion}, {"products", all}}.dump(1) + "\n");
  rename_durably(own, path);
}

cuda::ProductAlgorithms algorithms_of(const AlgorithmsByGpu& all, const std::string& gpu) {
  const auto found = all.find(gpu);
  return found == all.end() ? cuda::ProductAlgorithms() : found->second;
}

/// Adds algorithms of kinds that `all` lacks.
void add_missing(AlgorithmsByGpu& all, const AlgorithmsByGpu& more) {
  for (const auto& [gpu, algorithms] : more) all[gpu].insert(algorithms.begin(), algorithms.end());
}

int64_t count_kinds(const AlgorithmsByGpu& all) {
  int64_t kinds = 0;
  for (const auto& [gpu, algorithms] : all) kinds += std::ssize(algorithms);
  return kinds;
}

/// The times of one kind of product on one GPU model, over the ranks that compute it.
class Votes {
 public:
  void add(const cuda::ProductTimes& times) {
    ++ranks_;
    for (size_t i = 0; i < times.algorithms.size(); ++i) {
      auto sum = std::ranges::find(sums_, times.algorithms[i], &Sum::algorithm);
      if (sum == sums_.end()) sum = sums_.insert(sum, {times.algorithms[i]});
      ++sum->ranks;
      sum->seconds += times.seconds[i];
    }
  }
  /// The fastest of the algorithms that every rank can use, the first of equal ones; empty if there is none.
  std::string chosen() const {
    const Sum* best = nullptr;
    for (const Sum& sum : sums_)
      if (sum.ranks == ranks_ && (best == nullptr || sum.seconds < best->seconds)) best = &sum;
    return best == nullptr ? "" : best->algorithm;
  }

 private:
  struct Sum {
    std::string algorithm;
    int ranks = 0;
    double seconds = 0;
  };
  std::vector<Sum> sums_;  ///< in the heuristic's order on the first rank
  int ranks_ = 0;
};

/// The ranks' choice for each kind that one of them computes; the same on all ranks. Collective.
AlgorithmsByGpu agree(Communicator& world, const std::string& gpu, const std::vector<cuda::ProductTimes>& mine) {
  json products = json::array();
  for (const cuda::ProductTimes& times : mine) products.push_back({times.kind, times.algorithms, times.seconds});
  std::map<std::pair<std::string, std::string>, Votes> votes;
  for (const std::string& text : all_gather_strings(world, json{{"gpu", gpu}, {"products", products}}.dump())) {
    const json of_rank = parse_value(text, "tuning of a rank");
    for (const json& times : of_rank.at("products")) votes[{of_rank.at("gpu"), times.at(0)}].add({times.at(0), times.at(1), times.at(2)});
  }
  AlgorithmsByGpu chosen;
  for (const auto& [key, of_kind] : votes)
    if (const std::string algorithm = of_kind.chosen(); !algorithm.empty()) chosen[key.first][key.second] = algorithm;
  return chosen;
}

/// The file as rank 0 reads it. Collective.
AlgorithmsByGpu read_on_first_rank(Communicator& world, const fs::path& path) {
  AlgorithmsByGpu found;
  collectively(world, [&] {
    if (world.rank() == 0) found = read_tuning(path);
  });
  return parse_value(all_gather_strings(world, json(found).dump())[0], "tuning of rank 0").get<AlgorithmsByGpu>();
}

std::string note_of(const std::string& path, const AlgorithmsByGpu& known, const AlgorithmsByGpu& timed) {
  int64_t replaced = 0;
  for (const auto& [gpu, algorithms] : timed) {
    if (!known.empty() && !known.contains(gpu))
      return concat("kernels.tuning_file=", path, ": algorithms are known only for other GPUs or library versions than ", gpu,
                    "; its matrix products were timed");
    for (const auto& [kind, algorithm] : algorithms) replaced += algorithms_of(known, gpu).contains(kind) ? 1 : 0;
  }
  if (replaced == 0) return "";
  return concat("kernels.tuning_file=", path, ": cuBLASLt no longer offers the algorithms of ", counted(replaced, "kind"),
                " of matrix products; they were timed again");
}

}  // namespace

void check_tuning_file(const std::string& path) { read_tuning(path); }

std::optional<TunedProducts> tune_products(Trainer& trainer, const Dataset& data, int64_t step, const AlgorithmsByGpu& recorded) {
  const std::string& path = trainer.config().kernels.tuning_file;
  if (trainer.context().device != Device::kCuda || path == "none") return std::nullopt;
  Communicator& world = trainer.mesh().world;
  cuda::Gpu& gpu = *trainer.context().gpu;
  const std::string machine = concat(gpu.properties().name, ", ", cuda::library_versions(gpu));
  AlgorithmsByGpu known = recorded;
  add_missing(known, read_on_first_rank(world, path));

  const auto times = cuda::time_products(gpu, algorithms_of(known, machine), [&] { trainer.rehearse(data, step); });
  TunedProducts result{.algorithms = agree(world, machine, times)};
  cuda::use_algorithms(gpu, algorithms_of(result.algorithms, machine));

  AlgorithmsByGpu timed;
  for (const auto& [of_gpu, algorithms] : result.algorithms)
    for (const auto& [kind, algorithm] : algorithms)
      if (const auto before = algorithms_of(known, of_gpu); !before.contains(kind) || before.at(kind) != algorithm) timed[of_gpu][kind] = algorithm;
  result.timed = count_kinds(timed);
  result.known = count_kinds(result.algorithms) - result.timed;
  result.note = note_of(path, known, timed);
  collectively(world, [&] {
    if (world.rank() != 0 || timed.empty()) return;
    add_missing(timed, read_tuning(path));  // another job may have written it meanwhile
    write_tuning(path, timed);
  });
  return result;
}

}  // namespace trireme
