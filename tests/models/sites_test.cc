// The table of sites.h is the source's: each row's operation is in the function that the row names, with the row's
// order, and the files of the table have no further operation with an order.
#include "tests/models/sites.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

namespace shardwire::models {
namespace {

constexpr std::array<std::string_view, 2> kOnlyInPart = {"backend/exec/driving.cc", "backend/exec/progress_thread.cc"};

std::string sourceOf(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(SHARDWIRE_SOURCES "/" + file).rdbuf();
  return text.str();
}

// The place of the function's body: the braces behind name and parameters. A call of the function has no braces.
std::pair<std::size_t, std::size_t> bodyOf(const std::string& text, const std::string& function) {
  for (std::size_t at = text.find(function + "("); at != std::string::npos; at = text.find(function + "(", at + 1)) {
    const bool isWholeName = at == 0 || text[at - 1] == ' ' || text[at - 1] == '\n';
    const std::size_t open = text.find_first_of("{;", at);
    if (!isWholeName || open == std::string::npos || text[open] == ';') {
      continue;
    }
    std::size_t end = open + 1;
    for (int depth = 1; depth > 0 && end < text.size(); ++end) {
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    }
    return {open, end};
  }
  return {0, 0};
}

// The order among the arguments that begin at `at`: seq_cst if they name none.
std::pair<std::string, std::size_t> orderAt(const std::string& text, std::size_t at) {
  std::size_t end = at + 1;
  for (int depth = 1; depth > 0 && end < text.size(); ++end) {
    depth += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
  }
  constexpr std::string_view kPrefix = "memory_order_";
  const std::size_t named = text.rfind(kPrefix, end);  // the last one is this call's own
  if (named == std::string::npos || named < at) {
    return {"seq_cst", named};
  }
  const std::size_t begin = named + kPrefix.size();
  return {text.substr(begin, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", begin) - begin), named};
}

TEST(Sites, AreTheSources) {
  constexpr std::array<const char*, 6> kNames = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
  std::map<std::string, std::set<std::size_t>> known;  // by file, where an order is named
  int number = 0;
  for (const SiteRow& row : siteRows()) {
    ASSERT_EQ(row.site, number++) << "the rows are in the order of the names";
    const std::string text = sourceOf(row.file), what = std::string(row.file) + ": " + row.function;
    const auto [begin, end] = bodyOf(text, row.function);
    ASSERT_LT(begin, end) << what << " is not there";
    bool isThere = false;
    const std::string_view call = row.call;
    for (std::size_t at = text.find(call, begin); at < end; at = text.find(call, at + 1)) {
      const std::size_t inCall = call.find("(std::memory_order");
      const std::size_t paren = at + (inCall == std::string_view::npos ? call.size() : inCall);
      if (text[paren] == '(') {
        const auto [order, named] = orderAt(text, paren);
        EXPECT_EQ(order, kNames[static_cast<std::size_t>(row.order)]) << what << ": " << call;
        known[row.file].insert(named);
        isThere = true;
      }
    }
    EXPECT_TRUE(isThere) << what << " has no " << call;
  }
  for (const auto& [file, places] : known) {
    const std::string text = sourceOf(file);
    if (std::find(kOnlyInPart.begin(), kOnlyInPart.end(), file) != kOnlyInPart.end()) {
      continue;
    }
    for (std::size_t at = text.find("memory_order_"); at != std::string::npos;
         at = text.find("memory_order_", at + 1)) {
      EXPECT_TRUE(places.contains(at)) << file << ":" << std::count(text.data(), text.data() + at, '\n') + 1
                                       << ": an operation that the table lacks";
    }
  }
}

}  // namespace
}  // namespace shardwire::models
