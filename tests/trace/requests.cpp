#include "tests/trace/requests.h"

#include <algorithm>
#include <tuple>

namespace cuda_trace {
namespace {

constexpr uintptr_t kSector = 32, kWord = 4, kBanks = 32;

/// The accesses of at most 32 lanes, in the order of the lanes.
struct Request {
  const Access* lanes[32];
  size_t count = 0;
};

/// The distinct units of `size` bytes that some accesses of a request touch, at most two for each access of up to `size` bytes.
class Units {
 public:
  void add(const Access& access, uintptr_t size) {
    for (uintptr_t at = access.address / size; at <= (access.address + access.bytes - 1) / size; ++at) values_[count_++] = at;
  }
  const uintptr_t* begin() const { return values_; }
  const uintptr_t* end() {
    std::sort(values_, values_ + count_);
    count_ = static_cast<size_t>(std::unique(values_, values_ + count_) - values_);
    return values_ + count_;
  }

 private:
  uintptr_t values_[64];
  size_t count_ = 0;
};

int64_t distinct_bytes(const Request& request) {
  std::pair<uintptr_t, uintptr_t> ranges[32];
  for (size_t i = 0; i < request.count; ++i) ranges[i] = {request.lanes[i]->address, request.lanes[i]->address + request.lanes[i]->bytes};
  std::sort(ranges, ranges + request.count);
  uintptr_t bytes = 0, end = 0;
  for (size_t i = 0; i < request.count; ++i) {
    if (ranges[i].second > end) bytes += ranges[i].second - std::max(ranges[i].first, end);
    end = std::max(end, ranges[i].second);
  }
  return static_cast<int64_t>(bytes);
}

/// A pass serves one word of each bank. Accesses of 8 and 16 bytes are made by half and quarter warps, each of at most 128 bytes, one after another.
Traffic bank_passes(const Request& request) {
  Traffic traffic;
  for (size_t i = 0; i < request.count;) {
    const size_t lanes = kBanks * kWord / std::max<size_t>(kWord, request.lanes[i]->bytes), part = request.lanes[i]->lane / lanes;
    Units words;
    for (; i < request.count && request.lanes[i]->lane / lanes == part; ++i) words.add(*request.lanes[i], kWord);
    int64_t of_bank[kBanks] = {};
    for (const uintptr_t *end = words.end(), *word = words.begin(); word != end; ++word) ++of_bank[*word % kBanks];
    traffic.units += *std::max_element(of_bank, of_bank + kBanks);
    ++traffic.ideal;
  }
  return traffic;
}

Traffic traffic_of(const Request& request, Kind kind) {
  Traffic traffic;
  if (is_shared(kind)) traffic = bank_passes(request);
  traffic.requests = 1;
  traffic.bytes = distinct_bytes(request);
  if (is_shared(kind)) return traffic;
  Units sectors;
  for (size_t i = 0; i < request.count; ++i) sectors.add(*request.lanes[i], kSector);
  traffic.units = sectors.end() - sectors.begin();
  traffic.ideal = (traffic.bytes + static_cast<int64_t>(kSector) - 1) / static_cast<int64_t>(kSector);
  return traffic;
}

}  // namespace

void Traffic::add(const Traffic& other) {
  requests += other.requests;
  bytes += other.bytes;
  units += other.units;
  ideal += other.ideal;
}

void add_requests(std::vector<Access>& accesses, std::map<std::pair<const void*, Kind>, Traffic>& places) {
  const auto instruction = [](const Access& access) { return std::tuple(access.order, access.place, access.kind); };
  std::stable_sort(accesses.begin(), accesses.end(), [&](const Access& a, const Access& b) {
    return std::tuple_cat(instruction(a), std::tuple(a.lane)) < std::tuple_cat(instruction(b), std::tuple(b.lane));
  });
  for (size_t begin = 0, end = 0; begin < accesses.size(); begin = end) {
    while (end < accesses.size() && instruction(accesses[end]) == instruction(accesses[begin])) ++end;
    size_t lanes[33], count = 0;  // where the accesses of each lane begin
    for (size_t i = begin; i < end; ++i)
      if (i == begin || accesses[i].lane != accesses[i - 1].lane) lanes[count++] = i;
    lanes[count] = end;
    Traffic& sum = places[{accesses[begin].place, accesses[begin].kind}];
    for (size_t nth = 0;; ++nth) {
      Request request;
      for (size_t lane = 0; lane < count; ++lane)
        if (lanes[lane] + nth < lanes[lane + 1]) request.lanes[request.count++] = &accesses[lanes[lane] + nth];
      if (request.count == 0) break;
      sum.add(traffic_of(request, accesses[begin].kind));
    }
  }
}

}  // namespace cuda_trace
