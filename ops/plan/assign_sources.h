// Which rank supplies each element of an output box. Senders and receivers both call this one function, so both get the
// same answer without a message.
//
// Without a reduction the last contribution that covers an element supplies the element. With a reduction every
// contribution that covers an element takes part, in order; an element that only one contribution covers is a plain
// copy. The holder of a contribution is the wanting rank itself, else one of the ranks of the wanting rank's host, else
// any rank. When several holders remain, a large box is cut among them, and a small box goes to one of them in turn, by
// the wanting rank's number among the non-holders. So all holders carry similar loads.
//
// Pure functions of (index, box). An Assigner has scratch memory, so each thread has one of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "ops/plan/source_index.h"

namespace shardwire::internal {

// Boxes of this size and more are cut among their holders.
inline constexpr std::uint64_t kCutBytes = std::uint64_t{64} << 10;
// But into no smaller parts than this.
inline constexpr std::uint64_t kMinPartBytes = std::uint64_t{4} << 10;

// One box of one output of one rank, in global coordinates. Not empty.
struct WantedBox {
  Rank rank = 0;
  std::int32_t tensor = 0;
  std::int32_t output = 0;
  const std::int64_t* row = nullptr;
};

struct PieceSource {
  Rank rank = 0;
  std::int32_t input = 0;
  std::int32_t slice = 0;
};

struct Piece {
  std::uint32_t box = 0;  // of Pieces::boxes
  std::uint32_t firstSource = 0;
  std::uint32_t numSources = 0;
};

// Disjoint pieces of the wanted box. The order does not depend on the asking rank. Uncovered elements are in no piece.
struct Pieces {
  BoxList boxes;
  std::vector<Piece> pieces;
  std::vector<PieceSource> sources;
};

// One per thread. Ask for the boxes of one rank at a time: startRank(), then each box of the rank by (output, slice).
class Assigner {
 public:
  // `index` must outlive the assigner.
  explicit Assigner(const SourceIndex& index) : index_(index), boxesOfSet_(index.numHolderSets(), 0) {}

  void startRank();
  // Good until the next call.
  const Pieces& assign(const WantedBox& wanted);

  // Restricts the search to the boxes of `supplier`, which are far fewer than all boxes. Call setSupplier() once, then
  // assignFromSupplier() for each box wanted by another rank.
  void setSupplier(Rank supplier);
  bool supplies(std::int32_t tensor) const { return !supplierSearch_[static_cast<std::size_t>(tensor)].empty(); }
  // At least the pieces of assign(wanted) in which the supplier takes part, in the same order.
  const Pieces& assignFromSupplier(const WantedBox& wanted);

 private:
  // Part of the wanted box with the same stocks everywhere. For a copy: the stocks of the winning contribution.
  struct Cell {
    std::uint32_t box = 0;              // of cellBoxes_
    std::vector<std::uint32_t> stocks;  // by contribution
  };
  // The holders of one contribution that may supply a cell, and the number of the holder whose turn comes next.
  struct Tier {
    const Holder* holders = nullptr;
    std::uint32_t numHolders = 0;
    std::uint32_t turn = 0;
    std::uint32_t holderSet = kNoHolderSet;  // the set of holders whose boxes are counted
  };
  struct TieredCell {
    std::uint32_t box = 0;        // of cellBoxes_
    std::uint32_t firstTier = 0;  // of tiers_
    std::uint32_t numTiers = 0;
    std::uint32_t kind = 0;  // equal for cells with the same holders
  };

  void reset(const TensorSources& sources);
  const Pieces& finish(const TensorSources& sources, const WantedBox& wanted, bool mayMerge);
  bool coversOnce(const TensorSources& sources, const std::int64_t* row) const;
  void addCellOf(const TensorSources& sources, std::uint32_t stock, const std::int64_t* row);
  void decompose(const TensorSources& sources, const WantedBox& wanted);
  void decomposeLastWriter(const TensorSources& sources, const WantedBox& wanted);
  void splitCells(const TensorSources& sources, std::uint32_t stock, std::vector<Cell>& cells);
  void chooseTiers(const TensorSources& sources, const WantedBox& wanted);
  Tier tierOf(std::span<const Holder> holders, const WantedBox& wanted) const;
  std::span<const Holder> unionOfHolders(const TensorSources& sources, std::span<const std::uint32_t> stocks);
  void nameKinds();
  void mergeCells(int numDims);
  bool sameTiers(const TieredCell& a, const TieredCell& b) const;
  void emit(const TensorSources& sources, const WantedBox& wanted);
  std::uint32_t nextTurn(const Tier& tier, const WantedBox& wanted);

  const SourceIndex& index_;
  Rank supplier_ = -1;
  std::vector<BoxSearch> supplierSearch_;  // by tensor: the stocks held by supplier_
  // For the rank being assigned: how many boxes went to each holder set so far, and which sets have any.
  std::vector<std::uint32_t> boxesOfSet_;
  std::vector<std::uint32_t> touchedSets_;
  // Scratch of one assign():
  std::vector<std::uint32_t> candidates_;
  BoxList cellBoxes_;
  std::vector<Cell> cells_;
  std::vector<Cell> splitScratch_;
  std::vector<TieredCell> tiered_;
  std::vector<Tier> tiers_;
  std::vector<std::uint32_t> turns_;
  std::deque<std::vector<Holder>> unions_;
  Pieces pieces_;
};

}  // namespace shardwire::internal
