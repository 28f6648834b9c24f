#include "trainer/run/kernel_notes.h"

#include <algorithm>
#include <utility>

#include "trainer/loop/plain_products.h"

namespace trireme {

void KernelNotes::after_step(int64_t step) {
  if (!std::exchange(first_step_reported_, true)) report(step);
}

void KernelNotes::after_evaluation(int64_t step) {
  if (first_step_reported_) report(step);
}

void KernelNotes::report(int64_t step) {
  warn_of_plain_products(step);
  report_attention(step);
}

/// Shapes that cuBLASLt refuses.
void KernelNotes::warn_of_plain_products(int64_t step) {
  const PlainProducts products = plain_products(*run_.trainer);
  std::vector<std::string> fresh;
  for (const std::string& shape : products.shapes)
    if (plain_shapes_.insert(shape).second) fresh.push_back(shape);
  if (fresh.empty()) return;
  run_.reporter.event("plain_products", step, {{"per_step", products.per_step}, {"shapes", fresh}}, plain_products_warning(products.per_step, fresh));
}

/// Shapes of attention, with kernels.attention: cudnn.
void KernelNotes::report_attention(int64_t step) {
  AttentionKernels fresh;
  for (const AttentionKernels::Shape& shape : attention_kernels(*run_.trainer, run_.config).shapes)
    if (std::ranges::none_of(attention_, [&](const AttentionKernels::Shape& known) { return known.is_like(shape); })) fresh.shapes.push_back(shape);
  if (fresh.shapes.empty()) return;
  attention_.insert(attention_.end(), fresh.shapes.begin(), fresh.shapes.end());
  const nlohmann::ordered_json fields = to_json(fresh);
  run_.reporter.event("cudnn_attention", step, fields, attention_warning(fields));
}

}  // namespace trireme
