// compileOp() exchanges the encoded specs. Then each rank merges the specs and plans: after the exchange each rank
// computes alone, from equal inputs. With WhoPlans::kRank0, rank 0 plans for all ranks and sends each rank its row; in
// large groups only rank 0 has the specs. The specs also say which of the two ways each rank wants, so ranks that
// disagree find the same error. The specs of all ranks identify an earlier plan: a rank that plans alone takes such a
// plan at once; if rank 0 would plan for all, the ranks vote first.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "backend/communicator/communicator_impl.h"
#include "backend/exec/exchange.h"
#include "backend/exec/exchange_all.h"
#include "backend/exec/ship_rows.h"
#include "backend/plans/plan_file.h"
#include "ops/plan/global_spec.h"
#include "ops/plan/who_plans.h"

namespace shardwire::internal {

namespace {

double secondsSince(Clock::time_point started) {
  return std::chrono::duration<double>(Clock::now() - started).count();
}

bool areAll(std::span<const std::string> specs, WhoPlans who) {
  return std::all_of(specs.begin(), specs.end(), [&](const std::string& spec) { return whoPlansOf(spec) == who; });
}

// Ranks per core on the host with the most ranks, assuming that all hosts have as many cores as this host.
double ranksPerCore(const GroupFacts& group) {
  std::map<std::int32_t, int> ranks;
  int most = group.hosts.empty() ? group.worldSize : 0;
  for (const std::int32_t host : group.hosts) {
    most = std::max(most, ++ranks[host]);
  }
  cpu_set_t allowed;
  // The cores of the main thread, since this thread may be a group's.
  const int cores = ::sched_getaffinity(::getpid(), sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return static_cast<double>(most) / std::max(cores, 1);
}

// On rank 0 of many ranks: the digest of all specs if rank 0 plans for all ranks. The other ranks then get the digest
// in place of the specs.
std::optional<std::string> keepSpecs(std::span<const std::string> specs, const GroupFacts& group) {
  const auto numBytes = [&] {
    return std::accumulate(specs.begin(), specs.end(), std::size_t{0},
                           [](std::size_t sum, const std::string& spec) { return sum + spec.size(); });
  };
  const bool plansForAll =
      areAll(specs, WhoPlans::kRank0) ||
      (areAll(specs, WhoPlans::kChosen) && isShippingSooner(group.worldSize, numBytes(), ranksPerCore(group)));
  return plansForAll ? std::optional(std::string(asText(digestOf(specs)))) : std::nullopt;
}

// The facts of an op, and their origin.
struct Made {
  OpFacts facts;
  PlanProvenance provenance;
};

// One call of compileOp, from the exchange on.
class Compilation {
 public:
  // `exchange` is done; this constructor takes the blobs.
  Compilation(Exchange& exchange, Engine& engine, PlanCache& cache, const LocalSpec& asked,
              std::optional<Duration> timeout)
      : exchange_(exchange),
        specs_(std::make_shared<const std::vector<std::string>>(exchange.takeBlobs())),
        engine_(engine),
        cache_(cache),
        asked_(asked),
        timeout_(timeout),
        isByRank0_(exchange.answer().has_value() || areAll(*specs_, WhoPlans::kRank0)) {}

  Result<Made> make() { return isByRank0_ ? planOnRank0() : planAlone(); }

 private:
  Result<Made> planAlone();
  Result<Made> planOnRank0();
  std::optional<Made> find(const PlanOrigin& origin) const;
  void keep(const PlanOrigin& origin, Made& made) const;
  // Sets file_: the place of this rank's plan in the buildDir.
  void useFile(std::string mode, const Digest& specs);

  OpFacts factsOf(PlanRow row) const {
    return std::move(OpFacts(std::move(row), nullptr, group_.hosts, exchange_.seq).knowsAllBy(allSpecs()));
  }
  // If rank 0 plans, the other ranks know only their own part: in a group of many ranks they do not have the specs, and
  // in a group of few ranks the specs need not be kept.
  std::shared_ptr<const std::vector<std::string>> allSpecs() const {
    return isByRank0_ && group_.rank != 0 ? nullptr : specs_;
  }

  const Exchange& exchange_;
  const std::shared_ptr<const std::vector<std::string>> specs_;  // encoded, by rank
  Engine& engine_;
  const GroupFacts& group_ = engine_.facts();
  PlanCache& cache_;
  const LocalSpec& asked_;
  const std::optional<Duration> timeout_;
  const bool isByRank0_;
  std::optional<PlanFile> file_;  // with a buildDir
};

void Compilation::useFile(std::string mode, const Digest& specs) {
  file_.emplace(asked_.buildDir, PlanPlace{.mode = std::move(mode),
                                           .rank = group_.rank,
                                           .worldSize = group_.worldSize,
                                           .specs = specs,
                                           .hosts = group_.hosts,
                                           .members = engine_.reports().globalRanks(),
                                           .transports = group_.options.transports});
}

std::optional<Made> Compilation::find(const PlanOrigin& origin) const {
  if (!asked_.useCached) {
    return std::nullopt;
  }
  const std::string path = file_.has_value() ? file_->path() : std::string();
  if (const std::optional<OpFacts> kept = cache_.find(origin)) {
    Made made{kept->numbered(exchange_.seq), {PlanProvenance::From::kMemory, path, {}}};
    if (file_.has_value() && !file_->isThere()) {
      made.provenance.whyNoFile = file_->write(made.facts.row()).message();
    }
    return made;
  }
  std::optional<PlanRow> row = file_.has_value() ? file_->read(asked_) : std::nullopt;
  if (!row.has_value()) {
    return std::nullopt;
  }
  Made made{factsOf(std::move(*row)), {PlanProvenance::From::kDisk, path, {}}};
  cache_.remember(origin, made.facts, true);
  return made;
}

void Compilation::keep(const PlanOrigin& origin, Made& made) const {
  cache_.remember(origin, made.facts, file_.has_value());
  if (file_.has_value()) {
    made.provenance.path = file_->path();
    made.provenance.whyNoFile = file_->write(made.facts.row()).message();
  }
}

Result<Made> Compilation::planAlone() {
  if (!asked_.buildDir.empty()) {
    useFile(fmt::format("rank_{}", group_.rank), digestOf(std::span(*specs_)));
  }
  const PlanOrigin origin(*specs_);
  if (std::optional<Made> found = find(origin)) {
    return std::move(*found);
  }
  Result<GlobalSpec> global = mergeEncoded(*specs_);
  SW_RETURN_IF_ERROR(global.status());
  Result<Plan> plan = redistribute(*global, group_.rank, group_.hosts);
  SW_RETURN_IF_ERROR(plan.status());
  RankSpec& own = global->ranks[static_cast<std::size_t>(group_.rank)];
  Made made{factsOf({specOf(*global, std::move(own)), hashOf(group_.hosts, specs_->size()), std::move(*plan)}), {}};
  keep(origin, made);
  return made;
}

// Makes the rows on rank 0. The planner is made at the first request for a row, so that all ranks get its errors.
class RowMaker {
 public:
  RowMaker(const std::vector<std::string>& specs, const GroupFacts& group) : specs_(specs), group_(group) {}

  Result<std::string> operator()(Rank rank) {
    if (spec_ == nullptr) {
      Result<GlobalSpec> merged = mergeEncoded(specs_);
      SW_RETURN_IF_ERROR(merged.status());
      auto spec = std::make_unique<const GlobalSpec>(std::move(*merged));
      Result<std::unique_ptr<Planner>> planner = Planner::create(*spec, group_.hosts);
      SW_RETURN_IF_ERROR(planner.status());
      spec_ = std::move(spec);
      planner_ = std::move(*planner);
    }
    return encodeRow({specOf(*spec_, rank), hashOf(group_.hosts, spec_->ranks.size()), planner_->planOf(rank)});
  }

 private:
  const std::vector<std::string>& specs_;
  const GroupFacts& group_;
  std::unique_ptr<const GlobalSpec> spec_;
  std::unique_ptr<Planner> planner_;
};

// The ranks vote before any work is skipped. If all ranks have their plans, nothing is made or sent; otherwise rank 0
// makes the missing plans.
Result<Made> Compilation::planOnRank0() {
  // A digest, which all ranks have: in a group of many ranks only rank 0 has the specs.
  const std::string digest = exchange_.answer().value_or(std::string(asText(digestOf(std::span(*specs_)))));
  Digest specs{};
  if (digest.size() != specs.size()) {
    return Status(StatusCode::kInternal,
                  fmt::format("{}: rank 0's digest of all ranks' specs cannot be read", exchange_.description.text()));
  }
  std::copy(digest.begin(), digest.end(), specs.begin());
  if (!asked_.buildDir.empty()) {
    useFile("spmd", specs);
  }
  const PlanOrigin origin(std::span(&digest, 1));
  std::optional<Made> found = find(origin);
  CallPart part = partOf(exchange_);
  const auto votes = exchangeAll(
      engine_, {.what = "compile_op: who has its plan", .blob = found.has_value() ? "1" : "0"}, timeout_, &part);
  SW_RETURN_IF_ERROR(votes.status());
  const auto hasVoted = [&](Rank rank) { return (*votes)[static_cast<std::size_t>(rank)] == "1"; };
  if (std::all_of(votes->begin(), votes->end(), [](const std::string& vote) { return vote == "1"; }) &&
      found.has_value()) {
    return std::move(*found);
  }
  RowMaker rows(*specs_, group_);
  const auto make = [&](Rank rank) { return hasVoted(rank) ? Result<std::string>(std::string()) : rows(rank); };
  std::optional<PlanRow> row;
  const auto take = [&](std::string_view bytes) -> Status {
    if (found.has_value()) {
      return Status::ok();
    }
    Result<PlanRow> read = decodeRow(bytes);
    SW_RETURN_IF_ERROR(read.status());
    SW_RETURN_IF_ERROR(checkRow(*read, group_.rank, group_.worldSize, asked_));
    row = std::move(*read);
    return Status::ok();
  };
  SW_RETURN_IF_ERROR(shipRows(engine_, part, exchange_.description.text(), timeout_, make, take));
  if (found.has_value()) {
    return std::move(*found);
  }
  SW_CHECK(row.has_value());
  const auto from = group_.rank == 0 ? PlanProvenance::From::kPlanned : PlanProvenance::From::kReceived;
  Made made{factsOf(std::move(*row)), {from, {}, {}}};
  keep(origin, made);
  return made;
}

}  // namespace

Result<std::shared_ptr<CompiledOp>> CommunicatorImpl::compileOp(const LocalSpec& spec,
                                                                std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  const auto started = Clock::now();
  auto exchange = std::make_shared<Exchange>(encodeSpec(spec), worldSize(), rank());
  exchange->keepsForItself = [group = &engine_->facts()](std::span<const std::string> specs) {
    return keepSpecs(specs, *group);
  };
  exchange->description = std::make_shared<const std::string>(labelOf(spec.name));
  exchange->fingerprint = exchangeFingerprint("compile_op");
  exchange->timeout = timeoutOf(timeout);
  const std::shared_ptr<Activity> activity = exchange;
  SW_RETURN_IF_ERROR(engine_->submit(std::span(&activity, 1), Duration::zero(), {.name = "compile_op"}));
  SW_RETURN_IF_ERROR(waitOrAbort(*engine_, *exchange, exchange->description.text()));
  Result<Made> made = Compilation(*exchange, *engine_, plans_, spec, timeout).make();
  SW_RETURN_IF_ERROR(made.status());
  return std::shared_ptr<CompiledOp>(std::make_shared<CompiledOpImpl>(
      engine_, inFlight_, std::move(made->facts), std::move(made->provenance), secondsSince(started)));
}

Result<std::shared_ptr<CompiledOp>> CommunicatorImpl::attach(const CompiledOp& planned,
                                                             std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  const auto started = Clock::now();
  const OpFacts* facts = offlineFactsOf(planned);
  ExchangeRequest mine{.what = "attach"};
  const auto refuse = [&](std::string why) { mine.error = Status(StatusCode::kInvalidArgument, std::move(why)); };
  if (facts == nullptr) {
    refuse("this op has a group already; attach one that was planned without a group");
  } else if (const Plan& plan = *facts->plan(); plan.rank != rank() || plan.worldSize != worldSize()) {
    refuse(fmt::format("{} was planned for rank {} of {}, and this is rank {} of {}: plan it for this rank and size",
                       facts->label(), plan.rank, plan.worldSize, rank(), worldSize()));
  } else {
    const PlanRow row = facts->row();
    mine.text = fmt::format("{}, plan {:016x} for hosts {:016x}", facts->label(), row.plan.fingerprint, row.hosts);
  }
  CallPart part;
  SW_RETURN_IF_ERROR(exchangeAll(*engine_, mine, timeout, &part).status());
  SW_CHECK(facts != nullptr);
  return std::shared_ptr<CompiledOp>(std::make_shared<CompiledOpImpl>(engine_, inFlight_, facts->numbered(part.seq),
                                                                      planned.planProvenance(), secondsSince(started)));
}

}  // namespace shardwire::internal
