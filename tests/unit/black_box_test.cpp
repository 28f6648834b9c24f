// The black box of a rank: what Progress notes comes back from its file, also after a kill, while it is being written, and from a damaged file.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/black_box_file.h"

using namespace trireme;
using test::Scratch;
using test::slurp;

namespace {

const BlackBoxOwner kOwner{3, 8, "session 17", "cpu, 2 threads", "pipeline 0, replicate 0, shard 1, tensor 1"};

std::string decoding_error(const std::string& bytes) {
  try {
    decode_black_box(bytes, "box");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// A Progress that is recorded in RUN/logs/rank-0003.blackbox of a scratch directory.
struct Recorded {
  Scratch scratch;
  std::string path = scratch / "rank-0003.blackbox";
  MappedBlackBox mapped{path, kOwner};
  Progress progress;

  Recorded() { progress.record(&mapped.box()); }
  ~Recorded() { progress.record(nullptr); }
  BlackBoxContents read() const { return read_black_box(path); }
  std::string bytes() const { return slurp(path); }
};

/// Updates that a reader can check: the action, the micro-batch, the step and the number of the operation are the same.
void update(Progress& progress, size_t world, int64_t number) {
  progress.begin_step(number);
  progress.act(concat("action ", number), number);
  const Progress::Wait wait{"all_reduce", world, progress.enter(world, "all_reduce", 4 * number), {}};
  progress.begin_wait(wait);
  progress.end_wait();
  progress.finish(wait);
}

/// Fails the test if the contents cannot be a moment between two updates.
void check_moment(const BlackBoxContents& contents) {
  const Progress::Snapshot& last = contents.last;
  if (last.step == 0) return;
  const auto number_of = [](const std::string& text) { return std::stoll(text.substr(text.rfind(' ') + 1)); };
  const bool has_acted = last.microbatch == last.step;
  if (!last.action.empty()) REQUIRE(number_of(last.action) == last.microbatch);
  if (!has_acted) REQUIRE(last.microbatch == (last.action.empty() ? -1 : last.step - 1));
  if (last.wait) REQUIRE(last.wait->what == "all_reduce");
  for (size_t i = 0; i < contents.records.size(); ++i) {
    const auto& record = contents.records[i];
    if (i > 0) REQUIRE(record.sequence > contents.records[i - 1].sequence);
    const auto round = static_cast<int64_t>((record.sequence + 3) / 4);  // four records an update
    REQUIRE(record.number == round);
    REQUIRE(record.kind == 1 + (record.sequence - 1) % 4);
    if (record.kind == BlackBoxRecord::kAction) REQUIRE(number_of(record.words) == round);
    if (record.kind == BlackBoxRecord::kBegun) REQUIRE(record.payload == static_cast<uint64_t>(4 * round));
  }
}

}  // namespace

TEST_CASE("black box: the reader has what Progress has") {
  Recorded box;
  Progress& progress = box.progress;
  const size_t world = progress.add_group("world", {0, 1, 2, 3, 4, 5, 6, 7});
  const size_t pipeline = progress.add_group("pipeline", {1, 3, 5, 7});
  const size_t chosen = progress.add_group("chosen", {3, 4, 6});
  const size_t twin = progress.add_group("pipeline", {1, 3, 5, 7});
  progress.set_timeout(12.5);
  progress.begin_step(17, 1000, 2000);
  for (int i = 0; i < 5; ++i) progress.enter(world, "barrier");
  progress.enter(chosen, "broadcast", 64);
  const Progress::Message sent = progress.enter_message(pipeline, 2, true, 256);
  progress.enter_message(twin, 0, false, 8);
  const Progress::Message received = progress.enter_message(pipeline, 0, false, 128);
  progress.act("sending the output of micro-batch 2", 2);
  progress.begin_wait({"exchange", pipeline, 0, {sent, received}});

  const BlackBoxContents contents = box.read();
  const Progress::Snapshot expected = progress.snapshot();
  CHECK(contents.owner.rank == 3);
  CHECK(contents.owner.world == 8);
  CHECK(contents.owner.session == kOwner.session);
  CHECK(contents.owner.device == kOwner.device);
  CHECK(contents.owner.coordinate == kOwner.coordinate);
  CHECK(contents.host == host_name());
  CHECK(contents.pid == ::getpid());
  CHECK(contents.ended == 0);
  CHECK(contents.begun <= contents.moved);
  CHECK(contents.action_began > contents.begun);
  CHECK(contents.last.count == expected.count);
  CHECK(contents.last.step == 17);
  CHECK(contents.last.memory_peak == 1000);
  CHECK(contents.last.resident_peak == 2000);
  CHECK(contents.last.action == "sending the output of micro-batch 2");
  CHECK(contents.last.microbatch == 2);
  CHECK(contents.last.timeout == 12.5);
  REQUIRE(contents.last.wait);
  CHECK(contents.last.wait->what == "exchange");
  CHECK(contents.last.wait->group == pipeline);
  REQUIRE(contents.last.wait->messages.size() == 2);
  CHECK((contents.last.wait->messages[0].peer == 2 && contents.last.wait->messages[0].send && contents.last.wait->messages[0].number == 1));
  CHECK((contents.last.wait->messages[1].peer == 0 && !contents.last.wait->messages[1].send));
  REQUIRE(contents.last.groups.size() == expected.groups.size());
  for (size_t g = 0; g < expected.groups.size(); ++g) {
    CAPTURE(g);
    CHECK(contents.last.groups[g].name == expected.groups[g].name);
    CHECK(contents.last.groups[g].ranks == expected.groups[g].ranks);
    CHECK(contents.last.groups[g].started == expected.groups[g].started);
    CHECK(contents.last.groups[g].sent == expected.groups[g].sent);
    CHECK(contents.last.groups[g].received == expected.groups[g].received);
  }
  const auto& records = contents.records;
  REQUIRE(records.size() == 11);
  CHECK((records[0].kind == BlackBoxRecord::kStep && records[0].number == 17));
  CHECK((records[5].kind == BlackBoxRecord::kBegun && records[5].words == "barrier" && records[5].number == 5 && records[5].group == world));
  CHECK((records[6].words == "broadcast" && records[6].payload == 64 && records[6].peer == -1));
  CHECK((records[7].words == "send" && records[7].peer == 5 && records[7].payload == 256));
  CHECK((records[9].words == "receive" && records[9].peer == 1 && records[9].number == 1));
  CHECK((records[10].kind == BlackBoxRecord::kAction && records[10].number == 2));

  progress.end_wait();
  CHECK_FALSE(box.read().last.wait);
}

TEST_CASE("black box: groups and counters from before the record began are in it") {
  Progress progress;
  const size_t group = progress.add_group("pipeline", {0, 2});
  progress.enter(group);
  progress.enter_message(group, 1, true);
  progress.act("loading");
  Recorded box;
  progress.record(&box.mapped.box());
  const BlackBoxContents contents = box.read();
  progress.record(nullptr);
  REQUIRE(contents.last.groups.size() == 1);
  CHECK(contents.last.groups[0].started == 1);
  CHECK(contents.last.groups[0].sent == std::vector<uint64_t>{0, 1});
  CHECK(contents.last.action == "loading");
  progress.act("later");  // no longer written
  CHECK(box.read().last.action == "loading");
}

TEST_CASE("black box: the ring keeps the newest records, in order, after it has wrapped around") {
  Recorded box;
  const size_t world = box.progress.add_group("world", {0, 1});
  for (int64_t i = 1; i <= 500; ++i) {
    update(box.progress, world, i);
    if (i != 3 && i != 63 && i != 64 && i != 65 && i != 500) continue;
    CAPTURE(i);
    const BlackBoxContents contents = box.read();
    check_moment(contents);
    const auto newest = static_cast<uint64_t>(4 * i);
    const uint64_t kept = std::min<uint64_t>(newest, BlackBox::kRecords);
    REQUIRE(contents.records.size() == kept);
    CHECK(contents.records.front().sequence == newest - kept + 1);
    CHECK(contents.records.back().sequence == newest);
  }
}

TEST_CASE("black box: a record or state that is partly written is left out") {
  Recorded box;
  const size_t world = box.progress.add_group("world", {0, 1});
  for (int64_t i = 1; i <= 100; ++i) update(box.progress, world, i);
  std::string whole = box.bytes();
  const size_t records_at = offsetof(BlackBox, records);
  for (size_t word = 0; word < sizeof(BlackBoxRecord) / 8; ++word) {
    CAPTURE(word);
    std::string torn = whole;
    torn[records_at + 77 * sizeof(BlackBoxRecord) + 8 * word] ^= 0x10;
    const BlackBoxContents contents = decode_black_box(torn, "box");
    CHECK(contents.records.size() == BlackBox::kRecords - 1);
    check_moment(contents);
  }
  // One of the slots of activities and waits is enough: the newest value, or the one before it when the newest is torn.
  const auto check_slots = [&]<class Slot>(size_t slots_at, const Slot&) {
    std::set<uint64_t> counts;
    for (const size_t slot : {0, 1}) {
      for (size_t word = 0; word < sizeof(Slot) / 8; ++word) {
        std::string torn = whole;
        torn[slots_at + slot * sizeof(Slot) + 8 * word] ^= 0x01;
        counts.insert(decode_black_box(torn, "box").last.count);
        torn[slots_at + (1 - slot) * sizeof(Slot)] ^= 0x01;
        CHECK(decoding_error(torn).find("no whole record of its ") != std::string::npos);
      }
    }
    return counts;
  };
  const uint64_t now = box.progress.snapshot().count;
  CHECK(check_slots(offsetof(BlackBox, waits), BlackBoxWait()) == std::set<uint64_t>{now - 1, now});
  box.progress.act("one more");
  box.progress.set_timeout(3);
  whole = box.bytes();
  CHECK(check_slots(offsetof(BlackBox, activities), BlackBoxActivity()) == std::set<uint64_t>{now + 1, now + 2});
}

TEST_CASE("black box: a reader sees consistent moments while another thread writes") {
  Recorded box;
  const size_t world = box.progress.add_group("world", {0, 1});
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t i = 1; !stop; ++i) update(box.progress, world, i);
  });
  struct Stop {
    std::atomic<bool>& stop;
    std::thread& writer;
    ~Stop() {
      stop = true;
      writer.join();
    }
  } const at_the_end{stop, writer};
  size_t useful = 0;
  int64_t last = 0;
  for (int i = 0; i < 300 || (useful <= 100 && i < 30000); ++i) {  // on a busy machine the writer may rest in between
    const BlackBoxContents contents = box.read();
    check_moment(contents);
    CHECK(contents.last.step >= last);
    last = contents.last.step;
    useful += contents.records.size() > BlackBox::kRecords / 16 ? 1 : 0;
  }
  CHECK(last > 100);
  CHECK(useful > 100);  // the writer overtakes some of the records, not all
}

TEST_CASE("black box: after SIGKILL the last state is there, whatever was being written") {
  const Scratch scratch;
  const std::string path = scratch / "rank-0003.blackbox";
  std::mt19937 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    const pid_t child = ::fork();
    if (child == 0) {
      MappedBlackBox mapped(path, kOwner);
      Progress progress;
      const size_t world = progress.add_group("world", {0, 1});
      progress.record(&mapped.box());
      for (int64_t i = 1;; ++i) update(progress, world, i);
    }
    const auto reached = [&] {
      try {
        const BlackBoxContents contents = read_black_box(path);
        return contents.pid == child && contents.last.step > 100;
      } catch (const Error&) {
        return false;
      }
    };
    while (!reached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    CHECK(life_of(read_black_box(path)) == ProcessLife::kAlive);
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const BlackBoxContents contents = read_black_box(path);
    check_moment(contents);
    CHECK(contents.records.size() >= BlackBox::kRecords - 1);
    CHECK(contents.ended == 0);
    CHECK(life_of(contents) == ProcessLife::kGone);
  }
}

TEST_CASE("black box: the life of its process") {
  const Scratch scratch;
  const std::string path = scratch / "rank-0003.blackbox";
  const pid_t child = ::fork();
  if (child == 0) {
    const MappedBlackBox mapped(path, kOwner);
    Progress progress;
    progress.record(const_cast<BlackBox*>(&const_cast<MappedBlackBox&>(mapped).box()));
    for (;;) ::pause();
  }
  const auto life = [&] {
    try {
      return life_of(read_black_box(path));
    } catch (const Error&) {
      return ProcessLife::kUnknown;
    }
  };
  while (life() == ProcessLife::kUnknown) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(life() == ProcessLife::kAlive);
  ::kill(child, SIGSTOP);
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  CHECK(life() == ProcessLife::kStopped);
  BlackBoxContents contents = read_black_box(path);
  ++contents.process_start;  // the number was given to another process
  CHECK(life_of(contents) == ProcessLife::kGone);
  --contents.process_start;
  contents.host += "x";
  CHECK(life_of(contents) == ProcessLife::kUnknown);
  contents = read_black_box(path);
  ++contents.pid_namespace;
  CHECK(life_of(contents) == ProcessLife::kUnknown);
  contents = read_black_box(path);
  contents.boot = "another";
  CHECK(life_of(contents) == ProcessLife::kUnknown);
  ::kill(child, SIGKILL);
  while (life() != ProcessLife::kGone) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a zombie
  ::waitpid(child, nullptr, 0);
  CHECK(life() == ProcessLife::kGone);
}

TEST_CASE("black box: the first end is kept, and texts that are too long are cut") {
  Recorded box;
  box.progress.act(std::string(500, 'a'));
  write_end(box.mapped.box(), "done" + std::string(600, '.'));
  write_end(box.mapped.box(), "second");
  const BlackBoxContents contents = box.read();
  CHECK(contents.last.action == std::string(127, 'a'));
  CHECK(contents.end.substr(0, 6) == "done..");
  CHECK(contents.end.size() == 511);
  CHECK(contents.ended >= contents.moved);
}

TEST_CASE("black box: what does not fit is left out, and nobody is accused of it") {
  Recorded box;
  std::vector<int> irregular;
  for (int i = 0; i < 8; ++i)
    if (i != 1) irregular.push_back(i);
  for (size_t g = 0; g < BlackBox::kGroups + 5; ++g) box.progress.add_group("group", irregular);
  box.progress.enter(BlackBox::kGroups + 2, "barrier");
  box.progress.begin_wait({"barrier", BlackBox::kGroups + 2, 1, {}});
  BlackBoxContents contents = box.read();
  CHECK(contents.last.groups.size() == BlackBox::kGroups);
  REQUIRE(contents.last.wait);
  CHECK_FALSE(contents.last.wait->group);
  CHECK(contents.records.empty());

  Progress large;
  std::vector<int> many(3000);
  for (int i = 0; i < 3000; ++i) many[static_cast<size_t>(i)] = i;
  const Scratch scratch;
  MappedBlackBox mapped(scratch / "large", {0, 3000, "", "", ""});
  large.add_group("pipeline", many);
  large.record(&mapped.box());
  large.enter_message(0, 2, true);
  contents = read_black_box(scratch / "large");
  large.record(nullptr);
  CHECK(contents.last.groups[0].sent[2] > 1'000'000);  // unknown: as if every message had been sent
  CHECK(contents.last.groups[0].received[7] > 1'000'000);
}

TEST_CASE("black box: the one of the start before is kept under another name") {
  const Scratch scratch;
  const std::string path = scratch / "rank-0003.blackbox";
  for (const char* session : {"one", "two", "three"}) {
    BlackBoxOwner owner = kOwner;
    owner.session = session;
    MappedBlackBox mapped(path, owner);
    Progress().record(&mapped.box());
  }
  CHECK(read_black_box(path).owner.session == "three");
  CHECK(previous_black_box(path) == scratch / "rank-0003.previous.blackbox");
  CHECK(read_black_box(previous_black_box(path)).owner.session == "two");
  CHECK(scratch.names().size() == 2);
  CHECK(black_box_path("runs/a", 3) == "runs/a/logs/rank-0003.blackbox");
  CHECK(black_box_path("runs/a", 12345) == "runs/a/logs/rank-12345.blackbox");
}

TEST_CASE("black box: one that cannot be made is an error that names it") {
  const Scratch scratch;
  CHECK_THROWS_AS(MappedBlackBox(scratch / "nowhere/box", kOwner), IoError);
  CHECK_THROWS_AS(MappedBlackBox("/proc/self/box", kOwner), IoError);
  CHECK(scratch.names().empty());
  CHECK_THROWS_AS(read_black_box(scratch / "none"), MissingFileError);
}

TEST_CASE("black box: malformed files are errors, and never crash the reader") {
  Recorded box;
  const size_t world = box.progress.add_group("world", {0, 1, 2});
  const size_t pipeline = box.progress.add_group("pipeline", {0, 2});
  box.progress.add_group("chosen", {0, 1, 3});
  for (int64_t i = 1; i <= 20; ++i) update(box.progress, world, i);
  box.progress.begin_wait({"exchange", pipeline, 0, {box.progress.enter_message(pipeline, 1, true, 5)}});
  const std::string whole = box.bytes();
  CHECK(decoding_error(whole).empty());
  CHECK(decoding_error("").find("not a black box") != std::string::npos);
  CHECK(decoding_error(whole + "x").find("bytes; allowed") != std::string::npos);
  CHECK(decoding_error(std::string(whole.size(), '\0')).find("not a black box") != std::string::npos);
  std::string version = whole;
  version[offsetof(BlackBoxHeader, version)] = 2;
  CHECK(decoding_error(version).find("of version 2; this program reads version 1") != std::string::npos);
  std::string other_order = whole;
  for (size_t word = 8; word < sizeof(BlackBoxHeader); word += 8) std::reverse(other_order.begin() + word, other_order.begin() + word + 8);
  CHECK(decoding_error(other_order).find("a black box in the byte order of another kind of machine") != std::string::npos);
  for (size_t size = 0; size < whole.size(); size += 997) CHECK_FALSE(decoding_error(whole.substr(0, size)).empty());

  std::mt19937_64 random(11);
  const uint64_t telling[] = {0, 1, 7, 8, 63, 64, 4095, 4096, 1 << 20, (1 << 20) + 1, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}};
  int accepted = 0;
  const size_t targets = offsetof(BlackBox, groups) + 4 * sizeof(BlackBoxGroup);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string damaged = whole;
    const size_t changes = 1 + random() % 3;
    for (size_t i = 0; i < changes; ++i) {
      const size_t word = random() % (targets / 8);
      const uint64_t value = random() % 2 == 0 ? random() : telling[random() % std::size(telling)];
      std::memcpy(damaged.data() + 8 * word, &value, 8);
    }
    // A slot counts only with its check, which a random change never has.
    const auto mend = [&]<class Slot>(size_t slots_at, const Slot&) {
      for (const size_t slot : {0, 1}) {
        std::array<uint64_t, sizeof(Slot) / 8> words;
        char* const at = damaged.data() + slots_at + slot * sizeof(Slot);
        std::memcpy(words.data(), at, sizeof words);
        words.back() = black_box_check(std::span(words).first(words.size() - 1));
        std::memcpy(at, words.data(), sizeof words);
      }
    };
    mend(offsetof(BlackBox, activities), BlackBoxActivity());
    mend(offsetof(BlackBox, waits), BlackBoxWait());
    try {
      const Progress::Snapshot last = decode_black_box(damaged, "box").last;
      ++accepted;
      for (const Progress::Group& group : last.groups) {
        for (const int rank : group.ranks) REQUIRE((rank >= 0 && rank < 1 << 20));
        REQUIRE((group.sent.empty() || group.sent.size() == group.ranks.size()));
      }
      if (last.wait && last.wait->group) REQUIRE(*last.wait->group < last.groups.size());
      if (last.wait)
        for (const Progress::Message& message : last.wait->messages) REQUIRE(message.peer < last.groups.at(*last.wait->group).ranks.size());
    } catch (const DataError&) {
    }
  }
  CHECK(accepted > 300);
  CHECK(accepted < 2900);
}
