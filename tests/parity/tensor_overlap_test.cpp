// Tensor-parallel communication overlaps products that do not depend on it, and the result is bit-identical to running them in sequence.
#include <algorithm>
#include <functional>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/rope.h"
#include "parallel/comm/forwarding.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

/// Records when operations start and are waited for, and the result of `probe` at that time.
class OrderCommunicator final : public ForwardingCommunicator {
 public:
  using Probe = std::function<std::string()>;
  OrderCommunicator(Communicator& inner, Probe probe, std::vector<std::string>& notes)
      : ForwardingCommunicator(inner), probe_(std::move(probe)), notes_(notes) {}

 protected:
  Work perform(Context& /*ctx*/, const char* verb, int64_t /*bytes*/, const Call& call) override {
    note(std::string("start ") + verb);
    return Work(std::make_unique<Noted>(*this, verb, call()));
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override { return made; }

 private:
  struct Noted final : Work::Operation {
    Noted(OrderCommunicator& its, std::string its_verb, Work its_work) : owner(its), verb(std::move(its_verb)), work(std::move(its_work)) {}
    void wait(Context& ctx) override {
      owner.note("wait " + verb);
      work.wait(ctx);
    }
    OrderCommunicator& owner;
    std::string verb;
    Work work;
  };
  void note(const std::string& what) { notes_.push_back(what + probe_()); }

  Probe probe_;
  std::vector<std::string>& notes_;
};

struct Case {
  ParityModel model;
  bool sequence_parallel;
  Recompute recompute;
};

struct Result {
  std::vector<double> values;      ///< dx and all gradients
  std::vector<std::string> notes;  ///< during the backward
};

/// Block 1 on one of two tensor ranks: forward and backward of one micro-batch, with I and W fused or separate.
class Subject {
 public:
  Subject(Context& ctx, Communicator& tensor, const Case& c)
      : ctx_(ctx),
        config_(parity_config(c.model, {}, "fp64")),
        order_(
            tensor, [this] { return done(); }, notes_),
        region_(order_, c.sequence_parallel),
        unit_("block"),
        block_(Declaration(config_.model, region_)
                   .block(unit_, Part{PartKind::kBlock, "blocks.1", "blocks.1", {}, 1, block_spec(config_.model, 1)}, rope())) {
    block_.recompute = c.recompute;
    values_ = Tensor::zeros(ctx, {unit_.numel()}, DType::kF64, MemoryCategory::kParameters);
    grads_ = Tensor::zeros(ctx, {unit_.numel()}, DType::kF64, MemoryCategory::kGradients);
    fill_normal(ctx, 11 + static_cast<uint64_t>(tensor.rank()), 0.3, unit_.numel(), 0, 0, values_.view({1, unit_.numel()}));
    unit_.bind_values(values_);
    unit_.bind_grads(grads_);
  }

  Result run(bool fused) {
    const int64_t rows = config_.training.sequence_length, here = region_.local_rows(rows);
    const auto bounds = [&] { return Tensor::empty(ctx_, {rows}, DType::kI32, MemoryCategory::kData); };
    const Documents documents{bounds(), bounds()};
    write_bounds({5, 1, 3, 3}, rows, rows, documents.starts.data<int32_t>(), documents.ends.data<int32_t>());
    const ForwardContext pass{rows, rows, region_.first_row(rows), 0, 3, 0, config_.model.dropout, documents};
    const auto normal = [&](uint64_t key) {  // the rows on this rank; without sequence parallelism all rows, on both ranks
      const Tensor x = Tensor::empty(ctx_, {here, config_.model.hidden_size}, DType::kF64, MemoryCategory::kActivations);
      fill_normal(ctx_, key, 1, config_.model.hidden_size, pass.first_row, 0, x);
      return x;
    };
    TransformerBlock::Saved saved;
    block_.forward(ctx_, pass, normal(1), saved);
    notes_.clear();
    Tensor dx;
    if (fused) {
      dx = block_.backward(ctx_, pass, normal(2), saved);
    } else {
      dx = block_.backward_input(ctx_, pass, normal(2), saved);
      notes_.push_back("W");
      block_.weight_gradients(saved, [&](const WeightGradients& layer) { add_weight_gradients(ctx_, layer); });
    }
    Result result{{}, notes_};
    for (const Tensor& tensor : {dx, grads_})
      result.values.insert(result.values.end(), tensor.data<double>(), tensor.data<double>() + tensor.numel());
    return result;
  }

 private:
  Tensor rope() {
    const int64_t rotated = rotated_elements(config_.model);
    if (rotated == 0) return {};
    const Tensor table = Tensor::empty(ctx_, {*config_.model.max_positions, rotated}, DType::kF64, MemoryCategory::kWorkspace);
    rope_table(ctx_, rotated == 4 ? std::vector{1.0, 0.01} : std::vector{1.0}, table);
    return table;
  }

  /// The matrices whose gradients have been computed.
  std::string done() const {
    std::string names;
    for (const auto& param : unit_.params()) {
      const std::string& name = param->specs.front().name;
      const double* const first = param->grad.data<double>();
      const bool any = std::any_of(first, first + param->grad.numel(), [](double value) { return value != 0; });
      if (any && param->specs.front().dims == 2) names += " " + name.substr(std::string("blocks.1.").size());
    }
    return names;
  }

  Context& ctx_;
  Config config_;
  std::vector<std::string> notes_;
  OrderCommunicator order_;
  Region region_;
  Unit unit_;
  TransformerBlock block_;
  Tensor values_, grads_;
};

std::vector<Result> run_case(const Case& c, bool fused) {
  std::vector<Result> results(2);
  RankOptions options;
  options.poison = true;
  run_ranks(
      2,
      [&](Communicator& world) {
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1, nullptr};
        results[static_cast<size_t>(world.rank())] = Subject(ctx, world, c).run(fused);
      },
      options);
  return results;
}

using Notes = std::vector<std::string>;

}  // namespace

TEST_CASE("a block's fused backward is bit-identical to I and W, with in-flight buffers poisoned") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout}) {
    for (const bool sequence_parallel : {false, true}) {
      const std::vector<Result> kept = run_case({model, sequence_parallel, Recompute::kNone}, true);
      for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const bool fused : {true, false}) {
          const std::vector<Result> results = run_case({model, sequence_parallel, recompute}, fused);
          INFO(name_of(model) << " sp " << sequence_parallel << " recompute " << static_cast<int>(recompute) << " fused " << fused);
          for (size_t rank = 0; rank < 2; ++rank) CHECK(results[rank].values == kept[rank].values);
        }
      }
    }
  }
}

TEST_CASE("with sequence parallelism the gather of x overlaps the product dx, and the reduction of dx overlaps the products dw") {
  const std::vector<Result> results = run_case({ParityModel::kGpt2, true, Recompute::kNone}, true);
  const Notes expected = {
      "start all_gather",      // dy
      "wait all_gather",       // before the product that depends on it
      "start all_gather",      // x of the MLP
      "start reduce_scatter",  // dx, after its product
      "wait all_gather",
      "wait reduce_scatter mlp.up.weight mlp.down.weight",
      "start all_gather mlp.up.weight mlp.down.weight",
      "wait all_gather mlp.up.weight mlp.down.weight",
      "start all_gather mlp.up.weight mlp.down.weight",
      "start reduce_scatter mlp.up.weight mlp.down.weight",
      "wait all_gather mlp.up.weight mlp.down.weight",
      "wait reduce_scatter attention.query.weight attention.output.weight mlp.up.weight mlp.down.weight",
  };
  for (const Result& result : results) CHECK(result.notes == expected);
}

TEST_CASE("without sequence parallelism the sum of dx overlaps the products dw") {
  const std::vector<Result> results = run_case({ParityModel::kGpt2, false, Recompute::kNone}, true);
  const Notes expected = {
      "start all_reduce",
      "wait all_reduce mlp.up.weight mlp.down.weight",
      "start all_reduce mlp.up.weight mlp.down.weight",
      "wait all_reduce attention.query.weight attention.output.weight mlp.up.weight mlp.down.weight",
  };
  for (const Result& result : results) CHECK(result.notes == expected);
}

TEST_CASE("with separate I and W, the gathers of W overlap products that need none") {
  const Result result = run_case({ParityModel::kGpt2, true, Recompute::kNone}, false).front();
  const auto w = std::ranges::find(result.notes, "W");
  const Notes expected = {
      "W",
      "start all_gather",
      "wait all_gather mlp.down.weight",
      "start all_gather mlp.up.weight mlp.down.weight",
      "wait all_gather attention.output.weight mlp.up.weight mlp.down.weight",
  };
  CHECK(Notes(w, result.notes.end()) == expected);
}

TEST_CASE("full recomputation repeats the forward's communication except its last exit, selective adds none") {
  const auto count = [](const Case& c, const std::string& verb) {
    const Result result = run_case(c, true).front();
    return std::ranges::count_if(result.notes, [&](const std::string& note) { return note.starts_with("start " + verb); });
  };
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
    // No branch reads the result of a parallel one; norms behind branches read both.
    const int exits = model == ParityModel::kGptNeoX ? 0 : model == ParityModel::kGemma3 ? 2 : 1;
    const auto more = [&](bool sequence_parallel, Recompute recompute, const std::string& verb) {
      return count({model, sequence_parallel, recompute}, verb) - count({model, sequence_parallel, Recompute::kNone}, verb);
    };
    CHECK(more(false, Recompute::kFull, "all_reduce") == exits);
    CHECK(more(true, Recompute::kFull, "all_gather") == 2);
    CHECK(more(true, Recompute::kFull, "reduce_scatter") == exits);
    CHECK(more(true, Recompute::kSelective, "") == 0);
    CHECK(more(false, Recompute::kSelective, "") == 0);
  }
}

}  // namespace trireme::test
