#include "tests/support/dial_link.h"

#include "backend/fabric/interfaces.h"
#include "backend/fabric/proof.h"

namespace shardwire::internal {

Result<Link> dialLink(std::span<const NetAddress> addresses, const LinkKey& key, const LinkHello& hello,
                      const Options& options, const WaitLimit& limit) {
  const auto interfaces = listInterfaces();
  SW_RETURN_IF_ERROR(interfaces.status());
  LinkDial dial(orderByReach(addresses, chooseInterfaces(*interfaces, options.socketIfname)), key, hello);
  while (true) {
    if (auto link = dial.step(); link.has_value()) {
      return std::move(*link);
    }
    if (limit.isOver()) {
      return dial.whyNot();
    }
    std::vector<pollfd> entries;
    const Deadline next = dial.appendSockets(&entries);
    SW_RETURN_IF_ERROR(limit.sooner(next).poll(entries).status());
  }
}

Result<Link> dialLink(std::span<const NetAddress> addresses, const RandomId& token, const LinkHello& hello,
                      const Options& options, const WaitLimit& limit) {
  return dialLink(addresses, makeLinkKey(token, options.jobToken), hello, options, limit);
}

}  // namespace shardwire::internal
