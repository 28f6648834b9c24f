// The keys of resilience.reroute: what is refused, and with which message.
#include <optional>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/check_reroute.h"
#include "trainer/config/load.h"
#include "trainer/layout/rerouting.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

const std::string kRerouteText = R"(model: {layers: 4, hidden_size: 96, heads: 12, kv_heads: 2, ffn_size: 256, vocab_size: 300}
parallel: {pipeline: 2, data: 3}
training: {steps: 100, sequence_length: 32, micro_batch_size: 1, global_batch_size: 12}
data: {tokenizer: none, train: [data/a]}
)";

/// The refusal of kRerouteText with `sets`; empty if it is accepted.
std::string reroute_refusal(const std::vector<std::string>& sets) {
  try {
    resolve(parse_config(kRerouteText, "run.yaml", sets), std::nullopt);
    return "";
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.code()) == 64);
    return error.what();
  }
}

void check_reroute_refused(const std::vector<std::string>& sets, const std::string& text) {
  CAPTURE(sets);
  CHECK_THAT(reroute_refusal(sets), Catch::Contains(text));
}

}  // namespace

TEST_CASE("reroute: a configuration names relieved ranks by data rank and pipeline rank") {
  CHECK(reroute_refusal({"resilience.reroute=[1/0]"}) == "");
  CHECK(reroute_refusal({"resilience.reroute=[1/0, 0/1, 2/1]", "resilience.reroute_from=3"}) == "");
  const Config config = resolve(parse_config(kRerouteText, "run.yaml", {"resilience.reroute=[1/0, 0/1]", "resilience.reroute_from=2"}), std::nullopt);
  const Rerouting rerouting = *rerouting_of(config, 4);
  CHECK(rerouting.relieved == std::vector<PipelinePlace>{{1, 0}, {0, 1}});
  CHECK(rerouting.from == 2);
  CHECK(rerouting.added[0][0] == std::vector<MicrobatchOrigin>{{1, 2}});
  CHECK(rerouting.added[2][0] == std::vector<MicrobatchOrigin>{{1, 3}});
  CHECK(rerouting.added[1][1] == std::vector<MicrobatchOrigin>{{0, 2}});
  CHECK(!rerouting_of(without_reroute(config), 4));
  for (const char* const text : {"", "1", "1/", "/1", "-1/0", "1/-0", "+1/0", "1/0 ", " 1/0", "1/0/2", "1:0", "a/b", "99999999999999999999/0"})
    CHECK(!parse_relieved_rank(text));
  CHECK(parse_relieved_rank("12/3") == RelievedRank{12, 3});
}

TEST_CASE("reroute: ranks that do not exist, are named twice or leave nobody to help are refused") {
  check_reroute_refused({"resilience.reroute=[1-0]"},
                        "1-0 is not a data rank and a pipeline rank; allowed DATA/PIPELINE with DATA from 0 to 2 and PIPELINE from 0 to 1");
  check_reroute_refused({"resilience.reroute=[3/0]"}, "3/0 is outside the mesh");
  check_reroute_refused({"resilience.reroute=[3/5]"}, "nearest valid 2/1");
  check_reroute_refused({"resilience.reroute=[1/0, 1/0]"}, "1/0 is named twice");
  check_reroute_refused({"resilience.reroute=[0/1, 1/1, 2/1]"},
                        "no data rank is left that computes pipeline rank 1; allowed at most 2 of each pipeline rank");
  check_reroute_refused({"resilience.reroute=[0/0]", "parallel.data=1"}, "there is one data rank, so nobody could help");
  check_reroute_refused({"resilience.reroute=[0/0]", "parallel.pipeline=1"}, "without a pipeline a data rank is relieved as a whole");
  check_reroute_refused({"resilience.reroute=[0/0]", "resilience.reroute_from=4"},
                        "a data rank has 4 micro-batches, counted from 0; allowed 0 to 3; nearest valid 3");
  check_reroute_refused({"resilience.reroute_from=1"}, "has no effect: resilience.reroute is empty");
  check_reroute_refused({"resilience.reroute=1/0"}, "text where a list is expected");
}

TEST_CASE("reroute: features that would make another step are refused with the reason") {
  const std::string on = "resilience.reroute=[0/0]";
  check_reroute_refused({on, "training.local.steps=2", "parallel.islands=3", "parallel.data=1"},
                        "islands exchange nothing within a round of training.local");
  check_reroute_refused({on, "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=2", "parallel.islands=2"},
                        "asynchronous workers compute a gradient each, and share no step");
  check_reroute_refused({on, "security.aggregation.rule=median"}, "that of a helper would contain samples of another one");
  check_reroute_refused({on, "security.privacy.clip=1", "security.privacy.noise=1", "security.privacy.delta=1e-5", "security.privacy.key_file=key"},
                        "steps draw different numbers of sequences, and clip each on the ranks of one pipeline");
  check_reroute_refused({on, "training.compression.method=int8"}, "each data rank would encode the gradients of other samples");
  check_reroute_refused({on, "resilience.rebalance=micro_batches"}, "data ranks with different numbers of micro-batches are not rerouted");
  check_reroute_refused({on, "observe.anomalies.policy=rerun"}, "a repeated step is computed by other data ranks");
  check_reroute_refused({on, "observe.samples.every=2", "observe.samples.prompts=[1]", "data.tokenizer=bytes", "model.vocab_size=256"},
                        "every pipeline continues texts by itself, which a relieved rank cannot");
  for (const char* const allowed : {"model.dropout=0.1", "training.precision=bf16", "training.precision=fp16", "parallel.zero_stage=3",
                                    "observe.anomalies.policy=skip", "training.ema.decay=0.9"})
    CHECK(reroute_refusal({on, allowed}) == "");
}

}  // namespace trireme
