#pragma once
// Declares every key of the configuration once. visit(v, section) calls v(Field, value) for each field and v.section(key, doc, part) for each
// subsection, in file order. A visitor accepts all field types: bool, int64_t, double, std::string, OneOf<E>, Auto<int64_t>, Auto<double>,
// Auto<std::vector<int64_t>>, Auto<std::vector<double>>, std::vector<std::string>.
// A key that affects what is trained is declared with Field; other keys use execution_key, layout_key or operation_key (field.h).
#include "trainer/config/config.h"
#include "trainer/config/field.h"
#include "trainer/config/visit_model.h"
#include "trainer/config/visit_security.h"
#include "trainer/config/visit_training.h"

namespace trireme {

template <class V>
void visit(V& v, RunConfig& c) {
  v(operation_key({.key = "name", .doc = "Name of the run. The default run directory is runs/<name>."}), c.name);
  v(operation_key({.key = "directory",
                   .doc = "Directory for everything that the run writes: resolved configuration, metrics and checkpoints.",
                   .auto_rule = "runs/<run.name>"}),
    c.directory);
  v(Field{.key = "seed", .doc = "Random seed of the initial weights, the sample order and the dropout masks.", .min = 0}, c.seed);
  v(operation_key({.key = "device",
                   .doc = "Device that the run computes on.",
                   .auto_rule = "cuda if every rank has a GPU, cpu if no host has one; otherwise the run is refused"}),
    c.device);
  v(operation_key(
        {.key = "ranks_per_gpu",
         .doc = "Number of ranks that share one GPU. More than 1 communicate through host memory, which is slow: for tests of a layout on few GPUs.",
         .min = 1,
         .max = 64}),
    c.ranks_per_gpu);
}

template <class V>
void visit(V& v, ParallelConfig& c) {
  v(layout_key({.key = "tensor", .doc = "Tensor-parallel degree: number of ranks that split each matrix product.", .min = 1, .max = kMaxExtent}),
    c.tensor);
  v(layout_key(
        {.key = "pipeline", .doc = "Pipeline-parallel degree: number of ranks that split the layers into stages.", .min = 1, .max = kMaxExtent}),
    c.pipeline);
  v(Field{.key = "islands",
          .doc =
              "Number of copies of the model that take steps alone and synchronise after training.local.steps steps, or compute gradients alone with "
              "training.asynchronous. Each has tensor x pipeline x data ranks and its own part of the global batch.",
          .min = 1,
          .max = kMaxExtent},
    c.islands);
  v(layout_key({.key = "data",
                .doc = "Data-parallel degree: number of ranks of an island that split its part of the global batch, replicas x shards.",
                .min = 1,
                .max = kMaxExtent,
                .auto_rule = "remaining ranks, world size / (islands x tensor x pipeline); 1 outside mpirun and srun"}),
    c.data);
  v(layout_key({.key = "zero_stage",
                .doc = "ZeRO stage. Sharded over the data ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.",
                .min = 0,
                .max = 3}),
    c.zero_stage);
  v(layout_key(
        {.key = "replicate", .doc = "Number of replicas of the sharded state (hybrid sharding). Must divide data.", .min = 1, .max = kMaxExtent}),
    c.replicate);
  v(layout_key(
        {.key = "sequence_parallel", .doc = "Split the activations of norms and residuals by token over the tensor ranks (sequence parallelism)."}),
    c.sequence_parallel);
  v(layout_key({.key = "schedule",
                .doc = "Pipeline schedule: the order of forward and backward passes. file reads it from schedule_file.",
                .choices = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "file"}}),
    c.schedule);
  v(layout_key({.key = "schedule_file",
                .doc = "For schedule: file, path of the schedule: one line of actions per pipeline rank, as printed by `config actions`.",
                .without_effect = c.schedule == "file" ? nullptr : "schedule is not file"}),
    c.schedule_file);
  v(layout_key(
        {.key = "virtual_stages",
         .doc =
             "Number of stages per pipeline rank. gpipe, 1f1b, zb_h1 and zb_h2 require 1, zb_v requires 2, and file requires the number in the file.",
         .min = 1,
         .max = 1024,
         .auto_rule = "2 for interleaved_1f1b and zb_v, otherwise 1"}),
    c.virtual_stages);
  v(layout_key({.key = "layers_per_stage",
                .doc =
                    "Number of layers of each of the pipeline x virtual_stages stages, first stage first. The first and the last stage may have 0: "
                    "then they are the embedding and the head alone.",
                .min = 0,
                .max = 1024,
                .auto_rule = "balanced by the weights of the matrix products, head included, at least 1 each"}),
    c.layers_per_stage);
  v(layout_key({.key = "gradient_accumulation",
                .doc = "How gradients accumulate over micro-batches. full: in full size, reduced once per step. sharded: reduced after every "
                       "micro-batch into the owned shard.",
                .auto_rule = "full for ZeRO 0-1, sharded for ZeRO 2-3"}),
    c.gradient_accumulation);
  v(layout_key({.key = "reshard", .doc = "When ZeRO-3 frees gathered parameters: after_use frees them after each use, after_step once per step."}),
    c.reshard);
  v(layout_key(
        {.key = "secondary_shards",
         .doc = "ZeRO-3 with reshard after_use: number of neighbouring data ranks that together keep a second copy of the parameters. Only the first "
                "gather of a step is then over all shards, the others are over these ranks, best those of a host. 0: none.",
         .min = 0,
         .max = kMaxExtent}),
    c.secondary_shards);
  v(execution_key(
        {.key = "prefetch",
         .doc = "Parameters are gathered this many model parts (embedding, block or head) ahead of their use. Needs zero_stage 1 or higher.",
         .min = 0,
         .max = 1024}),
    c.prefetch);
  v(execution_key({.key = "bucket_size",
                   .doc = "Bytes of block parameters per rank that are gathered together and whose gradients are reduced together. Rounded "
                          "down to whole blocks, at least one.",
                   .min = 1,
                   .auto_rule = "one block"}),
    c.bucket_size);
  v(execution_key(
        {.key = "overlap",
         .doc = "Overlap communication with computation. false waits for each communication where it starts, to measure the gain from overlap."}),
    c.overlap);
  v(execution_key(
        {.key = "collectives",
         .doc = "Algorithm of all-reduce, reduce-scatter and all-gather between CPU ranks, and of GPU ranks that communicate through host "
                "memory. library: MPI's, and shared memory within a host. The others send messages over MPI. GPUs with NCCL allow library only.",
         .auto_rule = "for each size the fastest by the links of plan.cluster, or by the built-in figures of a CPU"}),
    c.collectives);
  v(operation_key(
        {.key = "communication_sms",
         .doc = "On the GPU, number of streaming multiprocessors for communication: the kernels of each NCCL communicator use at most as many, and "
                "matrix products that run beside communication leave them free. 0: NCCL and cuBLASLt decide.",
         .min = 0,
         .max = 64}),
    c.communication_sms);
  v(operation_key({.key = "register_buffers",
                   .doc = "On the GPU, allocate the memory of a training run with ncclMemAlloc and register it with every NCCL communicator, so that "
                          "NCCL may work on buffers without copying them. If NCCL refuses, a warning says why."}),
    c.register_buffers);
}

template <class V>
void visit(V& v, DataConfig& c) {
  // An operation key, because a resumed run compares the digest of the tokenizer and not its path.
  v(operation_key({.key = "tokenizer",
                   .doc = "Tokenizer: bytes (256 tokens, one for each byte), a SentencePiece *.model, a Hugging Face tokenizer.json, or a directory "
                          "that contains one of them."}),
    c.tokenizer);
  v(Field{.key = "train",
          .doc =
              "Training data: a list of token directories made by `trireme data build`, or of token files of nanoGPT, llm.c or Megatron. A resumed "
              "run refuses different tokens: it compares 4,096 tokens (all of them up to 1,048,576), and the digests recorded by "
              "`trireme data build` if every entry has them. `trireme data inspect --verify` compares the files with their digests.",
          .required = true},
    c.train);
  v(Field{.key = "weights",
          .doc = "Share of each entry of train in the samples. The weights are scaled to a sum of 1.",
          .min = 0,
          .above_min = true,
          .auto_rule = "all entries form one stream, and each token occurs once per epoch"},
    c.weights);
  v(operation_key({.key = "validation",
                   .doc = "Validation data, in the same formats as train. An entry name=PATH forms a named set that is evaluated separately."}),
    c.validation);
  v(Field{.key = "document_mask", .doc = "Documents packed into one sequence do not attend to each other, and positions restart in each document."},
    c.document_mask);
  v(Field{.key = "packing",
          .doc =
              "How the documents of train become sequences. none: they follow each other and are cut every sequence_length tokens. best_fit: whole "
              "documents are put together by best-fit decreasing, and the rest of a sequence is padding, which is not trained; only a document "
              "longer than "
              "a sequence is cut. Validation sets are not packed, so that their losses can be compared."},
    c.packing);
  v(Field{.key = "packing_window",
          .doc = "Number of consecutive documents that are packed together. A larger number leaves less padding. Reading a sequence packs its "
                 "window again if it is not in memory. 1: a sequence contains one document or a part of it.",
          .min = 1,
          .max = 1 << 16,
          .without_effect = c.packing == Packing::kNone ? "data.packing is none" : nullptr},
    c.packing_window);
  // An execution key, because a step trains the same sequences, summed in another order.
  v(execution_key({.key = "balance",
                   .doc = "How the sequences of a step are assigned to data ranks and micro-batches, in equal numbers. none: in the order of the "
                          "samples. cost: by the compute of their documents, the longest first to the rank with the least, so that ranks wait less "
                          "for one another."}),
    c.balance);
}

template <class V>
void visit(V& v, CheckpointConfig& c) {
  v(operation_key(
        {.key = "every",
         .doc = "Steps between checkpoints. 0: only at the end of the run and when it is stopped. With auto the run also saves at multiples of "
                "keep_every and, with keep_best, before each evaluation.",
         .min = 0,
         .auto_rule = "the interval that loses least time, by Daly's formula, from the measured cost of a save and the mean time between failures; "
                      "measured first after 10 steps, and again after every save"}),
    c.every);
  v(operation_key({.key = "keep",
                   .doc = "Number of newest checkpoints to keep. While steps are rejected, the newest ones from before the rejections are kept too.",
                   .min = 1}),
    c.keep);
  v(operation_key({.key = "keep_best",
                   .doc = "Also keep this many checkpoints with the lowest validation loss. A checkpoint counts if the run evaluates at its step, so "
                          "every should be a multiple of training.evaluate.every.",
                   .min = 0,
                   .max = kMaxExtent}),
    c.keep_best);
  v(operation_key({.key = "keep_every",
                   .doc = "Never remove checkpoints whose step is a multiple of this. null: none.",
                   .min = 1,
                   .max = kMaxExtent,
                   .or_null = true}),
    c.keep_every);
  v(operation_key({.key = "asynchronous", .doc = "Write checkpoints in a background thread while training continues."}), c.asynchronous);
}

template <class V>
void visit(V& v, ResilienceConfig& c) {
  v(operation_key({.key = "restarts",
                   .doc = "How many times the launcher restarts the job from its newest complete checkpoint after ranks died or hung.",
                   .min = 0}),
    c.restarts);
  v(operation_key({.key = "hang_seconds",
                   .doc = "A rank counts as hung after this many seconds, and at least five median step times, without progress.",
                   .min = 1,
                   .max = 86400,
                   .auto_rule = "10 on the CPUs of one host, 120 on GPUs or several hosts, where storage, network and driver may stall that long"}),
    c.hang_seconds);
  v(operation_key(
        {.key = "replica_check_every",
         .doc = "Steps between checks that replicated state is identical on all ranks. The check also runs before each checkpoint; 0: never.",
         .min = 0}),
    c.replica_check_every);
  v(operation_key({.key = "mean_time_between_failures",
                   .doc = "Mean time between failures of the job in seconds, for checkpoint.every auto, `plan --analyse` and `goodput`.",
                   .min = 0,
                   .max = 1e10,
                   .above_min = true,
                   .auto_rule = "learned: the time that all jobs of the run have trained, divided by the number of those that failed; before the "
                                "first failure, one day more than that time. In `plan`: node_mtbf of the cluster / number of nodes"}),
    c.mean_time_between_failures);
  v(execution_key(
        {.key = "rebalance",
         .doc = "What moves from slow data ranks to fast ones. micro_batches: after every 20 steps, micro-batches of the same global batch, so that "
                "the slowest data rank, by its median time, ends soonest."}),
    c.rebalance);
  v(execution_key(
        {.key = "elastic",
         .doc = "What a job does that has lost hosts. replicas: it continues with fewer data ranks, which share the same global batch, and takes "
                "further "
                "ones when there are hosts for them, up to parallel.data. With a number of micro-batches that the data ranks do not divide, some "
                "compute one more."}),
    c.elastic);
  v(operation_key(
        {.key = "minimum_replicas",
         .doc = "With elastic: replicas, the fewest data ranks with which a job continues. The launcher waits for hosts if there are fewer.",
         .min = 1,
         .without_effect = is_elastic(c) ? nullptr : "resilience.elastic is none"}),
    c.minimum_replicas);
  v(operation_key({.key = "host_strikes",
                   .doc =
                       "A host whose ranks have died or hung this many times is not used again by the launcher, as long as the other hosts suffice "
                       "and the hosts file does not change.",
                   .min = 1}),
    c.host_strikes);
  v(operation_key({.key = "host_wait_seconds",
                   .doc = "How long the launcher waits for hosts to come back if the others do not suffice. Then the job has failed.",
                   .min = 0,
                   .max = kMaxExtent}),
    c.host_wait_seconds);
  v(operation_key(
        {.key = "peer_copies",
         .doc = "Number of other ranks that keep a copy of each rank's state in the memory of their hosts. A job that has lost hosts continues from "
                "the newest copies of which it still has every part, or from a checkpoint if that is newer. The copies are on other hosts than the "
                "rank, or on other ranks if the job has one host. 0: none.",
         .min = 0,
         .max = 1000}),
    c.peer_copies);
  v(operation_key({.key = "peer_every",
                   .doc = "Steps between two copies. With islands, a copy waits for the end of their round.",
                   .min = 1,
                   .without_effect = c.peer_copies > 0 ? nullptr : "resilience.peer_copies is 0"}),
    c.peer_every);
  v(operation_key(
        {.key = "peer_directory",
         .doc =
             "Directory for the copies, in memory and on every host. The copies of a run take the same place after each restart, and are removed at "
             "its end.",
         .without_effect = c.peer_copies > 0 ? nullptr : "resilience.peer_copies is 0"}),
    c.peer_directory);
  v({.key = "backup_replicas",
     .doc = "With training.asynchronous.mode parameter_server: number of islands more than training.asynchronous.apply_after. An update is made of "
            "the first gradients by the newest weights; late ones are left out, and other islands compute their batches again.",
     .min = 0},
    c.backup_replicas);
  v(layout_key(
        {.key = "reroute",
         .doc = "Ranks that are relieved of the step's computation, each as DATA/PIPELINE: its data rank and pipeline rank, whatever its tensor "
                "rank. The same pipeline rank of the other data ranks computes their micro-batches of the same step, and what is trained does not "
                "change. A relieved rank must still run: it keeps its weights, and takes part in sums and updates.",
         .items = "DATA/PIPELINE"}),
    c.reroute);
  v(layout_key({.key = "reroute_from",
                .doc = "The first micro-batch, counted from 0, of a step or an evaluation batch that relieved ranks do not begin.",
                .min = 0,
                .max = kMaxExtent,
                .without_effect = c.reroute.empty() ? "resilience.reroute is empty" : nullptr}),
    c.reroute_from);
}

template <class V>
void visit(V& v, KernelsConfig& c) {
  v(operation_key(
        {.key = "attention",
         .doc = "Attention kernels on the GPU. cudnn: cuDNN's fused attention in bf16 and fp16; the first use of each shape is compared with the "
                "built-in kernels, which compute it if cuDNN does not or differs.",
         .auto_rule = "builtin"}),
    c.attention);
  v(operation_key({.key = "cpu_isa",
                   .doc = "CPU instruction set of the kernels. Results may differ in rounding between instruction sets.",
                   .choices = {"auto", "portable", "avx2", "avx512", "avx512_bf16", "amx"},
                   .auto_rule = "the best one that the CPU of every rank supports"}),
    c.cpu_isa);
  v(operation_key({.key = "tf32", .doc = "Compute fp32 matrix products on the GPU in TF32 (10-bit mantissa)."}), c.tf32);
  v(operation_key(
        {.key = "cuda_graph",
         .doc = "On the GPU, capture a step as a CUDA graph and launch the graph from the third step on, counted after a warm-up of compression."}),
    c.cuda_graph);
  v(operation_key(
        {.key = "tuning_file",
         .doc = "On the GPU, JSON file with the algorithm of cuBLASLt for each kind of matrix product of a training step, by GPU model, driver "
                "and cuBLASLt. `train` and `bench step` time the kinds that it lacks before the first step, and add the fastest algorithms. "
                "Checkpoints record the algorithms, and a resumed run keeps them. none: the first proposal of cuBLASLt; nothing is timed."}),
    c.tuning_file);
}

template <class V>
void visit(V& v, PlanConfig& c) {
  v(operation_key({.key = "cluster",
                   .doc = "Cluster file (see `trireme bench machine`) or built-in device type that `train` and `plan` use for the forecast. none: "
                          "built-in figures."}),
    c.cluster);
  v(operation_key(
        {.key = "must_fit", .doc = "Refuse to start a run whose forecast memory exceeds the memory of the machine. false: start it anyway."}),
    c.must_fit);
  v(operation_key(
        {.key = "memory_margin",
         .doc = "Share of a device's memory that a forecast peak should leave free. A layout that leaves less is called tight, and a search ranks "
                "it behind layouts that are at most 2 % slower. Nine of ten forecasts of other systems' memory err by less than the default, which "
                "also leaves room for what Trireme only allows for, such as the GPU's driver.",
         .min = 0,
         .max = 0.9}),
    c.memory_margin);
}

/// Operation keys, because only what happens to an anomalous step depends on them, as on training.max_rejected_steps.
template <class V>
void visit(V& v, AnomalyConfig& c) {
  v(operation_key(
        {.key = "policy",
         .doc =
             "What happens to a step whose loss or gradient norm is above the limit of the window, or not finite. warn: it is reported. skip: it is "
             "rejected, and the weights do not change. stop: the run ends with a checkpoint of the state before the step. rerun: the step is "
             "repeated from the same weights and data to tell a hardware fault from data or model. A step whose gradient is not finite is "
             "rejected under every policy."}),
    c.policy);
  v(operation_key(
        {.key = "window",
         .doc = "Number of accepted steps whose losses and gradient norms a step is compared with. Steps are judged once the window is full. A layer "
                "whose gradient was zero in as many steps is reported.",
         .min = 8,
         .max = 4096}),
    c.window);
  v(operation_key({.key = "z",
                   .doc = "Limit of loss and gradient norm, in robust standard deviations of their logarithm above the median of the window.",
                   .min = 0,
                   .max = 1000,
                   .above_min = true}),
    c.z);
}

template <class V>
void visit(V& v, PrometheusConfig& c) {
  const char* const without_port = c.port ? nullptr : "prometheus.port is not set";
  v(operation_key({.key = "port",
                   .doc = "Port of an HTTP server on the host of rank 0 that answers GET /metrics. null: none. If another program uses the port, the "
                          "run says so once and continues without the server.",
                   .min = 1,
                   .max = 65535,
                   .or_null = true}),
    c.port);
  v(operation_key({.key = "address",
                   .doc = "Address that the server listens on, in digits. The default is reached from the same host only; 0.0.0.0 and :: are "
                          "reached from everywhere, and the server asks for no password.",
                   .without_effect = without_port}),
    c.address);
  v(operation_key({.key = "textfile",
                   .doc = "File that is replaced at most once a second by the same text, for the textfile collector of node_exporter, which reads "
                          "files named *.prom. null: none.",
                   .or_null = true}),
    c.textfile);
}

template <class V>
void visit(V& v, ActivationsConfig& c) {
  v(operation_key(
        {.key = "every",
         .doc = "Steps between two records of the largest magnitude of the residual stream after the embedding and after each block, "
                "activation_max in metrics.jsonl. Such a step reads each output once more; on a GPU it also ends before the next one is queued. "
                "0: never.",
         .min = 0,
         .max = kMaxExtent}),
    c.every);
}

template <class V>
void visit(V& v, HistogramsConfig& c) {
  v(operation_key({.key = "every",
                   .doc = "Steps between two histograms of the weights and of the gradients of each block, the embedding, the final norm and the "
                          "head, in the event files of observe.tensorboard. Such a step reads all weights and gradients that a rank owns on its "
                          "host. 0: never.",
                   .min = 0,
                   .max = kMaxExtent}),
    c.every);
}

template <class V>
void visit(V& v, SamplesConfig& c) {
  const char* const without = c.every > 0 ? nullptr : "samples.every is 0";
  v(operation_key({.key = "every",
                   .doc = "Steps between two samples: texts that the current weights continue, as `trireme generate` would from a checkpoint of the "
                          "step with --seed run.seed. Each new token is a forward pass of the text without a cache. 0: never.",
                   .min = 0,
                   .max = kMaxExtent}),
    c.every);
  v(operation_key({.key = "prompts",
                   .doc = "Texts to continue. With max_tokens each must fit training.sequence_length.",
                   .without_effect = without,
                   .items = "prompt"}),
    c.prompts);
  v(operation_key({.key = "max_tokens",
                   .doc = "Maximum number of tokens to add to a prompt; fewer if the model ends the text.",
                   .min = 1,
                   .max = kMaxExtent,
                   .without_effect = without}),
    c.max_tokens);
  v(operation_key(
        {.key = "temperature", .doc = "Sampling temperature; 0: always the most likely token.", .min = 0, .max = 1e6, .without_effect = without}),
    c.temperature);
}

template <class V>
void visit(V& v, ObserveConfig& c) {
  v(operation_key(
        {.key = "print_every",
         .doc = "Steps between two lines of the log, where standard output is not a terminal. The first and the last step and every evaluation "
                "are printed too. A terminal has a progress line instead, and keeps a line every ten seconds. metrics.jsonl has every step.",
         .min = 1,
         .auto_rule = "1 up to 1,000 steps; in longer runs a round number that makes at most 1,000 lines, and a line at least once a minute"}),
    c.print_every);
  v(operation_key(
        {.key = "black_box",
         .doc = "Each rank keeps RUN/logs/rank-NNNN.blackbox, a file of 71 KiB mapped into memory, with what it is doing, for trireme inspect. "
                "false: for file systems where mapped files are slow."}),
    c.black_box);
  v(operation_key({.key = "tensorboard",
                   .doc = "Event files for TensorBoard: the figures of every step and evaluation, the configuration as text, and hyper-parameters. "
                          "true: in <run.directory>/tensorboard; a path: in that directory."}),
    c.tensorboard);
  v.section("prometheus", "Figures for Prometheus.", c.prometheus);
  v.section("anomalies", "Detection of steps whose loss or gradient norm stands out.", c.anomalies);
  v.section("activations", "The largest activations.", c.activations);
  v.section("histograms", "Histograms of weights and gradients.", c.histograms);
  v.section("samples", "Samples of text.", c.samples);
}

template <class V>
void visit(V& v, Config& c) {
  v.section("run", "The run: name, directory, seed and device.", c.run);
  v.section("model", "The model architecture.", c.model);
  v.section("adapter", "Low-rank adapters of linear layers, trained in place of the model's own weights.", c.model.adapter);
  v.section("parallel", "The parallel layout. World size = islands x tensor x pipeline x data.", c.parallel);
  v.section("training", "Training steps: batch, precision, optimizer and length of the run.", c.training);
  v.section("data", "Training and validation data.", c.data);
  v.section("checkpoint", "Checkpoints of the run.", c.checkpoint);
  v.section("resilience", "Detection of ranks that die, hang or disagree, and restarts.", c.resilience);
  v.section("kernels", "Choice of compute kernels.", c.kernels);
  v.section("plan", "Forecast of memory and time before the first step.", c.plan);
  v.section("observe", "What a run prints, watches and records, and for which other programs it writes figures.", c.observe);
  v.section("security", "Protection from ranks that are wrong or hostile, and from changed records.", c.security);
}

}  // namespace trireme
