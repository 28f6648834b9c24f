// Part profiles, taken on the meta device: against parameter declarations, published formulas and a run on a CPU.
#include "trainer/model/part_profile.h"

#include <algorithm>
#include <map>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "trainer/bench/products.h"
#include "trainer/model/declare.h"
#include "trainer/model/flops.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {
namespace {

ModelConfig model_of(Architecture architecture) {
  ModelConfig model;
  model.architecture = architecture;
  model.layers = 2;
  model.hidden_size = 48;
  model.heads = 8;
  model.kv_heads = 8;
  model.head_size = 6;
  model.ffn_size = 80;
  model.vocab_size = 61;
  model.max_positions = 12;
  return model;
}

/// Declared elements on the last tensor rank, which has most of the padding.
template <class Declare>
int64_t declared(const ModelConfig& model, int tensor, const Declare& declare) {
  NullCommunicator ranks(tensor - 1, tensor, "tensor");
  const Region region(ranks, false);
  Unit unit("part");
  declare(Declaration(model, region), unit);
  return unit.numel();
}

std::vector<Part> parts(const ModelConfig& model) { return parts_of(model, whole_range(model)); }

int64_t bytes_of(const std::vector<OperationRecord>& operations, std::string_view name) {
  int64_t bytes = 0;
  for (const OperationRecord& operation : operations)
    if (name == operation.name) bytes += operation.bytes;
  return bytes;
}

double product_flops(const std::vector<OperationRecord>& operations) {
  double flops = 0;
  for (const OperationRecord& operation : operations)
    if (operation.kind == OperationKind::kProduct) flops += operation.flops();
  return flops;
}

TEST_CASE("a profile's units match the part's declaration, also with fewer kv heads than tensor ranks") {
  ModelConfig model = model_of(GENERATE(Architecture::kGpt2, Architecture::kLlama));
  const bool gpt2 = model.architecture == Architecture::kGpt2;
  model.tied_embeddings = GENERATE(false, true);
  if (!gpt2) {
    model.kv_heads = GENERATE(8, 2);
    model.qkv_bias = GENERATE(false, true);
    model.qk_norm = GENERATE(false, true);
  }
  const int tensor = GENERATE(1, 2, 4);
  CAPTURE(model.architecture, *model.kv_heads, model.qkv_bias, model.qk_norm, tensor);
  const std::vector<Part> all = parts(model);
  PartProfiles profiles(model);
  const auto units = [&](const Part& part) { return profiles.of(part, {.tensor = tensor, .length = 4}).units; };
  const auto table = declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.embedding(unit); });
  const auto norm = declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.final_norm(unit); });
  std::vector<int64_t> embedding{table};
  if (gpt2) embedding.push_back(declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.positions(unit); }));
  CHECK(units(all.front()) == embedding);
  CHECK(units(all[1]) ==
        std::vector<int64_t>{declared(model, tensor, [&](const Declaration& declare, Unit& unit) { declare.block(unit, all[1], Tensor()); })});
  CHECK(units(all.back()) == (model.tied_embeddings ? std::vector<int64_t>{norm, table} : std::vector<int64_t>{norm + table}));
}

TEST_CASE("units of a stage have the elements of their parts, a tied embedding once") {
  ModelConfig model = model_of(Architecture::kLlama);
  model.layers = 5;
  model.tied_embeddings = true;
  PartProfiles profiles(model);
  const ProfileShape shape{.length = 4};
  const std::vector<Part> all = parts(model);
  const int64_t table = 64 * 48, norm = 48, block = profiles.of(all[1], shape).elements();  // 61 tokens in 64 rows
  const auto elements = [&](const StageRange& range, bool first_stage_is_local, int64_t together) {
    const std::vector<Part> own = parts_of(model, range, together);
    return unit_elements(profiles, own, stage_units(own, range, model, first_stage_is_local), shape);
  };
  CHECK(elements(whole_range(model), false, 2) == std::vector<int64_t>{table, 2 * block, 2 * block, block, norm});
  CHECK(elements(stage_range({2, 3}, 1), false, 1) == std::vector<int64_t>{block, block, block, norm, table});
  CHECK(elements(stage_range({2, 3}, 1), true, 1) == std::vector<int64_t>{block, block, block, norm});
  CHECK(elements(stage_range({0, 5, 0}, 0), false, 1) == std::vector<int64_t>{table});
  CHECK(elements(stage_range({0, 5, 0}, 2), false, 1) == std::vector<int64_t>{norm, table});
  CHECK(elements(stage_range({0, 5, 0}, 2), true, 1) == std::vector<int64_t>{norm});
}

TEST_CASE("a window affects only the attention of its layers in profiles") {
  ModelConfig model = model_of(Architecture::kLlama);
  model.layers = 3;
  PartProfiles plain(model);
  model.window = 4;
  model.window_layers = {0, 2};
  PartProfiles profiles(model);
  const ProfileShape shape{.sequences = 2, .length = 12};
  for (const Part& part : parts(model)) {
    if (part.kind != PartKind::kBlock) continue;
    CAPTURE(part.block);
    const bool windowed = part.block != 1;
    CHECK(part.block_spec.attention.window == (windowed ? 4 : 0));
    const PartProfile &with = profiles.of(part, shape), &without = plain.of(plain.parts()[static_cast<size_t>(part.block + 1)], shape);
    int attentions = 0;
    for (const PartProfile::Pass* pass : {&with.forward, &with.backward})
      for (const OperationRecord& operation : pass->operations) {
        if (operation.kind != OperationKind::kAttention) continue;
        CHECK(operation.attention.window == part.block_spec.attention.window);
        ++attentions;
      }
    CHECK(attentions == 2);
    CHECK(product_flops(with.backward.operations) == product_flops(without.backward.operations));
    CHECK((flops_of(with.backward.operations) < flops_of(without.backward.operations)) == windowed);
    CHECK(with.saved == without.saved);
    CHECK(with.backward.peak == without.backward.peak);
  }
}

TEST_CASE("FLOPs with full attention and the recomputation factor, with a window on some layers") {
  ModelConfig model = model_of(Architecture::kLlama);
  model.layers = 3;
  model.window = 4;
  model.window_layers = {0, 2};
  constexpr int64_t kLength = 12;
  const auto count = [](int64_t n) { return static_cast<double>(n); };
  const int64_t D = model.hidden_size, inner = model.heads * *model.head_size, kv = 2 * *model.kv_heads * *model.head_size;
  const double block = 2 * count(D * (2 * inner + kv) + 3 * D * *model.ffn_size), head = 2 * count(*model.vocab_size * D);
  const double full = 4 * count(inner * kLength), windowed = 4 * count(inner * *model.window);  // per layer and token
  const double all = 3 * block + head + full + 2 * windowed;
  CHECK(full_attention_flops_per_token(model, kLength) == Approx(3 * all).epsilon(1e-12));
  // The first tokens attend to fewer tokens than the window: half of 4 x 4 scores are missing from 12 x 4.
  CHECK(training_flops_per_token(model, kLength) == Approx(3 * (all - full / 2 - 2 * windowed * 2 / 12)).epsilon(1e-12));
  const std::vector<Recompute> recompute{Recompute::kSelective, Recompute::kSelective, Recompute::kFull};
  CHECK(recomputation_factor(model, kLength, recompute) == Approx(1 + (windowed + full + block + windowed) / (3 * all)).epsilon(1e-12));
  CHECK(recomputation_factor(model, kLength, std::vector<Recompute>(3, Recompute::kNone)) == 1);
}

TEST_CASE("a block's products, communication and saved bytes match published formulas") {
  const Architecture architecture = GENERATE(Architecture::kGpt2, Architecture::kLlama);
  const bool sequence_parallel = GENERATE(false, true), gpt2 = architecture == Architecture::kGpt2;
  const ModelConfig model = model_of(architecture);
  const ProfileShape shape{.tensor = 2, .sequence_parallel = sequence_parallel, .sequences = 3, .length = 4, .compute = DType::kBF16};
  const int64_t M = 12, D = 48, q = 3 * 24, o = 24, F = 40, f = gpt2 ? F : 2 * F, row = M * D / (sequence_parallel ? 2 : 1);
  PartProfiles profiles(model);
  const Part block = parts(model)[1];
  const PartProfile& none = profiles.of(block, shape, Recompute::kNone);
  const double products = 2.0 * M * static_cast<double>(D * q + o * D + D * f + F * D);
  CHECK(product_flops(none.forward.operations) == products);
  CHECK(product_flops(none.input_gradient.operations) == products);
  CHECK(product_flops(none.weight_gradient.operations) == products);
  CHECK(product_flops(none.backward.operations) == 2 * products);
  // The residual stream twice, q, k and v, attention's result, the hidden layer; statistics of both norms, and of attention, in fp32.
  const int64_t statistics = 2 * row / D * (gpt2 ? 2 : 1) + M * 4;
  CHECK(none.saved == 2 * (2 * row + M * (q + o + f)) + 4 * statistics);
  CHECK(profiles.of(block, shape, Recompute::kSelective).saved == none.saved - 2 * M * o - 4 * M * 4);
  CHECK(profiles.of(block, shape, Recompute::kFull).saved == 2 * row);
  // Two boundaries, entered and left: all-reduces of [M,D], or a gather and a scatter in place of each.
  const int64_t crossing = 2 * 2 * M * D;
  const auto moved = [&](const PartProfile::Pass& pass, const char* verb) { return bytes_of(pass.operations, verb); };
  for (const PartProfile::Pass* pass : {&none.forward, &none.input_gradient}) {
    CHECK(moved(*pass, "all_reduce") == (sequence_parallel ? 0 : crossing));
    CHECK(moved(*pass, "all_gather") == (sequence_parallel ? crossing : 0));
    CHECK(moved(*pass, "reduce_scatter") == (sequence_parallel ? crossing : 0));
  }
  CHECK(moved(none.weight_gradient, "all_gather") == (sequence_parallel ? crossing : 0));
}

TEST_CASE("an operand that is read and written counts twice in the bytes of an operation") {
  const ModelConfig model = model_of(Architecture::kGpt2);
  PartProfiles profiles(model);
  const ProfileShape shape{.sequences = 3, .length = 4, .compute = DType::kBF16};
  const int64_t M = 12, D = 48;  // a row-parallel layer adds its bias in place: attention's output and the second layer of the MLP
  CHECK(bytes_of(profiles.of(parts(model)[1], shape).forward.operations, "bias_forward") == 2 * 2 * (2 * M * D + D));
}

TEST_CASE("the products of a model can be listed for any number of rows") {
  const Architecture architecture = GENERATE(Architecture::kGpt2, Architecture::kLlama);
  const std::vector<bench::Product> products = bench::products_of(model_of(architecture), 1000, 2);  // more rows than positions
  REQUIRE(products.size() == 5);
  const int64_t up = architecture == Architecture::kGpt2 ? 40 : 80;
  const std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> expected = {
      {"qkv", 48, 72, 2}, {"out", 24, 48, 2}, {"up", 48, up, 2}, {"down", 40, 48, 2}, {"head", 48, 32, 1}};
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::tuple(products[i].name, products[i].inputs, products[i].outputs, products[i].layers) == expected[i]);
    CHECK(products[i].rows == 1000);
  }
}

TEST_CASE("selective recomputation costs attention, full costs a forward without its last product") {
  const ModelConfig model = model_of(Architecture::kLlama);
  const ProfileShape shape{.sequences = 2, .length = 6};
  PartProfiles profiles(model);
  const Part block = parts(model)[1];
  const auto flops = [&](Recompute recompute) { return flops_of(profiles.of(block, shape, recompute).input_gradient.operations); };
  const double attention = 4.0 * 8 * 6 * 2 * (6 * 6 / 2), once = flops(Recompute::kNone);
  CHECK(flops(Recompute::kSelective) - once == attention);
  CHECK(flops(Recompute::kFull) - once == attention + 2.0 * 12 * 48 * (3 * 48 + 48 + 2 * 80));
}

TEST_CASE("attention scores: half of all pairs, or the band of a window") {
  AttentionWork work{.sequences = 1, .length = 8, .heads = 1, .head_size = 1};
  CHECK(work.scores() == 32);
  work.window = 8;
  CHECK(work.scores() == 32);
  work.window = 2;
  CHECK(work.scores() == 2 * (8 - 1));
}

/// Names and sizes, one operation per line.
std::vector<std::string> text_of(const std::vector<OperationRecord>& operations) {
  std::vector<std::string> lines;
  for (const OperationRecord& o : operations)
    lines.push_back(concat(o.layer, " ", o.name, " ", static_cast<int>(o.kind), " ", name_of(o.dtype), " ", o.bytes, " ", o.m, "x", o.n, "x", o.k));
  return lines;
}

TEST_CASE("a block on a CPU runs the operations of its profile, and the log times them") {
  const ModelConfig model = model_of(GENERATE(Architecture::kGpt2, Architecture::kLlama));
  const ProfileShape shape{.sequences = 2, .length = 6};
  const PartProfile profile = profile_of(model, parts(model)[1], shape, Recompute::kNone);
  Arena arena(Device::kCpu);
  Context ctx{Device::kCpu, &arena, 1, nullptr};
  DeviceClock clock(ctx, DeviceClock::Host::now());
  const bool marks = GENERATE(false, true);  // a clock that it reads at once, or moments of a device clock
  OperationLog log = marks ? OperationLog(clock) : OperationLog(OperationLog::Clock::now());
  SelfCommunicator world("world");
  Mesh mesh(world, {}, 8);
  StageOptions options;
  options.recompute.resize(2);
  TransformerStage stage(ctx, model, mesh, {1, 3, 0, 1}, options, nullptr);
  const Tensor ids = Tensor::zeros(ctx, {12}, DType::kI32, MemoryCategory::kData);
  stage.unshard(ctx, 0);
  stage.begin(ctx, {{ids, ids}}, 6, RunMode::kTrain, 0);
  fill(ctx, 0.5, stage.recv_forward_buffer(ctx, 0));
  ctx.log = &log;
  stage.forward(ctx, 0, 0);
  const std::vector<OperationRecord> forward = log.take();
  CHECK(text_of(forward) == text_of(profile.forward.operations));
  CHECK(std::ranges::all_of(forward, [](const OperationRecord& operation) { return operation.seconds > 0; }));
  stage.take_forward_output(0);
  ctx.log = nullptr;
  fill(ctx, 0.5, stage.recv_backward_buffer(ctx, 0));
  ctx.log = &log;
  stage.backward_input(ctx, 0, 0);
  CHECK(text_of(log.take()) == text_of(profile.input_gradient.operations));
  stage.backward_weight(ctx, 0, 0);
  CHECK(text_of(log.take()) == text_of(profile.weight_gradient.operations));
}

}  // namespace
}  // namespace trireme
