#include "backend/transport/late_links.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace shardwire::internal {
namespace {

class BothLateLinks final : public LateLinks {
 public:
  BothLateLinks(std::unique_ptr<LateLinks> one, std::unique_ptr<LateLinks> other)
      : one_(std::move(one)), other_(std::move(other)) {}

  bool isLate(Rank peer) const override { return one_->isLate(peer) || other_->isLate(peer); }
  void want(Rank peer) override { of(peer).want(peer); }
  std::vector<News> poll() override {
    std::vector<News> news = one_->poll();
    std::vector<News> more = other_->poll();
    std::move(more.begin(), more.end(), std::back_inserter(news));
    return news;
  }
  bool hasNews() const override { return one_->hasNews() || other_->hasNews(); }
  bool isAnyUnderWay() const override { return one_->isAnyUnderWay() || other_->isAnyUnderWay(); }
  std::string whyNotYet(Rank peer) const override { return of(peer).whyNotYet(peer); }

 private:
  LateLinks& of(Rank peer) const { return one_->isLate(peer) ? *one_ : *other_; }

  const std::unique_ptr<LateLinks> one_;
  const std::unique_ptr<LateLinks> other_;
};

}  // namespace

std::unique_ptr<LateLinks> bothLateLinks(std::unique_ptr<LateLinks> one, std::unique_ptr<LateLinks> other) {
  if (one == nullptr || other == nullptr) {
    return one == nullptr ? std::move(other) : std::move(one);
  }
  return std::make_unique<BothLateLinks>(std::move(one), std::move(other));
}

std::string UnjoinedConnection::describe() const {
  return fmt::format("rank {}: {}, joined when an operation first needs it", peer_, transport_);
}

}  // namespace shardwire::internal
