#include "plan/ring_gather.h"

namespace ringdp::plan {

RingLanes::RingLanes(Builder& builder, const Problem& problem)
    : next(wrap(problem.rank + 1, problem.world)),
      previous(wrap(problem.rank - 1, problem.world)),
      send(builder.add_send_lane(next)),
      recv(builder.add_recv_lane(previous)),
      fold(builder.add_lane("fold")) {}

void gather_round_the_ring(Builder& builder, const RingLanes& lanes, int world, const RingGather& gather) {
  std::vector<std::vector<After>> held(gather.segments);  // by segment: what the next send of it waits for
  for (size_t k = 0; k < gather.ready.size(); ++k) held[k] = {gather.ready[k]};
  for (int s = 0; s < world - 1; ++s) {
    const int round = gather.base_round + s;
    const int sent = wrap(gather.first - s, world), received = wrap(gather.first - 1 - s, world);
    for (int64_t k = 0; k < gather.segments; ++k) {
      const Ref src = s == 0 ? gather.own(sent, k) : gather.ref(sent, k);
      if (src.count > 0) builder.send(lanes.send, lanes.next, round, src, held[k]);
      const Ref dst = gather.ref(received, k);
      if (dst.count > 0) held[k] = {builder.recv(lanes.recv, lanes.previous, round, dst)};
    }
  }
}

}  // namespace ringdp::plan
