#include "trainer/loop/state.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <sstream>

#include "kernels/ops/transfer.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/reducer_state.h"
#include "trainer/machine/collectively.h"
#include "trainer/model/declare.h"

namespace trireme {
namespace {

/// True if all islands have the same tensor of this kind after an outer step.
bool is_common(const std::string& kind) { return kind == "weight" || kind == kOuterMomentumName; }

/// The kinds of tensors that a checkpoint of this configuration may have for each parameter.
std::vector<std::string> kinds_of(const Config& config) {
  std::vector<std::string> kinds{"weight", kOuterMomentumName}, own = state_names(config.training);
  own.push_back(kIslandWeightName);
  for (int64_t island = 0; island < config.parallel.islands; ++island)
    for (const std::string& name : own) kinds.push_back(saved_kind(name, island));
  return kinds;
}

void check_shape(const std::string& where, const std::string& name, const std::array<int64_t, 2>& stored, const std::array<int64_t, 2>& wanted) {
  if (stored != wanted)
    throw DataError(concat(where, ": ", name, " has shape [", stored[0], ", ", stored[1], "], the model's is [", wanted[0], ", ", wanted[1], "]"));
}

/// A load is bit-exact, so the dtype must be the same. A frozen weight takes that of this run's layers, which rounds one from a wider type.
void read_state(Context& ctx, CheckpointReader& reader, const std::string& kind, const OwnedBox& owned, const Tensor& to) {
  const std::string name = kind + "/" + owned.spec->name;
  const StoredTensor& stored = reader.tensor(name);
  check_shape("checkpoint", name, stored.shape, owned.spec->shape);
  if (stored.dtype != to.dtype() && owned.spec->trainable)
    throw DataError(concat("checkpoint: ", name, " has dtype ", name_of(stored.dtype), ", training.precision needs ", name_of(to.dtype())));
  const Tensor host = host_tensor(to.shape(), to.dtype());
  reader.read(name, owned.box, host.dtype(), host.raw());
  from_host(ctx, host, to);
}

/// Parameter names of the whole model; each rank knows only those of its stages. Collective.
std::set<std::string> parameter_names(Trainer& trainer) {
  std::set<std::string> own;
  for (const OwnedBox& owned : trainer.owned_boxes()) own.insert(owned.spec->name);
  return union_of_names(trainer.mesh().world, own);
}

/// A tensor unknown to the model means that the checkpoint is from another model, even if it contains all of this model's tensors.
void check_names(const std::set<std::string>& known, const std::vector<std::string>& kinds, const CheckpointReader& reader) {
  for (const auto& [name, stored] : reader.tensors()) {
    const size_t slash = name.find('/');
    // A run without a moving average ignores that of the checkpoint.
    const std::string kind = name.substr(0, slash);
    const bool of_the_state = kind == kAverageName || is_reducer_kind(kind) || std::ranges::find(kinds, kind) != kinds.end();
    if (slash == name.npos || !of_the_state || !known.contains(name.substr(slash + 1)))
      throw DataError("checkpoint: " + name + " is not a tensor of the configured model");
  }
}

}  // namespace

std::string saved_kind(const std::string& kind, int64_t island) { return island == 0 || is_common(kind) ? kind : concat(kind, ".", island); }

std::vector<std::string> by_island(Trainer& trainer, const std::string& mine) {
  std::vector<std::string> of_islands;
  const auto islands = static_cast<size_t>(trainer.mesh().shape.islands);
  const std::vector<std::string> all = all_gather_strings(trainer.mesh().world, trainer.mesh().step.rank() == 0 ? mine : "");
  for (size_t island = 0; island < islands; ++island) of_islands.push_back(all[island * all.size() / islands]);  // the outermost axis
  return of_islands;
}

std::vector<int64_t> island_numbers(Trainer& trainer, int64_t mine) {
  std::vector<int64_t> numbers;
  if (trainer.mesh().shape.islands == 1) return numbers;
  for (const std::string& number : by_island(trainer, std::to_string(mine))) numbers.push_back(std::stoll(number));
  return numbers;
}

int64_t state_bytes(const Config& config) {
  int64_t bytes = 0;
  for (const ParamSpec& spec : whole_model(config.model))
    bytes += spec.box.numel() * (spec.trainable ? saved_states(config, spec.is_hidden_matrix) * size_of(precision_of(config.training).master)
                                                : size_of(frozen_dtype(config)));
  return bytes + reducer_bytes(config);
}

std::vector<StateTensor> state_tensors(Trainer& trainer) {
  std::vector<StateTensor> tensors = reducer_tensors(trainer);
  if (!trainer.counts_shard()) return tensors;
  const int64_t island = trainer.mesh().at.island;
  if (island > 0 && has_parameter_servers(trainer.config().training)) return tensors;  // all islands have the same state after a round
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const ParamSpec& spec = *owned.spec;
    if (!spec.is_primary_copy) continue;
    const auto add = [&](const std::string& kind, const Tensor& tensor) {
      const Tensor host = to_host(trainer.context(), tensor);
      const bool copied = host.raw() != tensor.raw();
      tensors.push_back({kind + "/" + spec.name, tensor.dtype(), spec.shape, spec.dims, owned.box, host.raw(), copied ? host : Tensor()});
    };
    for (const auto& [kind, tensor] : owned.kept())
      if (island == 0 || !is_common(kind)) add(saved_kind(kind, island), tensor);
  }
  return tensors;
}

void load_weights(Trainer& trainer, WeightSource& source) {
  const std::set<std::string> known = parameter_names(trainer);
  collectively(trainer.mesh().world, [&] {
    for (const std::string& name : source.names())
      if (!known.contains(name)) throw DataError(concat(source.path(), ": ", name, " is not a tensor of the configured model"));
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      if (is_adapter(owned.spec->name) && source.model().adapter.rank == 0) continue;
      check_shape(source.path(), owned.spec->name, source.shape(owned.spec->name), owned.spec->shape);
      const Tensor host = host_tensor(owned.weight.shape(), owned.weight.dtype());
      source.read(owned.spec->name, owned.box, host.dtype(), host.raw());
      from_host(trainer.context(), host, owned.weight);
    }
  });
  trainer.weights_replaced();
}

NonFinite non_finite_weights(Trainer& trainer) {
  std::string mine;
  if (trainer.represents_shard()) {
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      const Tensor host = to_host(trainer.context(), owned.weight);
      const int64_t count = owned.spec->is_primary_copy ? count_non_finite(host.dtype(), host.raw(), host.numel()) : 0;
      if (count > 0) mine += concat(owned.spec->name, " ", count, "\n");
    }
  }
  NonFinite found;
  for (const std::string& of_rank : all_gather_strings(trainer.mesh().world, mine)) {
    std::istringstream lines(of_rank);
    int64_t count = 0;
    for (std::string name; lines >> name >> count;) found[name] += count;
  }
  return found;
}

std::string load_state(Trainer& trainer, CheckpointReader& reader, bool new_loss_scale) {
  const bool scales = scales_loss(trainer.config().training) && !new_loss_scale, has_average = reader.has_kind(kAverageName);
  const bool has_momentum = reader.has_kind(kOuterMomentumName), has_island_weights = reader.has_kind(kIslandWeightName);
  const auto is_stored = [&](const std::string& kind) {
    return (has_average || kind != kAverageName) && (has_momentum || kind != kOuterMomentumName) && (has_island_weights || kind != kIslandWeightName);
  };
  const int64_t island = has_parameter_servers(trainer.config().training) ? 0 : trainer.mesh().at.island;
  const std::set<std::string> known = parameter_names(trainer);
  collectively(trainer.mesh().world, [&] {
    if (scales && !reader.description().loss_scale) throw DataError("checkpoint: contains no loss scale, which training.precision fp16 needs");
    check_names(known, kinds_of(trainer.config()), reader);
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      for (const auto& [kind, tensor] : owned.kept())
        if (is_stored(kind)) read_state(trainer.context(), reader, saved_kind(kind, island), owned, tensor);
    }
  });
  if (!has_island_weights) trainer.updates().take_shared_weights();
  trainer.weights_changed();
  if (!has_average) trainer.start_average();
  if (has_momentum)
    trainer.updates().start_round();
  else
    trainer.updates().start_run();
  trainer.scalars().set_accepted_steps(reader.description().steps_of_island(island));
  if (scales) trainer.scalars().set_loss_scale(*reader.description().loss_scale);
  std::string notes = load_reducer_state(trainer, reader);
  const auto add = [&](const char* note) { notes += concat(notes.empty() ? "" : "; ", note); };
  if (has_momentum != trainer.config().training.local.steps.has_value())
    add(has_momentum ? "the momentum of the outer step in the checkpoint is dropped: this run has no training.local"
                     : "the checkpoint has no momentum of the outer step, which starts at zero");
  if (has_island_weights && !trainer.updates().keeps_island_weights())
    add("the weights of each island in the checkpoint are dropped: training starts from the weights that the islands share");
  return notes;
}

}  // namespace trireme
