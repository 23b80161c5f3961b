#include "plan/one_pass.h"

#include <algorithm>

#include "plan/arena.h"
#include "plan/builder.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

constexpr int kEntry = 0, kExit = 1;      // rounds of flags: a rank's tensors are ready; they are no longer accessed
constexpr int64_t kLinePairBytes = 128;   // slices share no cache line, and vectors are aligned if the tensor is
constexpr int64_t kPieceBytes = 4 << 20;  // per step: between steps the driver checks for failures and other groups

int64_t parts_before(const Problem& problem, int rank) {
  int64_t elements = 0;
  for (int q = 0; q < rank; ++q) elements += problem.part(q);
  return elements;
}

// Input bytes of an all_to_all; 0 when parts differ, because only a pair then knows where its parts begin.
int64_t equal_parts_bytes(const Problem& problem) {
  return problem.sends.empty() && problem.recvs.empty() ? problem.world * problem.count * size_of(problem.dtype) : 0;
}

Extent behind(int64_t begin, Extent extent) { return {begin + extent.begin, begin + extent.end}; }

class OnePass {
 public:
  explicit OnePass(const Problem& problem)
      : problem_(problem),
        rank_(problem.rank),
        builder_("one pass", problem),
        channel_(builder_.add_channel("arena")) {}

  Plan build() {
    enter();
    switch (problem_.what) {
      case Collective::kAllReduce:
        reduce_slice();
        break;
      case Collective::kReduce:
        root_moves() ? reduce_at_root() : reduce_slice();
        break;
      case Collective::kReduceScatter:
        reduce_part();
        break;
      case Collective::kBroadcast:
        problem_.on_device ? broadcast_slices() : move();
        break;
      case Collective::kAllGather:
        problem_.on_device ? give_to_all() : move();
        break;
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kAllToAll:
        move();
        break;
      case Collective::kBarrier:
        require_kernels();
        return builder_.finish();  // enter() was the barrier
    }
    leave();
    return builder_.finish();
  }

 private:
  void require_kernels() const {
    if (problem_.on_device) return;
    throw Error(ErrorKind::kInvalidArgument,
                std::string(name_of(problem_.what)) + " has no one-pass plan: use the arena's with slots");
  }

  bool is_root() const { return rank_ == problem_.root; }
  bool has_root() const { return problem_.what == Collective::kGather || problem_.what == Collective::kScatter; }
  // In kernels: only the root copies, and exchanges one flag with each other rank instead of a barrier.
  bool root_moves() const {
    const bool in_one_shot = problem_.what == Collective::kReduce && is_one_shot(problem_);
    return problem_.on_device && (has_root() || in_one_shot);
  }
  bool roots_broadcast() const { return problem_.on_device && problem_.what == Collective::kBroadcast; }

  // Beginning with the next rank, so that ranks do not all access the same tensor at once.
  std::vector<int> peers() const {
    std::vector<int> ranks;
    for (int i = 1; i < problem_.world; ++i) ranks.push_back((rank_ + i) % problem_.world);
    return ranks;
  }

  void barrier() {
    builder_.arrive(channel_);
    builder_.wait(channel_);
  }

  // Waits until the tensors that this rank accesses are ready.
  void enter() {
    if (!problem_.on_device) return;
    if (!root_moves() && !roots_broadcast()) return barrier();
    if (!is_root()) builder_.post(channel_, problem_.root, kEntry);
    for (const int peer : peers()) {
      if (is_root()) builder_.await(channel_, peer, kEntry);
    }
  }

  void leave() {
    if (roots_broadcast()) return;
    if (!root_moves()) return barrier();
    if (!is_root()) builder_.await(channel_, problem_.root, kExit);
  }

  // The slice of the tensor that `owner` of `owners` ranks reduces or forwards.
  Extent slice(int owner, int owners) const {
    const int64_t lines = std::max<int64_t>(1, kLinePairBytes / size_of(problem_.dtype));
    return balanced_part(problem_.count, owners, owner, problem_.on_device ? problem_.unit() : lines);
  }

  // Cuts a slice or part of `count` elements into steps; extents are relative to its begin. Kernels take it whole.
  std::vector<Extent> pieces(int64_t count) const {
    const int64_t elements = problem_.on_device ? std::max<int64_t>(count, 1) : kPieceBytes / size_of(problem_.dtype);
    std::vector<Extent> all;
    for (int64_t k = 0; k < ceil_div(count, elements); ++k) all.push_back(segment({0, count}, elements, k));
    return all;
  }

  Ref output_of(int rank, Extent elements) const {
    return rank == rank_ ? builder_.output(0, elements) : builder_.peer_output(rank, elements);
  }

  // Sources of a fold: what this rank contributes, own(k), at its position, `elements` of what all others do.
  template <class Own>
  std::vector<Ref> in_rank_order(Own own, Extent elements) const {
    std::vector<Ref> refs;
    for (int q = 0; q < problem_.world; ++q) {
      for (int k = 0; k < problem_.contributed(q); ++k) {
        refs.push_back(q == rank_ ? own(k) : builder_.peer_input(q, elements, k));
      }
    }
    return refs;
  }

  // Only its owner reads a slice, so its result may overwrite the inputs.
  void reduce_slice() {
    const Extent mine = slice(rank_, problem_.world);
    for (const Extent piece : pieces(mine.count())) {
      const Extent part = behind(mine.begin, piece);
      std::vector<Ref> results;
      for (int q = 0; q < problem_.world; ++q) {
        if (problem_.what == Collective::kAllReduce || q == problem_.root) results.push_back(output_of(q, part));
      }
      const auto own = [&](int k) { return builder_.input(k, part); };
      builder_.fold(channel_, in_rank_order(own, part), results, true);
    }
  }

  void reduce_part() {
    const int64_t begin = parts_before(problem_, rank_);
    for (const Extent piece : pieces(problem_.part(rank_))) {
      const auto own = [&](int k) { return builder_.input(k * problem_.world + rank_, piece); };
      builder_.fold(channel_, in_rank_order(own, behind(begin, piece)), {builder_.output(0, piece)}, true);
    }
  }

  void reduce_at_root() {
    if (!is_root()) return;
    const Extent whole = {0, problem_.count};
    const auto own = [&](int k) { return builder_.input(k, whole); };
    builder_.fold(channel_, in_rank_order(own, whole), {builder_.output(0, whole)}, true);
    for (const int peer : peers()) builder_.post(channel_, peer, kExit);
  }

  // Copies what this rank has for its peers (in kernels, and in a gather on a host), or else what they have for it.
  void move() {
    const bool stores = problem_.on_device != (problem_.what == Collective::kGather);
    for (int i = 0; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;
      stores ? move(rank_, q) : move(q, rank_);
      if (root_moves() && is_root() && q != rank_) builder_.post(channel_, q, kExit);
    }
  }

  bool goes(int from, int to) const {
    if (problem_.what == Collective::kBroadcast && to == problem_.root) return false;  // its tensor is the result
    switch (problem_.traits().root) {
      case Root::kReads:
        return from == problem_.root;
      case Root::kWrites:
        return to == problem_.root;
      case Root::kNone:
        break;
    }
    return true;
  }

  // Copies what `from` has for `to`: its input or one of its inputs, into the output of `to` or one of its outputs.
  void move(int from, int to) {
    if (!goes(from, to)) return;
    const auto one_for_each = [](Tensors held) { return held == Tensors::kParts || held == Tensors::kSplits; };
    const bool for_each = one_for_each(problem_.traits().inputs), from_each = one_for_each(problem_.traits().outputs);
    const int64_t before_input = for_each ? parts_before(problem_, to) : 0;
    const int64_t before_output = from_each ? parts_before(problem_, from) : 0;
    for (const Extent piece : pieces(problem_.what == Collective::kScatter ? problem_.part(to) : problem_.part(from))) {
      const Ref source = from == rank_ ? builder_.input(for_each ? to : 0, piece)
                                       : builder_.peer_input(from, behind(before_input, piece));
      const Ref target = to == rank_ ? builder_.output(from_each ? from : 0, piece)
                                     : builder_.peer_output(to, behind(before_output, piece));
      builder_.copy(channel_, source, target);
    }
  }

  void give_to_all() {
    const Extent mine = {0, problem_.part(rank_)};
    std::vector<Ref> targets;
    for (int q = 0; q < problem_.world; ++q) {
      const Extent there = behind(parts_before(problem_, rank_), mine);
      targets.push_back(q == rank_ ? builder_.output(rank_, mine) : builder_.peer_output(q, there));
    }
    builder_.copy_to_all(channel_, builder_.input(0, mine), targets);
  }

  // The slice that `receiver`, which is not the root, gets from the root and stores to the others.
  Extent first_slice(int receiver) const {
    return slice(wrap(receiver - problem_.root - 1, problem_.world), problem_.world - 1);
  }

  // The root awaits all ranks before it sends, so a rank that has its slice knows that all tensors are ready.
  void broadcast_slices() {
    if (is_root()) {
      for (const int peer : peers()) {
        const Extent part = first_slice(peer);
        if (part.count() > 0) builder_.copy(channel_, builder_.input(0, part), builder_.peer_output(peer, part));
        builder_.post(channel_, peer, kExit);
      }
      return;
    }
    const Extent mine = first_slice(rank_);
    std::vector<int> receivers = peers();
    receivers.erase(std::find(receivers.begin(), receivers.end(), problem_.root));
    builder_.await(channel_, problem_.root, kExit);
    for (const int peer : receivers) {
      if (mine.count() > 0) builder_.copy(channel_, builder_.output(0, mine), builder_.peer_output(peer, mine));
    }
    for (const int peer : receivers) builder_.post(channel_, peer, kExit);
    for (const int peer : receivers) builder_.await(channel_, peer, kExit);
  }

  const Problem& problem_;
  const int rank_;
  Builder builder_;
  const int channel_;
};

}  // namespace

Reached reached_by_others(const Problem& problem, int rank) {
  const Traits& traits = problem.traits();
  if (traits.inputs == Tensors::kNone) return {};
  const bool is_root = rank == problem.root, contributes = problem.contributed(rank) > 0;
  // A whole tensor is reduced by slices: each rank reads its slice of all inputs and writes it to all outputs.
  if (traits.is(kReduces) && traits.outputs == Tensors::kWhole) {
    return {contributes, traits.root == Root::kNone || is_root};
  }
  switch (traits.root) {
    case Root::kReads:
      return {is_root, false};
    case Root::kWrites:
      return problem.on_device ? Reached{!is_root, false} : Reached{false, is_root};
    case Root::kNone:
      break;
  }
  return {contributes, false};
}

bool is_for_one_pass(const Problem& problem) {
  const int another = (problem.root + 1) % problem.world;
  const Reached roots = reached_by_others(problem, problem.root), anothers = reached_by_others(problem, another);
  const bool reaches = problem.roots || roots.inputs || roots.outputs || anothers.inputs;
  return reaches &&
         (problem.traits().has_splits() ? equal_parts_bytes(problem) : problem.total_bytes()) > problem.one_pass_bytes;
}

int64_t input_elements(const Problem& problem, int rank) {
  switch (problem.traits().inputs) {
    case Tensors::kParts:
    case Tensors::kSplits:
      return parts_before(problem, problem.world);
    case Tensors::kPart:
      return problem.part(rank);
    default:
      return problem.count;
  }
}

int64_t output_elements(const Problem& problem) {
  const Tensors outputs = problem.traits().outputs;
  const bool has_many = outputs == Tensors::kParts || outputs == Tensors::kSplits;
  return has_many ? parts_before(problem, problem.world) : problem.count;
}

Plan one_pass(const Problem& problem) { return OnePass(problem).build(); }

}  // namespace ringdp::plan
