#include "plan/one_pass.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/segment.h"

namespace ringdp::plan {
namespace {

constexpr int64_t kLinePairBytes = 128;  // slices share no cache line, and vectors are aligned if the tensor is
constexpr int64_t kPieceBytes = 4 << 20;  // of one step: between steps executors look at failures and at other groups

int64_t parts_before(const Problem& problem, int rank) {
  int64_t elements = 0;
  for (int q = 0; q < rank; ++q) elements += problem.part(q);
  return elements;
}

// Of an all_to_all; 0 when parts differ: then only a pair knows where its parts begin.
int64_t equal_parts_bytes(const Problem& problem) {
  return problem.sends.empty() && problem.recvs.empty() ? problem.world * problem.count * size_of(problem.dtype) : 0;
}

Extent behind(int64_t begin, Extent extent) { return {begin + extent.begin, begin + extent.end}; }

class OnePass {
 public:
  explicit OnePass(const Problem& problem)
      : problem_(problem), rank_(problem.rank), builder_("one pass", problem), lane_(builder_.add_lane("arena")) {}

  Plan build() {
    switch (problem_.what) {
      case Collective::kAllReduce:
      case Collective::kReduce: fold_slice(); break;
      case Collective::kReduceScatter: fold_part(); break;
      case Collective::kAllGather: gather(0, 0); break;
      case Collective::kGather:
        if (rank_ == problem_.root) gather(0, 0);
        break;
      case Collective::kBroadcast: fetch({0, problem_.count}); break;
      case Collective::kScatter: fetch_part(); break;
      case Collective::kAllToAll: gather(rank_, rank_ * problem_.count); break;
      default:
        throw Error(ErrorKind::kInvalidArgument,
                    std::string(name_of(problem_.what)) + " has no one-pass plan: use the arena's with slots");
    }
    builder_.signal(lane_);
    builder_.wait(lane_);
    return builder_.finish();
  }

 private:
  Extent slice() const {
    const int64_t unit = std::max<int64_t>(1, kLinePairBytes / size_of(problem_.dtype));
    return balanced_part(problem_.count, problem_.world, rank_, unit);
  }

  // Of a slice or part of `count` elements, from its begin; none of an empty one.
  std::vector<Extent> pieces(int64_t count) const {
    const int64_t elements = kPieceBytes / size_of(problem_.dtype);
    std::vector<Extent> all;
    for (int64_t k = 0; k < ceil_div(count, elements); ++k) all.push_back(segment({0, count}, elements, k));
    return all;
  }

  Ref output_of(int rank, Extent elements) const {
    return rank == rank_ ? builder_.output(0, elements) : builder_.peer_output(rank, elements);
  }

  // `own` at its place, `elements` of the inputs of the others.
  std::vector<Ref> in_rank_order(const Ref& own, Extent elements) const {
    std::vector<Ref> refs;
    for (int q = 0; q < problem_.world; ++q) refs.push_back(q == rank_ ? own : builder_.peer_input(q, elements));
    return refs;
  }

  void fold_slice() {
    const Extent mine = slice();
    for (const Extent piece : pieces(mine.count())) {
      const Extent part = behind(mine.begin, piece);
      std::vector<Ref> results;
      for (int q = 0; q < problem_.world; ++q) {
        if (problem_.what == Collective::kAllReduce || q == problem_.root) results.push_back(output_of(q, part));
      }
      builder_.fold(lane_, in_rank_order(builder_.input(0, part), part), results, true);
    }
  }

  void fold_part() {
    const int64_t begin = parts_before(problem_, rank_);
    for (const Extent piece : pieces(problem_.part(rank_))) {
      const std::vector<Ref> everyones = in_rank_order(builder_.input(rank_, piece), behind(begin, piece));
      builder_.fold(lane_, everyones, {builder_.output(0, piece)}, true);
    }
  }

  // A part from every rank: here input `own`, elsewhere what lies `begin` elements behind the start of the inputs.
  void gather(int own, int64_t begin) {
    for (int i = 0; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;  // not everyone at the same tensor at once
      for (const Extent piece : pieces(problem_.part(q))) {
        const Ref source = q == rank_ ? builder_.input(own, piece) : builder_.peer_input(q, behind(begin, piece));
        builder_.copy(lane_, source, builder_.output(q, piece));
      }
    }
  }

  // `in_root` of the root's inputs, into all of the own output.
  void fetch(Extent in_root) {
    if (rank_ == problem_.root) return;
    for (const Extent piece : pieces(in_root.count())) {
      const Ref source = builder_.peer_input(problem_.root, behind(in_root.begin, piece));
      builder_.copy(lane_, source, builder_.output(0, piece));
    }
  }

  void fetch_part() {
    const Extent own = {0, problem_.part(rank_)};
    const int64_t begin = parts_before(problem_, rank_);
    fetch({begin, begin + own.count()});
    if (rank_ == problem_.root && own.count() > 0) {
      builder_.copy(lane_, builder_.input(rank_, own), builder_.output(0, own));
    }
  }

  const Problem& problem_;
  const int rank_;
  Builder builder_;
  const int lane_;
};

}  // namespace

Reached reached_by_others(const Problem& problem, int rank) {
  switch (problem.what) {
    case Collective::kAllReduce: return {true, true};
    case Collective::kReduce: return {true, rank == problem.root};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll: return {true, false};
    case Collective::kBroadcast:
    case Collective::kScatter: return {rank == problem.root, false};
    case Collective::kGather: return {rank != problem.root, false};
    default: return {};
  }
}

bool is_for_one_pass(const Problem& problem) {
  const int another = (problem.root + 1) % problem.world;
  const bool reaches = reached_by_others(problem, problem.root).inputs || reached_by_others(problem, another).inputs;
  return reaches && (problem.what == Collective::kAllToAll ? equal_parts_bytes(problem) : problem.shared_bytes()) >
                        problem.one_pass_bytes;
}

int64_t input_elements(const Problem& problem, int rank) {
  const bool all_parts = problem.what == Collective::kReduceScatter || problem.what == Collective::kScatter ||
                         problem.what == Collective::kAllToAll;
  if (all_parts) return parts_before(problem, problem.world);
  return problem.has_parts() ? problem.part(rank) : problem.count;
}

Plan one_pass(const Problem& problem) { return OnePass(problem).build(); }

}  // namespace ringdp::plan
