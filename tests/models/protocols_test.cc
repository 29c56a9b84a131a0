// Each protocol holds in every execution of its models; each order of the table (sites.h), weakened alone, breaks a
// model if the order is weaker than the table's `weakest`, and breaks none otherwise; docs/threading.md has the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>

#include "tests/models/models.h"

namespace shardwire::models {
namespace {

int strength(Order order) {
  return order == Order::relaxed ? 0 : order == Order::seq_cst ? 2 : 1;
}
const char* nameOf(Order order) {
  constexpr std::array<const char*, 6> kNames = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
  return kNames[static_cast<std::size_t>(order)];
}

struct ModelRun {
  std::function<Model(const Orders&)> model;
  std::set<Site> used;
};

struct ProtocolRun {
  Protocol protocol;
  std::vector<ModelRun> models;
  std::size_t executions = 0, numWeakenings = 0, numFound = 0;
};

struct Weakening {
  Site site;
  Order to;
  bool isFound = false, isUsed = false;
};

// The run takes seconds, so all tests share one.
struct AllRuns {
  std::vector<ProtocolRun> protocols;
  std::vector<Weakening> weakenings;
  std::vector<std::string> violations;

  AllRuns() {
    for (Protocol& protocol : allProtocols()) {
      protocols.push_back({protocol, {}});
      for (const auto& model : protocol.models) {
        const Orders asWritten;
        const Explored all = explore(model(asWritten));
        protocols.back().models.push_back({model, asWritten.used()});
        protocols.back().executions += all.executions;
        if (!all.violation.empty()) {
          violations.push_back(protocol.name + ": " + all.violation);
        }
      }
    }
    for (const SiteRow& row : siteRows()) {
      for (const Order to : weakerOrders(row)) {
        Weakening one{row.site, to};
        for (ProtocolRun& each : protocols) {
          weaken(each, &one);
        }
        weakenings.push_back(one);
      }
    }
  }

 private:
  static void weaken(ProtocolRun& each, Weakening* one) {
    bool isUsed = false, isFound = false;
    for (const ModelRun& run : each.models) {
      if (run.used.contains(one->site)) {
        isUsed = true;
        const Orders orders(one->site, one->to);
        isFound = isFound || !explore(run.model(orders)).violation.empty();
      }
    }
    each.numWeakenings += isUsed ? 1 : 0;
    each.numFound += isFound ? 1 : 0;
    one->isUsed = one->isUsed || isUsed;
    one->isFound = one->isFound || isFound;
  }
};

const AllRuns& allRuns() {
  static const AllRuns all;
  return all;
}

TEST(Protocols, HoldInEveryExecution) {
  EXPECT_EQ(allRuns().violations, std::vector<std::string>());
}

TEST(Protocols, EachWeakerOrderIsFound) {
  for (const Weakening& one : allRuns().weakenings) {
    const SiteRow& row = siteRows()[static_cast<std::size_t>(one.site)];
    const std::string what = fmt::format("{}: {} in {} with {} in place of {}", row.file, row.call, row.function,
                                         nameOf(one.to), nameOf(row.order));
    if (one.isUsed) {
      EXPECT_EQ(one.isFound, strength(one.to) < strength(row.weakest)) << what;
    }
  }
}

TEST(Protocols, EachStrongerOrderThanNeededHasAReason) {
  std::set<Site> used;
  for (const ProtocolRun& each : allRuns().protocols) {
    for (const ModelRun& run : each.models) {
      used.insert(run.used.begin(), run.used.end());
    }
  }
  for (const SiteRow& row : siteRows()) {
    const bool mustSayWhy = row.weakest != row.order || (row.order != Order::relaxed && !used.contains(row.site));
    EXPECT_EQ(mustSayWhy, std::string(row.why) != "") << row.file << ": " << row.call << " in " << row.function;
  }
}

TEST(Protocols, DocsHaveTheCounts) {
  std::ostringstream page;
  page << std::ifstream(SHARDWIRE_SOURCES "/docs/threading.md").rdbuf();
  for (const ProtocolRun& each : allRuns().protocols) {
    const std::string row = fmt::format("| {} | {} | {} | {} | {} of {} |\n", each.protocol.name, each.protocol.files,
                                        each.protocol.invariant, each.executions, each.numFound, each.numWeakenings);
    EXPECT_NE(page.str().find(row), std::string::npos) << "docs/threading.md lacks this row:\n" << row;
  }
}

}  // namespace
}  // namespace shardwire::models
