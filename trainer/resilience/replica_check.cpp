#include "trainer/resilience/replica_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "kernels/ops/transfer.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/digest.h"
#include "trainer/files/list_ranks.h"

namespace trireme {
namespace {

constexpr size_t kLines = 8;

/// A tensor of this rank that other ranks must have an identical copy of.
struct Replica {
  std::string name;     ///< "exp_avg/blocks.0.mlp_norm.weight@0,0"; equal on all ranks that have it
  uint64_t digest = 0;  ///< 52 bits, which a double holds exactly
  std::vector<const Communicator*> groups;
};

uint64_t short_digest(Context& ctx, const Tensor& tensor) {
  const Tensor host = to_host(ctx, tensor);
  Digest digest;
  digest.update(host.raw(), static_cast<size_t>(host.numel() * size_of(host.dtype())));
  const std::string text = digest.str();
  return std::stoull(text.substr(text.size() - 13), nullptr, 16);
}

/// The name of the parameter of which first and last stage have a copy each, trained or frozen; empty if there is none.
std::string tied_parameter(const Trainer& trainer) {
  const std::vector<int>& rank_of = trainer.stage_rank();
  return trainer.config().model.tied_embeddings && rank_of.front() != rank_of.back() ? kEmbeddingWeight : "";
}

/// Whether all islands have a tensor of this name after a round: the moments of an optimizer are each island's own, and its weights may be.
bool is_common_to_islands(const Trainer& trainer, const std::string& name) {
  return name.starts_with("weight/") || (name.starts_with("full copy of weight/") && !trainer.updates().keeps_island_weights()) ||
         name.starts_with(concat(kOuterMomentumName, "/"));
}

/// Lists the replicated tensors of this rank, in the same order on all ranks of each group.
class Holdings {
 public:
  explicit Holdings(Trainer& trainer) : trainer_(trainer), mesh_(trainer.mesh()), tied_(tied_parameter(trainer)) {
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      const std::string name = entry_name(owned.spec->name, owned.box);
      for (const auto& [kind, tensor] : owned.kept()) add(concat(kind, "/", name), *owned.spec, *mesh_.replicate, tensor);
    }
    for (const auto& stage : trainer.stages())
      for (size_t unit = 0; unit < stage->params().units().size(); ++unit) add_full_copies(stage->params(), static_cast<int>(unit));
  }

  const std::vector<Replica>& all() const { return replicas_; }

 private:
  /// `data`: the group of data ranks with a copy.
  void add(const std::string& name, const ParamSpec& spec, const Communicator& data, const Tensor& tensor) {
    std::vector<const Communicator*> groups{&data};
    if (spec.partial_over == Partial::kKv) {
      groups.push_back(mesh_.kv.get());
    } else if (spec.box.extent == spec.shape) {
      groups.push_back(mesh_.tensor.get());
    }
    if (is_common_to_islands(trainer_, name) && trainer_.updates().islands_agree()) groups.push_back(mesh_.islands.get());
    if (spec.name == tied_) groups.push_back(mesh_.embedding.get());
    std::erase_if(groups, [](const Communicator* group) { return group->size() == 1; });
    if (!groups.empty()) replicas_.push_back({name, short_digest(trainer_.context(), tensor), groups});
  }

  /// Adds the full parameters, gathered from the owners. The next step needs them anyway, and does not gather again.
  void add_full_copies(ParamStore& params, int index) {
    const Unit& unit = *params.units()[static_cast<size_t>(index)];
    const Tensor any = unit.params().front()->value;
    const bool is_master = unit.group().shards() == 1 && any.defined() && any.dtype() == params.master(index).dtype();
    if (!any.defined() || is_master) return;
    params.unshard(trainer_.context(), index);
    params.wait(trainer_.context(), index);
    for (const auto& param : unit.params()) {
      int64_t begin = 0;
      for (const ParamSpec& spec : param->specs) {
        add("full copy of " + entry_name("weight/" + spec.name, spec.box), spec, *unit.group().data, param->value.flat(begin, spec.numel()));
        begin += spec.numel();
      }
    }
  }

  Trainer& trainer_;
  Mesh& mesh_;
  std::string tied_;
  std::vector<Replica> replicas_;
};

/// Adds the names of replicas that differ within `group`. A value is the same everywhere if its minimum equals its maximum, so one reduction is
/// enough for any number of ranks.
void compare(Communicator& group, const std::vector<Replica>& replicas, std::set<std::string>& differing) {
  std::vector<const Replica*> shared;
  for (const Replica& replica : replicas)
    if (std::ranges::count(replica.groups, &group) > 0) shared.push_back(&replica);
  if (shared.empty()) return;
  Arena arena(Device::kReference);
  Context host{Device::kReference, &arena, 1};
  const Tensor bounds = Tensor::zeros(host, {static_cast<int64_t>(shared.size()), 2}, DType::kF64, MemoryCategory::kCommunication);
  double* const values = bounds.data<double>();
  for (size_t i = 0; i < shared.size(); ++i) {
    values[2 * i] = static_cast<double>(shared[i]->digest);
    values[2 * i + 1] = -values[2 * i];
  }
  group.all_reduce(host, bounds, ReduceOp::kMin).wait(host);
  for (size_t i = 0; i < shared.size(); ++i)
    if (values[2 * i] != -values[2 * i + 1]) differing.insert(shared[i]->name);
}

/// "ranks 0, 1 hold copy 1; rank 2 holds copy 2": the ranks of each value, the largest group first. The digests would say no more to a reader.
std::string who_holds(const std::map<std::string, std::vector<int>>& ranks_of) {
  std::vector<std::vector<int>> copies;
  for (const auto& [value, ranks] : ranks_of) copies.push_back(ranks);
  std::ranges::sort(copies, [](const auto& a, const auto& b) { return a.size() == b.size() ? a < b : a.size() > b.size(); });
  std::string text;
  for (size_t i = 0; i < copies.size(); ++i)
    text += concat(i == 0 ? "" : "; ", list_ranks(copies[i]), copies[i].size() == 1 ? " holds" : " hold", " copy ", i + 1);
  return text;
}

/// The first kLines + 1 names that differ on any rank; the same result on all ranks.
std::set<std::string> first_of_all(Communicator& world, const std::set<std::string>& differing) {
  std::string mine;
  size_t count = 0;
  for (const std::string& name : differing)
    if (count++ <= kLines) mine += name + "\n";
  std::set<std::string> first;
  for (const std::string& names : all_gather_strings(world, mine)) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) first.insert(name);
  }
  while (first.size() > kLines + 1) first.erase(std::prev(first.end()));
  return first;
}

}  // namespace

std::string replica_differences(Trainer& trainer) {
  Mesh& mesh = trainer.mesh();
  const Holdings mine(trainer);
  std::set<std::string> differing;
  for (Communicator* group :
       {mesh.islands.get(), mesh.replicate.get(), mesh.data.get(), mesh.shard.get(), mesh.tensor.get(), mesh.kv.get(), mesh.embedding.get()})
    compare(*group, mine.all(), differing);
  const std::set<std::string> names = first_of_all(mesh.world, differing);
  if (names.empty()) return "";

  std::string held;  // one line per name: its digest on this rank, or "-"
  for (const std::string& name : names) {
    const auto found = std::ranges::find(mine.all(), name, &Replica::name);
    held += (found == mine.all().end() ? "-" : concat(std::hex, found->digest)) + "\n";
  }
  std::map<std::string, std::map<std::string, std::vector<int>>> ranks_of;  // ranks by name and value
  const std::vector<std::string> all = all_gather_strings(mesh.world, held);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    std::string value;
    for (auto name = names.begin(); std::getline(lines, value); ++name)
      if (value != "-") ranks_of[*name][value].push_back(static_cast<int>(rank));
  }
  std::string text;
  size_t lines = 0;
  for (const auto& [name, values] : ranks_of) {
    if (lines++ == kLines) return text + "; and more";
    text += concat(lines == 1 ? "" : "\n", name, ": ", who_holds(values));
  }
  return text;
}

}  // namespace trireme
