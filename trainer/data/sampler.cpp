#include "trainer/data/sampler.h"

#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace trireme {

int64_t Sampler::sample(int64_t step, int64_t index) const {
  TRIREME_CHECK(sequences >= 1 && step >= 0 && index >= 0 && index < global_batch, "step ", step, ", index ", index, " of ", global_batch, ", ",
                sequences, " sequences");
  const int64_t position = step * global_batch + index;
  const uint64_t key = random_key(seed, concat("shuffle:epoch:", position / sequences));
  return static_cast<int64_t>(random_permutation(key, static_cast<uint64_t>(position % sequences), static_cast<uint64_t>(sequences)));
}

int64_t evaluation_sample(int64_t sequences, int64_t global_batch, int64_t batch, int64_t index) {
  TRIREME_CHECK(batch >= 0 && index >= 0 && index < global_batch, "batch ", batch, ", index ", index, " of ", global_batch);
  const int64_t position = batch * global_batch + index;
  return position < sequences ? position : -1;
}

}  // namespace trireme
