// The ranges that a profiler of GPUs sees. This program is its own profiler: NVTX calls the tool that is linked into it.
#ifdef TRIREME_NVTX
#include "kernels/core/profiler.h"

#define NVTX_NO_IMPL  // types only: the implementation is that of kernels/cuda/profiler.cpp
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/machine.h"

namespace {

std::mutex mutex;
std::vector<std::string> domains;
std::vector<std::string> ranges;  ///< "name", and "/" at the end of a range

extern "C" {

static nvtxDomainHandle_t create_domain(const char* name) {
  const std::lock_guard lock(mutex);
  domains.emplace_back(name);
  return reinterpret_cast<nvtxDomainHandle_t>(&domains);
}
static int push_range(nvtxDomainHandle_t /*domain*/, const nvtxEventAttributes_t* attributes) {
  const std::lock_guard lock(mutex);
  ranges.emplace_back(attributes->message.ascii);
  return 0;
}
static int pop_range(nvtxDomainHandle_t /*domain*/) {
  const std::lock_guard lock(mutex);
  ranges.emplace_back("/");
  return 0;
}
static int attach(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push_range);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop_range);
  return 1;
}

}  // extern "C"

}  // namespace

extern "C" NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach;

namespace trireme::test {

TEST_CASE("a profiler sees a range for each action of the list and each part in it, on a GPU only") {
  Config config = parity_config(ParityModel::kLlama, {}, "fp32");
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    config.run.device = device;
    ActionList list;
    run_ranks(1, [&](Communicator& threads) {
      Machine machine(whole_world(threads), {0, 1}, config);
      Trainer trainer(machine.ctx(), machine.world(), config, true);
      trainer.initialise();
      ranges.clear();
      trainer.step(data, 0, 1e-3);
      list = trainer.program().training_list();
    });
    if (device == DeviceType::kCpu) {
      CHECK(ranges.empty());
      continue;
    }
    CHECK(domains == std::vector<std::string>{"trireme"});
    std::vector<std::string> outer, inner;
    int depth = 0;
    for (const std::string& range : ranges) {
      if (range != "/") (depth == 0 ? outer : inner).push_back(range);
      depth += range == "/" ? -1 : 1;
      CHECK(depth >= 0);
      CHECK(depth <= 2);
    }
    CHECK(depth == 0);
    std::vector<std::string> actions;
    for (const Action& action : list) actions.push_back(to_string(action));
    CHECK(outer == actions);
    CHECK(inner.size() == static_cast<size_t>(std::ranges::count_if(list, [](const Action& action) { return is_compute(action.type); })));
    CHECK(inner.front() == "embedding");
  }
}

}  // namespace trireme::test
#endif
