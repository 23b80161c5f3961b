#include "plan/owner_fold.h"

#include <algorithm>
#include <optional>

#include "plan/builder.h"
#include "plan/peer_lanes.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

constexpr int kRawRound = 0;
constexpr int kResultRound = 1;

// In-place safety: the result of a segment of slice p comes from p, and p can fold it only when it holds my raw
// segment; so kOutput is overwritten only where kInput has been sent.
class OwnerFold {
 public:
  OwnerFold(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices)
      : problem_(problem),
        slices_(slices),
        builder_(algorithm, problem),
        lanes_(builder_, problem),
        elements_(segment_elements(longest(slices), problem.dtype, problem.segment_bytes)) {}

  Plan build() {
    for (int owner : lanes_.peers) {
      for (int64_t s = 0; s < segments(owner); ++s) {
        builder_.send(lanes_.send[owner], owner, kRawRound, raw(owner, s));
      }
    }
    fold_own_slice();
    for (int owner : lanes_.peers) {
      for (int64_t s = 0; gets(problem_.rank, owner) && s < segments(owner); ++s) {
        builder_.recv(lanes_.recv[owner], owner, kResultRound, builder_.output(0, piece(owner, s)));
      }
    }
    return builder_.finish();
  }

 private:
  // Where a result is written: user memory, or on its way to the root a slot that has to be free first.
  struct Place {
    Ref ref;
    std::vector<After> free;
    int slot = 0;
  };

  bool gets(int rank, int owner) const {
    if (problem_.what == Collective::kReduceScatter) return rank == owner;
    return problem_.what == Collective::kAllReduce || rank == problem_.root;
  }
  int64_t segments(int owner) const { return ceil_div(slices_[owner].count(), elements_); }
  Extent piece(int owner, int64_t s) const { return segment(slices_[owner], elements_, s); }
  Ref raw(int owner, int64_t s) const {
    return builder_.input(problem_.what == Collective::kReduceScatter ? owner : 0, piece(owner, s));
  }

  void fold_own_slice() {
    const int me = problem_.rank;
    const int64_t slot_bytes = std::min(elements_, slices_[me].count()) * size_of(problem_.dtype);
    const int slots = static_cast<int>(std::min<int64_t>(kWindow, segments(me)));
    if (slots == 0) return;
    for (int peer = 0; peer < problem_.world; ++peer) {
      received_.emplace_back(builder_, peer == me ? 0 : slots, slot_bytes);
    }
    if (!gets(me, me)) passing_.emplace(builder_, slots, slot_bytes);
    for (int64_t s = 0; s < segments(me); ++s) {
      const Place place = place_for_result(piece(me, s));
      share(place, fold(s, place));
    }
  }

  Place place_for_result(Extent mine) {
    if (!passing_) return {builder_.output(0, mine), {}};
    const Window::Slot slot = passing_->take();
    return {Builder::scratch(slot.offset, Form::kRaw, mine.count()), slot.free, slot.index};
  }

  After fold(int64_t s, const Place& place) {
    std::vector<Ref> srcs(problem_.world, raw(problem_.rank, s));
    std::vector<int> slots(problem_.world);
    std::vector<After> ready = place.free;
    for (int peer : lanes_.peers) {
      const Window::Slot slot = received_[peer].take();
      slots[peer] = slot.index;
      srcs[peer] = Builder::scratch(slot.offset, Form::kRaw, place.ref.count);
      ready.push_back(builder_.recv(lanes_.recv[peer], peer, kRawRound, srcs[peer], slot.free));
    }
    const After done = builder_.fold(lanes_.own, srcs, {place.ref}, true, ready);
    for (int peer : lanes_.peers) received_[peer].release_after(slots[peer], done);
    return done;
  }

  void share(const Place& place, After folded) {
    for (int peer : lanes_.peers) {
      if (!gets(peer, problem_.rank)) continue;
      const After sent = builder_.send(lanes_.send[peer], peer, kResultRound, place.ref, {folded});
      if (passing_) passing_->release_after(place.slot, sent);  // the root is its only reader
    }
  }

  const Problem& problem_;
  const std::vector<Extent>& slices_;
  Builder builder_;
  const PeerLanes lanes_;
  const int64_t elements_;        // per segment
  std::vector<Window> received_;  // by peer: raw segments of the own slice
  std::optional<Window> passing_;  // results that only the root gets
};

}  // namespace

std::vector<Extent> slices_of(const Problem& problem, int64_t unit) {
  std::vector<Extent> slices;
  for (int owner = 0; owner < problem.world; ++owner) {
    const bool parts = problem.what == Collective::kReduceScatter;
    slices.push_back(parts ? Extent{0, problem.part(owner)} : balanced_part(problem.count, problem.world, owner, unit));
  }
  return slices;
}

Plan fold_at_owners(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices) {
  return OwnerFold(algorithm, problem, slices).build();
}

}  // namespace ringdp::plan
