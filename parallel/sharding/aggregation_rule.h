#pragma once
// How the gradients of n data ranks, of which up to f may be wrong in any way (Byzantine), become one. Pure functions on the host of every rank, which
// all have the same inner products and so decide alike. What a rule decides is carried out by kernels/ops/aggregate.h.
// Sources: Blanchard et al. 2017, arXiv:1703.02757 (Krum, Multi-Krum); Yin et al. 2018, arXiv:1803.01498 (median, trimmed mean); El Mhamdi et al. 2018,
// arXiv:1802.07927 (Bulyan); Pillutla et al. 2019, arXiv:1912.13445 (geometric median); Karimireddy et al. 2020, arXiv:2012.10333 (centred clipping
// with worker momentum).
#include <cstdint>
#include <vector>

namespace trireme {

enum class AggregationRule : uint8_t {
  kMean,              ///< the plain sum; tolerates nothing
  kMedian,            ///< of each coordinate
  kTrimmedMean,       ///< of each coordinate, without the f smallest and the f largest values
  kKrum,              ///< the gradient that is nearest to its n-f-2 nearest others
  kMultiKrum,         ///< the mean of the n-f-2 gradients that Krum prefers
  kBulyan,            ///< Krum chooses n-2f gradients one by one; of each coordinate, the mean of the n-4f values nearest to their median
  kGeometricMedian,   ///< the point with the least sum of distances
  kCenteredClipping,  ///< from the median, three times: add the mean difference of the gradients, each shortened to the radius
};

struct AggregationOptions {
  AggregationRule rule = AggregationRule::kMean;
  int64_t byzantine = 0;  ///< f
  double momentum = 0;    ///< of each data rank; 0: its gradients as they are
  double radius = 1;      ///< kCenteredClipping
};

/// The least number of data ranks with which a rule tolerates f wrong ones: 2f+1; 2f+3 for Krum and Multi-Krum; 4f+3 for Bulyan.
int64_t least_data_ranks(AggregationRule rule, int64_t byzantine);
/// True if a rule reads inner products of different gradients: it needs an all-reduce of n^2 scalars, the others of n.
bool needs_all_products(AggregationRule rule);

/// Inner products of n vectors, each minus one common point, the origin. With a point near the good vectors, distances between them are exact however
/// far away the others are. [n,n], row by row.
class InnerProducts {
 public:
  InnerProducts(int64_t size, std::vector<double> values);
  int64_t size() const { return size_; }
  /// Squared distance of vectors a and b.
  double squared_distance(int64_t a, int64_t b) const;
  /// Squared length of the sum of weights[i] * vector i.
  double squares(const std::vector<double>& weights) const;
  /// Squared distance of each vector from that sum.
  std::vector<double> squared_distances_from(const std::vector<double>& weights) const;

 private:
  int64_t size_;
  std::vector<double> values_;
};

/// Krum's score of each vector in `among`, in its order: the sum of the squared distances to its max(1, m-f-2) nearest others, for m vectors.
std::vector<double> krum_scores(const InnerProducts& products, const std::vector<int>& among, int64_t byzantine);
/// The `count` vectors with the lowest scores, of equal ones the first, ascending.
std::vector<int> krum_choice(const InnerProducts& products, int64_t byzantine, int64_t count);
/// Bulyan's choice of n-2f vectors: Krum, again and again among those that are left. Ascending.
std::vector<int> bulyan_choice(const InnerProducts& products, int64_t byzantine);
/// The geometric median as weights of the vectors: it is the sum of weights[i] * vector i. By Weiszfeld's iteration from the origin, which leaves a
/// vector that is not the median as Vardi and Zhang 2000 do.
std::vector<double> geometric_median(const InnerProducts& products);
/// The same for `rounds` of centred clipping from the origin.
std::vector<double> centered_clipping(const InnerProducts& products, double radius, int rounds);

/// What is to be done with the gradients that take part, by their position among them.
struct Combination {
  enum class Kind : uint8_t {
    kTrimmedMean,     ///< trimmed_mean() with `count`
    kMeanNearMedian,  ///< mean_near_median() of `chosen` with `count`
    kWeighted,        ///< weighted_mean() with `weights` from the origin
  };
  Kind kind;
  std::vector<int> chosen;
  int64_t count = 0;
  std::vector<double> weights;
};
/// The decision of a rule for n gradients of which up to `byzantine` are wrong, from what is left of f. `products`: of size n; the rules that do not read
/// all products get none, of size 0. Errors: InternalError for kMean, or if n is below least_data_ranks().
Combination combination_of(const AggregationOptions& options, int64_t n, int64_t byzantine, const InnerProducts& products);

}  // namespace trireme
