#pragma once
#include <span>

#include "kernels/ops/update.h"

namespace trireme {

/// Hogwild: steps of SGD on weights that other threads or processes update meanwhile, without a lock. Each element is read and written by itself, by
/// relaxed atomics: an update may use a gradient of mixed versions, but none is lost. What the weights become depends on the order in which the
/// processors meet; one thread alone has the bits of update_step(), up to the sign of a zero. An element without gradient and decay is not touched, so
/// sparse gradients rarely meet. slices: w of the shared weights, and g; a rejected step writes nothing. CPUs only.
/// Source: Niu, Recht, Re, Wright 2011, arXiv:1106.5730.
void hogwild_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);

/// own := shared, and shared := own, element by element, while others update `shared`. Of one shape and dtype. CPUs only.
void read_shared(Context& ctx, const Tensor& shared, const Tensor& own);
void write_shared(Context& ctx, const Tensor& own, const Tensor& shared);

}  // namespace trireme
