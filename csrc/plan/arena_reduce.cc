#include "plan/arena.h"
#include "plan/segment.h"

namespace ringdp::plan {
namespace {

class ArenaReduce {
 public:
  ArenaReduce(const Problem& problem, const Builder& builder, ArenaLane& lane)
      : problem_(problem), rank_(problem.rank), builder_(builder), lane_(lane) {}

  void build() {
    if (problem_.what == Collective::kReduceScatter) return scatter();
    if (is_one_shot(problem_)) return one_shot();
    stages();
  }

 private:
  bool gets_result() const { return problem_.what == Collective::kAllReduce || rank_ == problem_.root; }
  bool others_read_mine() const { return problem_.what == Collective::kAllReduce || rank_ != problem_.root; }

  void one_shot() {
    const Extent whole = {0, problem_.count};
    const Ref own = builder_.input(0, whole);
    if (others_read_mine()) lane_.copy(own, lane_.slot(rank_, 0, whole.count()));
    lane_.barrier();
    if (gets_result()) lane_.fold(lane_.in_rank_order(own, 0, 0), {builder_.output(0, whole)});
  }

  // One barrier per stage and one more. copy_in(k+1) can run while others still copy_out(k-1) from the same slot:
  // they read only my own piece, which copy_in leaves alone and which lies at the same place in every stage.
  // fold(k+1), which does write it, comes after a barrier at which all arrived after copy_out(k-1).
  void stages() {
    const int64_t stage_elements = problem_.world * lane_.piece_elements();
    const int stages = static_cast<int>(ceil_div(problem_.count, stage_elements));
    const auto stage = [&](int k) { return segment({0, problem_.count}, stage_elements, k); };
    copy_in(stage(0), 0);
    lane_.barrier();
    for (int k = 0; k < stages; ++k) {
      fold_own_piece(stage(k), k);
      if (k + 1 < stages) copy_in(stage(k + 1), k + 1);
      lane_.barrier();
      if (gets_result()) copy_out(stage(k), k);
    }
  }

  Extent piece(Extent stage, int owner) const {
    const Extent part = balanced_part(stage.count(), problem_.world, owner);
    return {stage.begin + part.begin, stage.begin + part.end};
  }

  void copy_in(Extent stage, int k) {
    for (int q = 0; q < problem_.world; ++q) {
      const Extent theirs = piece(stage, q);
      if (q == rank_ || theirs.count() == 0) continue;
      lane_.copy(builder_.input(0, theirs), lane_.piece(rank_, k, q, theirs.count()));
    }
  }

  void fold_own_piece(Extent stage, int k) {
    const Extent mine = piece(stage, rank_);
    if (mine.count() == 0) return;
    std::vector<Ref> results;
    if (gets_result()) results.push_back(builder_.output(0, mine));
    if (others_read_mine()) results.push_back(lane_.piece(rank_, k, rank_, mine.count()));
    lane_.fold(lane_.in_rank_order(builder_.input(0, mine), k, rank_), results);
  }

  void copy_out(Extent stage, int k) {
    for (int i = 1; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;  // not everyone at the same slot at once
      const Extent theirs = piece(stage, q);
      if (theirs.count() == 0) continue;
      lane_.copy(lane_.piece(q, k, q, theirs.count()), builder_.output(0, theirs));
    }
  }

  void scatter() {
    const int64_t elements = lane_.piece_elements();
    const auto stage = [&](int owner, int k) { return segment({0, problem_.part(owner)}, elements, k); };
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      for (int q = 0; q < problem_.world; ++q) {
        if (q == rank_) continue;
        const Extent theirs = stage(q, k);
        lane_.copy(builder_.input(q, theirs), lane_.piece(rank_, k, q, theirs.count()));
      }
      lane_.barrier();
      const Extent mine = stage(rank_, k);
      if (mine.count() == 0) continue;
      lane_.fold(lane_.in_rank_order(builder_.input(rank_, mine), k, rank_), {builder_.output(0, mine)});
    }
  }

  const Problem& problem_;
  const int rank_;
  const Builder& builder_;
  ArenaLane& lane_;
};

}  // namespace

void reduce_in_arena(const Problem& problem, const Builder& builder, ArenaLane& lane) {
  ArenaReduce(problem, builder, lane).build();
}

}  // namespace ringdp::plan
