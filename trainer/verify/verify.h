#pragma once
// Proves, on a small clone, that layouts train the same model. For a layout that does not, reports what differs first, where, and a likely cause.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/verify/baseline.h"
#include "trainer/verify/clone.h"
#include "trainer/verify/diagnosis.h"

namespace trireme {

/// Result for one layout.
struct LayoutVerdict {
  enum class Kind : uint8_t { kSame, kDiffers, kHangs, kFails } kind = Kind::kSame;
  std::string layout;         ///< the spec as written
  double max_difference = 0;  ///< largest relative difference
  std::string what;           ///< unless kSame: what differs first, or the error of the run
  std::string tensor;         ///< may be empty or unset, as the members below, if not applicable
  int64_t layer = -1;         ///< block of the model
  int stage = -1;
  std::vector<int> ranks;
  int step = 0;
  double expected = 0, actual = 0;
  std::vector<std::string> acts;  ///< runs that hung or failed: what each rank was doing
  std::string smallest;           ///< reduced layout that still shows the difference
  Diagnosis diagnosis;
};
const char* name_of(LayoutVerdict::Kind kind);  ///< same, differs, hangs, fails

/// The stage that computes with a tensor; of a tied embedding, the first.
int stage_of(const std::string& tensor, const std::vector<int64_t>& layers_per_stage);

struct VerifyOptions {
  int steps = 3;  ///< at least 2
  int64_t seed = 1234;
  double timeout = 20;  ///< seconds without progress before a run counts as hung
  /// Called before each run.
  std::function<void(const std::string& doing)> progress = [](const std::string&) {};
};

class Verifier {
 public:
  /// `config` is resolved. Errors: those of make_clone.
  Verifier(const Config& config, const std::vector<Layout>& layouts, VerifyOptions options);

  const Clone& clone() const { return clone_; }
  /// Compares one rank with the Oracle.
  LayoutVerdict baseline();
  /// Compares a layout with one rank.
  LayoutVerdict layout(const Layout& spec);
  /// True if threads of a hung run could not be stopped: the process must exit by _Exit.
  bool stuck() const { return stuck_; }

 private:
  using Features = std::set<Feature>;
  struct Setting {
    Config config;
    RecordOptions record;
    std::shared_ptr<const Dataset> data, validation;
  };
  const LayoutRun& run(const Layout& spec, const Features& without);
  std::optional<Setting> setting(const Layout& spec, const Features& without) const;
  bool differs(const Layout& spec);
  Layout smallest(const Layout& spec);
  std::set<Feature> cures(const Layout& spec, const Difference& first);
  std::vector<Difference> differences(const Layout& spec, const Features& without, KnownFault* fault, double* largest);
  void describe(const Layout& spec, const std::vector<Difference>& all, LayoutVerdict& verdict) const;
  LayoutVerdict conclude(const Layout& spec, const Layout& small);

  VerifyOptions options_;
  std::vector<Layout> layouts_;
  Clone clone_;
  Layout plain_;  ///< one rank, no recomputation
  std::map<std::string, LayoutRun> runs_;
  bool stuck_ = false;
};

/// The configuration's own layout, with smaller degrees if it has more than eight ranks, and a fixed list that covers each axis, ZeRO stage and
/// schedule; without those that are invalid for the model.
std::vector<Layout> default_layouts(const Config& config);

}  // namespace trireme
