#pragma once
// Proves that layouts train the same model, on a small clone of it, and says of one that does not what differs first, where, and why perhaps.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/verify/baseline.h"
#include "trainer/verify/clone.h"
#include "trainer/verify/diagnosis.h"

namespace trireme {

/// What was found of one layout.
struct LayoutVerdict {
  enum class Kind : uint8_t { kSame, kDiffers, kHangs, kFails } kind = Kind::kSame;
  std::string layout;         ///< as it was written
  double max_difference = 0;  ///< relative, of all that was compared
  std::string what;           ///< of all but kSame: what differs first, or the message of the run
  std::string tensor;         ///< may be empty, as the following where they do not apply
  int64_t layer = -1;         ///< block of the model
  int stage = -1;
  std::vector<int> ranks;
  int step = 0;
  double expected = 0, actual = 0;
  std::vector<std::string> acts;  ///< of runs that hung or failed: what each rank was doing
  std::string smallest;           ///< layout with which the difference is still there
  Diagnosis diagnosis;
};
const char* name_of(LayoutVerdict::Kind kind);  ///< same, differs, hangs, fails

struct VerifyOptions {
  int steps = 3;  ///< at least 2
  int64_t seed = 1234;
  double timeout = 20;  ///< seconds of standstill before a run counts as hung
  /// Told before each run.
  std::function<void(const std::string& doing)> progress = [](const std::string&) {};
};

class Verifier {
 public:
  /// `config` is resolved. Errors: those of make_clone.
  Verifier(const Config& config, const std::vector<Layout>& layouts, VerifyOptions options);

  const Clone& clone() const { return clone_; }
  /// One rank, against the Oracle.
  LayoutVerdict baseline();
  /// Against one rank.
  LayoutVerdict layout(const Layout& spec);
  /// Ranks of a hung run that no abort reaches live on as threads: the process must leave by _Exit.
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
  Layout plain_;  ///< one rank, nothing computed again
  std::map<std::string, LayoutRun> runs_;
  bool stuck_ = false;
};

/// The configuration's own layout, with smaller degrees where it has more than eight ranks, and every axis, ZeRO stage and schedule of it and of every user alone; those that the model allows.
std::vector<Layout> default_layouts(const Config& config);

}  // namespace trireme
