#include "plan/encoded_fold.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/owner_fold.h"
#include "plan/peer_lanes.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

constexpr int kRawRound = 0;
constexpr int kResultRound = 1;

// In-place safety: as in owner_fold.cc, and what is sent has been encoded into scratch before.
class EncodedFold {
 public:
  explicit EncodedFold(const Problem& problem)
      : problem_(problem),
        me_(problem.rank),
        slices_(slices_of(problem, kWireBlock)),
        builder_("direct", problem),
        lanes_(builder_, problem),
        elements_(align_up(segment_elements(longest(slices_), problem.dtype, problem.segment_bytes), kWireBlock)) {}

  Plan build() {
    for (int owner : lanes_.peers) send_contribution(owner);
    fold_own_slice();
    for (int owner : lanes_.peers) receive_result(owner);
    return builder_.finish();
  }

 private:
  bool shares_result() const { return problem_.what == Collective::kAllReduce; }
  int64_t segments(int owner) const { return ceil_div(slices_[owner].count(), elements_); }
  int64_t longest_segment(int owner) const { return std::min(elements_, slices_[owner].count()); }
  Extent piece(int owner, int64_t s) const { return segment(slices_[owner], elements_, s); }
  Ref contribution(int owner, int64_t s) const { return builder_.input(shares_result() ? 0 : owner, piece(owner, s)); }

  // For `count` elements in wire bytes, and as partial sums.
  int64_t reserve_encoded(int64_t count) { return builder_.reserve_scratch(encoded_bytes(problem_.wire, count)); }
  int64_t reserve_wide(int64_t count) { return builder_.reserve_scratch(count * size_of(wide_of(problem_.dtype))); }
  static Ref encoded(int64_t at, int64_t count) { return Builder::scratch(at, Form::kEncoded, count); }
  static Ref wide(int64_t at, int64_t count) { return Builder::scratch(at, Form::kWide, count); }

  // One slot will do: the lane encodes the next segment when the link has taken the last one.
  void send_contribution(int owner) {
    if (segments(owner) == 0) return;
    const int lane = lanes_.send[owner];
    const int64_t slot = reserve_encoded(longest_segment(owner));
    for (int64_t s = 0; s < segments(owner); ++s) {
      const Ref bytes = encoded(slot, piece(owner, s).count());
      builder_.encode(lane, contribution(owner, s), bytes);
      builder_.send(lane, owner, kRawRound, bytes);
    }
  }

  void receive_result(int owner) {
    if (!shares_result() || segments(owner) == 0) return;
    const int lane = lanes_.recv[owner];
    const int64_t slot = reserve_encoded(longest_segment(owner));
    for (int64_t s = 0; s < segments(owner); ++s) {
      const Ref bytes = encoded(slot, piece(owner, s).count());
      builder_.recv(lane, owner, kResultRound, bytes);
      builder_.decode(lane, bytes, builder_.output(0, piece(owner, s)));
    }
  }

  void fold_own_slice() {
    const int slots = static_cast<int>(std::min<int64_t>(kWindow, segments(me_)));
    if (slots == 0) return;
    const int64_t most = longest_segment(me_);
    own_ = reserve_encoded(most);
    for (int rank = 0; rank < problem_.world; ++rank) {
      received_.emplace_back(builder_, rank == me_ ? 0 : slots, encoded_bytes(problem_.wire, most));
      sums_.push_back(reserve_wide(most));
    }
    // Results wait for the link behind all contributions, so as many as there are may have to be kept.
    if (shares_result()) results_ = reserve_encoded(slices_[me_].count());
    for (int64_t s = 0; s < segments(me_); ++s) {
      const Ref sum = fold(s);
      if (shares_result()) {
        share(s, sum);
      } else {
        builder_.fold(lanes_.own, {sum}, {builder_.output(0, piece(me_, s))}, true);
      }
    }
  }

  // The sum of everyone's decoded segment; divided only if it is to be encoded.
  Ref fold(int64_t s) {
    const int64_t count = piece(me_, s).count();
    std::vector<Ref> srcs;
    for (int rank = 0; rank < problem_.world; ++rank) srcs.push_back(wide(sums_[rank], count));
    builder_.encode(lanes_.own, contribution(me_, s), encoded(own_, count));
    builder_.decode(lanes_.own, encoded(own_, count), srcs[me_]);
    for (int peer : lanes_.peers) {
      const Window::Slot slot = received_[peer].take();
      const Ref bytes = encoded(slot.offset, count);
      const After here = builder_.recv(lanes_.recv[peer], peer, kRawRound, bytes, slot.free);
      received_[peer].release_after(slot.index, builder_.decode(lanes_.own, bytes, srcs[peer], {here}));
    }
    builder_.fold(lanes_.own, srcs, {srcs[0]}, shares_result());
    return srcs[0];
  }

  void share(int64_t s, const Ref& sum) {
    const Extent mine = piece(me_, s);
    const Ref result = encoded(results_ + encoded_bytes(problem_.wire, s * elements_), mine.count());
    const After ready = builder_.encode(lanes_.own, sum, result);
    for (int peer : lanes_.peers) builder_.send(lanes_.send[peer], peer, kResultRound, result, {ready});
    builder_.decode(lanes_.own, result, builder_.output(0, mine));
  }

  const Problem& problem_;
  const int me_;
  const std::vector<Extent> slices_;
  Builder builder_;
  const PeerLanes lanes_;
  const int64_t elements_;           // per segment
  std::vector<Window> received_;     // by peer: encoded segments of the own slice
  std::vector<int64_t> sums_;        // scratch by rank: its decoded segment
  int64_t own_ = 0, results_ = 0;    // scratch: the own encoded segment, all encoded results
};

}  // namespace

Plan fold_encoded(const Problem& problem) { return EncodedFold(problem).build(); }

}  // namespace ringdp::plan
