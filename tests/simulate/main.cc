// ./run simulate: runs seeds, prints the trace of a seed, and shrinks a failing seed. run() goes through the seeds,
// runSeed() prints the findings, view() writes the page that plays a run, shrink() leaves operations and faults out as
// long as the seed fails. Exit status 1 if a seed fails.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <ranges>
#include <string>
#include <vector>

#include "backend/base/log.h"
#include "tests/simulate/join_simulation.h"
#include "tests/simulate/page.h"
#include "tests/simulate/simulation.h"

namespace shardwire::simulate {
namespace {

constexpr const char* kHelp =
    "simulate [--joins | --two-jobs] [--many-faults] [--seed S] [--seeds N] [--seconds T] [--trace] [--view FILE] "
    "[--shrink] "
    "[--without-operations A,B] [--without-faults A]\n"
    "  --joins       the seeds draw processes that join groups\n"
    "  --two-jobs    the seeds draw two jobs that join groups, of which one publishes weights and one fetches them\n"
    "  --many-faults the seeds draw more faults, and rare conditions often\n"
    "  --seed S      the first seed (1)\n"
    "  --seeds N     so many seeds (1 with --seed, else 1000); --seconds T: until T seconds are over\n"
    "  --trace       prints who did what when, in simulated time\n"
    "  --view FILE   writes an HTML page that plays the run of one seed, or of a seed that fails; only for groups\n"
    "  --shrink      removes operations and faults from a failing seed as long as it fails\n"
    "  --without-... numbers of operations and faults to leave out, as --shrink prints them\n"
    "  --keep-going  goes on after a failing seed\n";

enum class Contents : unsigned char { kGroups, kJoins, kTwoJobs };

// The contents of a seed.
struct Mode {
  Contents contents = Contents::kGroups;
  Draws draws = Draws::kUsual;
};

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t numSeeds = 0;
  double seconds = 0;
  bool isTraced = false;
  bool shrinks = false;
  bool keepsGoing = false;
  Mode mode;
  bool hasSeed = false;
  std::string page;
  Without without;
};

std::vector<int> numbersIn(const std::string& text) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at < text.size();
       at = text.find(',', at) == std::string::npos ? text.size() : text.find(',', at) + 1) {
    numbers.push_back(std::atoi(text.c_str() + at));
  }
  return numbers;
}

bool read(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--trace") {
      arguments->isTraced = true;
    } else if (name == "--shrink") {
      arguments->shrinks = true;
    } else if (name == "--joins") {
      arguments->mode.contents = Contents::kJoins;
    } else if (name == "--two-jobs") {
      arguments->mode.contents = Contents::kTwoJobs;
    } else if (name == "--many-faults") {
      arguments->mode.draws = Draws::kManyFaults;
    } else if (name == "--keep-going") {
      arguments->keepsGoing = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (const std::string value = argv[++i]; name == "--seed") {
      arguments->seed = std::strtoull(value.c_str(), nullptr, 10);
      arguments->hasSeed = true;
    } else if (name == "--seeds") {
      arguments->numSeeds = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--seconds") {
      arguments->seconds = std::atof(value.c_str());
    } else if (name == "--view") {
      arguments->page = value;
    } else if (name == "--without-operations") {
      arguments->without.operations = numbersIn(value);
    } else if (name == "--without-faults") {
      arguments->without.faults = numbersIn(value);
    } else {
      return false;
    }
  }
  if (arguments->numSeeds == 0) {
    arguments->numSeeds = arguments->seconds > 0 ? ~std::uint64_t{0} : arguments->hasSeed ? 1 : 1000;
  }
  return arguments->mode.contents == Contents::kGroups || arguments->page.empty();
}

JoinSchedule drawJoinsOf(std::uint64_t seed, const Without& without, const Mode& mode) {
  return mode.contents == Contents::kTwoJobs ? drawTwoJobs(seed, without, mode.draws)
                                             : drawJoins(seed, without, mode.draws);
}

Outcome outcomeOf(std::uint64_t seed, const Without& without, const Mode& mode, bool isTraced) {
  return mode.contents == Contents::kGroups ? simulate(drawSchedule(seed, without, mode.draws), isTraced)
                                            : simulateJoins(drawJoinsOf(seed, without, mode), isTraced);
}

std::string describeRun(std::uint64_t seed, const Without& without, const Mode& mode) {
  return mode.contents == Contents::kGroups ? describe(drawSchedule(seed, without, mode.draws))
                                            : describe(drawJoinsOf(seed, without, mode));
}

// The numbers of all operations and faults of the seed that `without` does not leave out.
Without partsOf(std::uint64_t seed, const Without& without, const Mode& mode) {
  Without parts;
  const auto add = [](std::vector<int>& numbers, const auto& each) {
    std::ranges::transform(each, std::back_inserter(numbers), [](const auto& part) { return part.number; });
  };
  if (mode.contents != Contents::kGroups) {
    const JoinSchedule schedule = drawJoinsOf(seed, without, mode);
    std::ranges::for_each(schedule.operations, [&](const auto& each) { add(parts.operations, each); });
    add(parts.faults, schedule.faults);
    std::ranges::sort(parts.operations);  // each group has the same numbers
    parts.operations.erase(std::ranges::unique(parts.operations).begin(), parts.operations.end());
  } else {
    const Schedule schedule = drawSchedule(seed, without, mode.draws);
    add(parts.operations, schedule.operations);
    add(parts.faults, schedule.faults);
  }
  return parts;
}

// Leaves out one operation or fault after the other as long as the seed still fails.
Without shrink(std::uint64_t seed, Without without, const Mode& mode) {
  for (bool hasShrunk = true; hasShrunk;) {
    hasShrunk = false;
    const Without parts = partsOf(seed, without, mode);
    const auto leaveOut = [&](std::vector<int> Without::*kind, int number) {
      Without fewer = without;
      (fewer.*kind).push_back(number);
      if (!outcomeOf(seed, fewer, mode, false).faults.empty()) {
        without = fewer;
        hasShrunk = true;
      }
    };
    for (const int number : parts.operations | std::views::reverse) {
      leaveOut(&Without::operations, number);
    }
    for (const int number : parts.faults) {
      leaveOut(&Without::faults, number);
    }
  }
  return without;
}

std::string commandOf(std::uint64_t seed, const Without& without, const Mode& mode) {
  std::string text = fmt::format("./run simulate {}{}--seed {}",
                                 mode.contents == Contents::kGroups  ? ""
                                 : mode.contents == Contents::kJoins ? "--joins "
                                                                     : "--two-jobs ",
                                 mode.draws == Draws::kManyFaults ? "--many-faults " : "", seed);
  if (!without.operations.empty()) {
    text += fmt::format(" --without-operations {}", fmt::join(without.operations, ","));
  }
  if (!without.faults.empty()) {
    text += fmt::format(" --without-faults {}", fmt::join(without.faults, ","));
  }
  return text;
}

void print(std::uint64_t seed, const Without& without, const Mode& mode, const Outcome& outcome) {
  fmt::print("seed {} FAILS:\n", seed);
  for (const std::string& fault : outcome.faults) {
    fmt::print("  {}\n", fault);
  }
  fmt::print("{}{}{} --trace\n", describeRun(seed, without, mode), outcome.summary, commandOf(seed, without, mode));
  std::fflush(stdout);
}

void view(std::uint64_t seed, const Arguments& arguments, const Without& without) {
  const std::string& path = arguments.page;
  if (!writePage(drawSchedule(seed, without, arguments.mode.draws), path)) {
    fmt::print(stderr, "cannot write {}\n", path);
    std::exit(2);
  }
}

// Whether the seed fails.
bool runSeed(std::uint64_t seed, const Arguments& arguments, Outcome* outcome) {
  Without without = arguments.without;
  const Mode& mode = arguments.mode;
  *outcome = outcomeOf(seed, without, mode, arguments.isTraced);
  if (arguments.isTraced) {
    fmt::print("{}{}{}", describeRun(seed, without, mode), outcome->trace, outcome->summary);
  }
  const bool hasFailed = !outcome->faults.empty();
  if (hasFailed && arguments.shrinks) {
    without = shrink(seed, without, mode);
    *outcome = outcomeOf(seed, without, mode, false);
  }
  if (hasFailed) {
    print(seed, without, mode, *outcome);
  }
  if (!arguments.page.empty() && (hasFailed || arguments.numSeeds == 1)) {
    view(seed, arguments, without);
  }
  return hasFailed;
}

int run(const Arguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Outcome outcome;
  std::uint64_t numRun = 0;
  std::uint64_t numFailing = 0;
  std::uint64_t numWithError = 0;
  std::uint64_t numFrames = 0;
  Time simulated = 0;
  for (std::uint64_t i = 0; i < arguments.numSeeds && (arguments.seconds == 0 || spent() < arguments.seconds); ++i) {
    const bool hasFailed = runSeed(arguments.seed + i, arguments, &outcome);
    ++numRun;
    numFailing += hasFailed ? 1 : 0;
    numWithError += outcome.numFailed > 0 ? 1 : 0;
    numFrames += outcome.numFrames;
    simulated += outcome.simulated;
    if (hasFailed && !arguments.keepsGoing) {
      break;
    }
  }
  const double seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  if (numRun > 1) {
    fmt::print(
        "{} seeds, {} failing, {} with an error of a rank, {} frames; {:.1f} s of a core: {:.0f} seeds/s, {:.0f} "
        "simulated "
        "hours in an hour\n",
        numRun, numFailing, numWithError, numFrames, seconds, static_cast<double>(numRun) / seconds,
        static_cast<double>(simulated) / static_cast<double>(kSecond) / seconds);
  }
  return numFailing > 0 ? 1 : 0;
}

}  // namespace
}  // namespace shardwire::simulate

int main(int argc, char** argv) {
  shardwire::simulate::Arguments arguments;
  if (!shardwire::simulate::read(argc, argv, &arguments)) {
    fmt::print(stderr, "{}", shardwire::simulate::kHelp);
    return 2;
  }
  if (std::getenv("SHARDWIRE_LOG") == nullptr) {  // warnings about long waits are expected here
    shardwire::internal::setLogLevel(shardwire::internal::LogLevel::kError);
  }
  return shardwire::simulate::run(arguments);
}
