#include "tests/trace/operations.h"

#include "kernels/cuda/matmul_plain.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/columns.h"
#include "kernels/ops/compress.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/low_rank.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/outer_step.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/update.h"
#include "tests/kernels/documents.h"

namespace cuda_trace {
namespace {

using namespace trireme;
using namespace trireme::testing;
using Tensors = std::vector<Tensor>;

constexpr int64_t kRows = 64, kColumns = 512;
constexpr int64_t kVocabulary = 128;
const std::vector<DType> kBoth = {DType::kBF16, DType::kF32};
constexpr double kEpsilon = 1e-5;

Operand in(const char* name, int64_t rows, int64_t columns) { return input(name, {rows, columns}); }
Operand out(const char* name, int64_t rows, int64_t columns) { return assigned(name, {rows, columns}); }
Operand rows_of(const char* name) { return wide(input(name, {kRows}, std::vector<double>(kRows, 0.5))); }
Operand statistics(const char* name) { return wide(assigned(name, {kRows})); }
Operand each(const char* name) { return input(name, {kColumns}); }

/// Every token of the vocabulary, so that the tables are read and written completely.
Operand tokens() {
  std::vector<double> values;
  for (int64_t m = 0; m < kVocabulary; ++m) values.push_back(static_cast<double>(m * 37 % kVocabulary));
  return integers("tokens", {kVocabulary}, values);
}

void add_norms(std::vector<Case>& cases) {
  const Operand x = in("x", kRows, kColumns), dy = in("dy", kRows, kColumns), y = out("y", kRows, kColumns), dx = out("dx", kRows, kColumns);
  const Operand a = in("a", kRows, kColumns), b = in("b", kRows, kColumns), sum = out("sum", kRows, kColumns), w = each("w"), bias = each("bias");
  const Operand residual = in("residual", kRows, kColumns), dw = wide(added_to("dw", {kColumns})), db = wide(added_to("db", {kColumns}));
  const auto add = [&](const Operation& operation) { cases.push_back({operation, kBoth}); };
  add({"rmsnorm_forward", {x, w, y, statistics("rstd")}, [](Context& c, const Tensors& t) { rmsnorm_forward(c, t[0], t[1], kEpsilon, t[2], t[3]); }});
  add({"add_rmsnorm_forward", {a, b, w, sum, y, statistics("rstd")}, [](Context& c, const Tensors& t) {
         add_rmsnorm_forward(c, t[0], t[1], t[2], kEpsilon, t[3], t[4], t[5]);
       }});
  add({"rmsnorm_backward_input", {dy, x, w, rows_of("rstd"), residual, dx}, [](Context& c, const Tensors& t) {
         rmsnorm_backward_input(c, t[0], t[1], t[2], t[3], t[4], t[5]);
       }});
  add({"rmsnorm_backward_weight", {dy, x, rows_of("rstd"), dw}, [](Context& c, const Tensors& t) {
         rmsnorm_backward_weight(c, t[0], t[1], t[2], t[3]);
       }});
  add({"rmsnorm_backward", {dy, x, w, rows_of("rstd"), residual, dx, dw}, [](Context& c, const Tensors& t) {
         rmsnorm_backward(c, t[0], t[1], t[2], t[3], t[4], t[5], t[6]);
       }});
  add({"layernorm_forward", {x, w, bias, y, statistics("mean"), statistics("rstd")}, [](Context& c, const Tensors& t) {
         layernorm_forward(c, t[0], t[1], t[2], kEpsilon, t[3], t[4], t[5]);
       }});
  add({"add_layernorm_forward", {a, b, w, bias, sum, y, statistics("mean"), statistics("rstd")}, [](Context& c, const Tensors& t) {
         add_layernorm_forward(c, t[0], t[1], t[2], t[3], kEpsilon, t[4], t[5], t[6], t[7]);
       }});
  add({"layernorm_backward_input", {dy, x, w, rows_of("mean"), rows_of("rstd"), residual, dx}, [](Context& c, const Tensors& t) {
         layernorm_backward_input(c, t[0], t[1], t[2], t[3], t[4], t[5], t[6]);
       }});
  add({"layernorm_backward_weight", {dy, x, rows_of("mean"), rows_of("rstd"), dw, db}, [](Context& c, const Tensors& t) {
         layernorm_backward_weight(c, t[0], t[1], t[2], t[3], t[4], t[5]);
       }});
  add({"layernorm_backward", {dy, x, w, rows_of("mean"), rows_of("rstd"), residual, dx, dw, db}, [](Context& c, const Tensors& t) {
         layernorm_backward(c, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]);
       }});
}

void add_activations(std::vector<Case>& cases) {
  const Operand x = in("x", kRows, kColumns), dy = in("dy", kRows, kColumns), y = out("y", kRows, kColumns), dx = out("dx", kRows, kColumns);
  const Operand pair = in("gate_up", kRows, 2 * kColumns), dpair = out("dgate_up", kRows, 2 * kColumns);
  const auto add = [&](const Operation& operation) { cases.push_back({operation, kBoth}); };
  add({"swiglu_forward", {pair, y}, [](Context& c, const Tensors& t) { swiglu_forward(c, t[0], t[1]); }});
  add({"swiglu_backward", {dy, pair, dpair}, [](Context& c, const Tensors& t) { swiglu_backward(c, t[0], t[1], t[2]); }});
  for (const Gelu form : {Gelu::kTanh, Gelu::kErf}) {
    const char* const forward = form == Gelu::kErf ? "geglu_erf_forward" : "geglu_forward";
    const char* const backward = form == Gelu::kErf ? "geglu_erf_backward" : "geglu_backward";
    add({forward, {pair, y}, [=](Context& c, const Tensors& t) { geglu_forward(c, t[0], t[1], form); }});
    add({backward, {dy, pair, dpair}, [=](Context& c, const Tensors& t) { geglu_backward(c, t[0], t[1], t[2], form); }});
  }
  add({"gelu_forward", {x, y}, [](Context& c, const Tensors& t) { gelu_forward(c, t[0], t[1], Gelu::kTanh); }});
  add({"gelu_erf_forward", {x, y}, [](Context& c, const Tensors& t) { gelu_forward(c, t[0], t[1], Gelu::kErf); }});
  add({"gelu_backward", {dy, x, dx}, [](Context& c, const Tensors& t) { gelu_backward(c, t[0], t[1], t[2], Gelu::kTanh); }});
  add({"gelu_erf_backward", {dy, x, dx}, [](Context& c, const Tensors& t) { gelu_backward(c, t[0], t[1], t[2], Gelu::kErf); }});
  add({"add", {x, dy, y}, [](Context& c, const Tensors& t) { trireme::add(c, t[0], t[1], t[2]); }});
  add({"scale", {x, y}, [](Context& c, const Tensors& t) { trireme::scale(c, t[0], 8.25, t[1]); }});
  add({"accumulate", {x, wide(added_to("sum", {kRows, kColumns}))}, [](Context& c, const Tensors& t) { accumulate(c, t[0], t[1]); }});
  add({"max_absolute", {x, always_f64(in_place("largest", {1}, {0}))}, [](Context& c, const Tensors& t) { max_absolute(c, t[0], t[1]); }});
  add({"fill", {y}, [](Context& c, const Tensors& t) { fill(c, 1.5, t[0]); }});
  add({"fill_normal", {y}, [](Context& c, const Tensors& t) { fill_normal(c, 7, 0.02, kColumns, 0, 0, t[0]); }});
  add({"dropout", {x, y}, [](Context& c, const Tensors& t) { dropout(c, t[0], {1, 2, 4, 0.1}, t[1]); }});
  cases.push_back({{"copy", {x, wide(y)}, [](Context& c, const Tensors& t) { copy(c, t[0], t[1]); }}, {DType::kBF16}});
  add({"bias_forward", {each("bias"), in_place("y", {kRows, kColumns})}, [](Context& c, const Tensors& t) { bias_forward(c, t[0], t[1]); }});
  add({"bias_backward", {dy, wide(added_to("dbias", {kColumns}))}, [](Context& c, const Tensors& t) { bias_backward(c, t[0], t[1]); }});
  add({"copy_columns", {pair, in_place("to", {kRows, kColumns})}, [](Context& c, const Tensors& t) { copy_columns(c, t[0], 64, t[1], 128, 256); }});
  add({"add_columns", {in("x", kRows, 256), added_to("to", {kRows, kColumns})}, [](Context& c, const Tensors& t) {
         add_columns(c, t[0], t[1], 128);
       }});
}

void add_embeddings(std::vector<Case>& cases) {
  const Operand w = in("w", kVocabulary, kColumns), rows = in("dy", kVocabulary, kColumns), y = out("y", kVocabulary, kColumns);
  const Operand dw = wide(added_to("dw", {kVocabulary, kColumns})), added = in_place("y", {kVocabulary, kColumns});
  const auto add = [&](const Operation& operation) { cases.push_back({operation, kBoth}); };
  add({"embedding_forward", {tokens(), w, y}, [](Context& c, const Tensors& t) { embedding_forward(c, t[0], t[1], 0, kVocabulary, t[2]); }});
  add({"embedding_backward", {tokens(), rows, dw}, [](Context& c, const Tensors& t) { embedding_backward(c, t[0], t[1], 0, kVocabulary, t[2]); }});
  add({"position_forward", {w, added}, [](Context& c, const Tensors& t) { position_forward(c, t[0], 0, kVocabulary, t[1]); }});
  add({"position_backward", {rows, dw}, [](Context& c, const Tensors& t) { position_backward(c, t[0], 0, kVocabulary, t[1]); }});
  const std::vector<int64_t> lengths = {64, 40, 24};  // in sequences of half the rows
  const auto of_documents = [&](Operation operation) {
    for (Operand& bound : bounds_of(lengths, kVocabulary / 2)) operation.operands.push_back(std::move(bound));
    add(operation);
  };
  of_documents({"position_forward", {w, added}, [](Context& c, const Tensors& t) {
                  position_forward(c, t[0], 0, kVocabulary / 2, t[1], documents_of(t, true));
                }});
  of_documents({"position_backward", {rows, dw}, [](Context& c, const Tensors& t) {
                  position_backward(c, t[0], 0, kVocabulary / 2, t[1], documents_of(t, true));
                }});
  constexpr int64_t kPositions = 32, kHeads = 8, kHeadSize = 64;
  const Operand table = wide(input("table", {kPositions, kHeadSize})), qkv = in_place("qkv", {kRows, kHeads * kHeadSize});
  add({"rope_forward", {table, qkv}, [](Context& c, const Tensors& t) { rope_forward(c, t[0], kHeads, kHeadSize, t[1]); }});
  add({"rope_backward", {table, qkv}, [](Context& c, const Tensors& t) { rope_backward(c, t[0], kHeads, kHeadSize, t[1]); }});
  std::vector<Operand> in_documents = {table, qkv};
  for (Operand& bound : bounds_of({32, 20, 12}, kPositions)) in_documents.push_back(std::move(bound));
  add({"rope_forward", in_documents, [](Context& c, const Tensors& t) { rope_forward(c, t[0], kHeads, kHeadSize, t[1], documents_of(t, true)); }});
}

void add_loss(std::vector<Case>& cases) {
  constexpr VocabRange kRange{0, kColumns};
  const Operand logits = in("logits", kRows, kColumns), sums = wide(input("sums", {2, kRows}, std::vector<double>(2 * kRows, 2.0)));
  std::vector<double> values;
  for (int64_t m = 0; m < kRows; ++m) values.push_back(static_cast<double>(m));
  const Operand targets = integers("targets", {kRows}, values);
  const auto add = [&](const Operation& operation) { cases.push_back({operation, kBoth}); };
  add({"cross_entropy_sums", {logits, statistics("row_max"), wide(assigned("sums", {2, kRows}))}, [kRange](Context& c, const Tensors& t) {
         cross_entropy_sums(c, t[0], kRange, t[1], t[2]);
       }});
  add({"cross_entropy_rescale", {logits, targets, rows_of("row_max"), wide(in_place("sums", {2, kRows}))}, [kRange](Context& c, const Tensors& t) {
         cross_entropy_rescale(c, t[0], t[1], kRange, t[2], t[3]);
       }});
  cases.push_back({{"cross_entropy_loss",
                    {targets, sums, always_f64(added_to("loss", {1}))},
                    [](Context& c, const Tensors& t) { cross_entropy_loss(c, t[0], t[1], t[2]); }},
                   {DType::kBF16}});
  add({"cross_entropy_backward",
       {targets, rows_of("row_max"), sums, always_f64(input("scale", {1})), in_place("logits", {kRows, kColumns})},
       [kRange](Context& c, const Tensors& t) { cross_entropy_backward(c, t[0], kRange, t[1], t[2], t[3], t[4]); }});
}

void add_optimizer(std::vector<Case>& cases) {
  constexpr int64_t kCount = 20000;  // more than two chunks
  const Operand scalars = always_f64(input("scalars", {kStepScalars}, {1, 1, 0.01, 0.5, 0.5, 3, 1, 1, 9, 9, 9, 9}));
  const Operand w = in_place("w", {kCount}), g = input("g", {kCount}), m = in_place("m", {kCount});
  const Operand v = in_place("v", {kCount}, std::vector<double>(kCount, 0.25));
  const auto add = [&](const Operation& operation) { cases.push_back({operation, {DType::kF32}}); };
  add({"adamw_step", {scalars, w, g, m, v}, [](Context& c, const Tensors& t) {
         const AdamWSlice slice{t[1], t[2], t[3], t[4], true};
         adamw_step(c, {}, t[0], {&slice, 1});
       }});
  add({"update_step", {scalars, w, g, m}, [](Context& c, const Tensors& t) {
         const UpdateSlice slice{t[1], t[2], {t[3]}, true};
         update_step(c, Optimizer::kLion, {}, t[0], {&slice, 1});
       }});
  add({"muon_momentum", {scalars, g, m, assigned("u", {kCount})}, [](Context& c, const Tensors& t) {
         muon_momentum(c, 0.95, t[0], t[1], t[2], t[3]);
       }});
  add({"divide_by_norm", {always_f64(input("squares", {1}, {4})), free_rows(w)}, [](Context& c, const Tensors& t) {
         divide_by_norm(c, t[0], t[1]);
       }});
  add({"weighted_sum", {g, m, assigned("out", {kCount})}, [](Context& c, const Tensors& t) { weighted_sum(c, 2, t[0], 3, t[1], t[2]); }});
  add({"average_step", {scalars, g, in_place("e", {kCount})}, [](Context& c, const Tensors& t) { average_step(c, 0.99, t[0], t[1], t[2]); }});
  add({"outer_step", {in_place("sum", {kCount}), w, in_place("theta", {kCount}), m, assigned("drift", {kCount})}, [](Context& c, const Tensors& t) {
         outer_step(c, {}, t[0], t[1], t[2], t[3], t[4]);
       }});
  add({"sum_of_squares", {always_f64(added_to("sum", {1})), g}, [](Context& c, const Tensors& t) { sum_of_squares(c, {&t[1], 1}, t[0]); }});
  add({"finalize_step_scalars",
       {always_f64(input("sums", {kStepSums}, {2, 2, 0})), always_f64(assigned("norm", {1})), always_f64(in_place("scalars", {kStepScalars}))},
       [](Context& c, const Tensors& t) { finalize_step_scalars(c, {}, {}, t[0], 1, t[1], t[2]); }});
  add({"mark_outlier", {scalars, always_f64(in_place("sums", {kStepSums}, {2, 2, 0}))}, [](Context& c, const Tensors& t) {
         mark_outlier(c, t[0], t[1]);
       }});
  add({"scale_loss", {scalars, always_f64(in_place("factor", {1}))}, [](Context& c, const Tensors& t) { scale_loss(c, t[0], t[1]); }});
  const Operand rejected = always_f64(input("scalars", {kStepScalars}, {1, 0, 0.01, 0.5, 0.5, 3, 1, 1, 9, 9, 9, 9}));
  add({"first_non_finite", {rejected, always_f64(assigned("index", {1})), g}, [](Context& c, const Tensors& t) {
         first_non_finite(c, {&t[2], 1}, t[0], t[1]);
       }});
}

void add_compression(std::vector<Case>& cases) {
  constexpr int64_t kCount = 20'480, kMatrixRows = 128, kRank = 4;
  const Operand g = input("g", {kCount}), e = input("e", {kCount}), next = assigned("next", {kCount}), sum = added_to("sum", {kCount});
  const auto add = [&](const Operation& operation) { cases.push_back({operation, {DType::kF32}}); };
  const std::pair<const char*, Encoding> encodings[] = {{"exactly", Encoding::kNone}, {"int8", Encoding::kInt8},  {"int4", Encoding::kInt4},
                                                        {"sign", Encoding::kSign},    {"top_k", Encoding::kTopK}, {"random_k", Encoding::kRandomK}};
  for (const auto& [name, encoding] : encodings) {
    const EncodingOptions options{.encoding = encoding, .ratio = 0.05};
    add({concat("encode ", name), {g, e, next}, [options](Context& c, const Tensors& t) {
           encode(c, options, {1, 2}, t[0], t[1], Tensor::empty(c, {encoded_bytes(options, kCount)}, DType::kU8, MemoryCategory::kWorkspace), t[2]);
         }});
    // A message of a sender, whose launches are traced as well.
    add({concat("decode ", name), {g, sum}, [options](Context& c, const Tensors& t) {
           const Tensor message = Tensor::empty(c, {encoded_bytes(options, kCount)}, DType::kU8, MemoryCategory::kWorkspace);
           encode(c, options, {1, 2}, t[0], Tensor(), message, Tensor());
           decode(c, options, {1, 2}, message, t[1]);
         }});
  }
  const Operand scalars = always_f64(input("scalars", {kStepScalars}, {1, 1, 0.01, 0.5, 0.5, 3, 1, 1, 9, 9, 9, 9}));
  add({"copy_accepted", {scalars, g, next}, [](Context& c, const Tensors& t) { copy_accepted(c, t[0], t[1], t[2]); }});
  const Operand p = in("p", kMatrixRows, kRank), q = in("q", kRank, kColumns);
  add({"orthonormalise", {in_place("p", {kMatrixRows, kRank})}, [](Context& c, const Tensors& t) { orthonormalise(c, t[0]); }});
  add({"add_product", {p, q, added_to("out", {kMatrixRows * kColumns})}, [](Context& c, const Tensors& t) {
         add_product(c, -1, t[0], t[1], 0, t[2]);
       }});
  add({"copy_nonzero_rows", {scalars, q, in_place("to", {kRank, kColumns})}, [](Context& c, const Tensors& t) {
         copy_nonzero_rows(c, t[0], t[1], t[2]);
       }});
}

/// The product that replaces cuBLASLt where it has no kernel: y = x w^T, dx = dy w, dw += dy^T x.
void add_plain_products(std::vector<Case>& cases) {
  constexpr int64_t kIn = 96, kOut = 128;
  const Operand x = in("x", kRows, kIn), w = in("w", kOut, kIn), dy = in("dy", kRows, kOut);
  const auto add = [&](const char* name, const Operand& left, const Operand& right, const Operand& result, cuda::PlainProduct product) {
    cases.push_back({{name,
                      {left, right, result},
                      [product](Context& c, const Tensors& t) mutable {
                        product.in = t[0].dtype(), product.out_dtype = t[2].dtype();
                        product.left = t[0].raw(), product.right = t[1].raw(), product.out = t[2].raw();
                        cuda::plain_product(c, product);
                      }},
                     kBoth});
  };
  constexpr DType kAny = DType::kF32;
  add("plain product forward", x, w, out("y", kRows, kOut),
      {kRows, kOut, kIn, kAny, kAny, nullptr, kIn, 1, nullptr, kIn, 1, nullptr, nullptr, false});
  add("plain product backward_input", dy, w, out("dx", kRows, kIn),
      {kRows, kIn, kOut, kAny, kAny, nullptr, kOut, 1, nullptr, 1, kIn, nullptr, nullptr, false});
  add("plain product backward_weight", dy, x, wide(added_to("dw", {kOut, kIn})),
      {kOut, kIn, kRows, kAny, kAny, nullptr, 1, kOut, nullptr, 1, kIn, nullptr, nullptr, true});
}

/// `lengths`: of documents; none: a sequence is one document.
void add_attention(std::vector<Case>& cases, const AttentionShape& s, const std::vector<DType>& dtypes, const std::vector<int64_t>& lengths = {},
                   int compute_capability = 9) {
  const int64_t rows = s.batch * s.sequence, columns = s.heads * s.head_size;
  const Operand qkv = input("qkv", {rows, s.columns()}), lse = wide(input("lse", {s.batch, s.heads, s.sequence}));
  const bool packed = !lengths.empty();
  Operation forward{"attention_forward",
                    {qkv, out("out", rows, columns), wide(assigned("lse", {s.batch, s.heads, s.sequence}))},
                    [s, packed](Context& c, const Tensors& t) { attention_forward(c, t[0], s, t[1], t[2], documents_of(t, packed)); }};
  Operation backward{"attention_backward",
                     {in("dout", rows, columns), qkv, in("out", rows, columns), lse, out("dqkv", rows, s.columns())},
                     [s, packed](Context& c, const Tensors& t) { attention_backward(c, t[0], t[1], t[2], t[3], s, t[4], documents_of(t, packed)); }};
  for (Operation* const operation : {&forward, &backward}) {
    if (packed)
      for (Operand& bound : bounds_of(lengths, s.sequence)) operation->operands.push_back(std::move(bound));
    cases.push_back({*operation, dtypes, compute_capability});
  }
}

}  // namespace

std::vector<Case> operations() {
  std::vector<Case> cases;
  add_norms(cases);
  add_activations(cases);
  add_embeddings(cases);
  add_loss(cases);
  add_optimizer(cases);
  add_compression(cases);
  add_plain_products(cases);
  for (const int64_t head_size : {32, 64, 96, 128}) add_attention(cases, {1, 192, 2, 1, head_size}, {DType::kBF16});
  for (const int capability : {8, 9}) {
    add_attention(cases, {1, 192, 2, 2, 64, 48}, {DType::kBF16}, {}, capability);  // with a window
    add_attention(cases, {1, 320, 2, 1, 128}, {DType::kBF16}, {}, capability);     // three blocks add to the gradients of the last queries
    // Documents that begin within tiles, at their edges, and end within one.
    for (const int64_t head_size : {64, 128}) add_attention(cases, {1, 320, 2, 1, head_size}, {DType::kBF16}, {100, 156, 50, 14}, capability);
    add_attention(cases, {2, 192, 2, 1, 64, 48}, {DType::kBF16}, {20, 172, 128, 64}, capability);  // with a window
  }
  add_attention(cases, {1, 192, 12, 6, 64}, {DType::kBF16});  // a block of sm_90a computes several heads in turn, here of two tiles of keys
  for (const AttentionShape& s : {AttentionShape{1, 192, 12, 6, 128}, AttentionShape{1, 128, 12, 6, 64}, AttentionShape{1, 128, 12, 6, 128}}) {
    add_attention(cases, s, {DType::kBF16});
    cases.pop_back();  // only the forward, of two tiles of keys and of one
  }
  add_attention(cases, {1, 64, 2, 1, 64}, {DType::kF32});
  add_attention(cases, {1, 64, 2, 1, 64}, {DType::kF32}, {20, 44});
  return cases;
}

}  // namespace cuda_trace
