#include "tests/plan/published_rows.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "kernels/core/check.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/flops.h"
#include "trainer/plan/forecast.h"

namespace trireme::published {
namespace {

using Json = nlohmann::json;

template <class T>
std::optional<T> get(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (found->is_string()) return found->get<std::string>();
    return std::nullopt;
  } else {
    if (!found->is_number()) return std::nullopt;
    return found->get<T>();
  }
}

Json part(const Json& row, const char* key) { return row.contains(key) && row[key].is_object() ? row[key] : Json::object(); }

bool contains(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

/// The software stack that ran it.
std::string stack_name(const std::string& group, const std::string& id) {
  if (group == "a") return contains(id, "zero3") ? "deepspeed-zero3" : "megatron-2021";
  if (group == "b") return "megatron-2021";
  if (group == "c" || group == "n") return "megatron-2024";
  if (group == "d") return "llama-3";
  if (group == "e") return "megatron-2023";
  if (group == "f") return "torchtitan";
  if (group == "g") return contains(id, "llmc") ? "llm.c" : "pytorch-fsdp";
  if (group == "i") return contains(id, "mds") ? "megatron-deepspeed" : "zero-bubble";
  if (group == "j") return "nanotron";
  if (group == "o") return "llm-foundry";
  if (group == "p") return "megatron-deepspeed";
  return contains(id, "mtnlg") ? "megatron-deepspeed" : "pytorch-fsdp";
}

/// The published text without what follows about its table or line, so that the tables of a paper are one document.
std::string document_of(const std::string& source) {
  static const std::regex place(" (Tables?|Fig|p[0-9]|lines?|@|\\[).*");
  return std::regex_replace(source, place, "");
}

/// The table of a document, or the smallest part of it whose runs were made together: a day of a log, the sizes of one model in a picture.
std::string table_of(const std::string& source, const std::string& id) {
  if (id.starts_with("bloom-0")) return concat(document_of(source), " ", id.substr(6, 5));
  if (contains(source, "benchmark_summary.svg")) return concat(document_of(source), " ", id.substr(0, id.rfind('-')));
  return source;
}

/// Rows whose printed memory or layout is contradicted by the source itself: lines of the BLOOM chronicles.
bool memory_is_contradicted(const std::string& id) { return id.ends_with("L634") || id.ends_with("L669") || id.ends_with("L775"); }

struct Refused {
  std::string why;
};

int64_t need(const Json& object, const char* key) {
  const std::optional<int64_t> value = get<int64_t>(object, key);
  if (!value) throw Refused{concat("no ", key)};
  return *value;
}

ClusterConfig cluster_of(const Json& row, const std::string& stack) {
  const Json cluster = part(row, "cluster");
  const std::string gpu = get<std::string>(cluster, "gpu").value_or("");
  ClusterConfig c;
  c.name = stack;
  c.device.type = contains(gpu, "40GB")   ? "A100-40GB"
                  : contains(gpu, "A100") ? "A100"
                  : contains(gpu, "H200") ? "H200"
                  : contains(gpu, "H100") ? "H100"
                                          : "";
  if (c.device.type.empty()) throw Refused{"GPU " + gpu};
  if (contains(gpu, "HBM2e")) {  // torchtitan's GPUs: 96 GB, 2.4 TB/s, 500 W
    c.device.memory = 95.0 * (1 << 30);
    c.device.memory_bandwidth = 2.4e12 * 0.87;
  }
  const int64_t devices = need(cluster, "n_gpus");
  c.devices_per_node = std::min<int64_t>(devices, 8);
  c.nodes = (devices + c.devices_per_node - 1) / c.devices_per_node;
  // BLOOM's cluster has four 100 Gb/s links per node of eight GPUs; others have eight of 200 Gb/s.
  if (get<std::string>(row, "group").value_or("") == "p") c.network.bandwidth = 0.95 * 6.25e9;
  c.software.stack = stack;
  const Json parallel = part(row, "parallel");
  const std::string precision = get<std::string>(parallel, "precision").value_or("bf16"), id = row.at("id");
  if (contains(precision, "fp8") || contains(precision, "float8")) c.software.fp8 = contains(precision, "rowwise") ? "rowwise" : "tensorwise";
  // torchtitan's runs in fp8, and those of its document on asynchronous tensor parallelism, were all compiled.
  c.software.compiled = stack == "torchtitan" && (c.software.fp8 != "none" || contains(id, "compile") || contains(id, "tt-atp"));
  c.software.context = get<int64_t>(parallel, "cp").value_or(1);
  return resolve_cluster(c);
}

/// Translates the row's schedule.
void set_schedule(const Json& parallel, Config& config, int64_t layers) {
  const std::string schedule = get<std::string>(parallel, "schedule").value_or("");
  ParallelConfig& p = config.parallel;
  int64_t stages = get<int64_t>(parallel, "vpp").value_or(1);
  if (get<std::string>(parallel, "vpp")) stages = (layers + 2) / p.pipeline;  // "1 layer per chunk", embedding and head counted as layers
  if (contains(schedule, "ZB-1p") || contains(schedule, "ZB-H1")) {
    p.schedule = "zb_h1";
  } else if (contains(schedule, "ZB-2p") || contains(schedule, "ZB-H2")) {
    p.schedule = "zb_h2";
  } else if (contains(schedule, "ZB-V")) {
    p.schedule = "zb_v";
  } else if (stages > 1 && p.pipeline > 1) {
    p.schedule = "interleaved_1f1b";
    p.virtual_stages = stages;
  }
}

/// Layers of each stage as Megatron-LM and its derivatives split them: evenly; if that is not possible, counting embedding and head as one layer
/// each.
/// Nanotron starts the next stage when the accumulated work would exceed a stage's even share (nanotron/models/base.py, build_model).
void split_layers(Config& config, const std::string& stack) {
  ParallelConfig& p = config.parallel;
  if (stack == "nanotron") {
    const ModelConfig& m = config.model;
    const auto layer = static_cast<double>(m.hidden_size * (4 * m.hidden_size + 3 * *m.ffn_size)),
               head = static_cast<double>(*m.vocab_size * m.hidden_size);
    const double stage = (static_cast<double>(m.layers) * layer + head) / static_cast<double>(p.pipeline);
    std::vector<int64_t> split(static_cast<size_t>(p.pipeline), 0);
    for (int64_t i = 1; i <= m.layers; ++i)
      ++split[static_cast<size_t>(
          std::clamp<int64_t>(static_cast<int64_t>(std::ceil(static_cast<double>(i) * layer / stage)) - 1, 0, p.pipeline - 1))];
    p.layers_per_stage = split;
    return;
  }
  const int64_t stages = p.pipeline * p.virtual_stages.value_or(p.schedule == "zb_v" ? 2 : 1);
  const int64_t layers = config.model.layers;
  if (layers % stages == 0) {
    p.layers_per_stage = std::vector<int64_t>(static_cast<size_t>(stages), layers / stages);
  } else if ((layers + 2) % stages == 0) {
    std::vector<int64_t> split(static_cast<size_t>(stages), (layers + 2) / stages);
    --split.front();
    --split.back();
    p.layers_per_stage = split;
  }
}

Config config_of(const Json& row, const ClusterConfig& cluster) {
  const Json model = part(row, "model"), parallel = part(row, "parallel");
  const std::string arch = get<std::string>(model, "arch").value_or(""), name = get<std::string>(model, "name").value_or("");
  const std::string precision = get<std::string>(parallel, "precision").value_or("bf16");
  if (contains(get<std::string>(parallel, "system").value_or(""), "MegaScale")) throw Refused{"another model: parallel block, sliding window"};
  Config c;
  c.data.train = {"published"};
  c.run.device = DeviceType::kCpu;  // independent of the GPUs of this machine
  ModelConfig& m = c.model;
  m.architecture = contains(arch, "lama") || contains(name, "lama") ? Architecture::kLlama : Architecture::kGpt2;
  m.tied_embeddings = m.architecture == Architecture::kGpt2;
  // Table 6 of the zero-bubble paper omits layers and vocabulary. Table 3 has the layers; its data uses Megatron's GPT-2 vocabulary.
  const bool zero_bubble = get<std::string>(row, "group").value_or("") == "i";
  m.layers = get<int64_t>(model, "layers").value_or(zero_bubble ? (contains(name, "6.2B") ? 30 : contains(name, "28.3B") ? 62 : 0) : 0);
  if (m.layers == 0) throw Refused{"no layers"};
  m.hidden_size = need(model, "hidden");
  m.heads = need(model, "heads");
  m.kv_heads = get<int64_t>(model, "kv_heads");
  m.ffn_size = get<int64_t>(model, "ffn").value_or(4 * m.hidden_size);
  const std::optional<int64_t> vocab = get<int64_t>(model, "vocab");
  if (!vocab && !zero_bubble && !contains(name, "MT-NLG")) throw Refused{"no vocabulary"};
  m.vocab_size = vocab.value_or(51200);
  TrainingConfig& t = c.training;
  t.steps = 1;
  const int64_t context = cluster.software.context;
  if (need(model, "seq") % context != 0) throw Refused{"the context degree does not divide the sequence"};
  t.sequence_length = need(model, "seq") / context;
  t.global_batch_size = need(parallel, "gbs") * context;
  t.micro_batch_size = get<int64_t>(parallel, "mbs").value_or(1);
  t.precision = contains(precision, "fp16") ? Arithmetic::kFp16 : Arithmetic::kBf16;
  const std::string recompute = get<std::string>(parallel, "recompute").value_or("none");
  t.recompute = recompute.starts_with("full")                                ? RecomputeMode::kFull
                : recompute.starts_with("sel") || contains(recompute, "SAC") ? RecomputeMode::kSelective
                                                                             : RecomputeMode::kNone;
  ParallelConfig& p = c.parallel;
  p.tensor = need(parallel, "tp");
  p.pipeline = need(parallel, "pp");
  const int64_t devices = need(part(row, "cluster"), "n_gpus");
  const std::optional<int64_t> data = get<int64_t>(parallel, "dp");
  p.data = data ? *data * context : devices / (p.tensor * p.pipeline);
  // torchtitan divides the batch of a data rank into as many micro-batches as there are pipeline ranks.
  if (cluster.software.stack == "torchtitan" && t.micro_batch_size % p.pipeline == 0) t.micro_batch_size /= p.pipeline;
  if (p.tensor * p.pipeline * *p.data != devices) throw Refused{"the product of the degrees is not the number of GPUs"};
  const std::string group = get<std::string>(row, "group").value_or("");
  // If a table does not say: every tensor-parallel run of these systems uses sequence parallelism.
  const std::set<std::string> splitting = {"megatron-2023", "megatron-2024", "llama-3", "torchtitan"};
  const bool sp = parallel.contains("sp") ? parallel["sp"] == true : splitting.contains(cluster.software.stack);
  p.sequence_parallel = sp && p.tensor > 1;
  // Megatron's distributed optimizer, which MegaScale calls ZeRO-2, and Llama 3's sharding keep full gradients for a step, which is ZeRO-1 in
  // Trireme.
  const int64_t zero = get<int64_t>(parallel, "zero").value_or(group == "n" || group == "d" ? 1 : 0);
  // torchtitan keeps gathered parameters and full gradients for a step in a pipeline.
  p.zero_stage = group == "e" || (group == "f" && p.pipeline > 1) ? std::min<int64_t>(zero, 1) : zero;
  set_schedule(parallel, c, m.layers);
  split_layers(c, cluster.software.stack);
  try {
    return resolve(c);
  } catch (const ConfigError& error) {
    throw Refused{error.what()};
  }
}

/// Step time as printed, or derived from printed throughput.
std::optional<double> step_seconds_of(const Json& row, const Config& config) {
  const Json result = part(row, "result"), derived = part(row, "derived");
  const double devices = static_cast<double>(config.parallel.tensor * config.parallel.pipeline * *config.parallel.data);
  const double sequences = static_cast<double>(config.training.global_batch_size);
  const double tokens = sequences * static_cast<double>(config.training.sequence_length);  // sequences are parts with context parallelism
  if (const auto seconds = get<double>(result, "step_time_s")) return seconds;
  if (const auto seconds = get<double>(derived, "step_time_s")) return seconds;
  if (const auto rate = get<double>(result, "tokens_per_s_gpu")) return tokens / *rate / devices;
  if (const auto rate = get<double>(result, "samples_per_s_gpu")) return sequences / *rate / devices;
  // MegaScale's second table prints only the MFU, by the convention of its first one: all of T x T.
  if (const auto mfu = get<double>(result, "mfu_pct"); mfu && get<std::string>(row, "group").value_or("") == "e")
    return tokens * full_attention_flops_per_token(config.model, config.training.sequence_length) / (*mfu / 100 * 312e12 * devices);
  return std::nullopt;
}

/// The configurations that fit with the micro-batch sizes of a row that does not print its own, where the authors tuned it. Otherwise none.
std::vector<Config> tuned(const Json& row, const Config& config, const ClusterConfig& cluster) {
  const std::string& stack = cluster.software.stack;
  std::vector<Config> all;
  if (get<int64_t>(part(row, "parallel"), "mbs") || (stack != "megatron-2021" && stack != "megatron-2023")) return all;
  for (const int64_t size : {1, 2, 4, 8, 16}) {
    Config candidate = config;
    candidate.training.micro_batch_size = size;
    try {
      candidate = resolve(candidate);
    } catch (const ConfigError&) {
      continue;
    }
    if (largest_peak(formula_memory(candidate, cluster)) <= *cluster.device.memory) all.push_back(candidate);
  }
  return all;
}

}  // namespace

Rows read_rows(const std::string& path, bool tunes) {
  std::ifstream file(path);
  TRIREME_CHECK(file.good(), path, ": cannot be read");
  Rows rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("- {")) continue;
    const Json row = Json::parse(line.substr(2));
    const std::string kind = row.at("kind");
    if (kind != "train_step" && kind != "memory_oom") continue;
    Run run;
    run.id = row.at("id");
    try {
      run.cluster = cluster_of(row, stack_name(row.at("group"), run.id));
      run.config = config_of(row, run.cluster);
      if (tunes) run.tuned = tuned(row, run.config, run.cluster);
      const auto seconds = [&](const Config& config) { return forecast_time(config, run.cluster).step_seconds; };
      if (!run.tuned.empty()) run.config = *std::ranges::min_element(run.tuned, {}, seconds);
    } catch (const Refused& refused) {
      rows.left_out.push_back(concat(run.id, ": ", refused.why));
      continue;
    }
    run.source = concat(run.cluster.software.stack, " ", run.cluster.device.type);
    run.table = table_of(row.at("source"), run.id);
    run.step_seconds = step_seconds_of(row, run.config);
    const Json result = part(row, "result");
    // Memory depends on the recomputation, which one row only assumes.
    if (memory_is_contradicted(run.id) || contains(get<std::string>(part(row, "parallel"), "recompute").value_or(""), "not printed")) {
      rows.runs.push_back(std::move(run));
      continue;
    }
    if (const auto gb = get<double>(result, "mem_gb")) run.memory_bytes = *gb * 1e9;
    if (const auto gib = get<double>(result, "mem_gib")) run.memory_bytes = *gib * (1 << 30);
    run.out_of_memory = result.contains("oom") && result["oom"] == true;
    rows.runs.push_back(std::move(run));
  }
  return rows;
}

std::vector<double> sizes_of(std::vector<double> errors) {
  for (double& error : errors) error = std::abs(error);
  return errors;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

void print_header(const std::string& title, int width) {
  std::cout << std::left << std::setw(width) << title << std::right << " runs   median      p90     bias  (% of the measured)\n";
}

void print_errors(const std::string& name, int width, const std::vector<double>& errors) {
  if (errors.empty()) return;
  // A long name keeps its ends: the system, and the table.
  constexpr size_t kFirst = 30;
  const auto room = static_cast<size_t>(width);
  const std::string text = name.size() < room ? name : concat(name.substr(0, kFirst), "...", name.substr(name.size() - (room - kFirst - 4)));
  std::cout << std::left << std::setw(width) << text << std::right << std::setw(5) << errors.size() << std::fixed << std::setprecision(1)
            << std::setw(9) << 100 * quantile(sizes_of(errors), 0.5) << std::setw(9) << 100 * quantile(sizes_of(errors), 0.9) << std::setw(9)
            << 100 * quantile(errors, 0.5) << '\n';
}

}  // namespace trireme::published
