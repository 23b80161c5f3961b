#include <algorithm>
#include <vector>

#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {
namespace {

// Six steps a segment, and the exit barrier of a reduce_scatter.
constexpr int64_t kMaxPieces = (kMaxDeviceSteps - 2 * (kMaxDeviceRanks - 1)) / 6;

// Prefixes climb from rank 0 to rank N-1, because that is the order of the sum, and results come back down the same
// way: so every link carries S each way at the same time, which going on round the ring would not, and the link from
// the last rank to the first is not needed. Each neighbour writes into the next one's memory and reads only its own.
//
// A result that is handed on has a flag of its own; those that stay where they come to are told of at the exit.
class RankRing {
 public:
  explicit RankRing(const DeviceProblem& problem)
      : rank_(problem.rank),
        last_(problem.world - 1),
        scatter_(problem.what == Collective::kReduceScatter),
        pieces_(cut(problem)),
        builder_("ring/rank", problem, scatter_ ? problem.count * problem.world : problem.count, problem.count) {}

  // Rank r has segment m's prefix in turn r + m and its result in turn 2(N-1) - r + m.
  DevicePlan build() {
    const int64_t turns = 2 * last_ + static_cast<int64_t>(pieces_.size());
    for (int64_t turn = 0; turn < turns; ++turn) {
      pass_prefix(turn - rank_);
      if (rank_ < last_) pass_result(turn - (2 * last_ - rank_));
    }
    leave();
    return builder_.finish();
  }

 private:
  struct Piece {
    int owner;      // reduce_scatter: whose part; all_reduce: 0, the last rank on the way down
    Extent whole;   // in the tensor, all parts end to end
    int64_t begin;  // in the output
  };

  static std::vector<Piece> cut(const DeviceProblem& problem) {
    const int parts = problem.what == Collective::kReduceScatter ? problem.world : 1;
    const int64_t pack = pack_elements(problem.dtype);
    const int64_t most = kMaxPieces / parts;
    const int64_t wanted = std::max<int64_t>(1, problem.segment_bytes / kDevicePackBytes);
    const int64_t elements = pack * std::max(wanted, ceil_div(problem.count / pack, most));
    std::vector<Piece> pieces;
    for (int part = 0; part < parts; ++part) {
      const int64_t start = part * problem.count;
      for (int64_t at = 0; at < problem.count; at += elements) {
        pieces.push_back({part, {start + at, start + std::min(at + elements, problem.count)}, at});
      }
    }
    return pieces;
  }

  bool exists(int64_t m) const { return m >= 0 && m < static_cast<int64_t>(pieces_.size()); }

  // Rank 0 has nothing to add, so its values travel raw.
  void pass_prefix(int64_t m) {
    if (!exists(m)) return;
    const Piece& piece = pieces_[m];
    const int64_t at = piece.whole.begin, count = piece.whole.count();
    const DeviceRef own = DeviceBuilder::input(at);
    if (rank_ == 0) {
      builder_.copy(own, builder_.stage(at, 1, false), count);
    } else {
      builder_.await(rank_ - 1, kUpSlot);
      const DeviceRef prefix = builder_.stage(at, kOwnRank, rank_ > 1);
      if (rank_ == last_) return finish_sum(piece, prefix, own);
      builder_.add(prefix, own, builder_.stage(at, rank_ + 1, true), count);
    }
    builder_.post(rank_ + 1, kUpSlot);
  }

  void finish_sum(const Piece& piece, const DeviceRef& prefix, const DeviceRef& own) {
    const bool keeps = !scatter_ || piece.owner == last_;
    const DeviceRef to = keeps ? DeviceBuilder::output(piece.begin) : place(piece, last_ - 1);
    builder_.add_last(prefix, own, to, piece.whole.count());
    if (scatter_ && keeps) return;
    if (keeps) builder_.copy(to, place(piece, last_ - 1), piece.whole.count());
    tell_below(piece);
  }

  // Where `rank` gets a result: its output, or from where it hands it on, behind the prefixes.
  DeviceRef place(const Piece& piece, int rank) const {
    if (!scatter_ || piece.owner == rank) return DeviceBuilder::output(piece.begin, rank);
    return builder_.stage(pieces_.back().whole.end + piece.whole.begin, rank, false);
  }

  void tell_below(const Piece& piece) {
    if (rank_ - 1 > piece.owner) builder_.post(rank_ - 1, kDownSlot);
  }

  void pass_result(int64_t m) {
    if (!exists(m) || rank_ <= pieces_[m].owner) return;
    const Piece& piece = pieces_[m];
    builder_.await(rank_ + 1, kDownSlot);
    builder_.copy(place(piece, rank_), place(piece, rank_ - 1), piece.whole.count());
    tell_below(piece);
  }

  // Rank 0 has nothing in its stage, and in an all_reduce it alone has results that stay: the others' come down with
  // word that all above have read what was staged for them. In a reduce_scatter they say so of some parts only.
  void leave() {
    if (!scatter_) {
      if (rank_ == 1) builder_.post(0, kExitSlot);
      if (rank_ == 0) builder_.await(1, kExitSlot);
      return;
    }
    const std::vector<int> neighbours = ring_neighbours(rank_, last_ + 1);
    for (const int peer : neighbours) {
      if (rank_ != 0) builder_.post(peer, kExitSlot);
    }
    for (const int peer : neighbours) {
      if (peer != 0) builder_.await(peer, kExitSlot);
    }
  }

  const int rank_, last_;
  const bool scatter_;
  const std::vector<Piece> pieces_;  // in the order in which they set out
  DeviceBuilder builder_;
};

}  // namespace

DevicePlan device_ring_rank(const DeviceProblem& problem) { return RankRing(problem).build(); }

}  // namespace ringdp::plan
