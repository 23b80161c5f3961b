#include <algorithm>
#include <optional>

#include "plan/builder.h"
#include "plan/ring.h"
#include "plan/ring_gather.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

constexpr int kNobody = -1;
constexpr int kEverybody = -2;

// Every step waits only for steps of an earlier round, so the pipeline cannot deadlock however little links buffer.
// In-place safety: the result of segment m derives from my prefix of m, so it arrives only after I have read kInput.
class RankRing {
 public:
  explicit RankRing(const Problem& problem)
      : builder_("ring", problem),
        lanes_(builder_, problem),
        rank_(problem.rank),
        last_(problem.world - 1),
        pieces_(cut(problem)),
        segments_(static_cast<int64_t>(pieces_.size())),
        prefixes_(segments_),
        results_(segments_) {
    int64_t largest = 0;
    for (const Piece& piece : pieces_) largest = std::max(largest, piece.extent.count());
    const int64_t wide = largest * size_of(wide_of(problem.dtype));
    if (rank_ > 0) received_.emplace(builder_, kWindow, wide);
    if (rank_ > 0 && rank_ < last_) partial_.emplace(builder_, kWindow, wide);
    if (problem.what != Collective::kAllReduce) passing_.emplace(builder_, kWindow, largest * size_of(problem.dtype));
  }

  // Both ends of a link list its messages by round, prefix before result: so they agree on the order of the stream.
  Plan build() {
    const int64_t rounds = segments_ == 0 ? 0 : 2 * last_ + segments_ - 1;
    const int hop_out = rank_ == last_ ? 0 : rank_ + 1;  // of results sent; results are received in hop `rank_`
    for (int64_t t = 0; t < rounds; ++t) {
      if (rank_ < last_) send_prefix(t - rank_, t);
      send_result(t - last_ - hop_out, t);
      if (rank_ > 0) receive_prefix(t - (rank_ - 1), t);
      if (rank_ < last_) receive_result(t - last_ - rank_, t);
    }
    return builder_.finish();
  }

 private:
  // A segment of what is summed: part of input `tensor`, of which `owner` keeps the result.
  struct Piece {
    int tensor = 0;
    int owner = kEverybody;
    Extent extent;
  };
  // A segment in memory: complete after `after`; `slot` of a window, or kNobody's for user memory.
  struct Held {
    Ref ref;
    std::vector<After> after;
    int slot = kNobody;
  };

  static std::vector<Piece> cut(const Problem& problem) {
    const bool scatter = problem.what == Collective::kReduceScatter;
    const int tensors = scatter ? problem.world : 1;
    const int64_t largest = scatter ? problem.largest_part() : problem.count;
    const int64_t elements = segment_elements(largest, problem.dtype, problem.segment_bytes, kMaxSegments / tensors);
    std::vector<Piece> pieces;
    for (int tensor = 0; tensor < tensors; ++tensor) {
      const int owner = scatter ? tensor : problem.what == Collective::kReduce ? problem.root : kEverybody;
      const Extent whole = {0, scatter ? problem.part(tensor) : problem.count};
      for (int64_t k = 0; k < ceil_div(whole.count(), elements); ++k) {
        pieces.push_back({tensor, owner, segment(whole, elements, k)});
      }
    }
    return pieces;
  }

  bool exists(int64_t m) const { return m >= 0 && m < segments_; }
  int64_t count(int64_t m) const { return pieces_[m].extent.count(); }
  Ref own(int64_t m) const { return builder_.input(pieces_[m].tensor, pieces_[m].extent); }

  // Results travel last -> 0 -> 1 ... and stop here; kNobody when the last rank keeps it.
  int last_receiver(int64_t m) const {
    const int owner = pieces_[m].owner;
    if (owner == kEverybody) return last_ - 1;
    return owner == last_ ? kNobody : owner;
  }

  void send_prefix(int64_t m, int64_t round) {
    if (!exists(m)) return;
    // Rank 0 has nothing to fold, so its values travel in the tensor's own type.
    const Held held = rank_ == 0 ? Held{own(m), {}} : prefixes_[m];
    const After sent = builder_.send(lanes_.send, lanes_.next, static_cast<int>(round), held.ref, held.after);
    if (held.slot != kNobody) partial_->release_after(held.slot, sent);
  }

  void receive_prefix(int64_t m, int64_t round) {
    if (!exists(m)) return;
    const Window::Slot in = received_->take();
    const Ref prefix = Builder::scratch(in.offset, rank_ == 1 ? Form::kRaw : Form::kWide, count(m));
    std::vector<After> after = {
        builder_.recv(lanes_.recv, lanes_.previous, static_cast<int>(round), prefix, in.free)};
    Held& held = rank_ == last_ ? results_[m] : prefixes_[m];
    held = rank_ == last_ ? place_for_result(m) : place_for_partial(m);
    after.insert(after.end(), held.after.begin(), held.after.end());
    const After folded = builder_.fold(lanes_.fold, {prefix, own(m)}, {held.ref}, rank_ == last_, after);
    held.after = {folded};
    received_->release_after(in.index, folded);
  }

  void send_result(int64_t m, int64_t round) {
    if (!exists(m)) return;
    const int until = last_receiver(m);
    if (rank_ == last_ ? until == kNobody : rank_ >= until) return;
    const Held& held = results_[m];
    const After sent = builder_.send(lanes_.send, lanes_.next, static_cast<int>(round), held.ref, held.after);
    if (held.slot != kNobody) passing_->release_after(held.slot, sent);
  }

  void receive_result(int64_t m, int64_t round) {
    if (!exists(m) || rank_ > last_receiver(m)) return;
    results_[m] = place_for_result(m);
    results_[m].after = {builder_.recv(lanes_.recv, lanes_.previous, static_cast<int>(round), results_[m].ref,
                                       results_[m].after)};
  }

  // Where a segment is written; `after` is then what must be over before that.
  Held place_for_result(int64_t m) {
    const int owner = pieces_[m].owner;
    if (owner == kEverybody || owner == rank_) return {builder_.output(0, pieces_[m].extent), {}};
    const Window::Slot slot = passing_->take();
    return {Builder::scratch(slot.offset, Form::kRaw, count(m)), slot.free, slot.index};
  }
  Held place_for_partial(int64_t m) {
    const Window::Slot slot = partial_->take();
    return {Builder::scratch(slot.offset, Form::kWide, count(m)), slot.free, slot.index};
  }

  Builder builder_;
  const RingLanes lanes_;
  const int rank_, last_;
  const std::vector<Piece> pieces_;                     // in the order in which they set out
  const int64_t segments_;
  std::vector<Held> prefixes_, results_;                // by segment
  std::optional<Window> received_, partial_, passing_;  // prefixes in, prefixes out, results on their way to others
};

}  // namespace

Plan ring_in_rank_order(const Problem& problem) { return RankRing(problem).build(); }

}  // namespace ringdp::plan
