#pragma once
// The configuration of a run: one struct per section. visit.h lists every field once; reading, range checks, the JSON Schema, `config explain` and
// writing the resolved file all use those lists. The defaults are set here.
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/core/encoding.h"
#include "kernels/core/optimizer_traits.h"
#include "parallel/sharding/aggregation_rule.h"
#include "parallel/sharding/zero_policy.h"
#include "trainer/config/model_config.h"

namespace trireme {

/// What computes: auto is a GPU for each rank where there are some.
enum class DeviceType : uint8_t { kAuto, kCpu, kCuda };
template <>
inline constexpr std::array kNames<DeviceType>{"auto", "cpu", "cuda"};

struct RunConfig {
  std::string name = "run";
  std::string directory;  ///< default `runs/<name>`
  int64_t seed = 1234;
  OneOf<DeviceType> device = DeviceType::kAuto;
  int64_t ranks_per_gpu = 1;
  bool operator==(const RunConfig&) const = default;
};

template <>
inline constexpr std::array kNames<GradientAccumulation>{"auto", "full", "sharded"};

/// When ZeRO-3 frees gathered parameters.
enum class Reshard : uint8_t { kAfterUse, kAfterStep };
template <>
inline constexpr std::array kNames<Reshard>{"after_use", "after_step"};

/// How all-reduce, reduce-scatter and all-gather are performed between CPU ranks (parallel/comm/collective_steps.h).
enum class Collectives : uint8_t { kLibrary, kRing, kRecursiveDoubling, kRabenseifner, kBinomial, kDoubleBinaryTree, kAuto };
template <>
inline constexpr std::array kNames<Collectives>{"library", "ring", "recursive_doubling", "rabenseifner", "binomial", "double_binary_tree", "auto"};

struct ParallelConfig {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t islands = 1;     ///< copies of the model that take steps alone, each on tensor x pipeline x data ranks
  Auto<int64_t> data = 1;  ///< of one island. auto: remaining ranks; 1 outside mpirun and srun
  int64_t zero_stage = 0;
  int64_t replicate = 1;  ///< divides data; ignored by ZeRO-0, where every data rank is a replica
  bool sequence_parallel = false;
  std::string schedule = "1f1b";                ///< a name of ScheduleKind, or file
  std::string schedule_file = "none";           ///< path, for schedule file: one line of actions per pipeline rank
  Auto<int64_t> virtual_stages;                 ///< stages per pipeline rank; auto: 2 for interleaved_1f1b and zb_v, else 1
  Auto<std::vector<int64_t>> layers_per_stage;  ///< one entry per stage, pipeline x virtual_stages; auto: balanced by cost
  OneOf<GradientAccumulation> gradient_accumulation = GradientAccumulation::kAuto;
  OneOf<Reshard> reshard = Reshard::kAfterUse;
  int64_t secondary_shards = 0;  ///< neighbours that keep a second copy of a step's parameters; 0: none
  int64_t prefetch = 1;
  Auto<int64_t> bucket_size;  ///< bytes of block parameters gathered and reduced together; auto: one block
  bool overlap = true;        ///< false: wait for every communication where it starts
  OneOf<Collectives> collectives = Collectives::kLibrary;
  int64_t communication_sms = 0;
  bool register_buffers = false;
  bool operator==(const ParallelConfig&) const = default;
};

template <>
inline constexpr std::array kNames<Optimizer> = [] {
  std::array<const char*, kOptimizers.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kOptimizers[i].name;
  return names;
}();

template <>
inline constexpr std::array kNames<MuonScale>{"rms", "spectral"};

/// By what global_batch_size / reference_batch_size multiplies the learning rate.
enum class BatchScaling : uint8_t { kNone, kLinear, kSqrt };
template <>
inline constexpr std::array kNames<BatchScaling>{"none", "linear", "sqrt"};

struct OptimizerConfig {
  OneOf<Optimizer> name = Optimizer::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  Auto<double> beta2;  ///< auto: 0.95 for adamw and muon, 0.99 for lion
  double epsilon = 1e-8;
  double momentum = 0.95;                           ///< muon
  OneOf<MuonScale> update_scale = MuonScale::kRms;  ///< muon
  double weight_decay = 0.1;
  OneOf<BatchScaling> learning_rate_scaling = BatchScaling::kNone;
  Auto<int64_t> reference_batch_size;  ///< sequences; required by linear and sqrt
  bool operator==(const OptimizerConfig&) const = default;
};

/// Shape of the learning rate after the warmup.
enum class LearningRateSchedule : uint8_t { kConstant, kLinear, kCosine, kWsd, kExponential };
template <>
inline constexpr std::array kNames<LearningRateSchedule>{"constant", "linear", "cosine", "wsd", "exponential"};

struct ScheduleConfig {
  OneOf<LearningRateSchedule> name = LearningRateSchedule::kCosine;
  int64_t warmup_steps = 0;
  Auto<double> final_learning_rate;  ///< auto: 0, but of the step after the last one
  Auto<int64_t> decay_steps;         ///< wsd: length of the final decay; auto: a tenth of the steps
  bool operator==(const ScheduleConfig&) const = default;
};

struct EvaluateConfig {
  int64_t every = 0;    ///< steps; 0 = only at the end, if a validation set is given
  int64_t batches = 0;  ///< batches of global_batch_size sequences; 0 = the whole set
  bool operator==(const EvaluateConfig&) const = default;
};

struct StopConfig {
  std::optional<int64_t> patience;  ///< evaluations without improvement after which the run ends; unset: it trains all its steps
  double minimum = 0;               ///< nats
  bool operator==(const StopConfig&) const = default;
};

struct LossScaleConfig {
  int64_t initial = 1 << 16;  ///< these three are powers of two
  int64_t minimum = 1;
  int64_t maximum = 1 << 24;
  int64_t growth_interval = 2000;
  bool operator==(const LossScaleConfig&) const = default;
};

struct EmaConfig {
  std::optional<double> decay;  ///< unset: no average is kept
  bool operator==(const EmaConfig&) const = default;
};

enum class RecomputeMode : uint8_t { kNone, kSelective, kFull, kBudget };
template <>
inline constexpr std::array kNames<RecomputeMode>{"none", "selective", "full", "budget"};

enum class CompressionMethod : uint8_t { kNone, kInt8, kInt4, kSign, kTopK, kRandomK, kPowerSgd, kOneBitAdam };
template <>
inline constexpr std::array kNames<CompressionMethod>{"none", "int8", "int4", "sign", "top_k", "random_k", "power_sgd", "one_bit_adam"};

/// Which sums of gradients are compressed: over all data ranks, or only over `parallel.replicate`.
enum class CompressionScope : uint8_t { kData, kReplicate };
template <>
inline constexpr std::array kNames<CompressionScope>{"data", "replicate"};

/// How the parameters are sent that shards gather from each other.
enum class ParameterEncoding : uint8_t { kNone, kInt8 };
template <>
inline constexpr std::array kNames<ParameterEncoding>{"none", "int8"};

struct CompressionConfig {
  OneOf<CompressionMethod> method = CompressionMethod::kNone;
  bool error_feedback = true;
  OneOf<CompressionScope> scope = CompressionScope::kData;
  int64_t warmup_steps = 0;
  int64_t block = 256;  ///< int8, int4, sign, one_bit_adam; parameters int8
  double ratio = 0.01;  ///< top_k, random_k
  int64_t rank = 4;     ///< power_sgd
  OneOf<ParameterEncoding> parameters = ParameterEncoding::kNone;
  bool operator==(const CompressionConfig&) const = default;
};

struct LocalConfig {
  std::optional<int64_t> steps;  ///< of a round, after which islands synchronise; unset: no local updates
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  int64_t fragments = 1;  ///< parts of the model that synchronise in turn
  int64_t delay = 0;      ///< steps that the sum of a fragment is in flight
  double blend = 1;       ///< part of the shared weights in an island's new ones
  bool operator==(const LocalConfig&) const = default;
};

enum class AsynchronousMode : uint8_t { kNone, kParameterServer, kElasticAveraging, kHogwild };
template <>
inline constexpr std::array kNames<AsynchronousMode>{"none", "parameter_server", "elastic_averaging", "hogwild"};

enum class StalenessCompensation : uint8_t { kNone, kLearningRate, kDelay };
template <>
inline constexpr std::array kNames<StalenessCompensation>{"none", "learning_rate", "delay"};

struct AsynchronousConfig {
  OneOf<AsynchronousMode> mode = AsynchronousMode::kNone;
  int64_t steps = 100;      ///< of a round, after which all islands have the same weights, or know the same centre
  int64_t apply_after = 1;  ///< gradients in an update
  int64_t staleness = 0;    ///< gradients that an island may be ahead of the slowest
  OneOf<StalenessCompensation> compensation = StalenessCompensation::kNone;
  double delay_weight = 0.04;   ///< for delay
  int64_t every = 10;           ///< elastic averaging: steps of an island between two exchanges with the centre
  Auto<double> moving_rate;     ///< likewise; auto: 0.9 / islands
  std::string replay = "none";  ///< none, or the directory of a run whose order of arrivals is repeated
  bool operator==(const AsynchronousConfig&) const = default;
};

/// The dtypes of a run: precision_of().
enum class Arithmetic : uint8_t { kFp64, kFp32, kBf16, kFp16 };
template <>
inline constexpr std::array kNames<Arithmetic>{"fp64", "fp32", "bf16", "fp16"};

/// The dtype in which data ranks sum gradients.
enum class ReduceDtype : uint8_t { kAuto, kFp32, kBf16 };
template <>
inline constexpr std::array kNames<ReduceDtype>{"auto", "fp32", "bf16"};

struct TrainingConfig {
  std::optional<int64_t> steps;  ///< exactly one of steps and epochs
  std::optional<int64_t> epochs;
  std::string initial_weights = "none";  ///< none, or a checkpoint or Hugging Face folder whose weights the run starts from
  int64_t sequence_length = 256;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 8;
  OneOf<Arithmetic> precision = Arithmetic::kFp32;
  OneOf<ReduceDtype> reduce_dtype = ReduceDtype::kAuto;
  OneOf<RecomputeMode> recompute = RecomputeMode::kNone;
  int64_t recompute_every = 1;        ///< selective and full: recompute the first of every recompute_every blocks
  bool recompute_elementwise = true;  ///< norms and activation functions are computed again in the backward
  Auto<int64_t> recompute_budget;     ///< for budget: maximum bytes allocated on a rank; auto: no budget
  Auto<int64_t> logits_chunk;         ///< rows; auto: by vocabulary and device, logits_chunk(config)
  double gradient_clip = 1.0;         ///< 0 = off
  int64_t max_rejected_steps = 20;    ///< consecutive, not counting overflows of the loss scale; 0 = no limit
  LossScaleConfig loss_scale;         ///< for precision fp16
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  EmaConfig ema;
  CompressionConfig compression;
  LocalConfig local;
  AsynchronousConfig asynchronous;
  EvaluateConfig evaluate;
  StopConfig stop;
  bool operator==(const TrainingConfig&) const = default;
};

/// How documents become the sequences of a step. kNone: sequences are cut from the stream of all documents.
enum class Packing : uint8_t { kNone, kBestFit };
template <>
inline constexpr std::array kNames<Packing>{"none", "best_fit"};

/// How the sequences of a step are assigned to data ranks and micro-batches.
enum class Balance : uint8_t { kNone, kCost };
template <>
inline constexpr std::array kNames<Balance>{"none", "cost"};

struct DataConfig {
  std::string tokenizer = "bytes";      ///< argument of Tokenizer::open
  std::vector<std::string> train;       ///< token directories made by `data build`, or token files of nanoGPT, llm.c and Megatron
  Auto<std::vector<double>> weights;    ///< share of each entry of `train` in the samples; auto: all entries form one stream
  std::vector<std::string> validation;  ///< formats of `train`, or name=PATH for sets that are evaluated separately
  bool document_mask = false;           ///< documents packed into one sequence do not attend to each other, and positions restart in each
  OneOf<Packing> packing = Packing::kNone;
  int64_t packing_window = 8192;  ///< documents that are packed together
  OneOf<Balance> balance = Balance::kNone;
  int64_t tokenizer_vocab_size = 256;  ///< not a key: set by load_config, used for an auto model.vocab_size
  bool operator==(const DataConfig&) const = default;
};

struct CheckpointConfig {
  Auto<int64_t> every = 0;  ///< steps; 0 = only at the end and when the run is stopped; auto: SaveInterval
  int64_t keep = 3;
  int64_t keep_best = 0;              ///< checkpoints with the lowest validation loss, besides `keep`
  std::optional<int64_t> keep_every;  ///< steps; checkpoints at its multiples are never removed
  bool asynchronous = true;
  bool operator==(const CheckpointConfig&) const = default;
};

/// What moves from slow data ranks to fast ones.
enum class Rebalance : uint8_t { kNone, kMicroBatches };
template <>
inline constexpr std::array kNames<Rebalance>{"none", "micro_batches"};

/// What the launcher does after a job has lost hosts.
enum class Elastic : uint8_t { kNone, kReplicas };
template <>
inline constexpr std::array kNames<Elastic>{"none", "replicas"};

struct ResilienceConfig {
  int64_t restarts = 0;
  Auto<double> hang_seconds;                ///< auto: hang_seconds() in trainer/layout/resolve.h
  int64_t replica_check_every = 1000;       ///< steps; 0 = off
  Auto<double> mean_time_between_failures;  ///< seconds, of the job; auto: learned_mtbf() of the run's own failures
  OneOf<Rebalance> rebalance = Rebalance::kNone;
  int64_t backup_replicas = 0;  ///< islands beyond those of which an update needs gradients
  OneOf<Elastic> elastic = Elastic::kNone;
  int64_t minimum_replicas = 1;      ///< data ranks
  int64_t host_strikes = 2;          ///< failures of a host that exclude it
  int64_t host_wait_seconds = 600;   ///< how long the launcher waits for hosts
  std::vector<std::string> reroute;  ///< relieved ranks, each "data rank/pipeline rank": trainer/layout/rerouting.h
  int64_t reroute_from = 0;          ///< the first micro-batch that they do not begin
  int64_t peer_copies = 0;           ///< ranks that hold a copy of each rank's state in memory
  int64_t peer_every = 50;           ///< steps between two copies
  std::string peer_directory = "/dev/shm";
  bool operator==(const ResilienceConfig&) const = default;
};

/// The kernels of attention on GPUs.
enum class AttentionEngine : uint8_t { kAuto, kBuiltin, kCudnn };
template <>
inline constexpr std::array kNames<AttentionEngine>{"auto", "builtin", "cudnn"};

struct KernelsConfig {
  OneOf<AttentionEngine> attention = AttentionEngine::kAuto;
  std::string cpu_isa = "auto";  ///< auto | a name of kernels/core/isa.h
  bool tf32 = false;
  bool cuda_graph = false;
  std::string tuning_file = "none";  ///< none, or the path of a JSON file
  bool operator==(const KernelsConfig&) const = default;
};

struct PlanConfig {
  std::string cluster = "none";  ///< none, a cluster file or a built-in device type
  bool must_fit = true;          ///< refuse to start a run whose forecast exceeds the memory
  double memory_margin = 0.09;   ///< share of a device's memory; a forecast peak within it is tight
  bool operator==(const PlanConfig&) const = default;
};

/// What a run does with a step whose loss or gradient norm is anomalous.
enum class AnomalyPolicy : uint8_t { kWarn, kSkip, kRerun, kStop };
template <>
inline constexpr std::array kNames<AnomalyPolicy>{"warn", "skip", "rerun", "stop"};

struct AnomalyConfig {
  OneOf<AnomalyPolicy> policy = AnomalyPolicy::kWarn;
  int64_t window = 128;  ///< accepted steps
  double z = 6.0;        ///< robust standard deviations of the logarithm above the window's median
  bool operator==(const AnomalyConfig&) const = default;
};

/// A switch, or a path that switches on.
using SwitchOrPath = std::variant<bool, std::string>;

struct PrometheusConfig {
  std::optional<int64_t> port;          ///< unset: no endpoint
  std::string address = "127.0.0.1";    ///< IPv4 or IPv6, without brackets
  std::optional<std::string> textfile;  ///< path; unset: none
  bool operator==(const PrometheusConfig&) const = default;
};

struct ActivationsConfig {
  int64_t every = 0;  ///< steps; 0: never
  bool operator==(const ActivationsConfig&) const = default;
};

struct HistogramsConfig {
  int64_t every = 0;  ///< steps; 0: never
  bool operator==(const HistogramsConfig&) const = default;
};

struct SamplesConfig {
  int64_t every = 0;  ///< steps; 0: never
  std::vector<std::string> prompts;
  int64_t max_tokens = 50;  ///< that are added to a prompt
  double temperature = 0;   ///< 0: the most likely token
  bool operator==(const SamplesConfig&) const = default;
};

struct ObserveConfig {
  Auto<int64_t> print_every;         ///< steps between the lines of a log; auto: a rule of ConsoleSink
  bool black_box = true;             ///< each rank keeps a file with what it is doing (MappedBlackBox)
  SwitchOrPath tensorboard = false;  ///< true: <run.directory>/tensorboard
  PrometheusConfig prometheus;
  AnomalyConfig anomalies;
  ActivationsConfig activations;
  HistogramsConfig histograms;
  SamplesConfig samples;
  bool operator==(const ObserveConfig&) const = default;
};

template <>
inline constexpr std::array kNames<AggregationRule>{"mean",       "median", "trimmed_mean",     "krum",
                                                    "multi_krum", "bulyan", "geometric_median", "centered_clipping"};

struct AggregationConfig {
  OneOf<AggregationRule> rule = AggregationRule::kMean;
  int64_t byzantine = 0;  ///< data ranks whose gradients may be faulty
  Auto<double> momentum;  ///< of each data rank; auto: 0.9 for centered_clipping, else 0
  double radius = 1;      ///< centered_clipping
  bool operator==(const AggregationConfig&) const = default;
};

struct AuditConfig {
  bool enabled = false;
  std::optional<std::string> signing_key_file;  ///< path of an Ed25519 secret key; unset: anchors are not signed
  bool operator==(const AuditConfig&) const = default;
};

/// Differentially private training: DP-SGD (Abadi et al. 2016, arXiv:1607.00133).
struct PrivacyConfig {
  std::optional<double> clip;            ///< largest norm of a sample's gradient; unset: training is not private
  std::optional<double> noise;           ///< noise multiplier; unset: from target_epsilon
  std::optional<double> target_epsilon;  ///< unset: no budget
  std::optional<double> delta;
  std::optional<std::string> key_file;  ///< path of the key of samples and noise
  bool operator==(const PrivacyConfig&) const = default;
};

enum class Encryption : uint8_t { kNone, kRequired };
template <>
inline constexpr std::array kNames<Encryption>{"none", "required"};

/// What a member's update counts in the mean of a round.
enum class MemberWeight : uint8_t { kEqual, kSamples };
template <>
inline constexpr std::array kNames<MemberWeight>{"equal", "samples"};

/// Federated training: rounds of local updates by members that keep their data (McMahan et al. 2017, arXiv:1602.05629).
struct FederationConfig {
  int64_t members = 0;                           ///< 0: no federation
  int64_t rounds = 0;                            ///< of training.local.steps steps; 0: as many as training.steps has
  std::optional<std::string> roster;             ///< path of the public keys of the coordinator and the members
  std::optional<std::string> identity_key_file;  ///< path of the Ed25519 secret key of this process
  std::string address = "127.0.0.1";             ///< where the coordinator listens
  int64_t port = 7117;
  bool secure = true;           ///< secure aggregation: nobody learns the update of a single member
  Auto<int64_t> minimum;        ///< fewest members of a round
  double wait_seconds = 60;     ///< how long a round waits for the members beyond `minimum`
  double round_seconds = 3600;  ///< longest time for the steps of a round, and for each message
  OneOf<MemberWeight> weighting = MemberWeight::kEqual;
  std::optional<double> clip;               ///< largest norm of a member's update
  std::optional<double> noise;              ///< noise multiplier; unset: none
  std::optional<double> delta;              ///< of the privacy of members
  std::optional<double> max_loss_increase;  ///< nats; a larger one refuses a round
  std::optional<double> max_update_norm;    ///< of the mean update; a larger one refuses a round
  bool operator==(const FederationConfig&) const = default;
};

struct SecurityConfig {
  AggregationConfig aggregation;
  PrivacyConfig privacy;
  FederationConfig federation;
  OneOf<Encryption> encryption = Encryption::kNone;  ///< of everything that ranks on different hosts send each other
  std::optional<std::string> key_file;               ///< path of the pre-shared key of all hosts
  AuditConfig audit;
  bool operator==(const SecurityConfig&) const = default;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  ParallelConfig parallel;
  TrainingConfig training;
  DataConfig data;
  CheckpointConfig checkpoint;
  ResilienceConfig resilience;
  KernelsConfig kernels;
  PlanConfig plan;
  ObserveConfig observe;
  SecurityConfig security;
  bool operator==(const Config&) const = default;
};

/// True if gradients of data ranks are not summed but aggregated by a robust rule.
inline bool is_robust(const SecurityConfig& security) { return security.aggregation.rule != AggregationRule::kMean; }
/// True if the job continues with fewer data ranks when it has lost hosts.
inline bool is_elastic(const ResilienceConfig& resilience) { return resilience.elastic == Elastic::kReplicas; }
/// True if each sample's gradient is clipped and noise is added to their sum.
inline bool is_private(const SecurityConfig& security) { return security.privacy.clip.has_value(); }
inline bool is_federated(const SecurityConfig& security) { return security.federation.members > 0; }
/// True if each data rank adds noise to the sum of its own samples, because what is done with the sums of data ranks is more than adding them up. Otherwise
/// noise is added once, to the sum of all.
inline bool adds_noise_on_each_rank(const Config& config) {
  return is_private(config.security) && (is_robust(config.security) || config.training.compression.method != CompressionMethod::kNone);
}
inline bool is_encrypted(const SecurityConfig& security) { return security.encryption == Encryption::kRequired; }
/// True if islands train by training.asynchronous.
inline bool is_asynchronous(const TrainingConfig& training) { return training.asynchronous.mode != AsynchronousMode::kNone; }
/// True if a step is an update of the only weights, by gradients of any islands. Otherwise each island has its own steps, weights and optimizer state.
inline bool has_parameter_servers(const TrainingConfig& training) { return training.asynchronous.mode == AsynchronousMode::kParameterServer; }
/// True if islands exchange their weights with a centre.
inline bool averages_elastically(const TrainingConfig& training) { return training.asynchronous.mode == AsynchronousMode::kElasticAveraging; }
/// True if islands step on the same weights without a lock.
inline bool shares_weights(const TrainingConfig& training) { return training.asynchronous.mode == AsynchronousMode::kHogwild; }
/// Number of parts of the global batch whose gradients are computed apart: one for each island or, with parameter servers, of an update.
inline int64_t gradients_per_step(const Config& config) {
  return has_parameter_servers(config.training) ? config.training.asynchronous.apply_after : config.parallel.islands;
}

}  // namespace trireme
