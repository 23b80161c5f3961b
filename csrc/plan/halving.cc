#include "plan/halving.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

// Chunk c is c rounds behind chunk 0. At level k halves go to, and results come from, the rank at distance 2^k.
// In-place safety: results of a half that was given away come from ranks that have received it; all others are written
// where kInput has been folded.
class Halving {
 public:
  explicit Halving(const Problem& problem)
      : problem_(without_program(problem)),
        builder_("halving", problem_),
        levels_(std::countr_zero(static_cast<unsigned>(problem.world))),
        elements_(segment_elements(problem, problem.count) * std::max(1, problem.world / 4)),
        chunks_(ceil_div(problem.count, elements_)),
        longest_(half({0, std::min(elements_, problem.count)}, 0).count()),
        sums_(builder_, static_cast<int>(std::min<int64_t>(levels_ + 1, count_of_chunks())), longest_ * wide_bytes()) {
    for (int level = 0; level < levels_; ++level) add_link(level);
  }

  Plan build() {
    const int depth = 2 * levels_;
    for (int64_t round = 0; round < count_of_chunks() + depth - 1; ++round) {
      for (int level = 0; level < levels_; ++level) reduce(round, round - level, level);
      for (int level = levels_ - 1; level >= 0; --level) gather(round, round - (depth - 1 - level), level);
    }
    return builder_.finish();
  }

 private:
  // To the rank at distance 2^level, and the channel of the folds with what it sends.
  struct Link {
    int peer, send, recv, fold;
    Window received;
  };
  struct Chunk {
    Window::Slot slot;            // of the partial sum of what is kept at level 0
    After summed;                 // the latest fold into it
    std::vector<After> readers;   // of the slot
    std::vector<After> complete;  // all results that this rank has are in its output after these
  };

  // Each fold is of two partial sums: their order is that of the levels.
  static Problem without_program(Problem problem) {
    problem.along_tree = false;
    return problem;
  }

  int64_t count_of_chunks() const { return static_cast<int64_t>(chunks_.size()); }
  int64_t wide_bytes() const { return size_of(wide_of(problem_.dtype)); }
  int side(int level) const { return (problem_.rank >> level) & 1; }  // 1: the upper half is this rank's
  Extent half(Extent whole, int which) const {
    const Extent part = balanced_part(whole.count(), 2, which, problem_.unit());
    return {whole.begin + part.begin, whole.begin + part.end};
  }
  // What this rank adds up of a chunk before it exchanges halves at this level, and what it holds after the results of
  // this level have arrived.
  Extent region(int64_t chunk, int level) const {
    Extent region = segment({0, problem_.count}, elements_, chunk);
    for (int k = 0; k < level; ++k) region = half(region, side(k));
    return region;
  }

  void add_link(int level) {
    const int peer = problem_.rank ^ (1 << level);
    const int64_t element = level == 0 ? size_of(problem_.dtype) : wide_bytes();
    Extent longest = {0, longest_};
    for (int k = 0; k < level; ++k) longest = half(longest, 0);
    const int slots = static_cast<int>(std::min<int64_t>(kWindow, count_of_chunks()));
    links_.push_back({peer, builder_.add_send_channel(peer), builder_.add_recv_channel(peer),
                      builder_.add_channel("fold " + std::to_string(level)),
                      Window(builder_, slots, longest.count() * element)});
  }

  // This rank's sum of a part of a chunk before the exchange at this level.
  Ref sum_of(int64_t number, int level, Extent part) const {
    return level == 0 ? builder_.input(0, part) : partial_sum(number, part);
  }
  Ref partial_sum(int64_t number, Extent part) const {
    const int64_t begin = (part.begin - region(number, 1).begin) * wide_bytes();
    return Builder::scratch(chunks_[number].slot.offset + begin, Form::kWide, part.count());
  }

  void reduce(int64_t round, int64_t number, int level) {
    if (number < 0 || number >= count_of_chunks()) return;
    Chunk& chunk = chunks_[number];
    if (level == 0) chunk.slot = sums_.take();
    give(round, number, level);
    keep(round, number, level);
    if (level + 1 < levels_) return;
    if (const Extent own = region(number, levels_); own.count() > 0) {
      const After done = builder_.fold(links_[level].fold, {partial_sum(number, own)}, {builder_.output(0, own)}, true,
                                       {chunk.summed});
      chunk.complete = {done};
      chunk.readers.push_back(done);
    }
    sums_.release_after(chunk.slot.index, chunk.readers);
  }

  void give(int64_t round, int64_t number, int level) {
    const Link& link = links_[level];
    Chunk& chunk = chunks_[number];
    const Extent given = half(region(number, level), 1 - side(level));
    if (given.count() == 0) return;
    const std::vector<After> ready = level == 0 ? std::vector<After>{} : std::vector<After>{chunk.summed};
    const After sent =
        builder_.send(link.send, link.peer, static_cast<int>(round), sum_of(number, level, given), ready);
    if (level > 0) chunk.readers.push_back(sent);
  }

  void keep(int64_t round, int64_t number, int level) {
    Link& link = links_[level];
    Chunk& chunk = chunks_[number];
    const Extent kept = half(region(number, level), side(level));
    if (kept.count() == 0) return;
    const Window::Slot in = link.received.take();
    const Ref theirs = Builder::scratch(in.offset, level == 0 ? Form::kRaw : Form::kWide, kept.count());
    std::vector<After> ready = {builder_.recv(link.recv, link.peer, static_cast<int>(round), theirs, in.free)};
    if (level == 0) ready.insert(ready.end(), chunk.slot.free.begin(), chunk.slot.free.end());
    if (level > 0) ready.push_back(chunk.summed);
    std::vector<Ref> srcs = {sum_of(number, level, kept), theirs};
    if (side(level) == 1) std::swap(srcs[0], srcs[1]);  // lower ranks first
    chunk.summed = builder_.fold(link.fold, srcs, {partial_sum(number, kept)}, false, ready);
    link.received.release_after(in.index, chunk.summed);
  }

  void gather(int64_t round, int64_t number, int level) {
    if (number < 0 || number >= count_of_chunks()) return;
    const Link& link = links_[level];
    Chunk& chunk = chunks_[number];
    const Extent whole = region(number, level), mine = half(whole, side(level)), theirs = half(whole, 1 - side(level));
    if (mine.count() > 0) {
      builder_.send(link.send, link.peer, static_cast<int>(round), builder_.output(0, mine), chunk.complete);
    }
    if (theirs.count() > 0) {
      chunk.complete.push_back(
          builder_.recv(link.recv, link.peer, static_cast<int>(round), builder_.output(0, theirs)));
    }
  }

  const Problem problem_;
  Builder builder_;
  const int levels_;
  const int64_t elements_;  // of a chunk; the smallest pieces of long ones are a quarter of a segment
  std::vector<Chunk> chunks_;
  const int64_t longest_;  // elements of a half of a chunk
  Window sums_;
  std::vector<Link> links_;  // by level
};

}  // namespace

Plan halving(const Problem& problem) {
  const bool any_order = problem.sums_along_tree() || !is_inexact(problem.dtype);  // not a product of floats
  const bool halves = problem.what == Collective::kAllReduce && any_order && !problem.roots;
  return halves ? Halving(problem).build() : direct(problem);
}

}  // namespace ringdp::plan
