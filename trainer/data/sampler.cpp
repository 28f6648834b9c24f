#include "trainer/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace trireme {
namespace {

/// Number of the first `places` that go to a group with this share: places * share, rounded to nearest. Grows by at most one per place.
int64_t places_taken(int64_t places, uint64_t share) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>((static_cast<Wide>(places) * share + (Wide{1} << 63)) >> 64);
}

uint64_t share_of(double weight, double rest) {
  const double share = weight / rest;
  return share < 1 ? static_cast<uint64_t>(std::ldexp(share, 64)) : std::numeric_limits<uint64_t>::max();
}

}  // namespace

Sampler::Sampler(uint64_t seed, std::vector<Dataset::Group> groups, int64_t global_batch, DataStart start)
    : seed_(seed), groups_(std::move(groups)), shares_(groups_.size()), global_batch_(global_batch), start_(start) {
  TRIREME_CHECK(!groups_.empty() && global_batch >= 1, groups_.size(), " groups, global batch ", global_batch);
  double rest = 0;
  for (size_t g = groups_.size(); g-- > 0;) {
    TRIREME_CHECK(groups_[g].sequences >= 1 && groups_[g].weight > 0, "group ", g, ": ", groups_[g].sequences, " sequences, weight ",
                  groups_[g].weight);
    rest += groups_[g].weight;
    shares_[g] = share_of(groups_[g].weight, rest);
  }
}

int64_t Sampler::sample(int64_t step, int64_t index) const {
  TRIREME_CHECK(step >= start_.step && index >= 0 && index < global_batch_, "step ", step, " from ", start_.step, ", index ", index, " of ",
                global_batch_);
  int64_t place = start_.place + (step - start_.step) * global_batch_ + index;  // index among the places of `group` and the groups after it
  int64_t first = 0;                                                            // first sample of `group`
  size_t group = 0;
  for (; group + 1 < groups_.size(); ++group) {
    const int64_t taken = places_taken(place, shares_[group]);
    if (places_taken(place + 1, shares_[group]) > taken) {
      place = taken;
      break;
    }
    place -= taken;
    first += groups_[group].sequences;
  }
  const int64_t sequences = groups_[group].sequences;
  const uint64_t key = random_key(seed_, concat("shuffle:epoch:", place / sequences, group > 0 ? concat(":group:", group) : ""));
  return first + static_cast<int64_t>(random_permutation(key, static_cast<uint64_t>(place % sequences), static_cast<uint64_t>(sequences)));
}

std::vector<int64_t> Sampler::samples_before(int64_t step) const {
  int64_t places = start_.place + (step - start_.step) * global_batch_;
  std::vector<int64_t> samples;
  for (size_t group = 0; group + 1 < groups_.size(); ++group) {
    samples.push_back(places_taken(places, shares_[group]));
    places -= samples.back();
  }
  samples.push_back(places);
  return samples;
}

int64_t Sampler::steps_for(int64_t epochs) const {
  int64_t sequences = 0;
  for (const Dataset::Group& group : groups_) sequences += group.sequences;
  return (epochs * sequences + global_batch_ - 1) / global_batch_;
}

int64_t evaluation_batches(int64_t sequences, int64_t global_batch, int64_t batches) {
  const int64_t all = (sequences + global_batch - 1) / global_batch;
  return batches == 0 ? all : std::min(batches, all);
}

int64_t evaluation_sample(int64_t sequences, int64_t global_batch, int64_t batch, int64_t index) {
  TRIREME_CHECK(batch >= 0 && index >= 0, "batch ", batch, ", index ", index, " of ", global_batch);
  if (index >= global_batch) return -1;
  const int64_t position = batch * global_batch + index;
  return position < sequences ? position : -1;
}

}  // namespace trireme
