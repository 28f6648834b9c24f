#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme {

/// The limits of all histograms, ascending: 0 and, of both signs, 1e-12 * 1.1^k up to 1e20 and the largest double. Bin b counts the values in
/// [limits[b - 1], limits[b]). Source: InitDefaultBucketsInner in tensorflow/core/lib/histogram/histogram.cc (TensorFlow 2).
const std::vector<double>& histogram_limits();
/// The bin of a finite value.
size_t histogram_bin(double value);

struct Histogram {
  std::string name;             ///< "weights/blocks.3", "gradients/head"
  std::vector<int64_t> counts;  ///< by bin
};

/// The weights, and the gradients of the last step before clipping, of each group of parameters (layer_group), in the order of the model: on every
/// rank, over all ranks. Counts are integers and the bins fixed, so that no layout changes them, except for values that the layout's rounding
/// moves into the next bin. Values that are not finite are left out. Reads every owned element of both once, on a GPU through host memory.
/// `loss_scale`: factor that the gradients contain. Collective.
std::vector<Histogram> parameter_histograms(Trainer& trainer, double loss_scale);

}  // namespace trireme
