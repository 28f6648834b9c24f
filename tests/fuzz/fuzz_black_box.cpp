// Reader of black boxes, on a valid one that the input changes: units of ten bytes, the index of a word and its new value. A record or state that was hit gets
// a check that fits, because the reader leaves out what has another one.
#include <cstring>
#include <memory>

#include "tests/fuzz/fuzz.h"
#include "trainer/resilience/black_box_file.h"

namespace trireme::fuzz {
namespace {

/// A rank of six with regular and irregular groups, waiting for two messages.
std::unique_ptr<BlackBox> valid_box() {
  auto box = std::make_unique<BlackBox>();
  BlackBoxHeader header;
  header.magic = kBlackBoxMagic;
  header.version = kBlackBoxVersion;
  header.bytes = sizeof(BlackBox);
  header.rank = 2;
  header.world = 6;
  box->header = std::bit_cast<WordsOf<BlackBoxHeader>>(header);
  Progress progress;
  const size_t world = progress.add_group("world", {0, 1, 2, 3, 4, 5});
  const size_t pipeline = progress.add_group("pipeline", {0, 2, 4});
  progress.add_group("chosen", {1, 2, 5});
  progress.record(box.get());
  for (int step = 1; step <= 70; ++step) {
    progress.begin_step(step);
    progress.act("forward of micro-batch 3, blocks.2", 3);
    const Progress::Wait wait{"all_reduce", world, progress.enter(world, "all_reduce", 64), {}};
    progress.finish(wait);
  }
  progress.begin_wait({"exchange", pipeline, 0, {progress.enter_message(pipeline, 0, false, 8), progress.enter_message(pipeline, 2, true, 8)}});
  progress.record(nullptr);
  return box;
}

template <class Words>
void mend(Words& words) {
  words.back() = black_box_check(std::span(words).first(words.size() - 1));
}

}  // namespace

bool accepts(std::string_view input) {
  static const std::unique_ptr<BlackBox> valid = valid_box();
  const auto box = std::make_unique<BlackBox>(*valid);
  std::string bytes(sizeof(BlackBox), '\0');
  std::memcpy(bytes.data(), box.get(), bytes.size());
  for (; input.size() >= 10; input.remove_prefix(10)) {
    uint16_t word = 0;
    std::memcpy(&word, input.data(), sizeof word);
    std::memcpy(bytes.data() + word % (bytes.size() / 8) * 8, input.data() + 2, 8);
  }
  std::memcpy(box.get(), bytes.data(), bytes.size());
  for (auto& activity : box->activities) mend(activity);
  for (auto& wait : box->waits) mend(wait);
  for (auto& record : box->records) mend(record);
  std::memcpy(bytes.data(), box.get(), bytes.size());
  bytes.resize(bytes.size() - input.size());  // what is left of the input cuts the file

  BlackBoxContents contents;
  if (!taken([&] { contents = decode_black_box(bytes, "box"); })) return false;
  for (const Progress::Group& group : contents.last.groups) {
    for (const int rank : group.ranks) require(rank >= 0 && rank < contents.owner.world, "ranks are those of the world");
    require(group.sent.size() == group.received.size() && (group.sent.empty() || group.sent.size() == group.ranks.size()), "a counter for each rank");
  }
  if (const auto& wait = contents.last.wait) {
    require(!wait->group || *wait->group < contents.last.groups.size(), "the group of a wait exists");
    require(wait->group || wait->messages.empty(), "messages have a group");
    for (const Progress::Message& message : wait->messages)
      require(message.peer < contents.last.groups[*wait->group].ranks.size(), "messages are to ranks of the group");
  }
  for (size_t i = 1; i < contents.records.size(); ++i)
    require(contents.records[i].sequence > contents.records[i - 1].sequence, "records are in order");
  return true;
}

}  // namespace trireme::fuzz
