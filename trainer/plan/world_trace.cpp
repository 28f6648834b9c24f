#include "trainer/plan/world_trace.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/loop/trace.h"

namespace trireme {
namespace {

constexpr size_t kMostEvents = 1000000;  ///< about 170 bytes each in the file

std::vector<int> ranks_of_word(const std::string& word, const MeshShape& mesh) {
  const auto refuse = [&] {
    throw ConfigError(
        concat("\"", word, "\": invalid ranks for a world of ", mesh.world(), "; allowed: a rank (7), a range (0-15), a group (pipeline:7)"));
  };
  const auto rank_in = [&](std::string_view digits) {
    int rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size() || rank < 0 || rank >= mesh.world()) refuse();
    return rank;
  };
  const std::string_view text = word;
  if (const size_t colon = text.find(':'); colon != text.npos) {
    const int rank = rank_in(text.substr(colon + 1));
    for (const MeshAxis axis :
         {MeshAxis::kPipeline, MeshAxis::kData, MeshAxis::kReplicate, MeshAxis::kShard, MeshAxis::kTensor, MeshAxis::kEmbedding})
      if (text.substr(0, colon) == name_of(axis)) return group_members(mesh, axis, rank, mesh.tensor);
    refuse();
  }
  const size_t dash = text.find('-');
  const int first = rank_in(text.substr(0, dash)), last = dash == text.npos ? first : rank_in(text.substr(dash + 1));
  if (first > last) refuse();
  std::vector<int> ranks;
  for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace

std::vector<int> ranks_named(const std::string& list, const MeshShape& mesh) {
  std::set<int> ranks;
  std::istringstream words(list + ",");  // an empty list yields one empty item, which is rejected
  for (std::string word; std::getline(words, word, ',');) {
    const std::vector<int> more = ranks_of_word(word, mesh);
    ranks.insert(more.begin(), more.end());
  }
  return {ranks.begin(), ranks.end()};
}

void check_trace_size(const std::vector<const ActionList*>& lists, const std::vector<int>& ranks) {
  size_t events = 0;
  for (const int rank : ranks) events += lists[static_cast<size_t>(rank)]->size();
  if (events > kMostEvents)
    throw ConfigError(concat("a trace of these ", ranks.size(), " ranks would have ", events, " events; allowed at most ", kMostEvents,
                             "; select fewer ranks, e.g. --ranks pipeline:0"));
}

std::string chrome_trace(const WorldSimulation& simulation, const MeshShape& mesh) {
  std::vector<TracedRank> ranks;
  for (const auto& [rank, timeline] : simulation.timelines) {
    ranks.push_back(traced_rank(mesh, rank, {}));
    ranks.back().step.timeline = timeline;
  }
  ChromeTrace trace;
  trace.add("simulated", 0, ranks);
  return trace.text();
}

}  // namespace trireme
