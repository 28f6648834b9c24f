#pragma once
// Every key of the configuration, declared once: visit(v, section) calls v(Field, value) for each field and v.section(key, doc, part) for each part,
// in the order of the file. A visitor takes any of the field types: bool, int64_t, double, std::string, OneOf<E>, Auto<int64_t>, Auto<double>,
// Auto<std::vector<int64_t>>, Auto<std::vector<double>>, std::vector<std::string>.
// A key is declared by Field where it decides what is trained, else by execution_key, layout_key or operation_key (field.h).
#include "trainer/config/config.h"
#include "trainer/config/field.h"
#include "trainer/config/visit_model.h"
#include "trainer/config/visit_training.h"

namespace trireme {

template <class V>
void visit(V& v, RunConfig& c) {
  v(operation_key({.key = "name", .doc = "Name of the run; the default directory carries it."}), c.name);
  v(operation_key({.key = "directory", .doc = "Where the run leaves everything it writes.", .auto_rule = "runs/<run.name>"}), c.directory);
  v(Field{.key = "seed", .doc = "Seed of initial weights, sample order and dropout.", .min = 0}, c.seed);
  v(operation_key({.key = "device",
                   .doc = "Where the arithmetic runs.",
                   .choices = {"auto", "cpu", "cuda"},
                   .auto_rule = "cuda where every rank has a GPU, else cpu"}),
    c.device);
  v(operation_key({.key = "ranks_per_gpu",
                   .doc = "Ranks that share one GPU; more than 1 talk through host memory: slow, for tests of a layout on few GPUs.",
                   .min = 1,
                   .max = 64}),
    c.ranks_per_gpu);
}

template <class V>
void visit(V& v, ParallelConfig& c) {
  v(layout_key({.key = "tensor", .doc = "Ranks that split every matrix (tensor parallelism).", .min = 1, .max = kMaxExtent}), c.tensor);
  v(layout_key({.key = "pipeline", .doc = "Ranks that split the layers (pipeline parallelism).", .min = 1, .max = kMaxExtent}), c.pipeline);
  v(layout_key({.key = "data",
                .doc = "Ranks that split the batch: replicas x shards.",
                .min = 1,
                .max = kMaxExtent,
                .auto_rule = "what the world leaves, 1 outside mpirun and srun"}),
    c.data);
  v(layout_key({.key = "zero_stage",
                .doc = "Sharded over the data ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.",
                .min = 0,
                .max = 3}),
    c.zero_stage);
  v(layout_key({.key = "replicate", .doc = "Copies of the sharded state (hybrid sharding); divides data.", .min = 1, .max = kMaxExtent}),
    c.replicate);
  v(layout_key({.key = "sequence_parallel", .doc = "Split norms and residuals by token over the tensor ranks."}), c.sequence_parallel);
  v(layout_key({.key = "schedule",
                .doc = "Order of forwards and backwards in the pipeline; file: as schedule_file says.",
                .choices = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "file"}}),
    c.schedule);
  v(layout_key({.key = "schedule_file",
                .doc = "For schedule file: a line of actions for each pipeline rank, as `config actions` prints it.",
                .without_effect = c.schedule == "file" ? nullptr : "schedule is not file"}),
    c.schedule_file);
  v(layout_key({.key = "virtual_stages",
                .doc = "Stages of each pipeline rank; gpipe, 1f1b, zb_h1 and zb_h2 have one, zb_v has two, a file as many as it says.",
                .min = 1,
                .max = 1024,
                .auto_rule = "2 for interleaved_1f1b and zb_v, else 1"}),
    c.virtual_stages);
  v(layout_key({.key = "layers_per_stage",
                .doc = "Layers of each of the pipeline x virtual_stages stages.",
                .min = 1,
                .max = 1024,
                .auto_rule = "balanced by parameter count"}),
    c.layers_per_stage);
  v(layout_key({.key = "gradient_accumulation",
                .doc = "full: reduce gradients once a step. sharded: after every micro-batch, into the owned shard.",
                .auto_rule = "full for ZeRO 0-1, sharded for 2-3"}),
    c.gradient_accumulation);
  v(layout_key({.key = "reshard", .doc = "ZeRO-3: drop gathered parameters after each use, or once a step."}), c.reshard);
  v(execution_key({.key = "prefetch",
                   .doc = "Parts of the model (embedding, blocks, head) ahead of whose use parameters are gathered.",
                   .min = 0,
                   .max = 1024}),
    c.prefetch);
  v(execution_key({.key = "bucket_size",
                   .doc = "About how many bytes of block parameters on one rank are gathered, and their gradients reduced, together: whole "
                          "blocks, at least one.",
                   .min = 1,
                   .auto_rule = "one block"}),
    c.bucket_size);
  v(execution_key(
        {.key = "overlap", .doc = "Let communication run behind computation; false waits for each where it begins, to see what overlap gains."}),
    c.overlap);
}

template <class V>
void visit(V& v, DataConfig& c) {
  // A resumed run compares the digest of the tokenizer, not the place where it lies.
  v(operation_key({.key = "tokenizer",
                   .doc = "bytes (256 tokens, one for each byte), a SentencePiece *.model, a Hugging Face tokenizer.json, or a directory that holds "
                          "one of them."}),
    c.tokenizer);
  v(Field{.key = "train",
          .doc = "What to train on: token directories made by `trireme data build`, or token files of nanoGPT, llm.c or Megatron. A resumed run "
                 "refuses other tokens: of more than 1,048,576 it compares 4,096, and the digests that `trireme data build` recorded where all "
                 "entries have them; `trireme data inspect --verify` compares those with the files.",
          .required = true},
    c.train);
  v(Field{.key = "weights",
          .doc = "Share of each entry of train in the samples; they are scaled to a sum of 1.",
          .min = 0,
          .above_min = true,
          .auto_rule = "all as one stream, each token once an epoch"},
    c.weights);
  v(operation_key({.key = "validation", .doc = "As train, for the validation loss; name=PATH makes a set that is evaluated apart."}), c.validation);
  v(Field{.key = "document_mask", .doc = "Documents packed into one sequence do not attend to each other, and positions begin anew in each."},
    c.document_mask);
}

template <class V>
void visit(V& v, CheckpointConfig& c) {
  v(operation_key({.key = "every", .doc = "Steps between checkpoints; 0 = only at the end and on request.", .min = 0}), c.every);
  v(operation_key({.key = "keep", .doc = "Newest checkpoints that stay; while steps are rejected, the last ones from before stay too.", .min = 1}),
    c.keep);
  v(operation_key({.key = "asynchronous", .doc = "Write while training goes on."}), c.asynchronous);
}

template <class V>
void visit(V& v, ResilienceConfig& c) {
  v(operation_key({.key = "restarts",
                   .doc = "Times the launcher starts a job again from its newest whole checkpoint after ranks have died or hung.",
                   .min = 0}),
    c.restarts);
  v(operation_key(
        {.key = "hang_seconds", .doc = "A rank that does nothing for this long, and for five median steps, counts as hung.", .min = 1, .max = 86400}),
    c.hang_seconds);
  v(operation_key({.key = "replica_check_every",
                   .doc = "Steps between comparisons of what several ranks hold alike, made before each save too; 0 = off.",
                   .min = 0}),
    c.replica_check_every);
}

template <class V>
void visit(V& v, KernelsConfig& c) {
  v(operation_key({.key = "attention",
                   .doc = "Attention on the GPU.",
                   .choices = {"auto", "builtin"},
                   .auto_rule = "builtin",
                   .note = "this version has no cuDNN attention"}),
    c.attention);
  v(operation_key({.key = "cpu_isa",
                   .doc = "Instructions of the kernels on CPUs; two of them may round differently.",
                   .choices = {"auto", "portable", "avx2", "avx512", "avx512_bf16", "amx"},
                   .auto_rule = "the best that the CPU of every rank has"}),
    c.cpu_isa);
  v(operation_key({.key = "tf32", .doc = "fp32 products on the GPU with 10 bits of mantissa."}), c.tf32);
  v(operation_key({.key = "cuda_graph", .doc = "On the GPU, launch a step as one captured graph from the third step on."}), c.cuda_graph);
}

template <class V>
void visit(V& v, PlanConfig& c) {
  v(operation_key({.key = "cluster",
                   .doc = "A cluster file, as `trireme bench machine` writes one: what the forecast of `train` reckons with; none: built-in "
                          "figures."}),
    c.cluster);
  v(operation_key(
        {.key = "must_fit", .doc = "Refuse to start ranks that by forecast need more memory than their machine has; false: start them, and see."}),
    c.must_fit);
}

template <class V>
void visit(V& v, Config& c) {
  v.section("run", "The run: its name, place, seed and device.", c.run);
  v.section("model", "The model.", c.model);
  v.section("parallel", "The layout: world = tensor x pipeline x data.", c.parallel);
  v.section("training", "What one step is, and how many there are.", c.training);
  v.section("data", "Token files.", c.data);
  v.section("checkpoint", "Saved states of the run.", c.checkpoint);
  v.section("resilience", "What happens when ranks die, hang or disagree.", c.resilience);
  v.section("kernels", "Which kernels compute.", c.kernels);
  v.section("plan", "What is forecast before the first step.", c.plan);
}

}  // namespace trireme
