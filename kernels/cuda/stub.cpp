// Replaces the GPU code in builds without CUDA: every use of a GPU throws ConfigError.
#include "kernels/core/gpu.h"

#include "kernels/core/check.h"
#include "kernels/core/gpu_uuid.h"
#include "kernels/core/profiler.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/matmul.h"

namespace trireme::cuda {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("run.device=cuda: this build has no CUDA support; build on a machine with the CUDA Toolkit; allowed cpu");
}

}  // namespace

struct Gpu::State {};
struct Gpu::Readback::State {};

int gpu_count() { refuse(); }
GpuProperties gpu_properties(int /*index*/) { refuse(); }
std::string gpu_uuid(int /*index*/) { refuse(); }
Gpu::Gpu(int /*index*/, const GpuOptions& /*options*/) { refuse(); }
Gpu::~Gpu() = default;
const GpuProperties& Gpu::properties() const { refuse(); }
const GpuOptions& Gpu::options() const { refuse(); }
int Gpu::index() const { refuse(); }
Stream Gpu::compute() const { refuse(); }
void* Gpu::allocate(int64_t /*bytes*/) { refuse(); }
void Gpu::release(void* /*memory*/) { refuse(); }
void* Gpu::allocate_async(int64_t /*bytes*/) { refuse(); }
void Gpu::release_async(void* /*memory*/) { refuse(); }
int64_t Gpu::free_bytes() const { refuse(); }
void* Gpu::scratch(int64_t /*bytes*/) const { refuse(); }
uint32_t* Gpu::ticket() const { refuse(); }
void Gpu::fill_bytes(void* /*memory*/, int /*value*/, int64_t /*bytes*/) { refuse(); }
void Gpu::copy(const void* /*from*/, void* /*to*/, int64_t /*bytes*/) { refuse(); }
void Gpu::upload(const void* /*host*/, void* /*device*/, int64_t /*bytes*/) { refuse(); }
void Gpu::download(const void* /*device*/, void* /*host*/, int64_t /*bytes*/) { refuse(); }
void Gpu::synchronize() { refuse(); }
bool Gpu::Readback::ready() const { refuse(); }
const void* Gpu::Readback::wait() const { refuse(); }
Gpu::Readback Gpu::read_back(const void* /*device*/, int64_t /*bytes*/) { refuse(); }
Stream Gpu::make_stream() { refuse(); }
Event Gpu::record(Stream /*stream*/) { refuse(); }
void Gpu::order_after(Stream /*stream*/, Event /*event*/) { refuse(); }
Gpu::Graph Gpu::capture(const std::function<void()>& /*body*/) { refuse(); }
void Gpu::launch(const Graph& /*graph*/) { refuse(); }
bool Gpu::holds_graphs() const { refuse(); }
bool Gpu::is_done(Event /*event*/) const { refuse(); }
void Gpu::recycle(Event /*event*/) { refuse(); }
void Gpu::begin_communication() { refuse(); }
void Gpu::end_communication() { refuse(); }
bool Gpu::communicates() const { refuse(); }
Event Gpu::record_time(Stream /*stream*/) { refuse(); }
double Gpu::seconds_between(Event /*first*/, Event /*last*/) const { refuse(); }
void Gpu::recycle_time(Event /*event*/) { refuse(); }

std::string library_versions(Gpu& /*gpu*/) { refuse(); }
ProductCounts product_counts(Gpu& /*gpu*/) { refuse(); }
std::vector<std::string> plain_shapes(Gpu& /*gpu*/) { refuse(); }
std::vector<ProductTimes> time_products(Gpu& /*gpu*/, const ProductAlgorithms& /*known*/, const std::function<void()>& /*body*/) { refuse(); }
void use_algorithms(Gpu& /*gpu*/, const ProductAlgorithms& /*algorithms*/) { refuse(); }

std::string attention_library() { refuse(); }
std::vector<AttentionChoice> attention_choices(Gpu& /*gpu*/) { return {}; }

bool is_profiled() { return false; }
void open_profiler_range(const char* /*name*/) {}
void close_profiler_range() {}

}  // namespace trireme::cuda
