#include "trainer/loop/plain_products.h"

#include <algorithm>
#include <sstream>

#include "kernels/core/counted.h"
#include "kernels/cuda/matmul.h"
#include "trainer/loop/trainer.h"

namespace trireme {

PlainProducts plain_products(Trainer& trainer) {
  if (trainer.context().device != Device::kCuda) return {};
  Communicator& world = trainer.mesh().world;
  PlainProducts products;
  products.per_step = all_reduce_count(world, trainer.program().plain_products());
  std::string mine;
  for (const std::string& shape : cuda::plain_shapes(*trainer.context().gpu)) mine += shape + "\n";
  for (const std::string& shapes : all_gather_strings(world, mine)) {
    std::istringstream lines(shapes);
    for (std::string shape; std::getline(lines, shape);)
      if (std::ranges::find(products.shapes, shape) == products.shapes.end()) products.shapes.push_back(shape);
  }
  return products;
}

std::string plain_products_warning(int64_t per_step, const std::vector<std::string>& shapes) {
  std::string text = concat("warning: cuBLASLt has no kernel for ", counted(static_cast<int64_t>(shapes.size()), "shape"),
                            " of matrix products, so the plain kernel computes ", per_step,
                            " products of a training step over all ranks, slowly; sizes that are multiples of 8 elements avoid it");
  for (const std::string& shape : shapes) text += "\n  " + shape;
  return text;
}

}  // namespace trireme
