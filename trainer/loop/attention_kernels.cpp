#include "trainer/loop/attention_kernels.h"

#include <algorithm>

#include "kernels/core/counted.h"
#include "kernels/cuda/cudnn_attention.h"
#include "trainer/files/strict_json.h"
#include "trainer/loop/trainer.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

ordered_json as_list(const AttentionKernels& kernels) {
  ordered_json list = ordered_json::array();
  for (const AttentionKernels::Shape& one : kernels.shapes)
    list.push_back({{"shape", one.shape}, {"reason", one.reason}, {"mismatch", one.mismatch}, {"difference", one.difference}});
  return list;
}

AttentionKernels::Shape shape_of(const ordered_json& one) {
  return {.shape = one["shape"], .reason = one["reason"], .ranks = 1, .mismatch = one["mismatch"], .difference = one["difference"]};
}

}  // namespace

AttentionKernels attention_kernels(cuda::Gpu& gpu) {
  AttentionKernels kernels;
  for (const cuda::AttentionChoice& choice : cuda::attention_choices(gpu)) {
    // JSON has no infinity, which is the difference of a result that is not finite where the other one is.
    const double difference = std::min(choice.difference, 1e9);
    kernels.shapes.push_back({.shape = choice.shape, .reason = choice.reason, .ranks = 1, .mismatch = choice.mismatch, .difference = difference});
  }
  return kernels;
}

AttentionKernels attention_kernels(Trainer& trainer, const Config& config) {
  AttentionKernels kernels;
  if (config.kernels.attention != AttentionEngine::kCudnn) return kernels;
  for (const std::string& text : all_gather_strings(trainer.mesh().world, as_list(attention_kernels(*trainer.context().gpu)).dump())) {
    for (const ordered_json& choice : parse_value<ordered_json>(text, "attention kernels of a rank")) {
      AttentionKernels::Shape next = shape_of(choice);
      const auto known = std::ranges::find_if(kernels.shapes, [&](const AttentionKernels::Shape& one) { return one.is_like(next); });
      if (known == kernels.shapes.end()) {
        kernels.shapes.push_back(std::move(next));
        continue;
      }
      ++known->ranks;
      if (next.difference > known->difference) {
        known->difference = next.difference;
        known->reason = next.reason;
      }
    }
  }
  return kernels;
}

ordered_json to_json(const AttentionKernels& kernels) {
  ordered_json json = {{"cudnn", ordered_json::array()}, {"builtin", ordered_json::array()}};
  for (const AttentionKernels::Shape& one : kernels.shapes) {
    if (one.reason.empty()) {
      json["cudnn"].push_back({{"shape", one.shape}, {"ranks", one.ranks}, {"difference", one.difference}});
    } else {
      json["builtin"].push_back({{"shape", one.shape}, {"reason", one.reason}, {"ranks", one.ranks}, {"mismatch", one.mismatch}});
    }
  }
  return json;
}

std::string attention_warning(const ordered_json& kernels) {
  std::string text;
  for (const ordered_json& one : kernels["builtin"])
    text += concat("\n  ", one["shape"].get<std::string>(), ", on ", counted(one["ranks"].get<int64_t>(), "rank"), ": ",
                   one["reason"].get<std::string>());
  return text.empty() ? "" : "warning: kernels.attention=cudnn: the built-in kernels compute attention of" + text;
}

std::string attention_text(const ordered_json& kernels) {
  const std::string warning = attention_warning(kernels);
  return concat("cuDNN computes ", counted(kernels["cudnn"].size(), "shape"), " of attention, the built-in kernels ", kernels["builtin"].size(), "\n",
                warning, warning.empty() ? "" : "\n");
}

}  // namespace trireme
