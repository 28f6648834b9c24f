#pragma once
#include <cstdio>

#include "trainer/run/event.h"

namespace trireme {

/// Console output. On a terminal the last line shows step, loss, throughput and time left, and is rewritten in place; a log gets one plain line per
/// step. Measurements go to `out`, texts to `messages`.
class ConsoleSink : public EventSink {
 public:
  ConsoleSink(int64_t total_steps, bool terminal, std::FILE* out = stdout, std::FILE* messages = stderr);
  ~ConsoleSink() override;

  void write(const Event& event) override;

 private:
  void step(const Event& event);
  void evaluation(const Event& event);
  void end_progress_line();

  int64_t total_steps_;
  bool terminal_;
  std::FILE* out_;
  std::FILE* messages_;
  double smoothed_step_seconds_ = 0;  ///< 0 before the first step
  bool progress_line_open_ = false;
};

/// "59s", "4m05s", "3h07m", "2d04h".
std::string format_duration(double seconds);

}  // namespace trireme
