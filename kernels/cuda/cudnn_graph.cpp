#include "kernels/cuda/cudnn_graph.h"

#include <cmath>
#include <unordered_map>
#include <vector>

// The frontend then calls cuDNN through cudnn_dlhandle, and the CUDA runtime, which nothing here uses, through a library of its own.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include "kernels/core/check.h"
#include "kernels/cuda/cudnn_library.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace trireme::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Tensors : int64_t { kQuery = 1, kKey, kValue, kOut, kLse, kDout, kDquery, kDkey, kDvalue };

void load_cudnn() {
  static const bool loaded = [] {
    fe::cudnn_dlhandle = cudnn().handle;
    return true;
  }();
  static_cast<void>(loaded);
}

fe::DataType_t type_of(DType dtype) { return dtype == DType::kF16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16; }

/// The first line of a message of the library.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Dimensions and strides, in elements, of the tensors of a part: [sequences, heads, tokens, head size].
struct Layout {
  explicit Layout(const AttentionPart& of) : part(of) {}

  fe::graph::Tensor_attributes heads(const char* name, int64_t uid, int64_t count, int64_t row) const {
    const int64_t T = part.whole.sequence, H = part.whole.head_size;
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_dim({part.sequences, count, T, H})
        .set_stride({T * row, H, row, 1})
        .set_data_type(type_of(part.dtype));
  }
  fe::graph::Tensor_attributes packed_query(const char* name, int64_t uid) const { return heads(name, uid, query_heads(), part.whole.columns()); }
  fe::graph::Tensor_attributes packed_kv(const char* name, int64_t uid) const { return heads(name, uid, part.kv_heads, part.whole.columns()); }
  fe::graph::Tensor_attributes output(const char* name, int64_t uid) const {
    return heads(name, uid, query_heads(), part.whole.heads * part.whole.head_size);
  }
  fe::graph::Tensor_attributes lse(int64_t uid) const {
    const int64_t T = part.whole.sequence, N = query_heads();
    // Several sequences are adjacent, as then a slice has all heads. A slice that begins at an odd head of an odd length is aligned to 4 bytes only.
    return fe::graph::Tensor_attributes()
        .set_name("lse")
        .set_uid(uid)
        .set_dim({part.sequences, N, T, 1})
        .set_stride({N * T, T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT)
        .set_alignment(4);
  }
  int64_t query_heads() const { return part.kv_heads * (part.whole.heads / part.whole.kv_heads); }

  const AttentionPart& part;
};

/// Scale and mask. A query attends to the keys at most left_bound - 1 tokens before its own, like AttentionShape::window.
template <class Attributes>
Attributes band(Attributes attributes, const AttentionShape& shape) {
  attributes.set_attn_scale(static_cast<float>(shape.scale()))
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (shape.window > 0 && shape.window < shape.sequence) attributes.set_diagonal_band_left_bound(static_cast<int>(shape.window));
  return attributes;
}

void declare_output(const std::shared_ptr<fe::graph::Tensor_attributes>& made, const fe::graph::Tensor_attributes& wanted) {
  made->set_output(true)
      .set_uid(wanted.get_uid())
      .set_dim(wanted.get_dim())
      .set_stride(wanted.get_stride())
      .set_data_type(wanted.get_data_type())
      .set_alignment(wanted.get_alignment());
}

void add_forward(fe::graph::Graph& graph, const Layout& layout) {
  const auto attributes = band(fe::graph::SDPA_attributes().set_name("attention_forward").set_generate_stats(true), layout.part.whole);
  const auto [out, lse] = graph.sdpa(graph.tensor(layout.packed_query("query", kQuery)), graph.tensor(layout.packed_kv("key", kKey)),
                                     graph.tensor(layout.packed_kv("value", kValue)), attributes);
  declare_output(out, layout.output("out", kOut));
  declare_output(lse, layout.lse(kLse));
}

void add_backward(fe::graph::Graph& graph, const Layout& layout) {
  const auto attributes =
      band(fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_deterministic_algorithm(true), layout.part.whole);
  const auto [dquery, dkey, dvalue] =
      graph.sdpa_backward(graph.tensor(layout.packed_query("query", kQuery)), graph.tensor(layout.packed_kv("key", kKey)),
                          graph.tensor(layout.packed_kv("value", kValue)), graph.tensor(layout.output("out", kOut)),
                          graph.tensor(layout.output("dout", kDout)), graph.tensor(layout.lse(kLse)), attributes);
  declare_output(dquery, layout.packed_query("dquery", kDquery));
  declare_output(dkey, layout.packed_kv("dkey", kDkey));
  declare_output(dvalue, layout.packed_kv("dvalue", kDvalue));
}

}  // namespace

struct CudnnGraph::State {
  fe::graph::Graph graph;
  bool backward = false;
  int64_t workspace_bytes = 0;
};

CudnnGraph::CudnnGraph(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudnnGraph::~CudnnGraph() = default;

std::unique_ptr<CudnnGraph> CudnnGraph::build(const CudnnTarget& target, const AttentionPart& part, bool backward, std::string& why) {
  load_cudnn();
  auto state = std::make_unique<State>();
  fe::graph::Graph& graph = state->graph;
  graph.set_io_data_type(type_of(part.dtype)).set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
  graph.set_sm_version(target.compute_capability);
  state->backward = backward;
  if (backward) {
    add_backward(graph, Layout(part));
  } else {
    add_forward(graph, Layout(part));
  }
  const auto good = [&](fe::error_t status) {
    why = first_line(status.get_message());
    return status.is_good();
  };
  const auto make = [&] {
    if (!target.properties.empty()) {
      const auto properties = std::make_shared<fe::DeviceProperties>();
      if (!good(properties->deserialize({target.properties.begin(), target.properties.end()}))) return false;
      graph.set_device_properties(properties);
    }
    return good(graph.validate()) && good(graph.build_operation_graph(target.handle)) && good(graph.create_execution_plans({fe::HeurMode_t::A})) &&
           good(graph.check_support()) && good(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)) &&
           good(graph.get_workspace_size(state->workspace_bytes));
  };
  try {
    if (!make()) return nullptr;
  } catch (const std::exception& error) {  // a function that the library lacks
    why = first_line(error.what());
    return nullptr;
  }
  return std::unique_ptr<CudnnGraph>(new CudnnGraph(std::move(state)));
}

int64_t CudnnGraph::workspace_bytes() const { return state_->workspace_bytes; }

std::string CudnnGraph::run(cudnnContext* handle, const AttentionMemory& memory, void* workspace) {
  const auto input = [](const void* pointer) { return const_cast<void*>(pointer); };  // the library's type for inputs too
  std::unordered_map<int64_t, void*> tensors = {
      {kQuery, input(memory.query)}, {kKey, input(memory.key)}, {kValue, input(memory.value)}, {kOut, memory.out}, {kLse, memory.lse}};
  if (state_->backward) tensors.insert({{kDout, input(memory.dout)}, {kDquery, memory.dquery}, {kDkey, memory.dkey}, {kDvalue, memory.dvalue}});
  try {
    fe::error_t status = state_->graph.execute(handle, tensors, workspace);
    if (status.is_good()) return "";
    const std::string message = first_line(status.get_message());
    return message.empty() ? "unknown error" : message;
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
}

}  // namespace trireme::cuda
