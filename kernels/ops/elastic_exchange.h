#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// An exchange of elastic averaging between the weights x of a worker and the centre:
///   d = rate (x - centre), x = x - d, centre = centre + d
/// In double; d is rounded to the dtype, so the sum of both changes by the rounding of two additions only. All of one shape and dtype. CPUs only.
/// Source: Zhang, Choromanska, LeCun 2014, arXiv:1412.6651 (EASGD, algorithm 1).
void elastic_exchange(Context& ctx, double rate, const Tensor& x, const Tensor& centre);

}  // namespace trireme
