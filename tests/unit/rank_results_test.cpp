// Which ranks are named at an anomaly.
#include "trainer/run/rank_results.h"

#include <limits>

#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// Ranks 10, 11, ... of hosts a and b in turn, all with a loss of 2 and a norm of 1; those of `outliers` (by index) stand out with a loss of 9.
std::vector<RankResult> results_of(size_t count, const std::vector<size_t>& outliers = {}) {
  std::vector<RankResult> ranks;
  for (size_t i = 0; i < count; ++i)
    ranks.push_back({.rank = 10 + static_cast<int>(i), .host = i % 2 == 0 ? "a" : "b", .loss = 2.0, .loss_limit = 4.5, .grad_norm = 1});
  for (const size_t i : outliers) {
    ranks[i].loss = 9;
    ranks[i].stands_out = true;
  }
  return ranks;
}

}  // namespace

TEST_CASE("anomalies: at most four ranks that stand out are named, wherever they are, and further ones counted") {
  CHECK(outliers_text({}).empty());
  CHECK(outliers_text(results_of(8)).empty());
  CHECK(outliers_text(results_of(8, {7})) == ": rank 17 on b with a loss of 9 (limit 4.5)");
  CHECK(outliers_text(results_of(8, {1, 6})) == ": rank 11 on b with a loss of 9 (limit 4.5), rank 16 on a with a loss of 9 (limit 4.5)");
  const std::string four = outliers_text(results_of(8, {2, 3, 4, 5}));
  CHECK(four.ends_with("rank 15 on b with a loss of 9 (limit 4.5)"));
  CHECK(outliers_text(results_of(8, {2, 3, 4, 5, 7})) == four + " and 1 more rank");
  CHECK(outliers_text(results_of(8, {2, 3, 4, 5, 6, 7})) == four + " and 2 more ranks");
}

TEST_CASE("anomalies: the ranks with the highest loss and gradient norm are named, and what is not a number is the highest") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  CHECK(highest_text({}).empty());
  CHECK(highest_text(results_of(1)).empty());
  std::vector<RankResult> ranks = results_of(4);
  ranks[1].grad_norm = 17;
  ranks[3].loss = 9.25;
  CHECK(highest_text(ranks) == "; rank 13 on b has the highest loss, 9.25, and rank 11 on b the highest gradient norm, 17");
  ranks[0].loss = std::nullopt;
  ranks[2].loss = kNaN;
  ranks[2].grad_norm = kNaN;
  CHECK(highest_text(ranks) == "; rank 12 on a has the highest loss, nan, and rank 12 on a the highest gradient norm, nan");
  std::vector<RankResult> several = results_of(4);
  several[1].loss = several[3].loss = several[2].grad_norm = several[3].grad_norm = kNaN;
  CHECK(highest_text(several) == "; rank 11 on b has the highest loss, nan, and rank 12 on a the highest gradient norm, nan");  // the first of them
  for (RankResult& rank : ranks) rank.loss.reset();
  CHECK(highest_text(ranks) == "; rank 12 on a has the highest gradient norm, nan");
  ranks[0].loss_limit = std::numeric_limits<double>::infinity();
  ranks[1].stands_out = ranks[3].stands_out = true;
  CHECK(to_json(ranks).dump() ==
        R"({"rank_loss":[null,null,null,null],"rank_loss_limit":[null,4.5,4.5,4.5],"rank_grad_norm":[1.0,17.0,null,1.0],"outliers":[11,13]})");
}
