#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr size_t kMostDigits = 6;  ///< per number in a schedule's text

void check_sizes(int stages, int microbatches) {
  TRIREME_CHECK(stages >= 1 && microbatches >= 1, stages, " stages, ", microbatches, " micro-batches");
}

/// Builds one rank's list. Counts the micro-batches of each type and stage, so that they come in ascending order in every schedule. Therefore
/// gradient sums have the same bits in all schedules, except for a tied embedding that a head on the same rank also reads, where the order differs.
class ListBuilder {
 public:
  /// A pattern that needs more micro-batches than there are is generated for `slots` of them, and the surplus is left out.
  explicit ListBuilder(int microbatches, int slots = 0) : microbatches_(microbatches), slots_(std::max(microbatches, slots)) {}

  /// Appends the next `times` micro-batches of a stage, as far as there are any.
  void add(ActionType type, int stage, int times = 1) {
    const auto at = static_cast<size_t>(stage) * kTypes + static_cast<size_t>(type);
    if (at >= next_.size()) next_.resize(at + kTypes, 0);
    int& next = next_[at];
    for (const int end = std::min(slots_, next + times); next < end; ++next) {
      if (next >= microbatches_) continue;
      Action& action = list_.emplace_back(Action{type});
      action.stage = stage;
      action.microbatch = next;
    }
  }
  bool all(ActionType type, int stage) const {
    const auto at = static_cast<size_t>(stage) * kTypes + static_cast<size_t>(type);
    return at < next_.size() && next_[at] == slots_;
  }
  void reserve(size_t actions) { list_.reserve(actions); }
  ActionList take() { return std::move(list_); }

 private:
  int microbatches_, slots_;
  static constexpr size_t kTypes = static_cast<size_t>(ActionType::kBackwardWeight) + 1;
  std::vector<int> next_;  ///< by stage, then type
  ActionList list_;
};

/// Rank i runs warmup(i) forwards, then repeats: an input gradient, the weight gradient of the micro-batch `delay(i)` earlier, a forward.
ActionLists split_backwards(int ranks, int microbatches, const auto& warmup, const auto& delay) {
  check_sizes(ranks, microbatches);
  ActionLists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    ListBuilder list(microbatches);
    list.add(ActionType::kForward, rank, warmup(rank));
    for (int m = 0; m < microbatches; ++m) {
      list.add(ActionType::kBackwardInput, rank);
      if (m >= delay(rank)) list.add(ActionType::kBackwardWeight, rank);
      list.add(ActionType::kForward, rank);
    }
    list.add(ActionType::kBackwardWeight, rank, microbatches);
    lists.push_back(list.take());
  }
  return lists;
}

/// Micro-batches of interleaved_1f1b. A group of fewer than p would leave gaps at each turn, so the remainder is spread over the first groups.
struct InterleavedGroups {
  InterleavedGroups(int ranks, int microbatches) : all(microbatches), count(std::max(1, microbatches / ranks)) {}
  int size(int group) const { return all / count + (group < all % count ? 1 : 0); }
  int all, count;
};

}  // namespace

const char* name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGPipe: return "gpipe";
    case ScheduleKind::k1F1B: return "1f1b";
    case ScheduleKind::kInterleaved1F1B: return "interleaved_1f1b";
    case ScheduleKind::kZbH1: return "zb_h1";
    case ScheduleKind::kZbH2: return "zb_h2";
    case ScheduleKind::kZbV: return "zb_v";
  }
  return "?";
}

ActionLists gpipe(int ranks, int microbatches) {
  check_sizes(ranks, microbatches);
  ActionLists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    ListBuilder list(microbatches);
    list.add(ActionType::kForward, rank, microbatches);
    list.add(ActionType::kBackward, rank, microbatches);
    lists.push_back(list.take());
  }
  return lists;
}

ActionLists one_forward_one_backward(int ranks, int microbatches) {
  check_sizes(ranks, microbatches);
  ActionLists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    ListBuilder list(microbatches);
    list.add(ActionType::kForward, rank, ranks - 1 - rank);
    for (int m = 0; m < microbatches; ++m) {
      list.add(ActionType::kForward, rank);
      list.add(ActionType::kBackward, rank);
    }
    lists.push_back(list.take());
  }
  return lists;
}

ActionLists interleaved_1f1b(int ranks, int virtual_stages, int microbatches) {
  check_sizes(ranks * virtual_stages, microbatches);
  if (virtual_stages == 1) return one_forward_one_backward(ranks, microbatches);
  const InterleavedGroups groups(ranks, microbatches);
  std::vector<int> chunks;  // virtual stages of the forwards, in order; the backwards mirror them
  for (int group = 0; group < groups.count; ++group)
    for (int chunk = 0; chunk < virtual_stages; ++chunk) chunks.insert(chunks.end(), static_cast<size_t>(groups.size(group)), chunk);

  ActionLists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    ListBuilder list(microbatches);
    list.reserve(2 * chunks.size());
    size_t forwards = 0;
    const auto forward = [&] {
      if (forwards < chunks.size()) list.add(ActionType::kForward, chunks[forwards++] * ranks + rank);
    };
    for (int warmup = (virtual_stages - 1) * groups.size(0) + 2 * (ranks - 1 - rank); warmup > 0; --warmup) forward();
    for (const int chunk : chunks) {
      forward();
      list.add(ActionType::kBackward, (virtual_stages - 1 - chunk) * ranks + rank);
    }
    lists.push_back(list.take());
  }
  return lists;
}

ActionLists zb_h1(int ranks, int microbatches) {
  return split_backwards(
      ranks, microbatches, [=](int rank) { return ranks - rank; }, [](int rank) { return rank; });
}

ActionLists zb_h2(int ranks, int microbatches) {
  return split_backwards(
      ranks, microbatches, [=](int rank) { return 2 * (ranks - rank) - 1; }, [](int rank) { return 2 * rank; });
}

ActionLists zb_v(int ranks, int microbatches) {
  check_sizes(ranks, microbatches);
  constexpr ActionType kF = ActionType::kForward, kI = ActionType::kBackwardInput, kW = ActionType::kBackwardWeight;
  ActionLists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    const int down = rank, up = 2 * ranks - 1 - rank;  // the rank's stages on the two arms of the V
    ListBuilder list(microbatches, 2 * ranks - 1);
    const auto add = [&](int stage, std::initializer_list<ActionType> types) {
      for (const ActionType type : types) list.add(type, stage);
    };
    list.add(kF, down, 2 * (ranks - rank) - 1);
    for (int i = 0; i < rank; ++i) add(up, {kF}), add(down, {kF});
    for (int i = rank; i < ranks; ++i) add(up, {kF, kI, kW});
    while (!list.all(kF, up)) add(down, {kF, kI, kW}), add(up, {kF, kI, kW});
    // The weight gradients that remain fill the bubble of the cooldown.
    for (int i = 0; i < rank; ++i) add(down, {kI}), add(up, {kI});
    for (int i = rank; i < ranks; ++i) add(down, {kI, kW});
    list.add(kW, up, microbatches);
    list.add(kW, down, microbatches);
    lists.push_back(list.take());
  }
  return lists;
}

ActionLists forward_only(const std::vector<int>& stage_rank, int microbatches) {
  check_sizes(static_cast<int>(stage_rank.size()), microbatches);
  ActionLists lists(static_cast<size_t>(*std::ranges::max_element(stage_rank)) + 1);
  // In each time slot a rank runs the last of its stages whose input was available when the slot began.
  std::vector<int> done(stage_rank.size(), 0);
  while (done.back() < microbatches) {
    const std::vector<int> before = done;
    std::vector<bool> busy(lists.size(), false);
    for (size_t stage = stage_rank.size(); stage-- > 0;) {
      const size_t rank = static_cast<size_t>(stage_rank[stage]);
      if (busy[rank] || done[stage] == (stage > 0 ? before[stage - 1] : microbatches)) continue;
      lists[rank].push_back({ActionType::kForward, static_cast<int>(stage), done[stage]++});
      busy[rank] = true;
    }
  }
  return lists;
}

int default_virtual_stages(ScheduleKind kind) { return kind == ScheduleKind::kInterleaved1F1B || kind == ScheduleKind::kZbV ? 2 : 1; }

bool allows_virtual_stages(ScheduleKind kind, int virtual_stages) {
  return kind == ScheduleKind::kInterleaved1F1B || virtual_stages == default_virtual_stages(kind);
}

ActionLists make_schedule(ScheduleKind kind, int ranks, int virtual_stages, int microbatches) {
  TRIREME_CHECK(allows_virtual_stages(kind, virtual_stages), name_of(kind), " does not support ", virtual_stages, " virtual stages");
  switch (kind) {
    case ScheduleKind::kGPipe: return gpipe(ranks, microbatches);
    case ScheduleKind::k1F1B: return one_forward_one_backward(ranks, microbatches);
    case ScheduleKind::kInterleaved1F1B: return interleaved_1f1b(ranks, virtual_stages, microbatches);
    case ScheduleKind::kZbH1: return zb_h1(ranks, microbatches);
    case ScheduleKind::kZbH2: return zb_h2(ranks, microbatches);
    case ScheduleKind::kZbV: return zb_v(ranks, microbatches);
  }
  throw InternalError("unknown schedule");
}

std::vector<int> forwards_before_backward(ScheduleKind kind, int ranks, int virtual_stages, int microbatches) {
  std::vector<int> forwards(static_cast<size_t>(ranks * virtual_stages), 0);
  const InterleavedGroups groups(ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    const int behind = ranks - 1 - rank;
    const auto of = [&](int stage) -> int& { return forwards[static_cast<size_t>(stage)]; };
    switch (kind) {
      case ScheduleKind::kGPipe: of(rank) = microbatches; break;
      case ScheduleKind::kZbH2: of(rank) = 2 * behind + 1; break;
      case ScheduleKind::kZbV:
        of(rank) = ranks + behind;
        of(2 * ranks - 1 - rank) = rank + 1;
        break;
      case ScheduleKind::k1F1B:
      case ScheduleKind::kZbH1:
      case ScheduleKind::kInterleaved1F1B: {
        if (virtual_stages == 1) {
          of(rank) = behind + 1;
          break;
        }
        int left = (virtual_stages - 1) * groups.size(0) + 2 * behind + 1;
        for (int group = 0; group < groups.count; ++group)
          for (int chunk = 0; chunk < virtual_stages && left > 0; ++chunk) {
            const int here = std::min(left, groups.size(group));
            of(chunk * ranks + rank) += here;
            left -= here;
          }
      }
    }
  }
  for (int& count : forwards) count = std::min(count, microbatches);
  return forwards;
}

SchedulePeriod period_of(ScheduleKind kind, int ranks, int virtual_stages, int microbatches) {
  if (kind == ScheduleKind::kGPipe) return {};  // all forwards precede all backwards, so no part of a list repeats both
  if (kind != ScheduleKind::kInterleaved1F1B || virtual_stages == 1) return {.microbatches = 1, .irregular = 0};
  // The first groups have one more micro-batch each, as many as remain; all others have as many as there are ranks.
  const int groups = microbatches / ranks, remainder = microbatches % ranks;
  if (groups <= remainder) return {};
  return {.microbatches = ranks, .irregular = remainder * (ranks + 1)};
}

std::vector<int> stage_ranks(const ActionLists& lists) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (const Action& action : lists[rank]) {
      if (!is_compute(action.type)) continue;
      const size_t stage = static_cast<size_t>(action.stage);
      if (stage >= ranks.size()) ranks.resize(stage + 1, -1);
      TRIREME_CHECK(ranks[stage] < 0 || ranks[stage] == static_cast<int>(rank), "stage ", stage, " is assigned to ranks ", ranks[stage], " and ",
                    rank);
      ranks[stage] = static_cast<int>(rank);
    }
  }
  for (size_t stage = 0; stage < ranks.size(); ++stage) TRIREME_CHECK(ranks[stage] >= 0, "no rank computes stage ", stage);
  return ranks;
}

std::string to_text(const ActionLists& lists) {
  std::string text;
  for (const ActionList& list : lists) text += to_string(list) + "\n";
  return text;
}

namespace {

/// "12F3"; empty if the word is not an action.
std::optional<Action> parse_action(const std::string& word) {
  const auto number = [&](size_t begin, size_t end, int& value) {
    const auto [rest, error] = std::from_chars(word.data() + begin, word.data() + end, value);
    return end - begin <= kMostDigits && error == std::errc() && rest == word.data() + end && value >= 0;
  };
  const size_t letter = word.find_first_of("FBIW");
  Action action{ActionType::kForward, 0, 0};
  if (letter == std::string::npos || !number(0, letter, action.stage) || !number(letter + 1, word.size(), action.microbatch)) return std::nullopt;
  action.type = word[letter] == 'F'   ? ActionType::kForward
                : word[letter] == 'B' ? ActionType::kBackward
                : word[letter] == 'I' ? ActionType::kBackwardInput
                                      : ActionType::kBackwardWeight;
  return action;
}

}  // namespace

ActionLists parse_schedule(const std::string& text) {
  ActionLists lists;
  std::map<int, int> line_of_stage;
  std::set<std::tuple<ActionType, int, int>> seen;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    ActionList list;
    for (std::string word; words >> word;) {
      const auto refuse = [&](const auto&... why) {
        throw ConfigError(concat("line ", number, ", word ", list.size() + 1, ", ", word, ": ", why...));
      };
      const std::optional<Action> action = parse_action(word);
      if (!action) refuse("invalid action; write stage, F, B, I or W, and micro-batch, such as 0F0");
      const ActionType type = action->type;
      const int stage = action->stage, microbatch = action->microbatch;
      if (const int there = line_of_stage.try_emplace(stage, number).first->second; there != number)
        refuse("stage ", stage, " is already on line ", there, "; a stage runs on one rank only");
      const bool backward = type == ActionType::kBackward;
      for (const ActionType half : backward ? std::vector{ActionType::kBackwardInput, ActionType::kBackwardWeight} : std::vector{type})
        if (!seen.insert({half, stage, microbatch}).second) refuse("duplicate action", backward ? " (B includes I and W)" : "");
      list.push_back(*action);
    }
    if (!list.empty()) lists.push_back(std::move(list));
  }
  return lists;
}

}  // namespace trireme
