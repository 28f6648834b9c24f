// Keys that have no effect with this number of ranks or on this device: noted, not refused.
#include "trainer/config/idle_keys.h"
#include "tests/support/catch.h"
#include "trainer/layout/resolve.h"

namespace trireme::test {
namespace {

using Names = std::vector<std::string>;

Names idle_in(std::vector<std::string> sets) {
  const std::string text =
      "model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 256}\n"
      "training: {steps: 2, sequence_length: 16, global_batch_size: 8}\ndata: {train: [train]}\n";
  const LoadedConfig loaded = parse_config(text, "run.yaml", sets);
  Names names;
  for (const IdleKey& idle : idle_keys(loaded, resolve(loaded))) names.push_back(idle.key);
  return names;
}

}  // namespace

TEST_CASE("idle keys: what the number of ranks leaves without effect") {
  struct Case {
    std::string set, key, ranks;  ///< with `ranks` the key has its effect
  };
  for (const auto& [set, key, ranks] : std::vector<Case>{{"parallel.sequence_parallel=true", "parallel.sequence_parallel", "parallel.tensor=2"},
                                                         {"parallel.schedule=zb_h1", "parallel.schedule", "parallel.pipeline=2"},
                                                         {"parallel.zero_stage=2", "parallel.zero_stage", "parallel.data=2"},
                                                         {"training.reduce_dtype=bf16", "training.reduce_dtype", "parallel.data=2"},
                                                         {"training.compression.method=int8", "training.compression.method", "parallel.data=2"},
                                                         {"resilience.elastic=replicas", "resilience.elastic", "parallel.data=2"},
                                                         {"parallel.bucket_size=4096", "parallel.bucket_size", "parallel.data=2"},
                                                         {"parallel.overlap=false", "parallel.overlap", "parallel.tensor=2"},
                                                         {"parallel.collectives=ring", "parallel.collectives", "parallel.data=2"},
                                                         {"resilience.hang_seconds=9", "resilience.hang_seconds", "resilience.restarts=1"},
                                                         {"resilience.host_strikes=3", "resilience.host_strikes", "resilience.restarts=1"}}) {
    CAPTURE(set, ranks);
    CHECK(idle_in({set}) == Names{key});
    CHECK(idle_in({set, ranks}).empty());
  }
  CHECK(idle_in({"parallel.zero_stage=3", "parallel.prefetch=2", "parallel.reshard=after_step", "parallel.gradient_accumulation=sharded"}).size() ==
        4);
}

TEST_CASE("idle keys: what the device leaves without effect, once it is known") {
  for (const std::string set :
       {"run.ranks_per_gpu=2", "kernels.tf32=true", "kernels.cuda_graph=true", "kernels.tuning_file=t.json", "kernels.attention=builtin"}) {
    CAPTURE(set);
    CHECK(idle_in({set, "run.device=cpu"}) == Names{set.substr(0, set.find('='))});
    CHECK(idle_in({set, "run.device=cuda"}).empty());
    CHECK(idle_in({set}).empty());
  }
  CHECK(idle_in({"kernels.cpu_isa=avx2", "run.device=cuda"}) == Names{"kernels.cpu_isa"});
  CHECK(idle_in({"kernels.cpu_isa=avx2", "run.device=cpu"}).empty());
  CHECK(idle_in({"kernels.tf32=true", "run.device=cuda", "training.precision=bf16"}) == Names{"kernels.tf32"});
  const Names nccl = {"parallel.communication_sms", "parallel.register_buffers"};
  CHECK(idle_in({"parallel.communication_sms=4", "parallel.register_buffers=true", "run.device=cuda"}) == nccl);
  CHECK(idle_in({"parallel.communication_sms=4", "parallel.register_buffers=true", "run.device=cpu", "parallel.data=2"}) == nccl);
  CHECK(idle_in({"parallel.communication_sms=4", "parallel.register_buffers=true", "run.device=cuda", "parallel.data=2"}).empty());
}

TEST_CASE("idle keys: defaults and automatic values are nobody's wish, and a note has place, value and reason") {
  CHECK(idle_in({}).empty());
  CHECK(idle_in(
            {"parallel.schedule=1f1b", "parallel.gradient_accumulation=auto", "parallel.collectives=library", "kernels.tf32=false", "run.device=cpu"})
            .empty());
  const LoadedConfig loaded = parse_config(
      "model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 256}\nparallel: {sequence_parallel: true}\n"
      "training: {steps: 2, sequence_length: 16, global_batch_size: 8}\ndata: {train: [train]}\n",
      "run.yaml", {"parallel.zero_stage=1"});
  CHECK(idle_notes(loaded, resolve(loaded)) ==
        "note: --set:parallel.zero_stage parallel.zero_stage=1 has no effect: parallel.data is 1\n"
        "note: run.yaml:2:31 parallel.sequence_parallel=true has no effect: parallel.tensor is 1\n");
}

}  // namespace trireme::test
