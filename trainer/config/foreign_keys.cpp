#include "trainer/config/foreign_keys.h"

#include <algorithm>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/config/fields.h"

namespace trireme {
namespace {

constexpr const char* kHf = "Hugging Face";
constexpr const char* kMegatron = "Megatron-LM";
constexpr const char* kTitan = "torchtitan";
constexpr const char* kAxolotl = "axolotl";
constexpr const char* kLit = "LitGPT";
constexpr const char* kNano = "nanoGPT";
constexpr const char* kDeepSpeed = "DeepSpeed";
constexpr const char* kHfAxolotl = "Hugging Face and axolotl";
constexpr const char* kHfMegatron = "Hugging Face and Megatron-LM";
constexpr const char* kNanoLit = "nanoGPT and LitGPT";
constexpr const char* kCommon = "other programs";

constexpr const char* kAccumulation = "the number of micro-batches follows: global_batch_size / (micro_batch_size x data ranks)";
constexpr const char* kFullSharding = "3 shards parameters, gradients and optimizer state, as FSDP does";
constexpr const char* kLayoutOnly = "the ranks follow from parallel.tensor x pipeline x data; --hosts FILE names the hosts";

// Sources: config.json and TrainingArguments of transformers 4.46, megatron/training/arguments.py and its configuration classes, torchtitan/config and the
// TOML files of its earlier versions, the schemas of axolotl, litgpt/args.py and config.py, train.py and model.py of nanoGPT, and the JSON of DeepSpeed.
constexpr ForeignName kForeignNames[] = {
    // Shape of a model.
    {"num_hidden_layers", kHf, "model.layers", ""},
    {"num_layers", kMegatron, "model.layers", ""},
    {"n_layer", kNanoLit, "model.layers", ""},
    {"n_layers", kTitan, "model.layers", ""},
    {"n_embd", kNanoLit, "model.hidden_size", ""},
    {"dim", kTitan, "model.hidden_size", ""},
    {"d_model", kCommon, "model.hidden_size", ""},
    {"n_head", kNanoLit, "model.heads", ""},
    {"n_heads", kTitan, "model.heads", ""},
    {"num_heads", kCommon, "model.heads", ""},
    {"num_attention_heads", kHfMegatron, "model.heads", ""},
    {"num_key_value_heads", kHf, "model.kv_heads", ""},
    {"n_kv_heads", kTitan, "model.kv_heads", ""},
    {"num_query_groups", kMegatron, "model.kv_heads", ""},
    {"group_query_attention", kMegatron, "model.kv_heads", "fewer key and value heads than heads"},
    {"n_query_groups", kLit, "model.kv_heads", ""},
    {"head_dim", kHf, "model.head_size", ""},
    {"kv_channels", kMegatron, "model.head_size", ""},
    {"intermediate_size", "Hugging Face and LitGPT", "model.ffn_size", ""},
    {"ffn_hidden_size", kMegatron, "model.ffn_size", ""},
    {"n_inner", kHf, "model.ffn_size", ""},
    {"hidden_dim", kTitan, "model.ffn_size", ""},
    {"padded_vocab_size", kLit, "model.vocab_size", ""},
    {"make_vocab_size_divisible_by", kMegatron, "model.vocab_size", "no padding is needed for tensor ranks"},
    {"max_position_embeddings", kHfMegatron, "model.max_positions", ""},
    {"n_positions", kHf, "model.max_positions", ""},
    {"tie_word_embeddings", kHf, "model.tied_embeddings", ""},
    {"untie_embeddings_and_output_weights", kMegatron, "model.tied_embeddings", "false"},
    {"hidden_dropout", kMegatron, "model.dropout", "one probability for the embedding and both residual branches"},
    {"attention_dropout", kHfMegatron, "", "attention weights are not dropped; model.dropout is that of embedding and residual branches"},
    {"resid_pdrop", kHf, "model.dropout", ""},
    {"embd_pdrop", kHf, "model.dropout", ""},
    {"attention_bias", kHf, "model.qkv_bias", ""},
    {"add_qkv_bias", kMegatron, "model.qkv_bias", ""},
    {"qk_layernorm", kMegatron, "model.qk_norm", ""},
    {"sliding_window", kHf, "model.window", ""},
    {"window_size", kMegatron, "model.window", ""},
    {"sliding_window_size", kLit, "model.window", ""},
    {"rotary_base", kMegatron, "model.rope_theta", ""},
    {"rotary_emb_base", kHf, "model.rope_theta", ""},
    {"rope_local_base_freq", kHf, "model.window_rope_theta", ""},
    {"query_pre_attn_scalar", kHf, "model.attention_scale", "one over the root of it"},
    {"rotary_pct", kHf, "model.rope_share", ""},
    {"partial_rotary_factor", kHf, "model.rope_share", ""},
    {"rotary_percent", kMegatron, "model.rope_share", ""},
    {"rotary_percentage", kNanoLit, "model.rope_share", ""},
    {"use_parallel_residual", kHf, "model.residual", "parallel for true, sequential for false"},
    {"parallel_residual", kNanoLit, "model.residual", "parallel for true, sequential for false"},
    {"rope_base", kLit, "model.rope_theta", ""},
    {"rope_type", kHf, "model.rope_scaling.type", ""},
    {"original_max_position_embeddings", kHf, "model.rope_scaling.original_max_positions", ""},
    {"low_freq_factor", kHf, "model.rope_scaling.low_frequency_factor", ""},
    {"high_freq_factor", kHf, "model.rope_scaling.high_frequency_factor", ""},
    {"rms_norm_eps", kHf, "model.norm_epsilon", ""},
    {"layer_norm_epsilon", kHf, "model.norm_epsilon", ""},
    {"norm_epsilon", kMegatron, "model.norm_epsilon", ""},
    {"norm_eps", kTitan, "model.norm_epsilon", ""},
    {"initializer_range", kHf, "model.init_std", ""},
    {"init_method_std", kMegatron, "model.init_std", ""},
    {"model_type", kHf, "model.architecture", "llama, gpt2, gpt_neox or gemma3; `trireme checkpoint import` reads a Hugging Face folder"},
    {"model.type", kCommon, "model.architecture", "llama, gpt2, gpt_neox or gemma3"},
    {"architectures", kHf, "model.architecture", "llama, gpt2, gpt_neox or gemma3"},
    {"flavor", kTitan, "", "the keys of model give the sizes"},
    {"hidden_activation", kHf, "model.activation", "silu, gelu or gelu_tanh"},
    {"hidden_act", kHf, "model.activation", "silu, gelu or gelu_tanh"},
    {"swiglu", kMegatron, "model.architecture", "llama has SwiGLU"},
    {"torch_dtype", kHf, "training.precision", "bf16, fp16, fp32 or fp64"},
    // Layout.
    {"tp", kCommon, "parallel.tensor", ""},
    {"tensor_parallel_size", kAxolotl, "parallel.tensor", ""},
    {"tensor_model_parallel_size", kMegatron, "parallel.tensor", ""},
    {"tensor_parallel_degree", kTitan, "parallel.tensor", ""},
    {"pp", kCommon, "parallel.pipeline", ""},
    {"pipeline_model_parallel_size", kMegatron, "parallel.pipeline", ""},
    {"pipeline_parallel_degree", kTitan, "parallel.pipeline", ""},
    {"pipeline_parallel_schedule", kTitan, "parallel.schedule", ""},
    {"num_layers_per_virtual_pipeline_stage", kMegatron, "parallel.virtual_stages", "the number of stages of a pipeline rank"},
    {"dp", kCommon, "parallel.data", ""},
    {"dp_shard_size", kAxolotl, "parallel.data", "with parallel.zero_stage"},
    {"dp_replicate_size", kAxolotl, "parallel.replicate", ""},
    {"data_parallel_shard_degree", kTitan, "parallel.data", "with parallel.zero_stage 3; it is shards x replicas"},
    {"data_parallel_replicate_degree", kTitan, "parallel.replicate", ""},
    {"context_parallel_size", "axolotl and Megatron-LM", "",
     "sequences are not split over ranks for attention; parallel.sequence_parallel splits norms and residuals"},
    {"context_parallel_degree", kTitan, "",
     "sequences are not split over ranks for attention; parallel.sequence_parallel splits norms and residuals"},
    {"expert_model_parallel_size", kMegatron, "", "there are no experts"},
    {"fsdp", kHfAxolotl, "parallel.zero_stage", kFullSharding},
    {"fsdp_config", kHfAxolotl, "parallel.zero_stage", kFullSharding},
    {"zero", kCommon, "parallel.zero_stage", ""},
    {"zero_optimization", kDeepSpeed, "parallel.zero_stage", "the number of its stage"},
    {"stage", kDeepSpeed, "parallel.zero_stage", ""},
    {"deepspeed", kHfAxolotl, "parallel.zero_stage", "the number of its stage"},
    {"use_distributed_optimizer", kMegatron, "parallel.zero_stage", "1"},
    {"reshard_after_forward", kAxolotl, "parallel.reshard", "after_use or after_step"},
    {"reduce_bucket_size", kDeepSpeed, "parallel.bucket_size", "in bytes"},
    {"allgather_bucket_size", kDeepSpeed, "parallel.bucket_size", "in bytes"},
    {"overlap_comm", kDeepSpeed, "parallel.overlap", ""},
    {"overlap_grad_reduce", kMegatron, "parallel.overlap", ""},
    {"offload_optimizer", kDeepSpeed, "", "states stay in the memory of the device; a larger parallel.zero_stage divides them"},
    {"enable_sequence_parallel", kTitan, "parallel.sequence_parallel", ""},
    {"world_size", kHfMegatron, "", kLayoutOnly},
    {"nproc_per_node", kCommon, "", kLayoutOnly},
    {"num_nodes", "LitGPT and DeepSpeed", "", kLayoutOnly},
    {"devices", kLit, "", kLayoutOnly},
    {"num_gpus", kDeepSpeed, "", kLayoutOnly},
    {"hostfile", kDeepSpeed, "", "--hosts FILE"},
    // Steps, batches, precision.
    {"max_steps", "Hugging Face, LitGPT and axolotl", "training.steps", ""},
    {"max_iters", kNano, "training.steps", ""},
    {"train_iters", kMegatron, "training.steps", ""},
    {"train_steps", kCommon, "training.steps", ""},
    {"num_epochs", kAxolotl, "training.epochs", ""},
    {"num_train_epochs", kHf, "training.epochs", ""},
    {"max_tokens", kLit, "training.steps", "tokens / (global_batch_size x sequence_length)"},
    {"seq_len", kTitan, "training.sequence_length", ""},
    {"sequence_len", kAxolotl, "training.sequence_length", ""},
    {"seq_length", kMegatron, "training.sequence_length", ""},
    {"max_seq_length", kLit, "training.sequence_length", ""},
    {"block_size", kNanoLit, "training.sequence_length", ""},
    {"batch_size", kNano, "training.micro_batch_size", "of one rank; training.global_batch_size is that of a step"},
    {"per_device_train_batch_size", kHf, "training.micro_batch_size", "training.global_batch_size is that of a step"},
    {"local_batch_size", kTitan, "training.micro_batch_size", "training.global_batch_size is that of a step"},
    {"train_micro_batch_size_per_gpu", kDeepSpeed, "training.micro_batch_size", ""},
    {"train_batch_size", kDeepSpeed, "training.global_batch_size", "in sequences"},
    {"gradient_accumulation_steps", "nanoGPT, Hugging Face, axolotl and DeepSpeed", "training.global_batch_size", kAccumulation},
    {"dtype", "nanoGPT and torchtitan", "training.precision", "fp64, fp32, bf16 or fp16"},
    {"bf16", "Hugging Face, axolotl, Megatron-LM and DeepSpeed", "training.precision", "bf16"},
    {"fp16", "Hugging Face, axolotl, Megatron-LM and DeepSpeed", "training.precision", "fp16"},
    {"tf32", kHfAxolotl, "kernels.tf32", ""},
    {"mixed_precision_param", kTitan, "training.precision", "bf16"},
    {"mixed_precision_reduce", kTitan, "training.reduce_dtype", ""},
    {"accumulate_allreduce_grads_in_fp32", kMegatron, "training.reduce_dtype", "fp32"},
    {"fp8", kMegatron, "", "there is no fp8; training.precision is fp64, fp32, bf16 or fp16"},
    {"initial_scale_power", kDeepSpeed, "training.loss_scale.initial", "2 to that power"},
    {"loss_scale_window", "Megatron-LM and DeepSpeed", "training.loss_scale.growth_interval", ""},
    {"max_grad_norm", kHfAxolotl, "training.gradient_clip", ""},
    {"max_norm", "torchtitan and LitGPT", "training.gradient_clip", ""},
    {"grad_clip", kNano, "training.gradient_clip", ""},
    {"clip_grad", kMegatron, "training.gradient_clip", ""},
    {"gradient_clipping", kDeepSpeed, "training.gradient_clip", ""},
    {"gradient_checkpointing", kHfAxolotl, "training.recompute", "selective or full"},
    {"activation_checkpoint", kTitan, "training.recompute", "selective or full"},
    {"activation_checkpointing", kDeepSpeed, "training.recompute", "selective or full"},
    {"recompute_activations", kMegatron, "training.recompute", "selective"},
    {"recompute_granularity", kMegatron, "training.recompute", "selective or full"},
    {"recompute_num_layers", kMegatron, "training.recompute_every", ""},
    {"compile", "nanoGPT and torchtitan", "", "kernels are fused already; there is nothing to compile"},
    {"torch_compile", kHfAxolotl, "", "kernels are fused already; there is nothing to compile"},
    {"flash_attention", kAxolotl, "kernels.attention", "flash attention is the default"},
    {"use_flash_attn", kMegatron, "kernels.attention", "flash attention is the default"},
    // Optimizer and schedule.
    {"lr", "torchtitan and Megatron-LM", "training.optimizer.learning_rate", ""},
    {"adam_beta1", kHfMegatron, "training.optimizer.beta1", ""},
    {"adam_beta2", kHfMegatron, "training.optimizer.beta2", ""},
    {"betas", kDeepSpeed, "training.optimizer.beta1", "and training.optimizer.beta2"},
    {"adam_epsilon", kHfAxolotl, "training.optimizer.epsilon", ""},
    {"adam_eps", kMegatron, "training.optimizer.epsilon", ""},
    {"eps", kTitan, "training.optimizer.epsilon", ""},
    {"optimizer.type", kDeepSpeed, "training.optimizer.name", ""},
    {"scheduler.type", kDeepSpeed, "training.schedule.name", ""},
    {"optim", kHf, "training.optimizer.name", ""},
    {"lr_scheduler", "axolotl and torchtitan", "training.schedule.name", ""},
    {"lr_scheduler_type", kHf, "training.schedule.name", ""},
    {"lr_decay_style", kMegatron, "training.schedule.name", ""},
    {"decay_type", kTitan, "training.schedule.name", ""},
    {"decay_lr", kNano, "training.schedule.name", "constant or cosine"},
    {"min_lr", "nanoGPT, LitGPT and Megatron-LM", "training.schedule.final_learning_rate", ""},
    {"min_lr_factor", kTitan, "training.schedule.final_learning_rate", "a rate, not a factor"},
    {"warmup_iters", kNano, "training.schedule.warmup_steps", ""},
    {"lr_warmup_steps", kLit, "training.schedule.warmup_steps", ""},
    {"lr_warmup_iters", kMegatron, "training.schedule.warmup_steps", ""},
    {"warmup_num_steps", kDeepSpeed, "training.schedule.warmup_steps", ""},
    {"warmup_ratio", kHfAxolotl, "training.schedule.warmup_steps", "a number of steps, not a share"},
    {"lr_decay_iters", "nanoGPT and Megatron-LM", "training.steps", "the decay ends with the run"},
    {"lr_wsd_decay_iters", kMegatron, "training.schedule.decay_steps", ""},
    {"decay_ratio", kTitan, "training.schedule.decay_steps", "a number of steps, not a share"},
    {"early_stopping_patience", kAxolotl, "training.stop.patience", ""},
    {"ema_decay", kCommon, "training.ema.decay", ""},
    {"lora_r", kAxolotl, "adapter.rank", ""},
    {"lora_alpha", kAxolotl, "adapter.alpha", ""},
    {"lora_target_modules", kAxolotl, "adapter.targets", "query, key, value, output, gate, up, down"},
    {"lora_target_linear", kAxolotl, "adapter.targets", "every linear layer of the blocks is the default"},
    {"lora_model_dir", kAxolotl, "training.initial_weights", "a folder of PEFT, which names its base model"},
    {"lora_dropout", kAxolotl, "", "adapters have no dropout"},
    {"load_in_4bit", kAxolotl, "", "there is no training of quantized weights"},
    {"load_in_8bit", kAxolotl, "", "there is no training of quantized weights"},
    // Data.
    {"dataset", "nanoGPT and torchtitan", "data.train", "token directories of `trireme data build`, or token files"},
    {"datasets", kAxolotl, "data.train", "token directories of `trireme data build`"},
    {"dataset_path", kTitan, "data.train", "token directories of `trireme data build`"},
    {"train_file", kCommon, "data.train", "token directories of `trireme data build`"},
    {"train_files", kCommon, "data.train", "token directories of `trireme data build`"},
    {"train_data_path", kMegatron, "data.train", "the prefixes of its datasets; data.weights has their weights"},
    {"data_path", kMegatron, "data.train", "the prefixes of its datasets; data.weights has their weights"},
    {"valid_data_path", kMegatron, "data.validation", ""},
    {"test_datasets", kAxolotl, "data.validation", ""},
    {"tokenizer_path", kTitan, "data.tokenizer", ""},
    {"tokenizer_model", kMegatron, "data.tokenizer", ""},
    {"tokenizer_config", kAxolotl, "data.tokenizer", ""},
    {"tokenizer_dir", kLit, "data.tokenizer", ""},
    {"sample_packing", kAxolotl, "data.packing", "best_fit, with data.document_mask"},
    {"reset_attention_mask", kMegatron, "data.document_mask", ""},
    {"reset_position_ids", kMegatron, "data.document_mask", ""},
    {"dataloader_num_workers", kHfAxolotl, "", "token files are read directly; there are no workers"},
    {"num_workers", kMegatron, "", "token files are read directly; there are no workers"},
    // Evaluation, checkpoints, logs.
    {"eval_interval", "nanoGPT and Megatron-LM", "training.evaluate.every", ""},
    {"eval_steps", kHfAxolotl, "training.evaluate.every", ""},
    {"eval_iters", "nanoGPT and Megatron-LM", "training.evaluate.batches", ""},
    {"save_steps", kHfAxolotl, "checkpoint.every", ""},
    {"save_interval", "LitGPT and Megatron-LM", "checkpoint.every", ""},
    {"save_total_limit", kHfAxolotl, "checkpoint.keep", ""},
    {"keep_latest_k", kTitan, "checkpoint.keep", ""},
    {"async_save", kMegatron, "checkpoint.asynchronous", ""},
    {"async_mode", kTitan, "checkpoint.asynchronous", ""},
    {"load_best_model_at_end", kHfAxolotl, "checkpoint.keep_best", ""},
    {"out_dir", kNanoLit, "run.directory", ""},
    {"output_dir", kHfAxolotl, "run.directory", ""},
    {"dump_folder", kTitan, "run.directory", ""},
    {"save", kMegatron, "run.directory", "checkpoints are in its folder checkpoints"},
    {"load", kMegatron, "training.initial_weights", "a run continues from its own directory by itself"},
    {"resume_from_checkpoint", kHfAxolotl, "", "a run continues from its newest checkpoint by itself; --resume DIR names another one"},
    {"init_from", kNano, "training.initial_weights", "none, a checkpoint or a Hugging Face folder"},
    {"base_model", kAxolotl, "training.initial_weights", "a Hugging Face folder on this machine"},
    {"model_name_or_path", kCommon, "training.initial_weights", "a Hugging Face folder on this machine"},
    {"initial_checkpoint_dir", kLit, "training.initial_weights", ""},
    {"log_interval", kNano, "observe.print_every", "metrics.jsonl has every step"},
    {"logging_steps", kHfAxolotl, "observe.print_every", "metrics.jsonl has every step"},
    {"log_freq", kTitan, "observe.print_every", "metrics.jsonl has every step"},
    {"steps_per_print", kDeepSpeed, "observe.print_every", "metrics.jsonl has every step"},
    {"enable_tensorboard", kTitan, "observe.tensorboard", ""},
    {"tensorboard_dir", kMegatron, "observe.tensorboard", "true, or a path"},
    {"wandb_project", kAxolotl, "", "there is no Weights & Biases; observe.tensorboard and observe.prometheus show a run"},
    {"wandb_log", kNano, "", "there is no Weights & Biases; observe.tensorboard and observe.prometheus show a run"},
    {"report_to", kHf, "observe.tensorboard", "true, or a path"},
    {"run_name", kHf, "run.name", ""},
    {"distributed_timeout_minutes", kMegatron, "resilience.hang_seconds", "in seconds"},
};

struct ForeignCommand {
  const char* name;
  const char* here;  ///< command, or what to type
};
constexpr ForeignCommand kForeignCommands[] = {
    {"pretrain", "train"},
    {"finetune", "train, with training.initial_weights"},
    {"fine_tune", "train, with training.initial_weights"},
    {"finetune_full", "train, with training.initial_weights"},
    {"fit", "train"},
    {"run", "train"},
    {"launch", "train"},
    {"resume", "train, which continues a run"},
    {"evaluate", "eval"},
    {"validate", "eval"},
    {"test", "eval"},
    {"chat", "generate"},
    {"sample", "generate"},
    {"inference", "generate"},
    {"infer", "generate"},
    {"predict", "generate"},
    {"serve", "generate"},
    {"preprocess", "data build"},
    {"prepare", "data build"},
    {"tokenize", "data build"},
    {"build", "data build"},
    {"download", "checkpoint import, of a folder on this machine"},
    {"convert", "checkpoint import or checkpoint export"},
    {"import", "checkpoint import"},
    {"export", "checkpoint export"},
    {"encode", "tokenizer encode"},
    {"decode", "tokenizer decode"},
    {"estimate_memory", "plan"},
    {"benchmark", "bench"},
    {"help", "--help, or manual"},
    {"version", "--version"},
    {"init", "config show"},
    {"check", "config show, or doctor"},
    {"diff", "compare"},
    {"slurm", "submit"},
};

std::string plain_name(std::string_view name) {
  std::string text;
  for (const char c : name) text += c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  text.erase(0, text.find_first_not_of('_'));
  text.resize(std::min(text.find('='), text.size()));
  return text;
}

}  // namespace

std::span<const ForeignName> foreign_names() { return kForeignNames; }

const ForeignName* foreign_name(std::string_view name) {
  const std::string wanted = plain_name(name);
  // The most of the path that a row has: type means one thing in model and another in optimizer.
  for (size_t begin = 0;; ++begin) {
    const std::string_view part = std::string_view(wanted).substr(begin);
    const auto row = std::find_if(std::begin(kForeignNames), std::end(kForeignNames), [&](const ForeignName& one) { return part == one.name; });
    if (row != std::end(kForeignNames)) return row;
    begin = wanted.find('.', begin);
    if (begin == wanted.npos) return nullptr;
  }
}

std::string foreign_suggestion(std::string_view name) {
  const ForeignName* const row = foreign_name(name);
  if (row == nullptr) return "";
  const std::string_view key = row->key, note = row->note;
  if (key.empty()) return concat("; as for ", row->name, " of ", row->programs, ": ", note);
  return concat("; ", row->name, " of ", row->programs, " is ", key, " here", note.empty() ? "" : ": ", note);
}

std::string command_suggestion(std::string_view name, std::span<const std::string> commands) {
  const std::string wanted = plain_name(name);
  const auto row =
      std::find_if(std::begin(kForeignCommands), std::end(kForeignCommands), [&](const ForeignCommand& one) { return wanted == one.name; });
  if (row != std::end(kForeignCommands)) return concat("; here it is trireme ", row->here);
  const std::string nearest = nearest_word(wanted, {commands.begin(), commands.end()}, std::max<size_t>(2, wanted.size() / 3));
  return nearest.empty() || wanted.empty() ? "" : concat("; did you mean ", nearest, "?");
}

}  // namespace trireme
