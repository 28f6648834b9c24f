#include "trainer/layout/layout.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <sstream>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr const char* kSeparators = "-_,:+";
constexpr const char* kAllowed =
    "tpN ppN dpN zN vppN repN secN mbN sp none selective full full_grads sharded_grads after_step gpipe 1f1b interleaved_1f1b zb_h1 zb_h2 zb_v";

struct Number {
  const char* word;
  int64_t Layout::*field;
  int64_t least;
  int64_t most;
};
constexpr int64_t kMostRanks = 1 << 20;
constexpr Number kNumbers[] = {
    {"tp", &Layout::tensor, 1, kMostRanks},
    {"pp", &Layout::pipeline, 1, 1024},
    {"dp", &Layout::data, 1, kMostRanks},
    {"sec", &Layout::secondary, 1, kMostRanks},
    {"rep", &Layout::replicate, 1, kMostRanks},
    {"mb", &Layout::micro_batch, 1, kMostRanks},
    {"z", &Layout::zero, 0, 3},
};
constexpr const char* kVirtual = "vpp";

std::optional<ScheduleKind> schedule_named(const std::string& name) {
  for (const ScheduleKind kind : kScheduleKinds)
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) { spec_.text = text; }

  Layout parse() {
    while (skip_separators()) word();
    if (said_.empty()) refuse("empty layout");
    return spec_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(concat("--layouts: '", text_, "', character ", at_ + 1, ": ", why, "; allowed ", kAllowed,
                             ", in any order, joined or separated by one of ", kSeparators));
  }
  bool skip_separators() {
    while (at_ < text_.size() && std::string(kSeparators).find(text_[at_]) != std::string::npos) ++at_;
    return at_ < text_.size();
  }
  bool next_is(const std::string& word) const { return text_.compare(at_, word.size(), word) == 0; }

  /// Refuses a second setting of `kind`.
  void once(const std::string& kind) {
    if (!said_.insert(kind).second) refuse(concat("duplicate ", kind));
  }

  /// Takes the longest matching word, so that "full_grads" is not read as "full".
  void word() {
    std::string longest;
    for (const char* word : {"sp", "none", "selective", "full", "full_grads", "sharded_grads", "after_step"})
      if (next_is(word) && std::string(word).size() > longest.size()) longest = word;
    for (const ScheduleKind kind : kScheduleKinds)
      if (next_is(name_of(kind)) && std::string(name_of(kind)).size() > longest.size()) longest = name_of(kind);
    if (longest.empty()) return number();
    take(longest);
    at_ += longest.size();
  }

  void take(const std::string& word) {
    if (word == "sp") {
      once("sp");
      spec_.sequence_parallel = true;
    } else if (word == "full_grads" || word == "sharded_grads") {
      once("gradient_accumulation");
      spec_.gradient_accumulation = OneOf<GradientAccumulation>(word.substr(0, word.find('_'))).value();
    } else if (word == "after_step") {
      once("reshard");
      spec_.reshard = OneOf<Reshard>(word).value();
    } else if (word == "none" || word == "selective" || word == "full") {
      once("recompute");
      spec_.recompute = OneOf<RecomputeMode>(word).value();
    } else {
      once("schedule");
      spec_.schedule = schedule_named(word).value();
    }
  }

  void number() {
    if (next_is(kVirtual)) {
      spec_.virtual_stages = value(kVirtual, 1, 1024);
      return;
    }
    for (const Number& number : kNumbers) {
      if (!next_is(number.word)) continue;
      spec_.*number.field = value(number.word, number.least, number.most);
      return;
    }
    refuse(concat("unknown word '", text_.substr(at_), "'"));
  }

  int64_t value(const std::string& word, int64_t least, int64_t most) {
    once(word);
    at_ += word.size();
    size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    if (end == at_) refuse(concat(word, " needs a number"));
    if (text_.compare(end, 3, "f1b") == 0) refuse("a schedule whose name begins with a digit needs a separator before it, as in dp2-1f1b");
    int64_t value = -1;
    const auto [stop, error] = std::from_chars(text_.data() + at_, text_.data() + end, value);
    if (error != std::errc() || stop != text_.data() + end || value < least || value > most)
      refuse(concat(word, text_.substr(at_, end - at_), " is out of range, ", least, " to ", most));
    at_ = end;
    return value;
  }

  const std::string& text_;
  size_t at_ = 0;
  Layout spec_;
  std::set<std::string> said_;
};

}  // namespace

int64_t Layout::stages_per_rank() const { return virtual_stages.value_or(default_virtual_stages(schedule)); }

ParallelConfig Layout::parallel(const ParallelConfig& others) const {
  ParallelConfig p = others;
  p.tensor = tensor;
  p.pipeline = pipeline;
  p.data = data;
  p.zero_stage = zero;
  p.replicate = replicate;
  p.secondary_shards = secondary;
  p.sequence_parallel = sequence_parallel;
  p.schedule = name_of(schedule);
  p.virtual_stages = virtual_stages;
  p.gradient_accumulation = gradient_accumulation;
  p.reshard = reshard;
  return p;
}

std::string Layout::str() const {
  std::ostringstream out;
  const auto degree = [&](const char* word, int64_t value, int64_t plain) {
    if (value != plain) out << word << value;
  };
  degree("tp", tensor, 1);
  degree("pp", pipeline, 1);
  if (virtual_stages) out << "vpp" << *virtual_stages;
  degree("dp", data, 1);
  degree("z", zero, 0);
  degree("rep", replicate, 1);
  degree("sec", secondary, 0);
  degree("mb", micro_batch, 1);
  if (sequence_parallel) out << "sp";
  if (gradient_accumulation != GradientAccumulation::kAuto) out << "-" << name_of(gradient_accumulation) << "_grads";
  if (reshard != Reshard::kAfterUse) out << "-" << name_of(reshard);
  if (recompute) out << "-" << name_of(*recompute);
  if (schedule != ScheduleKind::k1F1B) out << "-" << name_of(schedule);
  const std::string all = out.str();
  const size_t begin = all.find_first_not_of('-');
  return begin == std::string::npos ? "tp1" : all.substr(begin);
}

Layout layout_of(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return {.tensor = p.tensor,
          .pipeline = p.pipeline,
          .data = p.data.value(),
          .zero = p.zero_stage,
          .replicate = p.replicate,
          .secondary = p.secondary_shards,
          .micro_batch = config.training.micro_batch_size,
          .sequence_parallel = p.sequence_parallel,
          .schedule = schedule_named(p.schedule).value_or(ScheduleKind::k1F1B),
          .virtual_stages = p.virtual_stages,
          .recompute = config.training.recompute.value(),
          .gradient_accumulation = p.gradient_accumulation.value(),
          .reshard = p.reshard.value()};
}

Layout parse_layout(const std::string& text) { return Parser(text).parse(); }

std::vector<Layout> parse_layouts(const std::string& text) {
  std::istringstream words(text);
  std::vector<Layout> specs;
  for (std::string word; words >> word;) specs.push_back(parse_layout(word));
  if (specs.empty()) throw ConfigError(concat("--layouts: no layout given; allowed layouts made of the words ", kAllowed));
  return specs;
}

}  // namespace trireme
