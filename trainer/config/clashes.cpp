#include "trainer/config/clashes.h"

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// What a configuration has set, or lacks.
struct Setting {
  const char* key;  ///< a clash is reported here
  const char* off;  ///< values of the key without it; {KEY} stands for the value of another key. "another X": all others
  bool (*is)(const Config&);
  const char* nearest = off;  ///< the value that a message proposes
  const char* also = "";      ///< another key that `is` reads
  const char* name = key;     ///< in reasons
};

/// The same setting under the name that a reason has for it.
constexpr Setting named(Setting setting, const char* name) {
  setting.name = name;
  return setting;
}

// Devices and kernels.
constexpr Setting kCpu{"run.device", "cuda", [](const Config& c) { return c.run.device == DeviceType::kCpu; }};
constexpr Setting kCuda{"run.device", "cpu", [](const Config& c) { return c.run.device == DeviceType::kCuda; }};
constexpr Setting kNccl{"run.device", "cpu", [](const Config& c) { return kCuda.is(c) && c.run.ranks_per_gpu == 1; }, "cpu", "run.ranks_per_gpu"};
constexpr Setting kSharedGpus{"run.ranks_per_gpu", "1", [](const Config& c) { return c.run.ranks_per_gpu > 1; }};
constexpr Setting kCudnn{"kernels.attention", "auto | builtin", [](const Config& c) { return c.kernels.attention == AttentionEngine::kCudnn; },
                         "auto"};
constexpr Setting kOddHeads{"model.head_size", "a multiple of 8 up to 128",
                            [](const Config& c) { return *c.model.head_size % 8 != 0 || *c.model.head_size > 128; }};
constexpr Setting kCpuIsa{"kernels.cpu_isa", "auto", [](const Config& c) { return c.kernels.cpu_isa != "auto"; }};
constexpr Setting kGraph{"kernels.cuda_graph", "false", [](const Config& c) { return c.kernels.cuda_graph; }};
constexpr Setting kTuning{"kernels.tuning_file", "none", [](const Config& c) { return c.kernels.tuning_file != "none"; }};

// Precision.
constexpr Setting kFp64{"training.precision", "fp32 | bf16 | fp16", [](const Config& c) { return c.training.precision == Arithmetic::kFp64; }};
constexpr Setting kFp16{"training.precision", "fp64 | fp32 | bf16", [](const Config& c) { return c.training.precision == Arithmetic::kFp16; },
                        "bf16"};
constexpr Setting kNotFp32{"training.precision", "fp32", [](const Config& c) { return c.training.precision != Arithmetic::kFp32; }};
constexpr Setting kWide{"training.precision", "bf16 | fp16",
                        [](const Config& c) { return c.training.precision != Arithmetic::kBf16 && !kFp16.is(c); }};
constexpr Setting kReduceDtype{"training.reduce_dtype", "auto", [](const Config& c) { return c.training.reduce_dtype != ReduceDtype::kAuto; }};
constexpr Setting kBf16Sums{"training.reduce_dtype", "auto | fp32", [](const Config& c) { return c.training.reduce_dtype == ReduceDtype::kBf16; },
                            "auto"};

// The model and its optimizer.
constexpr Setting kDropout{"model.dropout", "0", [](const Config& c) { return c.model.dropout > 0; }};
constexpr Setting kFrozen{"model.frozen", "[]", [](const Config& c) { return !c.model.frozen.empty(); }};
constexpr Setting kAdapters{"adapter.rank", "0", [](const Config& c) { return c.model.adapter.rank > 0; }};
constexpr Setting kSmallVocabulary{"model.vocab_size", "integer from 256, or auto", [](const Config& c) { return *c.model.vocab_size < 256; }, "256"};
constexpr Setting kNotSgd{"training.optimizer.name", "sgd", [](const Config& c) { return c.training.optimizer.name != Optimizer::kSgd; }};
constexpr Setting kNotAdamW{"training.optimizer.name", "adamw", [](const Config& c) { return c.training.optimizer.name != Optimizer::kAdamW; }};
constexpr Setting kMatrixUpdates{"training.optimizer.name", "adamw",
                                 [](const Config& c) { return traits_of(c.training.optimizer.name.value()).updates_matrices; }};
constexpr Setting kScaledRate{"training.optimizer.learning_rate_scaling", "none",
                              [](const Config& c) { return c.training.optimizer.learning_rate_scaling != BatchScaling::kNone; }};
constexpr Setting kNoReference{"training.optimizer.reference_batch_size", "from 1",
                               [](const Config& c) { return !c.training.optimizer.reference_batch_size; }};
constexpr Setting kExponential{"training.schedule.name", "another schedule",
                               [](const Config& c) { return c.training.schedule.name == LearningRateSchedule::kExponential; }};
constexpr Setting kFinalZero{"training.schedule.final_learning_rate", "number above 0",
                             [](const Config& c) { return c.training.schedule.final_learning_rate.value_or(0) <= 0; }, "1e-05"};
constexpr Setting kEma{"training.ema.decay", "null", [](const Config& c) { return c.training.ema.decay.has_value(); }};
constexpr Setting kBudget{"training.recompute", "none | selective | full",
                          [](const Config& c) { return c.training.recompute == RecomputeMode::kBudget; }, "full"};
constexpr Setting kNoBudget{"training.recompute_budget", "with a number of bytes", [](const Config& c) { return !c.training.recompute_budget; }};

// The layout. With zb_v the first and the last stage are on the same rank.
constexpr Setting kTiedStages{"model.tied_embeddings", "false, or parallel.pipeline 1, or parallel.schedule zb_v",
                              [](const Config& c) { return c.model.tied_embeddings && c.parallel.pipeline > 1 && c.parallel.schedule != "zb_v"; },
                              "false", "parallel.pipeline"};
constexpr Setting kTensor{"parallel.tensor", "1", [](const Config& c) { return c.parallel.tensor > 1; }};
constexpr Setting kSharedHeads{"parallel.tensor", "divisors of {model.kv_heads}",
                               [](const Config& c) { return kTensor.is(c) && *c.model.kv_heads % c.parallel.tensor != 0; }, "1", "model.kv_heads"};
constexpr Setting kPipeline{"parallel.pipeline", "1", [](const Config& c) { return c.parallel.pipeline > 1; }};
constexpr Setting kNoPipeline{"parallel.pipeline", "from 2", [](const Config& c) { return c.parallel.pipeline < 2; }};
constexpr Setting kScheduleFile{"parallel.schedule", "another schedule", [](const Config& c) { return c.parallel.schedule == "file"; }, "1f1b"};
constexpr Setting kNoScheduleFile{"parallel.schedule_file", "with a path", [](const Config& c) { return c.parallel.schedule_file == "none"; }};
constexpr Setting kAutoData{"parallel.data", "as an integer", [](const Config& c) { return !c.parallel.data; }};
constexpr Setting kData{"parallel.data", "1", [](const Config& c) { return c.parallel.data.value_or(1) > 1; }};
constexpr Setting kOneDataRank{"parallel.data", "from 2", [](const Config& c) { return c.parallel.data == 1; }};
constexpr Setting kZero{"parallel.zero_stage", "0", [](const Config& c) { return c.parallel.zero_stage > 0; }};
constexpr Setting kZero0{"parallel.zero_stage", "from 1", [](const Config& c) { return c.parallel.zero_stage == 0; }};
constexpr Setting kFullGradients{"parallel.zero_stage", "from 2", [](const Config& c) { return c.parallel.zero_stage < 2; }};
constexpr Setting kFullParameters{"parallel.zero_stage", "3", [](const Config& c) { return c.parallel.zero_stage < 3; }};
constexpr Setting kSomeReplicas{"parallel.replicate", "1 or {parallel.data}",
                                [](const Config& c) {
                                  const ParallelConfig& p = c.parallel;
                                  return p.data && *p.data % p.replicate == 0 && p.replicate != 1 && p.replicate != *p.data;
                                },
                                "1", "parallel.data"};
constexpr Setting kOneReplica{"parallel.replicate", "from 2", [](const Config& c) { return c.parallel.replicate == 1 && kZero.is(c); }, "2",
                              "parallel.zero_stage"};
constexpr Setting kSharded{"parallel.gradient_accumulation", "auto | full",
                           [](const Config& c) { return c.parallel.gradient_accumulation == GradientAccumulation::kSharded; }, "full"};
constexpr Setting kReshard{"parallel.reshard", "after_use", [](const Config& c) { return c.parallel.reshard != Reshard::kAfterUse; }};
constexpr Setting kSecondary{"parallel.secondary_shards", "0", [](const Config& c) { return c.parallel.secondary_shards != 0; }};
constexpr Setting kPrefetch{"parallel.prefetch", "1", [](const Config& c) { return c.parallel.prefetch != ParallelConfig{}.prefetch; }};
constexpr Setting kCollectives{"parallel.collectives", "library", [](const Config& c) { return c.parallel.collectives != Collectives::kLibrary; }};
constexpr Setting kMultiprocessors{"parallel.communication_sms", "0", [](const Config& c) { return c.parallel.communication_sms > 0; }};
constexpr Setting kRegistered{"parallel.register_buffers", "false", [](const Config& c) { return c.parallel.register_buffers; }};

// Islands and what is sent.
constexpr Setting kIslands{"parallel.islands", "1", [](const Config& c) { return c.parallel.islands > 1; }};
constexpr Setting kLocal =
    named({"training.local.steps", "null", [](const Config& c) { return c.training.local.steps.has_value(); }, "null", "parallel.islands"},
          "training.local");
constexpr Setting kNotLocal{"training.local.steps", "integer from 1", [](const Config& c) { return !kLocal.is(c); }};
constexpr Setting kUnsynchronised{"training.local.steps", "from 1, or a training.asynchronous.mode",
                                  [](const Config& c) { return !kLocal.is(c) && !is_asynchronous(c.training); }, "1", "training.asynchronous.mode"};
constexpr Setting kLocalIslands =
    named({"parallel.islands", "1", [](const Config& c) { return kIslands.is(c) && kLocal.is(c); }, "1", "training.local.steps"},
          "nothing within a round of training.local");
constexpr Setting kFragments{"training.local.fragments", "1", [](const Config& c) { return c.training.local.fragments > 1; }};
constexpr Setting kDelay{"training.local.delay", "0", [](const Config& c) { return c.training.local.delay > 0; }};
constexpr Setting kBlend{"training.local.blend", "1", [](const Config& c) { return c.training.local.blend != 1; }};
constexpr Setting kAsynchronous{"training.asynchronous.mode", "none", [](const Config& c) { return is_asynchronous(c.training); }};
constexpr Setting kServers{"training.asynchronous.mode", "none", [](const Config& c) { return has_parameter_servers(c.training); }};
constexpr Setting kNoServers{"training.asynchronous.mode", "parameter_server", [](const Config& c) { return !kServers.is(c); }};
constexpr Setting kAveraging =
    named({"training.asynchronous.mode", "none", [](const Config& c) { return averages_elastically(c.training); }}, "elastic averaging");
constexpr Setting kAveragingIslands = named(kAveraging, "only weights with elastic averaging");
constexpr Setting kHogwild = named({"training.asynchronous.mode", "none", [](const Config& c) { return shares_weights(c.training); }}, "hogwild");
constexpr Setting kHogwildIslands = named(kHogwild, "nothing with hogwild");
constexpr Setting kPlainIslands{"parallel.islands", "1", [](const Config& c) { return kIslands.is(c) && kUnsynchronised.is(c); }};
constexpr Setting kBackup{"resilience.backup_replicas", "0", [](const Config& c) { return c.resilience.backup_replicas > 0; }};
constexpr Setting kStale{"training.asynchronous.staleness", "0",
                         [](const Config& c) { return kServers.is(c) && c.training.asynchronous.staleness != 0; }};
constexpr Setting kCompensation{"training.asynchronous.compensation", "none", [](const Config& c) {
                                  return kServers.is(c) && c.training.asynchronous.compensation != StalenessCompensation::kNone;
                                }};
constexpr Setting kCompression{"training.compression.method", "none",
                               [](const Config& c) { return c.training.compression.method != CompressionMethod::kNone; }};
constexpr Setting kRandomK{"training.compression.method", "another method",
                           [](const Config& c) { return c.training.compression.method == CompressionMethod::kRandomK; }, "none"};
constexpr Setting kPowerSgd{"training.compression.method", "another method",
                            [](const Config& c) { return c.training.compression.method == CompressionMethod::kPowerSgd; }, "none"};
constexpr Setting kOneBitAdam{"training.compression.method", "another method",
                              [](const Config& c) { return c.training.compression.method == CompressionMethod::kOneBitAdam; }, "sign"};
constexpr Setting kNoWarmup{"training.compression.warmup_steps", "1 or more",
                            [](const Config& c) { return c.training.compression.warmup_steps == 0; }, "1"};
constexpr Setting kReplicasOnly{"training.compression.scope", "data",
                                [](const Config& c) { return kCompression.is(c) && c.training.compression.scope == CompressionScope::kReplicate; },
                                "data", "training.compression.method"};
constexpr Setting kDataScope{"training.compression.scope", "replicate",
                             [](const Config& c) { return kCompression.is(c) && c.training.compression.scope != CompressionScope::kReplicate; },
                             "replicate", "training.compression.method"};
constexpr Setting kEncodedParameters{"training.compression.parameters", "none",
                                     [](const Config& c) { return c.training.compression.parameters != ParameterEncoding::kNone; }};

// Data and evaluation.
constexpr Setting kBytes{"data.tokenizer", "another tokenizer", [](const Config& c) { return c.data.tokenizer == "bytes"; }};
constexpr Setting kEpochs{"training.epochs", "training.steps", [](const Config& c) { return c.training.epochs.has_value(); }, "steps: 1000"};
constexpr Setting kWeights{"data.weights", "auto", [](const Config& c) { return c.data.weights.has_value(); }};
constexpr Setting kNoMask{"data.document_mask", "true", [](const Config& c) { return !c.data.document_mask; }};
constexpr Setting kMask{"data.document_mask", "false", [](const Config& c) { return c.data.document_mask; }};
constexpr Setting kPacking{"data.packing", "none", [](const Config& c) { return c.data.packing != Packing::kNone; }};
constexpr Setting kBalance{"data.balance", "none", [](const Config& c) { return c.data.balance != Balance::kNone; }};
constexpr Setting kNoValidation{"data.validation", "with an entry", [](const Config& c) { return c.data.validation.empty(); }};
constexpr Setting kEvaluateEvery{"training.evaluate.every", "0", [](const Config& c) { return c.training.evaluate.every > 0; }};
constexpr Setting kEvaluateBatches{"training.evaluate.batches", "0", [](const Config& c) { return c.training.evaluate.batches > 0; }};
constexpr Setting kNoEvaluation{"training.evaluate.every", "from 1", [](const Config& c) { return c.training.evaluate.every == 0; }};
constexpr Setting kPatience{"training.stop.patience", "null", [](const Config& c) { return c.training.stop.patience.has_value(); }};
constexpr Setting kNoSaves{"checkpoint.every", "from 1", [](const Config& c) { return c.checkpoint.every == 0; }};
constexpr Setting kKeepBest{"checkpoint.keep_best", "0", [](const Config& c) { return c.checkpoint.keep_best > 0; }};
constexpr Setting kKeepEvery{"checkpoint.keep_every", "null", [](const Config& c) { return c.checkpoint.keep_every.has_value(); }};

// Resilience.
constexpr Setting kRebalance{"resilience.rebalance", "none", [](const Config& c) { return c.resilience.rebalance != Rebalance::kNone; }};
constexpr Setting kElastic{"resilience.elastic", "none", [](const Config& c) { return is_elastic(c.resilience); }};
constexpr Setting kReroute{"resilience.reroute", "[]", [](const Config& c) { return !c.resilience.reroute.empty(); }};
constexpr Setting kPeerCopies{"resilience.peer_copies", "0", [](const Config& c) { return c.resilience.peer_copies > 0; }};

// What is observed.
constexpr Setting kAnomalies{"observe.anomalies.policy", "warn", [](const Config& c) { return c.observe.anomalies.policy != AnomalyPolicy::kWarn; }};
constexpr Setting kRerun{"observe.anomalies.policy", "warn | skip | stop",
                         [](const Config& c) { return c.observe.anomalies.policy == AnomalyPolicy::kRerun; }, "warn"};
constexpr Setting kActivations{"observe.activations.every", "0", [](const Config& c) { return c.observe.activations.every > 0; }};
constexpr Setting kHistograms{"observe.histograms.every", "0", [](const Config& c) { return c.observe.histograms.every > 0; }};
constexpr Setting kNoTensorboard{"observe.tensorboard", "true | path", [](const Config& c) { return c.observe.tensorboard == SwitchOrPath(false); }};
constexpr Setting kSamples{"observe.samples.every", "0", [](const Config& c) { return c.observe.samples.every > 0; }};
constexpr Setting kNoPrompts{"observe.samples.prompts", "list of prompts of one token or more",
                             [](const Config& c) { return c.observe.samples.prompts.empty(); }, "[Once upon a time]"};
constexpr Setting kOpenEndpoint{"observe.prometheus.address", "127.0.0.1", [](const Config& c) {
                                  const PrometheusConfig& p = c.observe.prometheus;
                                  return p.port && p.address != "127.0.0.1" && p.address != "::1" && p.address != "localhost";
                                }};

// Security.
constexpr Setting kEncryption{"security.encryption", "none", [](const Config& c) { return is_encrypted(c.security); }};
constexpr Setting kNoLinkKey{"security.key_file", "the path of a file", [](const Config& c) { return !c.security.key_file; },
                             "security.encryption none"};
constexpr Setting kAudit{"security.audit.enabled", "false", [](const Config& c) { return c.security.audit.enabled; }};
constexpr Setting kRobust{"security.aggregation.rule", "mean", [](const Config& c) { return is_robust(c.security); }};
constexpr Setting kCenteredClipping{"security.aggregation.rule", "another rule",
                                    [](const Config& c) { return c.security.aggregation.rule == AggregationRule::kCenteredClipping; }};
constexpr Setting kNoMomentum{"security.aggregation.momentum", "auto, or numbers above 0 and below 1",
                              [](const Config& c) { return c.security.aggregation.momentum == 0.0; }, "auto"};
constexpr Setting kNoneFaulty{"security.aggregation.byzantine", "integers from 1",
                              [](const Config& c) { return c.security.aggregation.byzantine < 1; }, "1"};
constexpr Setting kPrivate{"security.privacy.clip", "null", [](const Config& c) { return is_private(c.security); }};
// Where each data rank adds noise to its own sum.
constexpr Setting kNoisyCompression{"training.compression.method", "none, or security.privacy.clip null",
                                    [](const Config& c) { return kPrivate.is(c) && kCompression.is(c); }, "none", "security.privacy.clip"};
constexpr Setting kNoisyRobust{"security.aggregation.rule", "mean, or security.privacy.clip null",
                               [](const Config& c) { return kPrivate.is(c) && kRobust.is(c) && !kCompression.is(c); }, "mean",
                               "security.privacy.clip"};
constexpr Setting kNoNoise{"security.privacy.noise", "a noise multiplier such as 1.0, or a target_epsilon from which it follows",
                           [](const Config& c) { return !c.security.privacy.noise && !c.security.privacy.target_epsilon; }, "1",
                           "security.privacy.target_epsilon"};
constexpr Setting kNoDelta{"security.privacy.delta", "numbers above 0 and below 1, far below 1 / (number of sequences)",
                           [](const Config& c) { return !c.security.privacy.delta; }, "1e-5"};
constexpr Setting kNoPrivacyKey{"security.privacy.key_file", "the path of a file with a secret key: head -c 32 /dev/urandom | base64",
                                [](const Config& c) { return !c.security.privacy.key_file; }, "a path"};
constexpr Setting kFederated{"security.federation.members", "0", [](const Config& c) { return is_federated(c.security); }};
constexpr Setting kOneMember{"security.federation.members", "2 to 64", [](const Config& c) { return c.security.federation.members == 1; }, "2"};
constexpr Setting kSecureSum{"security.federation.secure", "false", [](const Config& c) { return c.security.federation.secure; }};
constexpr Setting kSecureRobust{"security.aggregation.rule", "mean", [](const Config& c) { return kRobust.is(c) && kSecureSum.is(c); }};
constexpr Setting kOpenRobust{"security.aggregation.rule", "mean", [](const Config& c) { return kRobust.is(c) && !kSecureSum.is(c); }};
constexpr Setting kNoRoster{"security.federation.roster", "the path of a file with a name and a public key in each line",
                            [](const Config& c) { return !c.security.federation.roster; }, "a path"};
constexpr Setting kNoIdentity{"security.federation.identity_key_file", "the path of a secret key: trireme audit keygen",
                              [](const Config& c) { return !c.security.federation.identity_key_file; }, "a path"};
constexpr Setting kMemberNoise{"security.federation.noise", "null", [](const Config& c) { return kFederated.is(c) && c.security.federation.noise; }};
constexpr Setting kNoMemberDelta{"security.federation.delta", "number above 0 and below 1",
                                 [](const Config& c) { return !c.security.federation.delta; }, "1e-5"};
constexpr Setting kBySamples{"security.federation.weighting", "equal",
                             [](const Config& c) { return c.security.federation.weighting == MemberWeight::kSamples; }};
constexpr Setting kLossLimit{"security.federation.max_loss_increase", "null",
                             [](const Config& c) { return c.security.federation.max_loss_increase.has_value(); }};

/// Each setting of `refused` is refused with each of `with`.
struct Clash {
  const Setting* refused[4];
  const Setting* with[3];
  const char* why;  ///< {KEY} stands for the value of the key, {with} for the name of the other setting
};

constexpr Clash kClashes[] = {
    // The model, its sizes and its schedule.
    {{&kSmallVocabulary}, {&kBytes}, "smaller than the tokenizer's 256"},
    {{&kScheduleFile}, {&kNoScheduleFile}, "parallel.schedule_file is not given"},
    {{&kSomeReplicas}, {&kZero0}, "ZeRO-0 shards nothing: every data rank is a replica"},
    {{&kSharded}, {&kFullGradients}, "zero_stage {parallel.zero_stage} keeps full gradients"},
    {{&kReshard}, {&kFullParameters}, "zero_stage {parallel.zero_stage} does not shard parameters"},
    {{&kSecondary}, {&kFullParameters}, "zero_stage {parallel.zero_stage} gathers parameters once a step"},
    {{&kSecondary}, {&kReshard}, "reshard after_step gathers parameters once a step"},
    {{&kPrefetch}, {&kZero0}, "has no effect: zero_stage 0 gathers nothing"},
    {{&kBudget}, {&kNoBudget}, "training.recompute_budget is not given"},
    {{&kFinalZero}, {&kExponential}, "an exponential schedule never reaches it"},
    {{&kScaledRate}, {&kNoReference}, "needs training.optimizer.reference_batch_size"},
    {{&kEvaluateEvery, &kEvaluateBatches}, {&kNoValidation}, "nothing to evaluate: data.validation is empty"},
    {{&kPatience}, {&kNoEvaluation}, "training.evaluate.every is 0: the run evaluates only at its end"},
    {{&kKeepBest}, {&kNoSaves, &kNoEvaluation}, "{with} is 0: only the last checkpoint is evaluated"},
    {{&kKeepEvery}, {&kNoSaves}, "checkpoint.every is 0: no checkpoint is removed before the end"},
    // Data.
    {{&kEpochs}, {&kWeights}, "with data.weights each source is repeated independently, so the blend has no epochs"},
    {{&kPacking}, {&kNoMask}, "documents that are put together have nothing to do with each other, so they must not attend to each other"},
    {{&kBalance}, {&kNoMask}, "without a document mask every sequence costs the same"},
    {{&kBalance}, {&kDropout}, "dropout masks follow the place in the batch, so a sequence's mask would depend on the number of ranks"},
    // fp64 is computed by the reference kernels.
    {{&kCuda}, {&kFp64}, "precision fp64 runs on the reference kernels of the CPU"},
    {{&kReduceDtype}, {&kFp64}, "precision fp64 reduces in fp64"},
    {{&kCpuIsa}, {&kFp64}, "precision fp64 runs on the reference kernels"},
    // Compression.
    {{&kEncodedParameters}, {&kZero0}, "with parallel.zero_stage 0 no parameters are gathered"},
    {{&kCompression}, {&kFp16}, "the errors of earlier steps would have another loss scale"},
    {{&kPowerSgd}, {&kCuda}, "power_sgd sums over all data ranks, which GPUs cannot do yet"},
    {{&kReplicasOnly}, {&kPowerSgd}, "power_sgd sums whole matrices over all data ranks"},
    {{&kOneBitAdam}, {&kNotAdamW}, "of the optimizers only adamw has a second moment to keep"},
    {{&kNoWarmup}, {&kOneBitAdam}, "one_bit_adam keeps the second moment that these steps find"},
    {{&kSharded}, {&kDataScope}, "training.compression encodes a step's gradient once, so it needs all of it"},
    {{&kBf16Sums}, {&kDataScope}, "training.compression has messages of its own, with vectors and a warm-up in fp32"},
    {{&kReplicasOnly}, {&kOneReplica}, "parallel.replicate is 1, so nothing would be compressed"},
    // Islands that take steps alone: state and decisions that would differ between them are refused, not approximated.
    {{&kIslands}, {&kUnsynchronised}, "training.local.steps is not set, so the islands would never synchronise"},
    {{&kCompression}, {&kLocal, &kAveraging}, "{with} saves no errors of compression for each island"},
    {{&kFp16}, {&kLocal, &kAveraging}, "with {with} each island would have a loss scale of its own"},
    {{&kAnomalies}, {&kLocal, &kAveraging, &kHogwild}, "with {with} the islands would not agree on an anomalous step"},
    {{&kPacking},
     {&kLocalIslands, &kAveragingIslands, &kHogwildIslands},
     "the tokens of a step would be counted over all islands, which exchange {with}"},
    {{&kBalance},
     {&kLocalIslands, &kAveragingIslands, &kHogwildIslands},
     "the sequences of a step would be assigned over all islands, which exchange {with}"},
    {{&kRebalance}, {&kLocalIslands, &kAveragingIslands}, "islands exchange {with}, so they could not agree on a split"},
    {{&kEma}, {&kLocal}, "between outer steps of training.local the weights of islands differ, and so would their averages"},
    {{&kEma}, {&kAveraging}, "with elastic averaging the weights of islands differ, and so would their averages; the centre is an average itself"},
    {{&kLocal}, {&kServers, &kAveraging}, "islands synchronise either by outer steps or by training.asynchronous"},
    {{&kCuda}, {&kAsynchronous}, "training.asynchronous.mode {training.asynchronous.mode} has no CUDA kernels"},
    // Hogwild is an experiment with plain SGD. Everything else that could share weights is refused.
    {{&kLocal}, {&kHogwild}, "islands of hogwild have the same weights"},
    {{&kNotSgd}, {&kHogwild}, "hogwild updates shared weights without a lock, and knows no shared state of an optimizer"},
    {{&kNotFp32}, {&kHogwild}, "hogwild updates shared weights in fp32"},
    {{&kTensor, &kPipeline, &kData, &kZero}, {&kHogwild}, "an island of hogwild is one rank, which steps on whole weights"},
    {{&kCompression}, {&kHogwild}, "hogwild sends no gradients"},
    {{&kEma}, {&kHogwild}, "with hogwild an average of the weights would be of other weights on each island"},
    {{&kRebalance}, {&kHogwild}, "an island of hogwild has one data rank"},
    // With parameter servers a rank computes gradients that are not steps, so what belongs to a step of all ranks is refused.
    {{&kMatrixUpdates}, {&kServers}, "parameter servers update pieces of weights, and {training.optimizer.name} updates whole matrices"},
    {{&kFp16}, {&kServers}, "with training.asynchronous the gradients of an update would have several loss scales"},
    {{&kCompression}, {&kServers}, "training.asynchronous sends whole gradients to the parameter servers"},
    {{&kAnomalies}, {&kServers}, "parameter servers apply an update of training.asynchronous before all ranks can judge it"},
    {{&kActivations}, {&kServers}, "with training.asynchronous the islands compute gradients of different steps"},
    {{&kHistograms}, {&kServers}, "with training.asynchronous the islands have gradients of different steps"},
    {{&kPacking}, {&kServers}, "with training.asynchronous the padding of a step is not counted"},
    {{&kBalance}, {&kServers}, "with training.asynchronous the batches of a step are assigned as workers arrive"},
    {{&kRebalance}, {&kServers}, "with training.asynchronous a fast island already computes more gradients than a slow one"},
    {{&kNoServers}, {&kBackup}, "backup replicas are islands whose gradients parameter servers may leave out"},
    {{&kStale}, {&kBackup}, "with backup replicas every gradient of an update is by the newest weights"},
    {{&kCompensation}, {&kBackup}, "with backup replicas no gradient of an update is stale"},
    // Micro-batches that move between data ranks, and jobs that lose some. Both divide a batch anew.
    {{&kRebalance}, {&kCuda}, "how long a GPU computes in a step is not measured"},
    {{&kRebalance, &kElastic}, {&kScheduleFile}, "parallel.schedule_file is for one number of micro-batches"},
    {{&kRebalance, &kElastic}, {&kBalance}, "data.balance gives every data rank the same number of sequences"},
    {{&kRebalance}, {&kOneDataRank}, "there is one data rank"},
    {{&kElastic}, {&kAutoData}, "how many data ranks the complete job has is not given"},
    {{&kElastic}, {&kIslands}, "an island is made of a fixed number of data ranks"},
    {{&kElastic}, {&kRobust}, "how many data ranks may be wrong depends on how many there are"},
    {{&kElastic}, {&kPrivate}, "steps draw different numbers of sequences, so that there is no batch to divide anew"},
    {{&kElastic}, {&kReroute}, "a smaller job does not have the data ranks that it names"},
    {{&kPeerCopies}, {&kAudit}, "the audit log has no record of a state in memory that a job could continue from"},
    {{&kPeerCopies}, {&kFederated}, "a member of a federation continues from its coordinator's weights"},
    // A relieved rank computes what it did not begin on another one, within the same step.
    {{&kReroute}, {&kAsynchronous}, "asynchronous workers compute a gradient each, and share no step"},
    {{&kReroute}, {&kLocal}, "islands exchange nothing within a round of training.local"},
    {{&kReroute}, {&kPlainIslands}, "islands exchange nothing within a step"},
    {{&kReroute}, {&kPrivate}, "steps draw different numbers of sequences, and clip each on the ranks of one pipeline"},
    {{&kReroute}, {&kRobust}, "a robust rule compares the gradients of data ranks, and that of a helper would contain samples of another one"},
    {{&kReroute}, {&kCompression}, "each data rank would encode the gradients of other samples than in the undisturbed step"},
    {{&kReroute}, {&kRebalance}, "data ranks with different numbers of micro-batches are not rerouted"},
    {{&kReroute}, {&kSamples}, "every pipeline continues texts by itself, which a relieved rank cannot"},
    {{&kReroute}, {&kRerun}, "a repeated step is computed by other data ranks, whose losses would be those of other samples"},
    {{&kReroute}, {&kOneDataRank}, "there is one data rank, so nobody could help"},
    {{&kReroute}, {&kNoPipeline}, "without a pipeline a data rank is relieved as a whole, which is a step of fewer data ranks"},
    // Robust rules compare the gradients of all data ranks.
    {{&kCuda}, {&kRobust}, "robust rules have no CUDA kernels"},
    {{&kFp16}, {&kRobust}, "with a robust rule a data rank whose gradient overflows would count as faulty instead of lowering the loss scale"},
    {{&kBf16Sums}, {&kRobust}, "robust rules compare gradients in fp32"},
    {{&kPowerSgd}, {&kRobust}, "power_sgd sums factors over the data ranks, so that no rank has the gradients that a robust rule compares"},
    {{&kReplicasOnly}, {&kRobust}, "a robust rule gets the gradients of all data ranks in one exchange, without sums over replicas"},
    {{&kLocal}, {&kRobust}, "islands exchange weights and not gradients, to which no robust rule applies"},
    {{&kAsynchronous}, {&kRobust}, "the gradients of training.asynchronous arrive one by one, and a robust rule compares all"},
    {{&kRebalance}, {&kRobust}, "robust rules weigh data ranks alike, so what is trained would depend on the samples of each"},
    {{&kAnomalies}, {&kRobust}, "with a robust rule the loss of one faulty data rank would decide on the step of all"},
    {{&kNoMomentum}, {&kCenteredClipping}, "centered_clipping without momentum does not stop attackers who stay within the noise of a step"},
    {{&kNoneFaulty}, {&kRobust}, "rule {security.aggregation.rule} needs the number of data ranks that may be faulty"},
    // Encryption.
    {{&kOpenEndpoint}, {&kEncryption}, "figures of the run would leave the host in clear text, which security.encryption required rules out"},
    {{&kNoLinkKey}, {&kEncryption}, "security.encryption required needs a key that all hosts share"},
    // Privacy: what is done with a sequence may not depend on the others, and the accountant must know how sequences are drawn.
    {{&kNoNoise}, {&kPrivate}, "neither noise nor target_epsilon is set, so nothing says how much noise to add"},
    {{&kNoDelta}, {&kPrivate}, "an epsilon means nothing without the delta that it is for"},
    {{&kNoPrivacyKey}, {&kPrivate}, "samples and noise must be unpredictable for those who see the model"},
    {{&kCuda}, {&kPrivate}, "clipping the gradient of each sequence has no CUDA kernels"},
    {{&kFp16}, {&kPrivate}, "whether a step is skipped for its loss scale would depend on single sequences"},
    {{&kBf16Sums}, {&kPrivate}, "what a sum loses to rounding would depend on single sequences, before the noise"},
    {{&kDropout}, {&kPrivate}, "dropout masks follow the places of sequences in a step, so that a sequence would change what the others contribute"},
    {{&kLocal}, {&kPrivate}, "islands would exchange weights of steps to which each adds noise of its own"},
    {{&kAsynchronous}, {&kPrivate}, "noise is added to the gradient of a step of all ranks, which asynchronous updates lack"},
    {{&kPlainIslands}, {&kPrivate}, "the sequences of a step are drawn for all ranks together"},
    {{&kRebalance}, {&kPrivate}, "steps draw different numbers of sequences, so that there is no split to keep"},
    {{&kBackup}, {&kPrivate}, "which sequences a step leaves out would not be random"},
    {{&kScheduleFile}, {&kPrivate}, "steps draw different numbers of sequences, and a file has the actions of one number"},
    {{&kPacking}, {&kPrivate}, "a document that is packed with others would not be part of one sequence alone"},
    {{&kBalance}, {&kPrivate}, "the sequences of a step are drawn at random, and not assigned by their cost"},
    {{&kWeights}, {&kPrivate}, "every sequence is drawn with the same probability, which the accountant assumes"},
    {{&kAnomalies}, {&kPrivate}, "whether a step is skipped or repeated would depend on its data, which the accountant does not count"},
    {{&kSharedHeads},
     {&kPrivate},
     "tensor ranks would share key and value heads, of which there are {model.kv_heads}, and the norm of a sequence's gradient would count them "
     "twice"},
    {{&kSharded},
     {&kNoisyCompression, &kNoisyRobust},
     "with security.privacy and {with} each data rank adds its noise once a step, to its whole gradient"},
    {{&kTiedStages},
     {&kNoisyCompression},
     "the first and the last pipeline rank would each compress a part of the embedding's gradient, and only the sum of both is clipped"},
    // A federation's members train alone in a round, on data of their own.
    {{&kNoRoster}, {&kFederated}, "the coordinator and the members recognise each other by it"},
    {{&kNoIdentity}, {&kFederated}, "every process must prove its identity"},
    {{&kBySamples}, {&kMemberNoise}, "the presence of one member would rescale the others, more than noise covers"},
    {{&kLossLimit}, {&kMemberNoise}, "which rounds are refused would tell about held-out data, which noise does not cover"},
    {{&kNoMemberDelta}, {&kMemberNoise}, "an epsilon means nothing without the delta that it is for"},
    {{&kOneMember}, {&kSecureSum}, "the sum of one member's update is that update, which secure aggregation cannot hide"},
    {{&kNotLocal}, {&kFederated}, "the members of a federation train this number of steps alone in a round"},
    {{&kEpochs}, {&kFederated}, "members have data of different sizes, and all take the same number of steps"},
    {{&kFragments}, {&kFederated}, "members exchange whole updates at the end of a round"},
    {{&kDelay}, {&kFederated}, "members exchange updates at the end of a round"},
    {{&kBlend}, {&kFederated}, "members begin a round with the weights of the coordinator"},
    {{&kAsynchronous}, {&kFederated}, "members take synchronous steps between rounds"},
    {{&kIslands}, {&kFederated}, "a member is an island of its own"},
    {{&kFrozen, &kAdapters}, {&kFederated}, "members send updates of all parameters, to which noise may be added"},
    {{&kSecureRobust}, {&kFederated}, "secure aggregation hides the updates that a robust rule compares"},
    {{&kOpenRobust}, {&kFederated}, "a robust rule compares the data ranks of one job, and not members"},
    {{&kPrivate},
     {&kFederated},
     "no accountant covers the rounds of a federation together with the steps of its members; security.federation.noise protects whole members"},
    {{&kEma}, {&kFederated}, "the average would mix the weights of one member with those of rounds"},
    {{&kPatience}, {&kFederated}, "the coordinator decides when training ends"},
    // Kernels of devices.
    {{&kCudnn}, {&kCpu}, "attention on CPUs has kernels of its own"},
    {{&kCudnn}, {&kWide}, "cuDNN's attention computes in bf16 and fp16"},
    {{&kCudnn}, {&kOddHeads}, "model.head_size is {model.head_size}"},
    // Its backward takes no sequences of different lengths on compute capability 8 and 12, and on 9 a T x T matrix for each document.
    {{&kCudnn}, {&kMask}, "cuDNN's deterministic backward does not keep documents apart"},
    {{&kGraph}, {&kDropout}, "a captured step would repeat the same dropout masks"},
    {{&kGraph}, {&kRandomK}, "a captured step would send the same elements in every step"},
    {{&kGraph}, {&kRerun}, "observe.anomalies.policy rerun records what ranks exchange in a step, which a graph cannot do"},
    {{&kGraph}, {&kSharedGpus}, "ranks that share a GPU communicate through host memory, which a graph cannot capture"},
    // A sample's text grows by a token at a time, so its buffers are not among those that a step has reserved.
    {{&kRegistered}, {&kSamples}, "observe.samples needs memory that cannot be registered in advance"},
    {{&kTuning}, {&kSharedGpus}, "ranks that share a GPU would time the products of one another"},
    {{&kMultiprocessors, &kRegistered}, {&kSharedGpus}, "ranks that share a GPU communicate through host memory"},
    {{&kCollectives}, {&kNccl}, "GPUs communicate through NCCL, which chooses its own algorithms"},
    // What is observed.
    {{&kNoPrompts}, {&kSamples}, "there is no text to continue, and observe.samples.every is set"},
    {{&kHistograms}, {&kNoTensorboard}, "histograms are written to the event files of observe.tensorboard only, which is false"},
};

/// The text with the values of the keys that it names in braces.
std::string filled(std::string text, const Setting& with, const Config& c) {
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open)) {
    const size_t close = text.find('}', open);
    const std::string word = text.substr(open + 1, close - open - 1);
    text.replace(open, close - open + 1, word == "with" ? with.name : shown_value(table_of(c).at(word)));
  }
  return text;
}

}  // namespace

void check_clashes(Rules& rules, const Config& c) {
  for (const Clash& clash : kClashes)
    for (const Setting* one : clash.refused)
      for (const Setting* with : clash.with) {
        if (one == nullptr || with == nullptr || !with->is(c) || !rules.apply({one->key, one->also, with->key, with->also}) || !one->is(c)) continue;
        const std::string_view off = with->off;
        const std::string way_out = off.starts_with("another ") ? concat("another ", with->key) : concat(with->key, " ", filled(with->off, *with, c));
        rules.broken(one->key, filled(clash.why, *with, c), concat(filled(one->off, *with, c), ", or ", way_out), one->nearest);
      }
}

}  // namespace trireme
