#include "backend/bootstrap/gathering.h"

#include <fmt/format.h>

#include "backend/bootstrap/summary.h"

namespace shardwire::internal {

Status lateError(const Gathering& group, const std::string& what, const std::vector<Rank>& ranks) {
  const std::chrono::duration<double> waited = Clock::now() - group.start;
  return {StatusCode::kTimeout, fmt::format("{} {} within {:.3g} s", rankList(ranks), what, waited.count())};
}

}  // namespace shardwire::internal
