// The page has three parts: the head with the controls, the events as one JavaScript object, and the script
// (page_script.cc). Times are in nanoseconds, which a double holds exactly up to 104 days.
#include "tests/simulate/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "tests/simulate/page_script.h"

namespace shardwire::simulate {
namespace {

// A string of JavaScript that ends neither the string nor the script.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char each : text) {
    if (const auto code = static_cast<unsigned char>(each); code < 0x20 || each == '<' || each == '"' || each == '\\') {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += each;
    }
  }
  return out + '"';
}

// Null: never.
std::string timeText(Time time) {
  return time == kNever ? "null" : fmt::format("{}", time);
}

template <typename Items, typename Text>
std::string listOf(const char* name, const Items& items, Text text) {
  std::string out = fmt::format("{}: [\n", name);
  for (const auto& each : items) {
    out += text(each) + ",\n";
  }
  return out + "],\n";
}

std::string dataOf(const Schedule& schedule, const Outcome& outcome) {
  std::size_t numGroups = 1;
  for (const Recording::Bar& bar : outcome.recording.bars) {
    numGroups = std::max(numGroups, bar.group + 1);
  }
  constexpr std::array kOutcomes = {"under way", "done", "failed"};
  const Recording& all = outcome.recording;
  std::string out =
      fmt::format("const data = {{\nseed: {}, rows: {}, rowName: {}, groups: {}, end: {},\n", schedule.seed,
                  schedule.numRanks, quoted(schedule.rowName()), numGroups, outcome.simulated);
  out += fmt::format("schedule: {},\nsummary: {},\n", quoted(describe(schedule)), quoted(outcome.summary));
  out += listOf("wrong", outcome.faults, quoted);
  out += listOf("bars", all.bars, [&](const Recording::Bar& bar) {
    return fmt::format("{{begin: {}, end: {}, row: {}, group: {}, number: {}, outcome: {}, text: {}}}", bar.begin,
                       timeText(bar.end), bar.row, bar.group, bar.operation,
                       quoted(kOutcomes[static_cast<std::size_t>(bar.outcome)]), quoted(bar.text));
  });
  out += listOf("frames", all.frames, [](const Recording::Frame& frame) {
    return fmt::format("{{sent: {}, arrives: {}, from: {}, to: {}, text: {}}}", frame.sent, timeText(frame.arrives),
                       frame.from, frame.to, quoted(frame.text));
  });
  out += listOf("marks", all.marks, [](const Recording::Mark& mark) {
    return fmt::format("{{kind: {}, begin: {}, end: {}, row: {}, peer: {}, text: {}}}", quoted(mark.kind), mark.begin,
                       timeText(mark.end), mark.row, mark.peer, quoted(mark.text));
  });
  out += listOf("lines", all.lines, [](const Recording::Line& line) {
    return fmt::format("[{}, {}, {}]", line.at, line.row, quoted(line.text));
  });
  return out + "};\n";
}

}  // namespace

bool writePage(const Schedule& schedule, const std::string& path) {
  std::ofstream file(path);
  file << pageOf(schedule, simulate(schedule, true));
  file.close();
  return !file.fail();
}

void Recording::endBar(Rank row, int operation, Time end, Outcome outcome, const std::string& error) {
  const auto found = std::ranges::find_if(
      bars, [&](const Bar& bar) { return bar.row == row && bar.operation == operation && bar.end == kNever; });
  if (found != bars.end()) {
    found->end = end;
    found->outcome = outcome;
    found->text += error.empty() ? "" : ": " + error;
  }
}

std::string pageOf(const Schedule& schedule, const Outcome& outcome) {
  return fmt::format("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>seed {}</title>\n",
                     schedule.seed) +
         kPageHead + "<script>\n\"use strict\";\n" + dataOf(schedule, outcome) + kPageScript +
         "</script>\n</body>\n</html>\n";
}

}  // namespace shardwire::simulate
