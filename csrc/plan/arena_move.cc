#include "plan/arena.h"
#include "plan/segment.h"

namespace ringdp::plan {
namespace {

// One barrier per stage; the root's own part never goes through a slot.
class ArenaMove {
 public:
  ArenaMove(const Problem& problem, const Builder& builder, ArenaLane& lane)
      : problem_(problem), rank_(problem.rank), builder_(builder), lane_(lane) {}

  void build() {
    switch (problem_.what) {
      case Collective::kAllGather: return all_gather();
      case Collective::kBroadcast: return broadcast();
      case Collective::kGather: return gather();
      case Collective::kScatter: return scatter();
      default: return;  // barrier: every plan has one
    }
  }

 private:
  bool is_root() const { return rank_ == problem_.root; }
  Extent stage_of(int owner, int k, int64_t elements) const { return segment({0, problem_.part(owner)}, elements, k); }

  void all_gather() {
    const int64_t elements = lane_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      const Extent mine = stage_of(rank_, k, elements);
      lane_.copy(builder_.input(0, mine), lane_.slot(rank_, k, mine.count()));
      lane_.signal();
      lane_.copy(builder_.input(0, mine), builder_.output(rank_, mine));  // instead of waiting idly
      lane_.wait();
      copy_out_others(k, elements);
    }
  }

  void copy_out_others(int k, int64_t elements) {
    for (int i = 1; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;  // not everyone at the same slot at once
      const Extent theirs = stage_of(q, k, elements);
      lane_.copy(lane_.slot(q, k, theirs.count()), builder_.output(q, theirs));
    }
  }

  void broadcast() {
    const int64_t elements = lane_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.count, elements); ++k) {
      const Extent stage = segment({0, problem_.count}, elements, k);
      const Ref shown = lane_.slot(problem_.root, k, stage.count());
      if (is_root()) lane_.copy(builder_.input(0, stage), shown);
      lane_.barrier();
      if (!is_root()) lane_.copy(shown, builder_.output(0, stage));
    }
  }

  void gather() {
    const int64_t elements = lane_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      const Extent mine = stage_of(rank_, k, elements);
      const Ref own = builder_.input(0, mine);
      lane_.copy(own, is_root() ? builder_.output(rank_, mine) : lane_.slot(rank_, k, mine.count()));
      lane_.barrier();
      if (is_root()) copy_out_others(k, elements);
    }
  }

  void scatter() {
    const int64_t elements = lane_.piece_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      for (int q = 0; is_root() && q < problem_.world; ++q) {
        const Extent theirs = stage_of(q, k, elements);
        const Ref part = builder_.input(q, theirs);
        lane_.copy(part, q == rank_ ? builder_.output(0, theirs) : lane_.piece(rank_, k, q, theirs.count()));
      }
      lane_.barrier();
      if (is_root()) continue;
      const Extent mine = stage_of(rank_, k, elements);
      lane_.copy(lane_.piece(problem_.root, k, rank_, mine.count()), builder_.output(0, mine));
    }
  }

  const Problem& problem_;
  const int rank_;
  const Builder& builder_;
  ArenaLane& lane_;
};

}  // namespace

void move_in_arena(const Problem& problem, const Builder& builder, ArenaLane& lane) {
  ArenaMove(problem, builder, lane).build();
}

}  // namespace ringdp::plan
