#include "trainer/loop/product_tuning.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/core/counted.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/printable.h"
#include "trainer/files/strict_json.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/trainer.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using Algorithms = std::map<std::string, cuda::ProductAlgorithms>;  ///< by GPU model and library versions

constexpr const char* kTuningFormat = "trireme-products";
constexpr int64_t kTuningVersion = 1;
constexpr int64_t kMostTuningBytes = int64_t{64} << 20;

Algorithms parse_tuning(const std::string& text, const std::string& where) {
  const json file = parse_object(text, where);
  require_known_keys(file, {"format", "version", "products"}, where);
  if (string_member(file, "format", where) != kTuningFormat) throw DataError(concat(where, ": format is not \"", kTuningFormat, "\""));
  integer_member(file, "version", where, kTuningVersion, kTuningVersion);
  Algorithms all;
  for (const auto& [gpu, algorithms] : object_member(file, "products", where).items()) all[gpu] = strings_of(algorithms, where);
  return all;
}

/// Nothing if the file does not exist.
Algorithms read_tuning(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? parse_tuning(read_text(path, kMostTuningBytes), path.string()) : Algorithms();
}

/// Writes through a file of its own, because other jobs may write at the same time; the last one's rename stays.
void write_tuning(const fs::path& path, const Algorithms& all) {
  const fs::path own = concat(path.string(), ".", host_name(), "-", ::getpid());
  write_durably(own, json{{"format", kTuningFormat}, {"version", kTuningVersion}, {"products", all}}.dump(1) + "\n");
  rename_durably(own, path);
}

const cuda::ProductAlgorithms& algorithms_of(const Algorithms& all, const std::string& gpu) {
  static const cuda::ProductAlgorithms kNone;
  const auto found = all.find(gpu);
  return found == all.end() ? kNone : found->second;
}

/// One kind of product on one GPU model, over the ranks that compute it.
struct KindVotes {
  struct Sum {
    int ranks = 0;
    double seconds = 0;
  };
  std::vector<std::string> order;   ///< algorithms, as the heuristic of the first rank that timed them orders them
  std::map<std::string, Sum> sums;  ///< by algorithm
  int ranks = 0;                    ///< that timed the kind
  std::string known;                ///< on ranks that did not time it

  void add(const cuda::ProductTimes& times) {
    if (times.seconds.empty()) {
      known = times.algorithms.front();
      return;
    }
    if (ranks++ == 0) order = times.algorithms;
    for (size_t i = 0; i < times.algorithms.size(); ++i) {
      Sum& sum = sums[times.algorithms[i]];
      ++sum.ranks;
      sum.seconds += times.seconds[i];
    }
  }
  /// The fastest of the algorithms that every rank has timed; empty if there is none.
  std::string chosen() const {
    if (ranks == 0) return known;
    std::string best;
    for (const std::string& algorithm : order)
      if (sums.at(algorithm).ranks == ranks && (best.empty() || sums.at(algorithm).seconds < sums.at(best).seconds)) best = algorithm;
    return best;
  }
};

/// The ranks' choice for each kind that one of them computes.
struct Agreement {
  Algorithms chosen;
  Algorithms timed;  ///< those of `chosen` whose kinds were timed
};
/// Collective; the same on all ranks.
Agreement agree(Communicator& world, const std::string& gpu, const std::vector<cuda::ProductTimes>& mine) {
  json products = json::array();
  for (const cuda::ProductTimes& times : mine) products.push_back({times.kind, times.algorithms, times.seconds});
  std::map<std::pair<std::string, std::string>, KindVotes> kinds;
  for (const std::string& text : all_gather_strings(world, json{{"gpu", gpu}, {"products", products}}.dump())) {
    const json of_rank = json::parse(text);
    const auto its_gpu = of_rank.at("gpu").get<std::string>();
    for (const json& times : of_rank.at("products")) {
      const auto kind = times.at(0).get<std::string>();
      kinds[{its_gpu, kind}].add({kind, times.at(1).get<std::vector<std::string>>(), times.at(2).get<std::vector<double>>()});
    }
  }
  Agreement agreed;
  for (const auto& [key, votes] : kinds) {
    const std::string algorithm = votes.chosen();
    if (algorithm.empty()) continue;
    agreed.chosen[key.first][key.second] = algorithm;
    if (votes.ranks > 0) agreed.timed[key.first][key.second] = algorithm;
  }
  return agreed;
}

int64_t count_kinds(const Algorithms& all) {
  int64_t kinds = 0;
  for (const auto& [gpu, algorithms] : all) kinds += std::ssize(algorithms);
  return kinds;
}

struct TuningFile {
  Algorithms algorithms;
  std::string problem;  ///< why its content is ignored; empty: it is sound or does not exist
};
/// The file as rank 0 reads it. Collective.
TuningFile read_on_first_rank(Communicator& world, const fs::path& path) {
  json found;
  collectively(world, [&] {
    if (world.rank() != 0) return;
    try {
      check_replaceable(path);
      found = {{"algorithms", read_tuning(path)}, {"problem", ""}};
    } catch (const DataError& error) {
      found = {{"algorithms", Algorithms()}, {"problem", printable(error.what())}};
    } catch (const IoError& error) {
      throw IoError(concat("kernels.tuning_file=", path.string(), ": ", error.what()));
    }
  });
  const json shared = json::parse(all_gather_strings(world, found.dump())[0]);
  return {shared.at("algorithms").get<Algorithms>(), shared.at("problem").get<std::string>()};
}

/// Why kinds were timed although there was a file or a checkpoint with algorithms; empty if there is no reason to warn.
std::string warning_of(const std::string& name, const TuningFile& file, const Algorithms& known, const Algorithms& timed) {
  if (!file.problem.empty()) return concat("warning: kernels.tuning_file=", name, " is ignored and stays as it is: ", file.problem);
  int64_t replaced = 0;
  for (const auto& [gpu, algorithms] : timed) {
    if (!known.empty() && !known.contains(gpu))
      return concat("warning: kernels.tuning_file=", name, " has no algorithms for ", gpu, "; matrix products are timed again");
    for (const auto& [kind, algorithm] : algorithms) replaced += algorithms_of(known, gpu).contains(kind) ? 1 : 0;
  }
  if (replaced == 0) return "";
  return concat("warning: kernels.tuning_file=", name, ": cuBLASLt does not offer the algorithms of ", counted(replaced, "kind"),
                " of matrix products any more; they are timed again");
}

}  // namespace

std::optional<TunedProducts> tune_products(Trainer& trainer, const Dataset& data, int64_t step) {
  Algorithms known = trainer.product_algorithms();
  trainer.set_product_algorithms({});
  const std::string& name = trainer.config().kernels.tuning_file;
  if (trainer.context().device != Device::kCuda || name == "none") return std::nullopt;
  Communicator& world = trainer.mesh().world;
  cuda::Gpu& gpu = *trainer.context().gpu;
  const std::string machine = concat(gpu.properties().name, ", ", cuda::library_versions(gpu));
  const TuningFile file = read_on_first_rank(world, name);
  for (const auto& [of_gpu, algorithms] : file.algorithms) known[of_gpu].insert(algorithms.begin(), algorithms.end());

  const auto times = cuda::time_products(gpu, algorithms_of(known, machine), [&] { trainer.rehearse(data, step); });
  const Agreement agreed = agree(world, machine, times);
  cuda::use_algorithms(gpu, algorithms_of(agreed.chosen, machine));
  trainer.set_product_algorithms(agreed.chosen);
  const int64_t timed = count_kinds(agreed.timed);
  collectively(world, [&] {
    if (world.rank() != 0 || timed == 0 || !file.problem.empty()) return;
    Algorithms all = read_tuning(name);  // another job may have written it meanwhile
    for (const auto& [of_gpu, algorithms] : agreed.timed)
      for (const auto& [kind, algorithm] : algorithms) all[of_gpu][kind] = algorithm;
    write_tuning(name, all);
  });
  return TunedProducts{timed, count_kinds(agreed.chosen) - timed, warning_of(name, file, known, agreed.timed)};
}

}  // namespace trireme
