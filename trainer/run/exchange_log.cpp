#include "trainer/run/exchange_log.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "trainer/files/digest.h"

namespace trireme {
namespace {

uint64_t digest_of_host(const Tensor& tensor) {
  Digest digest;
  digest.update(tensor.raw(), static_cast<size_t>(tensor.bytes()));
  const std::string text = digest.str();
  return std::stoull(text.substr(text.size() - 16), nullptr, 16);
}

/// Queues the digest of a buffer on a GPU. Only scalars of the step are in fp64 there.
ScalarReadback digest_of_device(Context& ctx, const Tensor& tensor, Tensor& sum) {
  constexpr int64_t kMostScalars = 8;
  const DType dtype = tensor.dtype();
  if (dtype == DType::kI32 || dtype == DType::kU8) return {};
  if (dtype == DType::kF64) {
    std::vector<Tensor> scalars;
    for (int64_t i = 0; i < std::min(kMostScalars, tensor.numel()); ++i) scalars.push_back(tensor.flat(i, 1));
    return ScalarReadback(ctx, scalars);
  }
  if (!sum.defined()) sum = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  fill(ctx, 0, sum);
  sum_of_squares(ctx, std::span(&tensor, 1), sum);
  return ScalarReadback(ctx, {sum});
}

/// Every rank of a group begins its recording before the same operation, so numbers that count from the first recorded one agree.
std::vector<std::string> names_of(const std::vector<Exchange>& exchanges, int own_rank) {
  std::map<std::tuple<const std::vector<int>*, int, bool>, int64_t> first;  // of a group's collectives, or of the messages in one direction
  std::vector<std::string> names;
  for (const Exchange& one : exchanges) {
    const bool message = one.peer >= 0;
    const int64_t number = one.number - first.try_emplace({one.ranks, one.peer, message && one.outgoing}, one.number).first->second + 1;
    if (message) {
      names.push_back(concat("message ", number, " from rank ", one.outgoing ? own_rank : one.peer, " to rank ", one.outgoing ? one.peer : own_rank));
      continue;
    }
    std::string ranks;
    for (const int rank : *one.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    names.push_back(concat(one.verb, " ", number, " over ", *one.group, " (ranks ", ranks, ")"));
  }
  return names;
}

}  // namespace

BufferObserver ExchangeLog::observer() {
  return [this](Context& ctx, const ObservedBuffer& traffic) {
    if (running_ && traffic.ranks.size() > 1) add(ctx, traffic);
  };
}

void ExchangeLog::start() {
  exchanges_.clear();
  pending_.clear();
  running_ = true;
}

void ExchangeLog::add(Context& ctx, const ObservedBuffer& traffic) {
  Exchange exchange{&traffic.group, &traffic.ranks, traffic.verb, traffic.outgoing, traffic.number, traffic.peer, 0};
  const bool gpu = ctx.device == Device::kCuda;
  if (!gpu) exchange.digest = digest_of_host(traffic.buffer);
  exchanges_.push_back(exchange);
  pending_.push_back(gpu ? digest_of_device(ctx, traffic.buffer, sum_) : ScalarReadback());
}

std::vector<Exchange> ExchangeLog::stop() {
  running_ = false;
  for (size_t i = 0; i < exchanges_.size(); ++i)
    for (const double value : pending_[i].wait()) exchanges_[i].digest = std::rotl(exchanges_[i].digest, 7) ^ std::bit_cast<uint64_t>(value);
  pending_.clear();
  return std::move(exchanges_);
}

ExchangeDifference compare(const std::vector<Exchange>& first, const std::vector<Exchange>& second, int own_rank) {
  ExchangeDifference difference;
  if (std::ranges::equal(first, second, {}, &Exchange::digest, &Exchange::digest)) return difference;
  // An exchange that only the longer execution has differs, too.
  const std::vector<Exchange>& longer = first.size() < second.size() ? second : first;
  const size_t common = std::min(first.size(), second.size());
  const std::vector<std::string> names = names_of(longer, own_rank);
  for (size_t i = 0; i < longer.size(); ++i) {
    if (i < common && first[i].digest == second[i].digest) continue;
    if (difference.first.empty()) {
      difference.first = names[i];
      difference.first_is_sent = longer[i].outgoing;
    }
    if (longer[i].outgoing) difference.sent.push_back(names[i]);
  }
  return difference;
}

}  // namespace trireme
