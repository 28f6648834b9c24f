#pragma once
// What members say of themselves, bounded so that no single one decides: it can neither release new weights, nor refuse them where three or more vote, nor
// have more than half of the weight in a round.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace trireme::federation {

/// The middle value; of an even number of values the larger one of the two in the middle, so that of two members each can refuse, and none can release.
/// What is not finite counts as infinite. Nothing without values.
std::optional<double> upper_median(std::vector<double> values);

/// By member: the held-out losses of weights.
using Losses = std::map<int, double>;
/// The loss of weights: the upper median over the members.
std::optional<double> agreed_loss(const Losses& losses);
/// The upper median of the growth of the loss over the members that have a finite loss before. Nothing if there are none.
std::optional<double> agreed_increase(const Losses& before, const Losses& after);

/// The number of sequences at which a member has the whole weight: the largest one, but not more than those of all other members together. So a member that
/// claims more than the others have, with right or not, has half of the weight.
int64_t whole_weight(std::span<const int64_t> sequences);
/// The weight of a member in the mean.
double weight_of(int64_t sequences, int64_t whole);

}  // namespace trireme::federation
