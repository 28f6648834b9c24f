#include "trainer/loop/reducer_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/machine/collectively.h"
#include "trainer/model/declare.h"
#include "trainer/model/flops.h"

namespace trireme {
namespace {

constexpr const char* kFamilies[] = {"scatter_error", "replica_error", "owner_error"};
constexpr const char* kBasis = "basis";
constexpr const char* kMomentum = "worker_momentum";
constexpr const char* kTied = ".tied";

/// A kind in its parts.
struct Kind {
  std::string family;
  int64_t rank = 0;  ///< 0 for owner_error; of a basis, the tensor rank
  bool tied = false;
};

Kind parse(const std::string& kind) {
  Kind parsed{kind.substr(0, kind.find('.')), 0, kind.ends_with(kTied)};
  const std::string rest = kind.substr(parsed.family.size(), kind.size() - parsed.family.size() - (parsed.tied ? std::string(kTied).size() : 0));
  if (rest.size() > 1 && rest.size() < 12 && std::all_of(rest.begin() + 1, rest.end(), [](char c) { return c >= '0' && c <= '9'; }))
    parsed.rank = std::stoll(rest.substr(1));
  return parsed;
}

std::string text_of(const Kind& kind) {
  const std::string rank = kind.family == kFamilies[2] ? "" : concat(".", kind.rank);
  return concat(kind.family, rank, kind.tied ? kTied : "");
}

/// Number of ranks that have such a kind among `targets`.
int64_t ranks_of(const std::string& family, bool tied, const std::set<std::string>& targets) {
  if (family == kFamilies[2]) return targets.contains(text_of({family, 0, tied})) ? 1 : 0;
  int64_t ranks = 0;
  while (targets.contains(text_of({family, ranks, tied}))) ++ranks;
  return ranks;
}

/// The kind whose start includes `stored`, or "". What senders or owners lack may be added to any later message.
std::string destination(const Kind& stored, const std::set<std::string>& targets) {
  for (const bool tied : stored.tied ? std::vector{true, false} : std::vector{false}) {
    for (const std::string& family : {stored.family, std::string(kFamilies[1]), std::string(kFamilies[0])})
      if (const int64_t ranks = ranks_of(family, tied, targets); ranks > 0) return text_of({family, stored.rank % ranks, tied});
  }
  return "";
}

/// True if all tensor ranks have the parameter and equal errors, which the first of them saves and all read.
bool is_replicated(Trainer& trainer, const ParamSpec& spec) { return trainer.mesh().tensor->size() > 1 && spec.box.extent == spec.shape; }

/// The errors of this rank by kind. Vectors never have any. Of ranks whose gradients add up to that of a parameter, the one with the primary copy has
/// them: it has none in this layout, which sends such gradients as they are, but may take over those of another one.
std::vector<std::pair<std::string, ReducerBox>> boxes_by_kind(Trainer& trainer) {
  std::vector<std::pair<std::string, ReducerBox>> boxes;
  const Mesh& mesh = trainer.mesh();
  for (ReducerBox& box : trainer.reducer_boxes()) {
    if (box.worker >= 0) continue;  // a momentum
    const bool partial = box.spec->partial_over != Partial::kNone;
    if (box.spec->dims == 1 || (partial && !box.spec->is_primary_copy)) continue;
    const int rank = box.name == kFamilies[0] ? mesh.data->rank() : mesh.replicate->rank();
    const std::string kind = text_of({box.name, rank, !box.spec->is_primary_copy && !is_replicated(trainer, *box.spec)});
    boxes.emplace_back(kind, std::move(box));
  }
  return boxes;
}

std::string kind_part(const std::string& tensor) { return tensor.substr(0, tensor.find('/')); }

bool is_error(const std::string& kind) { return std::ranges::find(kFamilies, parse(kind).family) != std::end(kFamilies); }

/// Name in checkpoints. Tensor ranks with the whole parameter have the same basis.
std::string name_of(Trainer& trainer, const ReducerMatrix& matrix) {
  const bool all = is_replicated(trainer, *matrix.spec);
  const Kind kind{kBasis, all ? 0 : trainer.mesh().tensor->rank(), !matrix.spec->is_primary_copy && !all};
  return text_of(kind) + "/" + matrix.spec->name;
}

StateTensor state_tensor(Trainer& trainer, const std::string& name, const std::array<int64_t, 2>& shape, const Box& box, const Tensor& values,
                         int dims = 2) {
  const Tensor host = to_host(trainer.context(), values);
  const bool copied = host.raw() != values.raw();
  return {name, host.dtype(), shape, dims, box, host.raw(), copied ? host : Tensor()};
}

std::vector<ReducerBox> momentum_boxes(Trainer& trainer) {
  std::vector<ReducerBox> boxes;
  for (ReducerBox& box : trainer.reducer_boxes())
    if (box.worker >= 0) boxes.push_back(std::move(box));
  return boxes;
}

/// As trainer/loop/reducer_state.h says: "worker_momentum.3/PARAMETER".
std::string name_of(const ReducerBox& momentum) { return concat(kMomentum, ".", momentum.worker, "/", momentum.spec->name); }

/// Reads the momenta of the data ranks. Those of another number of data ranks are means over other samples. Returns what changed, or "".
std::string load_momenta(Trainer& trainer, CheckpointReader& reader) {
  std::set<std::string> stored;
  for (const auto& [name, tensor] : reader.tensors())
    if (parse(kind_part(name)).family == kMomentum) stored.insert(kind_part(name));
  const bool keeps = trainer.config().security.aggregation.momentum.value_or(0) > 0;
  if (!keeps) return stored.empty() ? "" : "the momenta of the data ranks in the checkpoint are dropped: this run has none";
  if (stored.empty()) return "the checkpoint has no momenta of the data ranks, which start at zero";
  if (std::ssize(stored) != trainer.mesh().data->size())
    return "the momenta of the data ranks in the checkpoint are of another number of data ranks: they start at zero";
  collectively(trainer.mesh().world, [&] {
    for (const ReducerBox& box : momentum_boxes(trainer)) {
      const Tensor host = host_tensor(box.values.shape(), box.values.dtype());
      reader.read(name_of(box), box.box, host.dtype(), host.raw());
      from_host(trainer.context(), host, box.values);
    }
  });
  return "";
}

/// Reads the bases; those of other shapes or names are drawn again. Returns what changed, or "".
std::string load_bases(Trainer& trainer, CheckpointReader& reader) {
  const std::vector<ReducerMatrix> matrices = trainer.reducer_matrices();
  const bool stored = std::ranges::any_of(reader.tensors(), [](const auto& tensor) { return parse(kind_part(tensor.first)).family == kBasis; });
  std::set<std::string> own, drawn;
  collectively(trainer.mesh().world, [&] {
    for (const ReducerMatrix& matrix : matrices) {
      const std::string name = name_of(trainer, matrix);
      own.insert(name);
      const auto found = reader.tensors().find(name);
      const std::array<int64_t, 2> shape{matrix.values.dim(0), matrix.values.dim(1)};
      if (found == reader.tensors().end() || found->second.shape != shape) {
        draw_basis(trainer.context(), static_cast<uint64_t>(trainer.config().run.seed), *matrix.spec, matrix.values);
        drawn.insert(name);
        continue;
      }
      const Tensor host = host_tensor(matrix.values.shape(), matrix.values.dtype());
      reader.read(name, Box{{0, 0}, shape}, host.dtype(), host.raw());
      from_host(trainer.context(), host, matrix.values);
    }
  });
  const bool none = union_of_names(trainer.mesh().world, own).empty(), anew = !union_of_names(trainer.mesh().world, drawn).empty();
  if (!stored) return "";
  if (none) return "the bases of low-rank compression in the checkpoint are dropped: this run has none";
  return anew ? "the bases of low-rank compression belong to other parts of the matrices: this layout starts from new ones" : "";
}

/// Without approximation: a data rank saves the errors of all matrices, those of the second copy of a tied embedding too, and the first one the bases.
int64_t low_rank_bytes(const Config& config, const CompressionOptions& options) {
  const MeshShape mesh = mesh_shape(config.parallel);
  if (mesh.data() == 1) return 0;
  const std::vector<int> stages = stage_ranks(training_schedule(config));
  const bool tied_copy = config.model.tied_embeddings && stages.front() != stages.back();
  int64_t errors = 0, bases = 0;
  for (int t = 0; t < mesh.tensor; ++t) {
    for (const ParamSpec& spec : parameters_of(config.model, {t, mesh.tensor}, config.parallel.sequence_parallel)) {
      if (!spec.is_primary_copy || spec.dims == 1 || !spec.trainable) continue;
      const int copies = tied_copy && spec.name == kEmbeddingWeight ? 2 : 1;
      errors += copies * spec.box.numel();
      if (has_low_rank(spec, options.rank)) bases += copies * options.rank * spec.box.extent[1];
    }
  }
  return (bases + (options.error_feedback ? mesh.data() * errors : 0)) * size_of(precision_of(config.training).gradient);
}

}  // namespace

bool is_reducer_kind(const std::string& kind) { return is_error(kind) || parse(kind).family == kBasis || parse(kind).family == kMomentum; }

std::map<std::string, std::vector<std::string>> reducer_sources(const std::set<std::string>& stored, const std::set<std::string>& targets) {
  std::map<std::string, std::vector<std::string>> sources;
  for (const std::string& kind : stored) sources[destination(parse(kind), targets)].push_back(kind);
  return sources;
}

std::vector<StateTensor> reducer_tensors(Trainer& trainer) {
  std::vector<StateTensor> tensors;
  for (const auto& [kind, box] : boxes_by_kind(trainer)) {
    const ParamSpec& spec = *box.spec;
    if (!spec.is_primary_copy && is_replicated(trainer, spec)) continue;
    tensors.push_back(state_tensor(trainer, kind + "/" + spec.name, spec.shape, box.box, box.values));
  }
  for (const ReducerBox& box : momentum_boxes(trainer))
    if (box.spec->is_primary_copy) tensors.push_back(state_tensor(trainer, name_of(box), box.spec->shape, box.box, box.values, box.spec->dims));
  if (trainer.mesh().data->rank() != 0) return tensors;
  for (const ReducerMatrix& matrix : trainer.reducer_matrices()) {
    if (!matrix.spec->is_primary_copy && is_replicated(trainer, *matrix.spec)) continue;
    const std::array<int64_t, 2> shape{matrix.values.dim(0), matrix.values.dim(1)};
    tensors.push_back(state_tensor(trainer, name_of(trainer, matrix), shape, Box{{0, 0}, shape}, matrix.values));
  }
  return tensors;
}

int64_t reducer_bytes(const Config& config) {
  const CompressionOptions options = compression_of(config);
  if (is_robust(config.security)) {  // of each data rank, its momentum and its errors
    const bool errors = options.encoding.encoding != Encoding::kNone && options.error_feedback;
    const int64_t copies = (aggregation_of(config).momentum > 0 ? 1 : 0) + (errors ? 1 : 0);
    return copies * *config.parallel.data * trainable_count(config.model) * size_of(precision_of(config.training).gradient);
  }
  if (options.encoding.encoding == Encoding::kLowRank) return low_rank_bytes(config, options);
  if (options.encoding.encoding == Encoding::kNone || !options.error_feedback) return 0;
  const ZeroPolicy policy = zero_policy(config.parallel);
  int64_t copies = 0;
  if (policy.shard > 1 && !options.replicas_only) copies += int64_t{policy.shard} * policy.replicate;
  if (policy.replicate > 1) copies += policy.replicate + 1;
  return copies * trainable_count(config.model) * size_of(precision_of(config.training).gradient);
}

std::string load_reducer_state(Trainer& trainer, CheckpointReader& reader) {
  std::set<std::string> stored, own;
  for (const auto& [name, tensor] : reader.tensors())
    if (is_error(kind_part(name))) stored.insert(kind_part(name));
  const auto boxes = boxes_by_kind(trainer);
  for (const auto& [kind, box] : boxes) own.insert(kind);
  const std::set<std::string> targets = union_of_names(trainer.mesh().world, own);
  const std::map<std::string, std::vector<std::string>> sources = reducer_sources(stored, targets);
  for (const ReducerBox& box : trainer.reducer_boxes()) fill(trainer.context(), 0, box.values);
  collectively(trainer.mesh().world, [&] {
    for (const auto& [kind, box] : boxes) {
      const auto from = sources.find(kind);
      if (from == sources.end()) continue;
      for (const std::string& source : from->second) {
        const std::string name = source + "/" + box.spec->name;
        if (!reader.tensors().contains(name)) continue;  // a tied copy exists on one stage, and has one parameter
        const StoredTensor& tensor = reader.tensor(name);
        if (tensor.shape != box.spec->shape) throw DataError(concat("checkpoint: ", name, " has a different shape than the model's parameter"));
        const Tensor host = host_tensor(box.values.shape(), box.values.dtype());
        reader.read(name, box.box, host.dtype(), host.raw());
        const Tensor part = Tensor::empty(trainer.context(), box.values.shape(), box.values.dtype(), MemoryCategory::kWorkspace);
        from_host(trainer.context(), host, part);
        accumulate(trainer.context(), part, box.values);
      }
    }
  });
  std::string notes;
  for (const std::string& note : {load_momenta(trainer, reader), load_bases(trainer, reader)})
    if (!note.empty()) notes += concat(notes.empty() ? "" : "; ", note);
  if (stored.empty() || stored == targets) return notes;
  const std::string errors = targets.empty() ? "the errors of gradient compression in the checkpoint are dropped: this run keeps none"
                                             : "the errors of gradient compression were saved by other ranks: they are added to those of this layout";
  return notes.empty() ? errors : errors + "; " + notes;
}

}  // namespace trireme
