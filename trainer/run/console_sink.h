#pragma once
#include <array>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/files/terminal_line.h"
#include "trainer/run/event.h"
#include "trainer/run/loss_curve.h"

namespace trireme {

/// Columns of the terminal that a run prints to, asked before each line, because users resize windows; empty: the output is a log.
using TerminalWidth = std::function<size_t()>;

/// A part of the progress line. The least important ones are left out first on a narrow terminal.
struct ProgressField {
  std::string text;
  int importance;
};

/// Console output. On a terminal the last line shows step, loss, throughput, time left and a progress bar, and is rewritten in place, at most ten times a
/// second. Every ten seconds it leaves a line above, and a run that ends as planned leaves a curve of its losses. A log gets plain lines, each with the
/// local time, and the first of a day with the date. An evaluation of more than ten seconds has a line in the log with the time left. The fields of
/// successive lines are aligned. Measurements go to `out`, texts to `messages`.
class ConsoleSink : public EventSink {
 public:
  /// `print_every`: steps between two lines of a log; auto as described by the key observe.print_every.
  ConsoleSink(int64_t total_steps, std::optional<int64_t> print_every, TerminalWidth width, std::FILE* out = stdout, std::FILE* messages = stderr);
  ~ConsoleSink() override;

  void write(const Event& event) override;
  void evaluating(int64_t step, int64_t done, int64_t batches, double seconds) override;
  void finish() override;

 private:
  /// What the progress line shows.
  struct Shown {
    std::vector<ProgressField> fields;
    double share = 0;  ///< of the progress bar
    std::optional<WallClock::time_point> time;
  };

  void step(const Event& event);
  void evaluation(const Event& event);
  bool is_printed(const Event& step) const;
  std::string step_text(int64_t step) const;
  std::vector<ProgressField> aligned(std::vector<ProgressField> fields);
  void show_progress(const Shown& shown);
  void draw(const Shown& shown, bool with_bar);
  void print_line(std::optional<WallClock::time_point> time, const std::string& line);
  void end_progress_line();

  const int64_t total_steps_;
  const std::optional<int64_t> print_every_;
  const TerminalWidth width_;
  std::FILE* const out_;
  std::FILE* const messages_;
  double smoothed_step_seconds_ = 0;
  int64_t steps_seen_ = 0;
  double evaluation_shown_ = 0;                      ///< seconds into the current evaluation at its last line; 0: none
  std::optional<WallClock::time_point> last_line_;   ///< of a log, or left above the progress line
  std::optional<WallClock::time_point> last_drawn_;  ///< the progress line
  std::optional<Shown> waiting_;                     ///< newer than what is drawn
  std::array<size_t, 10> widths_{};                  ///< of the fields of steps by importance, the widest so far
  std::string last_date_;
  TerminalLine progress_;
  LossCurve curve_;
};

/// The texts of `fields`, separated by two spaces, without those that do not fit into `columns` characters. The most important one is always there.
std::string fitting_line(std::vector<ProgressField> fields, size_t columns);

/// "[=====>    ]", `width` characters in all, for a share of 0 to 1.
std::string progress_bar(double share, size_t width);

/// The value of auto for observe.print_every: 1, 2 or 5 x 10^n, so that `steps` steps make at most 1,000 lines.
int64_t automatic_print_every(int64_t steps);

/// "59s", "4m05s", "3h07m", "2d04h".
std::string format_duration(double seconds);

}  // namespace trireme
