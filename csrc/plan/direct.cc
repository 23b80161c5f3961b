#include "plan/direct.h"

#include "plan/builder.h"
#include "plan/encoded_fold.h"
#include "plan/owner_fold.h"
#include "plan/peer_lanes.h"

namespace ringdp::plan {
namespace {

constexpr int kRound = 0;

// The collectives that only move tensors. A transfer is one step whatever its size: links stream it piece by piece.
class DirectMoves {
 public:
  explicit DirectMoves(const Problem& problem)
      : problem_(problem), rank_(problem.rank), builder_("direct", problem), lanes_(builder_, problem) {}

  Plan build() {
    switch (problem_.what) {
      case Collective::kBroadcast: broadcast(); break;
      case Collective::kAllGather: all_gather(); break;
      case Collective::kGather: gather(); break;
      case Collective::kScatter: scatter(); break;
      case Collective::kAllToAll: all_to_all(); break;
      default: break;  // barrier: executors exchange notes with every peer first, which is one
    }
    return builder_.finish();
  }

 private:
  bool is_root() const { return rank_ == problem_.root; }

  void send(int peer, int tensor, int64_t count) {
    if (count > 0) builder_.send(lanes_.send[peer], peer, kRound, builder_.input(tensor, {0, count}));
  }
  void receive(int peer, int tensor, int64_t count) {
    if (count > 0) builder_.recv(lanes_.recv[peer], peer, kRound, builder_.output(tensor, {0, count}));
  }
  void keep(int from, int to, int64_t count) {
    if (count > 0) builder_.copy(lanes_.own, builder_.input(from, {0, count}), builder_.output(to, {0, count}));
  }

  void broadcast() {
    if (!is_root()) return receive(problem_.root, 0, problem_.count);
    for (int peer : lanes_.peers) send(peer, 0, problem_.count);
  }

  void all_gather() {
    keep(0, rank_, problem_.part(rank_));
    for (int peer : lanes_.peers) {
      send(peer, 0, problem_.part(rank_));
      receive(peer, peer, problem_.part(peer));
    }
  }

  void gather() {
    if (!is_root()) return send(problem_.root, 0, problem_.part(rank_));
    keep(0, rank_, problem_.part(rank_));
    for (int peer : lanes_.peers) receive(peer, peer, problem_.part(peer));
  }

  void scatter() {
    if (!is_root()) return receive(problem_.root, 0, problem_.part(rank_));
    keep(rank_, 0, problem_.part(rank_));
    for (int peer : lanes_.peers) send(peer, peer, problem_.part(peer));
  }

  void all_to_all() {
    keep(rank_, rank_, problem_.sent_to(rank_));
    for (int peer : lanes_.peers) {
      const Ref src = builder_.input(peer, {0, problem_.sent_to(peer)});
      const Ref dst = builder_.output(peer, {0, problem_.received_from(peer)});
      builder_.send_announced(lanes_.send[peer], peer, kRound, src);
      builder_.recv_announced(lanes_.recv[peer], peer, kRound, dst);
    }
  }

  const Problem& problem_;
  const int rank_;
  Builder builder_;
  const PeerLanes lanes_;
};

}  // namespace

Plan direct(const Problem& problem) {
  if (problem.travels_encoded()) return fold_encoded(problem);
  switch (problem.what) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: return fold_at_owners("direct", problem, slices_of(problem));
    default: return DirectMoves(problem).build();
  }
}

}  // namespace ringdp::plan
