// The events of one simulation for the page that plays a run (page.h). Kept only where the trace is kept, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/types.h"
#include "tests/simulate/clock.h"

namespace shardwire::simulate {

// All times are since the begin, and rows are numbers of processes.
struct Recording {
  // A line of the trace.
  struct Line {
    Time at = 0;
    Rank row = -1;
    std::string text;
  };
  // A frame, or a part of a fetch.
  struct Frame {
    Time sent = 0;
    Time arrives = kNever;  // kNever: lost
    Rank from = 0;
    Rank to = 0;
    std::string text;
  };
  enum class Outcome : std::uint8_t { kUnderWay, kDone, kFailed };
  struct Bar {
    Time begin = 0;
    Time end = kNever;
    Rank row = 0;
    std::size_t group = 0;
    int operation = 0;
    Outcome outcome = Outcome::kUnderWay;
    std::string text;
  };
  struct Mark {
    std::string kind;  // as in the script of the page
    Time begin = 0;
    Time end = 0;
    Rank row = 0;
    Rank peer = -1;
    std::string text;
  };

  void endBar(Rank row, int operation, Time end, Outcome outcome, const std::string& error);

  std::vector<Line> lines;
  std::vector<Frame> frames;
  std::vector<Bar> bars;
  std::vector<Mark> marks;
};

}  // namespace shardwire::simulate
