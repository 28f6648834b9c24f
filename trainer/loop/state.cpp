#include "trainer/loop/state.h"

#include <algorithm>
#include <array>
#include <set>

#include "kernels/ops/transfer.h"

#include "trainer/loop/agree.h"

namespace trireme {
namespace {

/// What is saved of every parameter.
constexpr std::array<const char*, 3> kKinds{"weight", "exp_avg", "exp_avg_sq"};

/// `resumes`: bits count, so the dtype must be the same; else the weights are converted.
void read_box(Context& ctx, CheckpointReader& reader, const std::string& kind, const OwnedBox& owned, const Tensor& to, bool resumes) {
  const std::string name = kind + "/" + owned.spec->name;
  const StoredTensor& stored = reader.tensor(name);
  if (stored.shape != owned.spec->shape)
    throw DataError(concat("checkpoint: ", name, " has shape [", stored.shape[0], ", ", stored.shape[1], "], the model's is [", owned.spec->shape[0],
                           ", ", owned.spec->shape[1], "]"));
  if (resumes && stored.dtype != to.dtype())
    throw DataError(concat("checkpoint: ", name, " is ", name_of(stored.dtype), ", training.precision makes it ", name_of(to.dtype())));
  const Tensor host = host_tensor(to.shape(), to.dtype());
  reader.read(name, owned.box, host.dtype(), host.raw());
  from_host(ctx, host, to);
}

/// A tensor that the model does not have means another model, even where all of the model's own are there. Each rank knows only its stage's names.
void check_names(Trainer& trainer, const CheckpointReader& reader) {
  std::string mine;
  for (const OwnedBox& owned : trainer.owned_boxes()) mine += owned.spec->name + "\n";
  std::set<std::string> known;
  for (const std::string& names : all_gather_strings(trainer.mesh().world, mine)) {
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = names.find('\n', begin);
      known.insert(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const auto& [name, stored] : reader.tensors()) {
    const size_t slash = name.find('/');
    const bool of_the_state = std::find(kKinds.begin(), kKinds.end(), name.substr(0, slash)) != kKinds.end();
    if (slash == name.npos || !of_the_state || !known.contains(name.substr(slash + 1)))
      throw DataError("checkpoint: " + name + " is not a tensor of the configured model");
  }
}

}  // namespace

std::vector<StateTensor> state_tensors(Trainer& trainer) {
  std::vector<StateTensor> tensors;
  if (trainer.mesh().at.replicate != 0) return tensors;
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const ParamSpec& spec = *owned.spec;
    if (!spec.counted) continue;
    const auto add = [&](const std::string& kind, const Tensor& tensor) {
      const Tensor host = to_host(trainer.context(), tensor);
      const bool copied = host.raw() != tensor.raw();
      tensors.push_back({kind + "/" + spec.name, tensor.dtype(), spec.shape, spec.dims, owned.box, host.raw(), copied ? host : Tensor()});
    };
    add("weight", owned.weight);
    add("exp_avg", owned.exp_avg);
    add("exp_avg_sq", owned.exp_avg_sq);
  }
  return tensors;
}

void load_weights(Trainer& trainer, CheckpointReader& reader) {
  agree(trainer.mesh().world, [&] {
    check_names(trainer, reader);
    for (const OwnedBox& owned : trainer.owned_boxes()) read_box(trainer.context(), reader, "weight", owned, owned.weight, false);
  });
  trainer.weights_changed();
}

void load_state(Trainer& trainer, CheckpointReader& reader) {
  const bool scales = scales_loss(trainer.config().training);
  agree(trainer.mesh().world, [&] {
    if (scales && !reader.description().loss_scale) throw DataError("checkpoint: holds no loss scale, which training.precision fp16 needs");
    check_names(trainer, reader);
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      read_box(trainer.context(), reader, "weight", owned, owned.weight, true);
      read_box(trainer.context(), reader, "exp_avg", owned, owned.exp_avg, true);
      read_box(trainer.context(), reader, "exp_avg_sq", owned, owned.exp_avg_sq, true);
    }
  });
  trainer.weights_changed();
  trainer.set_accepted_steps(reader.description().optimizer_steps);
  if (scales) trainer.set_loss_scale(*reader.description().loss_scale);
}

}  // namespace trireme
