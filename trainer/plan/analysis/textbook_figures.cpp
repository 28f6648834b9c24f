#include <algorithm>
#include <numeric>

#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/declare.h"
#include "trainer/model/flops.h"
#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/formulas.h"

namespace trireme {
namespace {

using RankRecompute = std::vector<std::vector<Recompute>>;

textbook::Block block_of(const Config& config) {
  return {static_cast<double>(config.training.sequence_length), static_cast<double>(config.training.micro_batch_size),
          static_cast<double>(config.model.hidden_size), static_cast<double>(config.model.heads)};
}

/// Parameters of a block or of the embedding, whichever is larger.
double largest_layer(const ModelConfig& model) { return static_cast<double>(std::max(largest_block(model), *model.vocab_size * model.hidden_size)); }

textbook::MegatronRun megatron_run(const Config& config) {
  const ModelConfig& model = config.model;
  textbook::MegatronRun run{.block = block_of(config)};
  run.layers = static_cast<double>(model.layers);
  run.ffn_size = static_cast<double>(*model.ffn_size);
  run.vocab_size = static_cast<double>(*model.vocab_size);
  run.block_parameters = static_cast<double>(parameter_count(model) - (model.tied_embeddings ? 1 : 2) * *model.vocab_size * model.hidden_size);
  run.tied_embeddings = model.tied_embeddings;
  run.tensor = static_cast<double>(config.parallel.tensor);
  run.pipeline = static_cast<double>(config.parallel.pipeline);
  run.data = static_cast<double>(*config.parallel.data);
  run.virtual_stages = static_cast<double>(*config.parallel.virtual_stages);
  run.microbatches = microbatches_of(config);
  run.distributed_optimizer = config.parallel.zero_stage >= 1;
  return run;
}

double states(const RankBytes& rank) { return rank.parameters + rank.gradients + rank.optimizer; }

/// Bubble of a step by the schedule's paper, with F, I and W of equal duration; nullopt for schedules without a published formula.
std::optional<TextbookFigure> bubble_figure(const Config& config, double forecast) {
  const double p = static_cast<double>(config.parallel.pipeline), m = microbatches_of(config),
               v = static_cast<double>(*config.parallel.virtual_stages);
  const auto figure = [&](const char* source, double share) { return TextbookFigure{"bubble", "share", source, share, forecast}; };
  const std::string& schedule = config.parallel.schedule;
  if (schedule == "gpipe" || schedule == "1f1b") return figure("(p-1)/(m+p-1), arXiv:2104.04473", textbook::bubble_of_step(p, m, 1));
  if (schedule == "interleaved_1f1b") return figure("(p-1)/(v m+p-1), arXiv:2104.04473", textbook::bubble_of_step(p, m, v));
  if (schedule == "zb_v") return figure("none if F = I = W, arXiv:2401.10241", 0);
  if (schedule != "zb_h1" && schedule != "zb_h2") return std::nullopt;
  const bool h1 = schedule == "zb_h1";
  const double idle = textbook::bubble_seconds(h1 ? textbook::ZeroBubble::kH1 : textbook::ZeroBubble::kH2, p, 1, 1, 1);
  return figure(h1 ? "(p-1)(F+I-W), arXiv:2401.10241" : "(p-1)(F+I-2W), arXiv:2401.10241", idle / (idle + 3 * m));
}

/// Activations that the first stage keeps, in units of one block and micro-batch; nullopt for schedules without a published formula.
std::optional<double> blocks_in_flight(const std::string& schedule, const textbook::MegatronRun& run) {
  const double of_stages = run.microbatches / run.pipeline;
  if (schedule == "gpipe") return run.layers * of_stages;
  if (schedule == "1f1b" || schedule == "zb_h1") return run.layers * std::min(1.0, of_stages);
  if (schedule == "interleaved_1f1b") return textbook::first_stage_blocks(run.layers, run.pipeline, run.virtual_stages);
  return std::nullopt;
}

/// Bytes of activations that a block saves per micro-batch, depending on its recomputation: mean over `blocks`.
double mean_block_bytes(const textbook::MegatronRun& run, bool sequence_parallel, const std::vector<Recompute>& blocks) {
  double bytes = 0;
  for (const Recompute one : blocks) bytes += textbook::block_activation_bytes(run.block, run.tensor, sequence_parallel, one);
  return bytes / static_cast<double>(blocks.size());
}

void add_memory(std::vector<TextbookFigure>& figures, const Config& config, const Forecast& forecast, const RankRecompute& recompute) {
  if (forecast.memory.empty()) return;
  const ParallelConfig& parallel = config.parallel;
  const textbook::MegatronRun megatron = megatron_run(config);
  const double parameters = static_cast<double>(parameter_count(config.model)), ranks = megatron.tensor * megatron.pipeline;
  const double mean =
      std::accumulate(forecast.memory.begin(), forecast.memory.end(), 0.0, [](double sum, const RankBytes& rank) { return sum + states(rank); }) /
      static_cast<double>(forecast.memory.size());
  const double shards = degree_of(mesh_shape(parallel), MeshAxis::kShard);
  figures.push_back({"model states of a rank", "bytes", "16 B per parameter, arXiv:1910.02054, Table 1",
                     textbook::zero_state_bytes(parameters / ranks, parallel.zero_stage, shards), mean});
  if (ranks == 1 && parallel.zero_stage == 2)
    figures.push_back({"model states of a rank", "bytes", "DeepSpeed's estimator", textbook::deepspeed_zero2_bytes(parameters, megatron.data), mean});
  if (ranks == 1 && parallel.zero_stage == 3)
    figures.push_back({"model states of a rank", "bytes", "DeepSpeed's estimator",
                       textbook::deepspeed_zero3_bytes(parameters, largest_layer(config.model), megatron.data), mean});

  if (const auto blocks = blocks_in_flight(parallel.schedule, megatron))
    figures.push_back({"activations of the first stage", "bytes", "16-bit GPT, arXiv:2205.05198, Table 2",
                       mean_block_bytes(megatron, parallel.sequence_parallel, recompute.front()) * *blocks, forecast.memory.front().activations});

  if (parallel.schedule != "1f1b" && parallel.schedule != "interleaved_1f1b") return;
  const RankBytes& worst = forecast.memory.at(static_cast<size_t>(forecast.worst_rank));
  figures.push_back({"most loaded rank", "bytes", "Megatron-LM's estimator (sequence parallelism, selective recompute)",
                     textbook::megatron_state_bytes(megatron) + textbook::megatron_activation_bytes(megatron), worst.peak - worst.runtime});
}

double sent(const std::vector<Traffic>& traffic, std::initializer_list<std::string_view> names) {
  double bytes = 0;
  for (const Traffic& one : traffic)
    if (std::ranges::find(names, one.what) != names.end()) bytes += one.bytes;
  return bytes;
}

void add_traffic(std::vector<TextbookFigure>& figures, const Config& config, const Forecast& forecast) {
  const std::vector<Traffic> traffic = traffic_of(config, forecast.parts);
  const auto element = static_cast<double>(size_of(precision_of(config.training).compute));
  const double t = static_cast<double>(config.parallel.tensor), p = static_cast<double>(config.parallel.pipeline);
  const double data = static_cast<double>(*config.parallel.data);
  // A step of the paper is one micro-batch. ZeRO-3 repeats its communication for each micro-batch.
  const double times = config.parallel.zero_stage == 3 ? microbatches_of(config) : 1;
  if (data > 1)
    figures.push_back(
        {"gradient and parameter traffic", "bytes", "2 P; ZeRO-3: 3 P per micro-batch, arXiv:1910.02054, 7",
         times * element * textbook::zero_elements(static_cast<double>(parameter_count(config.model)) / (t * p), config.parallel.zero_stage, data),
         sent(traffic, {"parameters", "gradients", "replicas"})});
  if (t > 1)
    figures.push_back(
        {"tensor-parallel traffic", "bytes", "8 b s h (t-1)/t per layer, arXiv:2104.04473",
         element * textbook::tensor_elements(block_of(config), t) * static_cast<double>(config.model.layers) / p * microbatches_of(config),
         sent(traffic, {"tensor"})});
}

}  // namespace

std::vector<TextbookFigure> textbook_figures(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, double tokens) {
  const RankRecompute recompute = recompute_of_ranks(config, stage_ranks(training_schedule(config)));
  std::vector<TextbookFigure> figures;
  add_memory(figures, config, forecast, recompute);
  add_traffic(figures, config, forecast);
  if (const auto bubble = bubble_figure(config, forecast.bubble)) figures.push_back(*bubble);
  // At the rate of large matrix products. The forecast adds everything else and, on cores that share a machine, their mutual slowdown.
  double twice = 0;
  for (const std::vector<Recompute>& rank : recompute) twice += static_cast<double>(std::ranges::count(rank, Recompute::kFull));
  const double devices = mesh_shape(config.parallel).world(), flops = 6 + 2 * twice / static_cast<double>(config.model.layers);
  const double rate = peak_flops(config, cluster) * *cluster.device.gemm_efficiency;
  figures.push_back({"training time", "seconds",
                     "6 T P / (n X), 8 T P / (n X) for fully recomputed blocks; X: large matrix products; arXiv:2104.04473, eq. 4",
                     textbook::training_seconds(flops * static_cast<double>(parameter_count(config.model)), tokens, devices, rate),
                     training_bill(config, cluster, forecast.step_seconds, tokens).seconds});
  return figures;
}

}  // namespace trireme
