// TensorBoard's event files, byte by byte. The records were made by TensorBoard 2.21: its RecordWriter, and its Protocol Buffers serialised by the
// library. scripts/observe/check_tensorboard.py compares a run's files with its metrics.jsonl through TensorBoard's own reader.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/loop/histograms.h"
#include "trainer/run/sinks.h"
#include "trainer/run/tensorboard_records.h"

namespace trireme {
std::unique_ptr<EventSink> make_tensorboard_sink(const SinkSettings& settings);
}

using namespace trireme;
using namespace trireme::test;

namespace {

constexpr double kTime = 1750000000.5;

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    text += digits;
  }
  return text;
}

/// The contents of the records of an event file; checks the length and both sums of each.
std::vector<std::string> event_records(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    REQUIRE(at + 12 <= file.size());
    std::memcpy(&length, file.data() + at, sizeof length);
    REQUIRE(at + 16 + length <= file.size());
    const std::string data = file.substr(at + 12, length);
    REQUIRE(file.substr(at, 16 + length) == tf_record(data));
    records.push_back(data);
    at += 16 + length;
  }
  return records;
}

/// The content of a record, without its wall time, the first nine bytes.
std::string untimed(const std::string& record) { return event_records(record).at(0).substr(9); }

}  // namespace

TEST_CASE("tensorboard: CRC-32C has the values of RFC 3720", "[metrics]") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
}

TEST_CASE("tensorboard: records have the bytes of TensorBoard's own writer", "[metrics]") {
  CHECK(hexadecimal(file_version_record(kTime)) == "1800000000000000a37f4b220900002060b813da411a0d627261696e2e4576656e743a320db7880b");
  CHECK(hexadecimal(session_start_record(kTime, 300)) == "100000000000000095fbfe180900002060b813da4110ac023a0208016bb56412");
  // Numbers are in groups of seven bits, the lowest first.
  for (const auto& [step, bytes] : {std::pair(127, "107f"), {128, "108001"}, {16383, "10ff7f"}, {16384, "10808001"}})
    CHECK_THAT(hexadecimal(untimed(scalars_record(kTime, step, {{"loss", 2.25F}}))), Catch::Matchers::StartsWith(concat(bytes, "2a0d")));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(hexadecimal(scalars_record(kTime, 7, {{"loss", 2.25F}, {"validation/code", nan}})) ==
        "3200000000000000241956ec0900002060b813da4110072a250a0b0a046c6f737315000010400a160a0f76616c69646174696f6e2f636f6465150000c07fe944ce97");
  CHECK(hexadecimal(histogram_record(kTime, 7, "weights/head", {{-0.5, 0, 2}, {0, 1, 0}, {1, 1.5, 3}})) ==
        "8700000000000000b86f57e60900002060b813da4110072a7a0a780a0c776569676874732f6865616442560802120812020803120208032248000000000000e0bf0000000000"
        "00000000000000000000400000000000000000000000000000f03f0000000000000000000000000000f03f000000000000f83f00000000000008404a100a0c0a0a686973746f"
        "6772616d732002964feaf6");
  CHECK(hexadecimal(text_record(kTime, 2, "configuration", "    a: 1\n")) ==
        "3f00000000000000516576610900002060b813da4110022a320a300a0d636f6e66696775726174696f6e42130807120412020801420920202020613a20310a4a0a0a060a04"
        "74657874200264cf3c4e");
  CHECK(hexadecimal(
            hyper_parameters_record(kTime, {{"model.layers", 2.0}, {"model.tied", false}, {"training.precision", std::string("bf16")}}, "demo")) ==
        "a2000000000000007b39f5180900002060b813da412a96010a93010a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f42060801120212004a6b0a67"
        "0a0768706172616d73125c1a5a0a190a0c6d6f64656c2e6c617965727312091100000000000000400a100a0a6d6f64656c2e74696564120220000a1c0a12747261696e696e"
        "672e707265636973696f6e12061a0462663136220464656d6f2900002060b813da412002f2dd8415");
}

TEST_CASE("tensorboard: a run's measurements are scalars with the names of metrics.jsonl", "[metrics]") {
  const Scratch scratch;
  Config config;
  config.observe.tensorboard = scratch / "board";
  const auto time = WallClock::time_point(std::chrono::milliseconds(1750000000500));
  {
    const auto sink = make_tensorboard_sink({config, {}, 9, {}, nullptr, nullptr});
    sink->write({"start", 0, {{"steps", 9}}, "text", time});
    sink->write({"step", 7, {{"loss", 2.25}, {"tokens", 128}, {"mfu", nullptr}}, "", time});
    sink->write({"evaluation", 7, {{"validation_loss", 2.5}, {"validation", {{"prose", 3.0}, {"code", 2.0}}}}, "", time});
    sink->write({"exposed", 7, {{"step_seconds", 0.5}, {"tensor", 0.25}}, "", time});
    sink->write({"checkpoint", {}, {{"bytes", 4096}}, "", time});
    CHECK(sink->write_error().empty());
  }
  const std::vector<std::string> files = Scratch::names_in(scratch / "board");
  REQUIRE(files.size() == 1);
  const std::vector<std::string> records = event_records(slurp(scratch / "board/" + files[0]));
  REQUIRE(records.size() == 7);
  CHECK(tf_record(records[4]) == scalars_record(kTime, 7, {{"loss", 2.25F}, {"tokens", 128.0F}}));
  CHECK(tf_record(records[5]) == scalars_record(kTime, 7, {{"validation_loss", 2.5F}, {"validation/prose", 3.0F}, {"validation/code", 2.0F}}));
  CHECK(tf_record(records[6]) == scalars_record(kTime, 7, {{"exposed/step_seconds", 0.5F}, {"exposed/tensor", 0.25F}}));
}

TEST_CASE("tensorboard: samples have a tag by the number of their prompt, and hyper-parameters the type of their key", "[metrics]") {
  const Scratch scratch;
  Config config;
  config.run.name = "demo";
  config.observe.tensorboard = scratch / "board";
  config.observe.samples.prompts = {"Once", "At last,", "Never"};
  config.parallel.tensor = 3;
  config.parallel.pipeline = 7;
  config.training.optimizer.learning_rate = 0.375;
  config.training.precision = Arithmetic::kBf16;
  config.data.document_mask = true;
  config.model.tied_embeddings = false;
  const auto time = WallClock::time_point(std::chrono::milliseconds(1750000000500));
  {
    const auto sink = make_tensorboard_sink({config, {}, 9, {}, nullptr, nullptr});
    sink->write({"sample", 40, {{"prompt", "At last,"}, {"text", " a line\nand another"}}, "text", time});
    sink->write({"sample", 41, {{"prompt", "Never"}, {"text", ""}}, "text", time});
    sink->write({"sample", 42, {{"prompt", "Once"}, {"text", " upon"}}, "text", time});
  }
  const std::vector<std::string> records = event_records(slurp(scratch / "board/" + Scratch::names_in(scratch / "board").at(0)));
  REQUIRE(records.size() == 7);
  CHECK(tf_record(records[4]) == text_record(kTime, 40, "sample/2", "    At last, a line\n    and another\n"));
  CHECK(tf_record(records[5]) == text_record(kTime, 41, "sample/3", "    Never\n"));
  CHECK(tf_record(records[6]) == text_record(kTime, 42, "sample/1", "    Once upon\n"));
  const auto has = [&](const std::string& key, const HyperParameter& parameter) {
    // The name and the value, as in a record that has only them; behind it come the name of the run and the time.
    const std::string only = hyper_parameters_record(0, {parameter}, "demo");
    const size_t begin = only.find(key), end = only.find("demo");
    REQUIRE((begin != only.npos && end != only.npos));
    return records[3].find(only.substr(begin, end - 2 - begin)) != std::string::npos;
  };
  CHECK(has("parallel.tensor", {"parallel.tensor", 3.0}));
  CHECK(has("parallel.pipeline", {"parallel.pipeline", 7.0}));
  CHECK_FALSE(has("parallel.pipeline", {"parallel.pipeline", 3.0}));
  CHECK(has("training.optimizer.learning_rate", {"training.optimizer.learning_rate", 0.375}));
  CHECK(has("training.precision", {"training.precision", std::string("bf16")}));
  CHECK(has("data.document_mask", {"data.document_mask", true}));
  CHECK(has("model.tied_embeddings", {"model.tied_embeddings", false}));
  CHECK(records[3].find("demo") != std::string::npos);
}

TEST_CASE("tensorboard: histograms have the limits of their bins, from the first to the last that has values", "[metrics]") {
  const Scratch scratch;
  Config config;
  config.observe.tensorboard = scratch / "board";
  const std::vector<double>& limits = histogram_limits();
  Histogram weights{"weights/head", std::vector<int64_t>(limits.size())}, gradients{"gradients/head", weights.counts};
  weights.counts[777] = 3;  // from 1e-12
  weights.counts[779] = int64_t{1} << 40;
  make_tensorboard_sink({config, {}, 9, {}, nullptr, nullptr})->histograms(7, {weights, gradients});
  const std::vector<std::string> records = event_records(slurp(scratch / "board/" + Scratch::names_in(scratch / "board").at(0)));
  REQUIRE(records.size() == 6);
  CHECK(limits[776] == 1e-12);
  CHECK(records[4].substr(9) ==
        untimed(histogram_record(0, 7, "weights/head",
                                 {{limits[776], limits[777], 3}, {limits[777], limits[778], 0}, {limits[778], limits[779], int64_t{1} << 40}})));
  CHECK(records[5].substr(9) == untimed(histogram_record(0, 7, "gradients/head", {})));
}

TEST_CASE("tensorboard: each start of a run makes a file that sorts last and drops the steps after its checkpoint", "[metrics]") {
  const Scratch scratch;
  Config config;
  config.run.name = "demo";
  config.run.directory = scratch / "";
  config.training.steps = 9;
  config.observe.tensorboard = true;
  const auto start = [&](int64_t done) {
    RunHistory history;
    history.step = done;
    CHECK(make_tensorboard_sink({config, history, 9, {}, nullptr, nullptr}) != nullptr);
  };
  const auto newest = [&] { return Scratch::names_in(scratch / "tensorboard").back(); };
  const auto records = [&] { return event_records(slurp(scratch / "tensorboard/" + newest())); };
  start(0);
  const std::string first = newest();
  REQUIRE(records().size() == 4);
  CHECK(records()[0].substr(9) == untimed(file_version_record(0)));
  CHECK(records()[1].substr(9) == untimed(session_start_record(0, 0)));
  CHECK(records()[2].find("    name: demo\n") != std::string::npos);
  CHECK(records()[3].find("training.steps") != std::string::npos);
  CHECK(records()[3].find("observe") == std::string::npos);

  start(5);
  const std::string second = newest();
  CHECK(second > first);
  CHECK(Scratch::names_in(scratch / "tensorboard").size() == 2);
  CHECK(records()[1].substr(9) == untimed(session_start_record(0, 6)));

  scratch.write("tensorboard/events.out.tfevents.9000000000.elsewhere", "");  // a clock that is ahead
  start(5);
  CHECK(newest().starts_with("events.out.tfevents.9000000001."));
  for (const char* name : {"events.out.tfevents.9000000021.b", "events.out.tfevents.9000000035.c", "events.out.tfevents.9000000028.a"})
    scratch.write(std::string("tensorboard/") + name, "");
  for (const char* name : {"events.out.tfevents.later", "copy.events.out.tfevents.9900000000.a"})
    scratch.write(std::string("tensorboard/") + name, "");
  start(7);
  const std::vector<std::string> names = Scratch::names_in(scratch / "tensorboard");
  CHECK(std::ranges::count_if(names, [](const std::string& name) { return name.starts_with("events.out.tfevents.9000000036."); }) == 1);

  config.observe.tensorboard = false;
  CHECK(make_tensorboard_sink({config, {}, 9, {}, nullptr, nullptr}) == nullptr);
}
