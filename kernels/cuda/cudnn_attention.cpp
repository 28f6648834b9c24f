#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "kernels/core/counted.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_comparison.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/gpu_state.h"

namespace trireme::cuda {
namespace {

std::string describe(const AttentionShape& shape, DType dtype, bool backward) {
  return concat(backward ? "backward, " : "forward, ", shape.batch, " x ", shape.sequence, " tokens, ", counted(shape.heads, "head"), ", ",
                counted(shape.kv_heads, "kv head"), " of size ", shape.head_size, shape.window > 0 ? concat(", window ", shape.window) : "", ", ",
                name_of(dtype));
}

struct Key {
  int64_t batch, sequence, heads, kv_heads, head_size, window;
  double scale;
  DType dtype;
  bool backward;
  bool aligned;  ///< every tensor, to 16 bytes
  auto operator<=>(const Key&) const = default;
};

/// A shape in one direction.
struct Entry {
  std::unique_ptr<CudnnGraph> graph;  ///< null: the built-in kernels compute it
  AttentionPart part;
  size_t choice = 0;  ///< in Library::choices
  bool compared = false;
};

/// Host copy of a part of a tensor on the device.
std::vector<char> downloaded(const Context& ctx, const Tensor& tensor) {
  std::vector<char> host(static_cast<size_t>(tensor.bytes()));
  ctx.gpu->download(tensor.raw(), host.data(), tensor.bytes());
  return host;
}

/// cuDNN on one GPU.
class Library {
 public:
  explicit Library(Gpu& gpu) : gpu_(gpu), cudnn_(cudnn()) {
    check(cudnn_.create(&handle_), "cudnnCreate");
    check(cudnn_.set_stream(handle_, gpu.compute()), "cudnnSetStream");
  }
  ~Library() {
    entries_.clear();
    cudnn_.destroy(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Entry& entry(const AttentionShape& shape, DType dtype, bool backward, bool aligned);
  AttentionChoice& choice(const Entry& entry) { return choices_[entry.choice]; }
  const std::vector<AttentionChoice>& choices() const { return choices_; }

  /// Queues all parts. Returns false if the built-in kernels have to compute the shape from now on: cuDNN failed at its first use.
  bool run(Entry& entry, const std::vector<AttentionMemory>& parts, void* workspace);
  void fall_back(Entry& entry, const std::string& reason) {
    entry.graph.reset();
    choice(entry).reason = reason;
  }

 private:
  void check(cudnnStatus_t status, const char* call) const {
    if (status != CUDNN_STATUS_SUCCESS) throw InternalError(concat(call, ": ", cudnn_.error_string(status)));
  }
  /// Sets entry.graph. Returns why there is none.
  std::string build(Entry& entry, bool backward);

  Gpu& gpu_;
  const Cudnn& cudnn_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Entry> entries_;
  std::vector<AttentionChoice> choices_;
};

Entry& Library::entry(const AttentionShape& shape, DType dtype, bool backward, bool aligned) {
  const Key key{shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_size, shape.window, shape.scale(), dtype, backward, aligned};
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (!is_new) return entry;
  entry.part = {.whole = shape, .sequences = shape.batch, .kv_heads = shape.kv_heads, .dtype = dtype};
  entry.choice = choices_.size();
  choices_.push_back({.shape = describe(shape, dtype, backward), .reason = {}});
  const std::string why = aligned ? build(entry, backward) : "its tensors are not aligned to 16 bytes";
  if (!why.empty()) fall_back(entry, why);
  return entry;
}

std::string Library::build(Entry& entry, bool backward) {
  AttentionPart& part = entry.part;
  if (!cudnn_supports(part.whole, part.dtype)) return "needs bf16 or fp16 and a head size that is a multiple of 8, up to 128";
  int64_t available = gpu_.state().workspace_bytes;
  if (backward) {
    const int64_t limit = gpu_.options().cudnn_workspace;
    const CudnnSlice slice = cudnn_slice(part.whole, limit);
    if (slice.sequences == 0)
      return concat("the deterministic backward would need ", cudnn_kv_head_bytes(part.whole), " bytes of workspace, more than ", limit);
    part.sequences = slice.sequences;
    part.kv_heads = slice.kv_heads;
    available = cudnn_workspace_bytes(part.whole, part.dtype, limit);
  }
  const CudnnTarget target{.handle = handle_, .compute_capability = 10 * gpu_.properties().major + gpu_.properties().minor, .properties = {}};
  std::string why;
  entry.graph = CudnnGraph::build(target, part, backward, why);
  if (entry.graph == nullptr) return why.empty() ? "not supported" : "not supported: " + why;
  if (entry.graph->workspace_bytes() > available)
    return concat("needs ", entry.graph->workspace_bytes(), " bytes of workspace, more than the ", available, " that the memory forecast has for it");
  return "";
}

bool Library::run(Entry& entry, const std::vector<AttentionMemory>& parts, void* workspace) {
  for (const AttentionMemory& memory : parts) {
    const std::string error = entry.graph->run(handle_, memory, workspace);
    if (error.empty()) continue;
    if (entry.compared) throw InternalError(concat("cuDNN: ", error, ": attention ", choice(entry).shape));
    fall_back(entry, "failed: " + error);
    return false;
  }
  return true;
}

bool uses_cudnn(const Context& ctx, const Tensor& qkv) { return ctx.gpu->options().cudnn_attention && qkv.numel() > 0; }
Library& library(const Context& ctx) { return ctx.gpu->state().library<Library>(*ctx.gpu); }

/// The memory of each part of the whole, in the order of sequences and heads.
struct Pointers {
  const Tensor &qkv, &out, &lse;
  const Tensor *dout = nullptr, *dqkv = nullptr;
};
std::vector<AttentionMemory> parts_of(const AttentionPart& part, const Pointers& tensors) {
  const AttentionShape& s = part.whole;
  const int64_t T = s.sequence, N = s.heads, K = s.kv_heads, H = s.head_size, group = N / K, size = size_of(part.dtype);
  const auto at = [&](const Tensor& tensor, int64_t row, int64_t columns, int64_t column) {
    return static_cast<char*>(tensor.raw()) + (row * columns + column) * size;
  };
  std::vector<AttentionMemory> parts;
  for (int64_t sequence = 0; sequence < s.batch; sequence += part.sequences) {
    for (int64_t head = 0; head < K; head += part.kv_heads) {
      const int64_t row = sequence * T, query = head * group * H, key = (N + head) * H, value = (N + K + head) * H;
      AttentionMemory memory;
      memory.query = at(tensors.qkv, row, s.columns(), query);
      memory.key = at(tensors.qkv, row, s.columns(), key);
      memory.value = at(tensors.qkv, row, s.columns(), value);
      memory.out = at(tensors.out, row, N * H, query);
      memory.lse = tensors.lse.data<float>() + (sequence * N + head * group) * T;
      if (tensors.dqkv != nullptr) {
        memory.dout = at(*tensors.dout, row, N * H, query);
        memory.dquery = at(*tensors.dqkv, row, s.columns(), query);
        memory.dkey = at(*tensors.dqkv, row, s.columns(), key);
        memory.dvalue = at(*tensors.dqkv, row, s.columns(), value);
      }
      parts.push_back(memory);
    }
  }
  return parts;
}

template <class... Tensors>
bool are_aligned(const Tensors&... tensors) {
  return ((reinterpret_cast<uintptr_t>(tensors.raw()) % 16 == 0) && ...);
}

/// Compares cuDNN's `results`, sequence by sequence, with what builtin(sequence, rows) writes in their place, and puts cuDNN's back: a run that resumes
/// compares at another step and must get the same bits, and the comparison takes no memory on the GPU. difference(theirs, ours) gets host copies of
/// each tensor, cuDNN's first.
template <class Builtin, class Difference>
void compare(const Context& ctx, Library& library, Entry& entry, const std::vector<Tensor>& results, const Builtin& builtin,
             const Difference& difference) {
  double worst = 0;
  for (int64_t sequence = 0; sequence < entry.part.whole.batch; ++sequence) {
    std::vector<Tensor> rows;
    std::vector<std::vector<char>> ours, theirs;
    for (const Tensor& result : results) {
      const int64_t count = result.dim(0) / entry.part.whole.batch;
      rows.push_back(result.rows(sequence * count, count));
      theirs.push_back(downloaded(ctx, rows.back()));
    }
    builtin(sequence, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      ours.push_back(downloaded(ctx, rows[i]));
      ctx.gpu->upload(theirs[i].data(), rows[i].raw(), rows[i].bytes());
    }
    worst = std::max(worst, difference(theirs, ours));
  }
  AttentionChoice& choice = library.choice(entry);
  choice.difference = worst;
  choice.mismatch = worst > 1;
  entry.compared = true;
  if (choice.mismatch) library.fall_back(entry, concat("its result differs from that of the built-in kernels by ", worst, " times what is allowed"));
}

}  // namespace

std::string attention_library() { return "cuDNN " + cudnn_version_text(cudnn().version()); }

bool cudnn_attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse) {
  if (!uses_cudnn(ctx, qkv)) return false;
  Library& cudnn = library(ctx);
  Entry& entry = cudnn.entry(shape, qkv.dtype(), false, are_aligned(qkv, out));
  if (entry.graph == nullptr || !cudnn.run(entry, parts_of(entry.part, {qkv, out, lse}), ctx.gpu->state().workspace)) return false;
  if (entry.compared) return true;
  AttentionShape one = shape;
  one.batch = 1;
  const int64_t columns = shape.heads * shape.head_size;
  compare(
      ctx, cudnn, entry, {out, lse.view({lse.numel()})},
      [&](int64_t sequence, const std::vector<Tensor>& rows) {
        cuda::attention_forward(ctx, qkv.rows(sequence * shape.sequence, shape.sequence), one, {}, rows[0], rows[1]);
      },
      [&](const auto& theirs, const auto& ours) {
        const auto* const their_lse = reinterpret_cast<const float*>(theirs[1].data());
        return std::max(rows_difference(theirs[0].data(), ours[0].data(), qkv.dtype(), shape.sequence, columns, 0, columns, shape.head_size),
                        lse_difference(their_lse, reinterpret_cast<const float*>(ours[1].data()), shape.heads * shape.sequence));
      });
  return entry.graph != nullptr;
}

bool cudnn_attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                              const Tensor& dqkv, const Tensor& workspace) {
  if (!uses_cudnn(ctx, qkv)) return false;
  const int64_t needed = cudnn_workspace_bytes(shape, qkv.dtype(), ctx.gpu->options().cudnn_workspace);
  TRIREME_CHECK(workspace.bytes() >= needed, workspace.bytes(), " bytes of workspace are too few for cuDNN");
  Library& cudnn = library(ctx);
  Entry& entry = cudnn.entry(shape, qkv.dtype(), true, are_aligned(dout, qkv, out, dqkv, workspace));
  if (entry.graph == nullptr || !cudnn.run(entry, parts_of(entry.part, {qkv, out, lse, &dout, &dqkv}), workspace.raw())) return false;
  if (entry.compared) return true;
  AttentionShape one = shape;
  one.batch = 1;
  const int64_t T = shape.sequence, queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
  compare(
      ctx, cudnn, entry, {dqkv},
      [&](int64_t sequence, const std::vector<Tensor>& rows) {
        const Tensor of_sequence = lse.flat(sequence * shape.heads * T, shape.heads * T);
        cuda::attention_backward(ctx, dout.rows(sequence * T, T), qkv.rows(sequence * T, T), out.rows(sequence * T, T), of_sequence, one, {}, rows[0],
                                 workspace);
      },
      [&](const auto& theirs, const auto& ours) {
        double worst = 0;  // of dq, dk and dv, whose scales differ
        for (const auto& [first, columns] : {std::pair(int64_t{0}, queries), std::pair(queries, keys), std::pair(queries + keys, keys)})
          worst =
              std::max(worst, rows_difference(theirs[0].data(), ours[0].data(), qkv.dtype(), T, shape.columns(), first, columns, shape.head_size));
        return worst;
      });
  return entry.graph != nullptr;
}

std::vector<AttentionChoice> attention_choices(Gpu& gpu) {
  if (!gpu.options().cudnn_attention) return {};
  return gpu.state().library<Library>(gpu).choices();
}

}  // namespace trireme::cuda
