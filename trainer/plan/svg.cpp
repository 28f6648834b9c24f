#include "trainer/plan/svg.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

constexpr size_t kMostBoxes = 3500, kMostRows = 500;                             ///< limit the file size: up to 250 bytes per box
constexpr double kLeft = 190, kWide = 1400, kRow = 24, kTop = 52, kDigit = 6.5;  ///< pixels
constexpr int kPaleness = 4;                                                     ///< shades of one color

/// The part of the step that is shown, from its beginning.
struct Window {
  double end;
  double pixels(double seconds) const { return kWide * seconds / end; }
};

/// Compute of one stage and micro-batch without a visible gap, cut at the end of the window.
struct Rectangle {
  Action action;
  size_t row;
  int shade;
  double begin, end;
};

const char* letter(ActionType type) {
  constexpr std::array<const char*, 4> kLetters{"F", "B", "I", "W"};
  return kLetters[static_cast<size_t>(type)];
}

std::string number(double value, int digits) { return print("%.*f", digits, value); }

std::vector<Rectangle> boxes_of(const std::vector<Timeline>& ranks, const Window& window) {
  std::vector<Rectangle> boxes;
  const double invisible = 0.5 * window.end / kWide;
  for (size_t row = 0; row < ranks.size(); ++row) {
    std::vector<int> stages;  // in the order of their first use
    const size_t first = boxes.size();
    for (const auto& [action, begin, end] : ranks[row]) {
      if (!is_compute(action.type)) continue;
      const auto stage = std::ranges::find(stages, action.stage);
      const int shade = static_cast<int>(stage - stages.begin()) % kPaleness;
      if (stage == stages.end()) stages.push_back(action.stage);
      if (end <= begin || begin >= window.end) continue;
      const double to = std::min(end, window.end);
      Rectangle* const last = boxes.size() > first ? &boxes.back() : nullptr;
      if (last != nullptr && last->action.type == action.type && last->action.stage == action.stage && last->action.microbatch == action.microbatch &&
          begin - last->end < invisible)
        last->end = to;
      else
        boxes.push_back({action, row, shade, begin, to});
    }
  }
  return boxes;
}

/// The boxes of the window. Shortens the window if there are too many.
std::vector<Rectangle> clip(const std::vector<Timeline>& ranks, Window& window) {
  while (true) {
    std::vector<Rectangle> boxes = boxes_of(ranks, window);
    if (boxes.size() <= kMostBoxes) return boxes;
    std::vector<double> begins;
    for (const Rectangle& box : boxes) begins.push_back(box.begin);
    std::ranges::nth_element(begins, begins.begin() + kMostBoxes);
    // Boxes of a row follow each other, so at most one of each begins at 0.
    TRIREME_CHECK(begins[kMostBoxes] > 0, boxes.size(), " boxes of ", ranks.size(), " ranks begin at once");
    window.end = begins[kMostBoxes];
  }
}

std::string header(const std::string& title, double height) {
  return concat(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 )", number(kLeft + kWide + 40, 0), " ", number(height, 0),
      R"(" font-family="sans-serif" font-size="11"><style>.F{fill:#7aa6de}.B{fill:#8cc68c}.I{fill:#8cc68c}.W{fill:#e0a458}.idle{fill:#e4e4e4})",
      R"(.s1{fill-opacity:.7}.s2{fill-opacity:.5}.s3{fill-opacity:.35}.n{text-anchor:middle}rect{stroke:#fff;stroke-width:.4}</style>)",
      R"(<rect width="100%" height="100%" fill="#fff"/><text x="10" y="20" font-size="15">)", xml_text(title), "</text>\n");
}

std::string row_text(double y, const std::string& name, double idle) {
  return concat(R"(<text x="10" y=")", number(y + 15, 1), R"(">)", xml_text(name), ": ", number(100 * idle, 1),
                R"( % idle</text><rect class="idle" x=")", number(kLeft, 0), R"(" y=")", number(y, 0), R"(" width=")", number(kWide, 0),
                R"(" height=")", number(kRow - 4, 0), "\"/>\n");
}

std::string box_text(const Rectangle& box, const Window& window) {
  const double x = kLeft + window.pixels(box.begin), width = window.pixels(box.end - box.begin), y = kTop + kRow * static_cast<double>(box.row);
  const std::string microbatch = std::to_string(box.action.microbatch);
  const std::string shade = box.shade > 0 ? concat(" s", box.shade) : "";
  std::string text =
      concat(R"(<rect class=")", letter(box.action.type), shade, R"(" x=")", number(x, 2), R"(" y=")", number(y, 0), R"(" width=")", number(width, 2),
             R"(" height=")", number(kRow - 4, 0), R"("><title>)", letter(box.action.type), " of micro-batch ", microbatch, ", stage ",
             box.action.stage, ", ", seconds_text(box.begin), " to ", seconds_text(box.end), "</title></rect>");
  if (width > kDigit * static_cast<double>(microbatch.size()) + 2)
    text += concat(R"(<text class="n" x=")", number(x + width / 2, 1), R"(" y=")", number(y + 14, 0), R"(">)", microbatch, "</text>");
  return text + "\n";
}

std::string axis_text(const Window& window, double y) {
  std::string text;
  constexpr int kTicks = 8;
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    text += concat(R"(<text class="n" x=")", number(kLeft + share * kWide, 0), R"(" y=")", number(y + 12, 0), R"(">)",
                   seconds_text(share * window.end), "</text>\n");
  }
  return text;
}

std::string legend_text(const std::vector<Rectangle>& boxes, double y) {
  constexpr std::array<std::pair<ActionType, const char*>, 4> kEntries{{{ActionType::kForward, "forward"},
                                                                        {ActionType::kBackward, "backward"},
                                                                        {ActionType::kBackwardInput, "input gradient"},
                                                                        {ActionType::kBackwardWeight, "weight gradient"}}};
  std::string text;
  double x = kLeft;
  const auto entry = [&](const std::string& style, const std::string& words) {
    text += concat(R"(<rect class=")", style, R"(" x=")", number(x, 0), R"(" y=")", number(y, 0), R"(" width="16" height="12"/><text x=")",
                   number(x + 21, 0), R"(" y=")", number(y + 10, 0), R"(">)", words, "</text>\n");
    x += 45 + kDigit * static_cast<double>(words.size());
  };
  const auto any = [&](const auto& predicate) { return std::ranges::any_of(boxes, predicate); };
  for (const auto& [type, words] : kEntries)
    if (any([&, wanted = type](const Rectangle& box) { return box.action.type == wanted; })) entry(letter(type), concat(letter(type), ": ", words));
  if (any([](const Rectangle& box) { return box.shade > 0; })) entry("F s1", "lighter: further stages of the rank");
  entry("idle", "idle");
  return text + concat(R"(<text x=")", number(x, 0), R"(" y=")", number(y + 10, 0), R"(">numbers: micro-batches</text>)", "\n");
}

}  // namespace

std::string pipeline_svg(const std::vector<Timeline>& all, const std::string& title) {
  const std::vector<Timeline> ranks(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMostRows)));
  double step = 0;
  for (const Timeline& timeline : all)
    for (const TimelineEvent& event : timeline) step = std::max(step, event.end);
  Window window{step};
  std::vector<Rectangle> boxes;
  if (step > 0) boxes = clip(ranks, window);
  if (boxes.empty()) throw ConfigError(concat("nothing to draw: no rank computes in a step of ", step, " s"));

  std::vector<double> busy(ranks.size(), 0.0);
  for (const Rectangle& box : boxes) busy[box.row] += box.end - box.begin;
  const double bottom = kTop + kRow * static_cast<double>(ranks.size());
  std::string line = title + (title.empty() ? "" : ": ") + concat("0 s to ", seconds_text(window.end), " of a step of ", seconds_text(step));
  if (window.end < step) line += concat(", cut at ", boxes.size(), " boxes");
  if (ranks.size() < all.size()) line += concat(", the first ", ranks.size(), " of ", all.size(), " ranks");
  std::string svg = header(line, bottom + 50);
  for (size_t row = 0; row < ranks.size(); ++row)
    svg += row_text(kTop + kRow * static_cast<double>(row), concat("pipeline ", row), 1 - busy[row] / window.end);
  for (const Rectangle& box : boxes) svg += box_text(box, window);
  return svg + axis_text(window, bottom) + legend_text(boxes, bottom + 24) + "</svg>\n";
}

}  // namespace trireme
