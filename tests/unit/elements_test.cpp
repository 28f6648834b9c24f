#include "trainer/model/elements.h"

#include "parallel/comm/null.h"
#include "tests/support/catch.h"
#include "trainer/model/declare.h"

namespace trireme {
namespace {

ModelConfig model_of(const std::string& architecture) {
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

/// On the last tensor rank, that has most of the padding.
template <class Declare>
int64_t declared(const ModelConfig& model, int tensor, const Declare& declare) {
  NullCommunicator ranks(tensor - 1, tensor, "tensor");
  const Region region(ranks, false);
  Unit unit("part");
  declare(Declaration(model, region), unit);
  return unit.numel();
}

TEST_CASE("elements of each part are those that it declares, over tensor ranks of which kv heads are too few for some") {
  ModelConfig model = model_of(GENERATE(as<std::string>{}, "gpt2", "llama"));
  const bool gpt2 = model.architecture == "gpt2";
  if (!gpt2) {
    model.kv_heads = GENERATE(8, 2);
    model.qkv_bias = GENERATE(false, true);
    model.qk_norm = GENERATE(false, true);
  }
  const int tensor = GENERATE(1, 2, 4);
  CAPTURE(model.architecture, *model.kv_heads, model.qkv_bias, model.qk_norm, tensor);
  const PartElements elements(model, tensor);
  CHECK(elements.vocabulary == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.embedding(unit); }));
  CHECK(elements.vocabulary == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.head(unit); }));
  CHECK(elements.vocabulary == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.tied_embedding(unit); }));
  CHECK(elements.block == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.block(unit, 1, Tensor()); }));
  CHECK(elements.final_norm == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.final_norm(unit); }));
  if (gpt2)
    CHECK(elements.positions == declared(model, tensor, [](const Declaration& declare, Unit& unit) { declare.positions(unit); }));
  else
    CHECK(elements.positions == 0);
}

}  // namespace
}  // namespace trireme
