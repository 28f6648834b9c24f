#include "trainer/config/idle_keys.h"

#include "kernels/core/check.h"
#include "trainer/config/fields.h"

namespace trireme {
namespace {

/// Why keys have no effect, each with what it takes away from them; nullptr: it does not apply.
struct Reasons {
  const char* one_tensor_rank;
  const char* one_pipeline_rank;
  const char* one_data_rank;
  const char* one_rank;
  const char* cpu;
  const char* cuda;
  const char* no_restarts;
  const char* unwatched;  ///< no other process notices that the rank hangs
  const char* no_nccl;    ///< one rank, or no GPU
  const char* no_tf32;    ///< no GPU, or a precision without products in fp32
  const char* one_part;   ///< the sequences of a step are in one micro-batch of one rank
};

Reasons reasons_of(const Config& c) {
  const ParallelConfig& p = c.parallel;
  const int64_t data = p.data.value_or(1);
  const auto when = [](bool applies, const char* why) { return applies ? why : nullptr; };
  const char* const cpu = when(c.run.device == DeviceType::kCpu, "the run computes on CPUs");
  const char* const one_rank = when(p.islands * p.tensor * p.pipeline * data == 1, "the run has one rank");
  return {
      .one_tensor_rank = when(p.tensor == 1, "parallel.tensor is 1"),
      .one_pipeline_rank = when(p.pipeline == 1, "parallel.pipeline is 1, so there is no bubble; the order of passes changes the memory alone"),
      .one_data_rank = when(data == 1, "parallel.data is 1"),
      .one_rank = one_rank,
      .cpu = cpu,
      .cuda = when(c.run.device == DeviceType::kCuda, "the run computes on GPUs"),
      .no_restarts =
          when(c.resilience.restarts == 0 && c.resilience.elastic == Elastic::kNone, "the launcher restarts nothing: resilience.restarts is 0"),
      .unwatched =
          when(one_rank != nullptr && c.resilience.restarts == 0, "the run has one rank and resilience.restarts is 0, so nothing watches it"),
      .no_nccl = cpu ? cpu : one_rank,
      .no_tf32 =
          cpu ? cpu : when(c.run.device == DeviceType::kCuda && c.training.precision != Arithmetic::kFp32, "only precision fp32 has such products"),
      .one_part = when(data == 1 && c.training.global_batch_size == c.training.micro_batch_size, "one rank has all sequences in one micro-batch")};
}

struct Row {
  const char* key;
  const char* Reasons::*why;
};

constexpr Row kRows[] = {{"run.ranks_per_gpu", &Reasons::cpu},
                         {"parallel.zero_stage", &Reasons::one_data_rank},
                         {"parallel.sequence_parallel", &Reasons::one_tensor_rank},
                         {"parallel.schedule", &Reasons::one_pipeline_rank},
                         {"parallel.gradient_accumulation", &Reasons::one_data_rank},
                         {"parallel.reshard", &Reasons::one_data_rank},
                         {"parallel.prefetch", &Reasons::one_data_rank},
                         {"parallel.bucket_size", &Reasons::one_data_rank},
                         {"parallel.overlap", &Reasons::one_rank},
                         {"parallel.collectives", &Reasons::one_rank},
                         {"parallel.communication_sms", &Reasons::no_nccl},
                         {"parallel.register_buffers", &Reasons::no_nccl},
                         {"training.reduce_dtype", &Reasons::one_data_rank},
                         {"training.compression.method", &Reasons::one_data_rank},
                         {"training.compression.parameters", &Reasons::one_data_rank},
                         {"data.balance", &Reasons::one_part},
                         {"resilience.hang_seconds", &Reasons::unwatched},
                         {"resilience.replica_check_every", &Reasons::one_rank},
                         {"resilience.elastic", &Reasons::one_data_rank},
                         {"resilience.host_strikes", &Reasons::no_restarts},
                         {"resilience.host_wait_seconds", &Reasons::no_restarts},
                         {"kernels.attention", &Reasons::cpu},
                         {"kernels.cpu_isa", &Reasons::cuda},
                         {"kernels.tf32", &Reasons::no_tf32},
                         {"kernels.cuda_graph", &Reasons::cpu},
                         {"kernels.tuning_file", &Reasons::cpu}};

}  // namespace

std::vector<IdleKey> idle_keys(const LoadedConfig& loaded, const Config& resolved) {
  const FieldTable written = table_of(loaded.config), defaults = table_of(Config{});
  const Reasons reasons = reasons_of(resolved);
  std::vector<IdleKey> idle;
  for (const auto& [key, why] : kRows)
    if (const FieldRow& row = written.at(key); reasons.*why != nullptr && loaded.sources.given(key) && row.value != defaults.at(key).value)
      idle.push_back({key, shown_value(row), reasons.*why});
  return idle;
}

std::string idle_notes(const LoadedConfig& loaded, const Config& resolved) {
  std::string text;
  for (const IdleKey& idle : idle_keys(loaded, resolved))
    text +=
        concat("note: ", loaded.sources.name_of(loaded.sources.locate(idle.key)), " ", idle.key, "=", idle.value, " has no effect: ", idle.why, "\n");
  return text;
}

}  // namespace trireme
