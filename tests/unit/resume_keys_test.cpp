// Which keys of the configuration may change between two parts of one run: each key of all of them is changed, one at a time.
#include <algorithm>
#include <set>

#include "tests/support/catch.h"
#include "trainer/config/visit.h"
#include "trainer/run/resume.h"

using namespace trireme;

namespace {

void alter(bool& value) { value = !value; }
void alter(int64_t& value) { value += 1; }
void alter(double& value) { value += 0.25; }
void alter(std::string& value) { value += "other"; }
template <class T>
void alter(std::vector<T>& value) {
  value.emplace_back();
  alter(value.back());
}
template <class T>
void alter(std::optional<T>& value) {
  if (!value) value.emplace();
  alter(*value);
}

/// Alters the field number `target` of a configuration, and notes its path.
class Change {
 public:
  explicit Change(size_t target) : target_(target) {}

  std::string path;
  bool seen_by_writer = false;  ///< a key without effect beside the other values is not written, and no change either

  template <class T>
  void operator()(const Field& field, T& value) {
    if (next_++ != target_) return;
    path = section_ + field.key;
    seen_by_writer = field.without_effect == nullptr;
    alter(value);
  }
  template <class T>
  void section(const char* key, const char*, T& part) {
    const std::string outer = section_;
    section_ += std::string(key) + ".";
    visit(*this, part);
    section_ = outer;
  }

 private:
  const size_t target_;
  size_t next_ = 0;
  std::string section_;
};

/// Sections whose keys say where, how fast and how safely a run trains, never what.
const std::vector<std::string> kNeutralSections = {"run.", "parallel.", "checkpoint.", "resilience.", "kernels.", "plan.", "training.evaluate."};
const std::set<std::string> kNeutral = {
    "training.logits_chunk", "training.recompute", "training.recompute_every", "training.recompute_budget", "training.micro_batch_size",
    "training.max_rejected_steps",
    "data.validation",       "data.tokenizer"};  // the tokenizer is compared by its digest

bool is_neutral(const std::string& path) {
  if (path == "run.seed") return false;
  return kNeutral.contains(path) || std::any_of(kNeutralSections.begin(), kNeutralSections.end(), [&](const auto& s) { return path.starts_with(s); });
}

}  // namespace

TEST_CASE("resume: every key that cannot alter what is trained may change, and no other") {
  Config saved;
  saved.training.schedule.name = "cosine";  // the end of training matters to it
  std::set<std::string> paths;
  for (size_t i = 0;; ++i) {
    Config now = saved;
    Change change(i);
    visit(change, now);
    if (change.path.empty()) break;
    paths.insert(change.path);
    INFO(change.path);
    const std::string difference = mathematical_difference(saved, now);
    if (is_neutral(change.path)) {
      CHECK(difference.empty());
    } else if (change.seen_by_writer) {
      CHECK_FALSE(difference.empty());
    }
  }
  CHECK(paths.size() > 60);
  for (const char* known : {"plan.must_fit", "plan.cluster", "run.seed", "model.layers", "training.optimizer.learning_rate"}) {
    INFO(known);
    CHECK(paths.contains(known));
  }
}
