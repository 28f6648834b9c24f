#include "trainer/config/check_privacy.h"

#include "kernels/core/check.h"

namespace trireme {

void check_privacy(Rules& rules, const Config& c) {
  if (!adds_noise_on_each_rank(c) || !rules.apply({"security.privacy.clip"})) return;
  const bool compressed = c.training.compression.method != CompressionMethod::kNone;
  const char* const key = compressed ? "training.compression.method" : "security.aggregation.rule";
  const char* const off = compressed ? "none" : "mean";
  if (rules.apply({"parallel.gradient_accumulation"}) && c.parallel.gradient_accumulation == GradientAccumulation::kSharded)
    rules.broken("parallel.gradient_accumulation",
                 concat("with security.privacy and ", key, " each data rank adds its noise once a step, to its whole gradient"),
                 concat("auto | full, or ", key, " ", off, ", or security.privacy.clip null"), "full");
  if (compressed && rules.apply({"model.tied_embeddings", "parallel.pipeline", "parallel.schedule", key}) && c.model.tied_embeddings &&
      c.parallel.pipeline > 1 && c.parallel.schedule != "zb_v")  // with which first and last stage are on one rank
    rules.broken("model.tied_embeddings",
                 "the first and the last pipeline rank would each compress a part of the embedding's gradient, and only the sum of both is clipped",
                 "false, or parallel.pipeline 1, or parallel.schedule zb_v, or training.compression.method none, or security.privacy.clip null",
                 "false");
}

}  // namespace trireme
