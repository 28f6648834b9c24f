#pragma once
// The elements of a model in an order that does not depend on the layout: parameters by name, each row-major. It numbers what a coordinator and its
// members send each other, so that members with different layouts can be summed.
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme::federation {

/// One rank's part of that order, and a copy in host memory of the weights with which a round began, of this rank's owned shards.
class FlatModel {
 public:
  /// Collective. Finishes with the current weights as those of the beginning.
  explicit FlatModel(Trainer& trainer);

  int64_t numel() const { return numel_; }  ///< of the whole model
  DType dtype() const { return dtype_; }    ///< of the master weights

  /// Takes new weights, in dtype() and in order, and keeps those that this rank owns. `next` returns as many bytes of them as it is asked for, at most
  /// `longest`, a multiple of an element's size; or nothing, if there are no more: then the result is false, and what has come is void.
  bool receive(int64_t longest, const std::function<std::string(int64_t bytes)>& next);
  /// What receive() has kept becomes the weights of the trainer. Collective.
  void apply();

  using Visit = std::function<void(int64_t first, std::span<const double> values)>;
  /// Calls `visit` for runs of this rank's part of the update, the weights of the beginning minus the current ones. Over all ranks every element is
  /// visited once. Runs have at most `longest` elements.
  void visit_update(int64_t longest, const Visit& visit) const;
  /// The sum of squares of the update. Collective; the same on all ranks, up to rounding the same in all layouts.
  double update_squares() const;

  /// Calls `visit` for each box that this rank owns with the numbers of its elements, row-major.
  void visit_boxes(const std::function<void(const OwnedBox& owned, std::span<const int64_t> numbers)>& visit) const;

  /// The current weights of a trainer on one rank, in dtype().
  std::vector<std::byte> weights() const;

 private:
  struct Part {
    OwnedBox owned;
    int64_t first;    ///< number of element (0, 0) of the parameter
    bool is_primary;  ///< this rank visits it
    Tensor begin;     ///< host tensor [box.numel()]: the weights of the beginning
  };
  void keep(int64_t first, std::span<const std::byte> values);
  void visit_runs(const Part& part, const std::function<void(int64_t first, int64_t place, int64_t count)>& visit) const;

  Trainer& trainer_;
  int64_t numel_ = 0;
  DType dtype_;
  std::vector<Part> parts_;
};

/// The number of the first element of each parameter, and the number of all elements. `shapes`: by name.
std::pair<std::map<std::string, int64_t>, int64_t> numbered(const std::map<std::string, std::array<int64_t, 2>>& shapes);

}  // namespace trireme::federation
