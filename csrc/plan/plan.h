// A plan is a value: what one rank does in one collective, as lanes of steps over named buffers.
//
// No sockets, no torch, no threads. Executors (collective/) run it on links and arena; the recorder prints and counts
// it. Steps of one lane run in order; lanes run side by side, held back only by `after`. A lane is e.g. "everything I
// send to rank 2". Buffers are named by Ref, so the same plan runs on any memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/wire_type.h"

namespace ringdp::plan {

enum class Collective : uint8_t {
  kAllReduce, kBroadcast, kAllGather, kReduceScatter, kBarrier, kReduce, kGather, kScatter, kAllToAll,
};
constexpr int kCollectiveCount = 9;
const char* name_of(Collective what);
Collective collective_named(const std::string& name);  // InvalidArgument names the known ones

enum class Verb : uint8_t {
  kSend,    // srcs[0] -> link to `peer`
  kRecv,    // link from `peer` -> dsts[0]
  kFold,    // dsts = srcs folded in the order listed; `finish`: divide (AVG) and round to the tensor's type.
            // Either at most srcs[0] is wide, or all srcs and dsts are: then the fold is one in the wide type
  kCopy,    // dsts[0] = srcs[0]
  kEncode,  // dsts[0] (encoded) = srcs[0], rounded to the wire type
  kDecode,  // dsts[0] = srcs[0] (encoded)
  kSignal,  // arrive at the arena's next barrier
  kWait,    // until the arena's last barrier that this lane signalled has passed
};

enum class Space : uint8_t {
  kInput,       // user tensor `index` (read)
  kOutput,      // user tensor `index` (written; may be the same memory as the input)
  kScratch,     // private memory of the executor; index 0
  kSlot,        // staging slot of arena member `index`, of pipeline stage `stage`
  kPeerInput,   // input tensors of arena member `index`, laid end to end in its heap (read)
  kPeerOutput,  // its output tensor, in its heap (written)
};

// Raw: the tensor's own type. Wide: wide_of(dtype), a partial sum. Encoded: in the plan's wire type, see codec.h.
enum class Form : uint8_t { kRaw, kWide, kEncoded };

struct Ref {
  Space space = Space::kInput;
  Form form = Form::kRaw;
  int32_t index = 0;
  int32_t stage = 0;   // kSlot only: the executor maps stages to the two slots
  int64_t offset = 0;  // bytes from the start of that buffer
  int64_t count = 0;   // elements
};

// Satisfied once `lane` has finished at least `steps` steps.
struct After {
  int32_t lane = 0;
  int32_t steps = 0;
};

struct Step {
  Verb verb = Verb::kCopy;
  bool finish = false;
  // kSend, kRecv: the payload's length goes ahead of it, and a receiver that expects another is told of a mismatch.
  bool announce = false;
  int32_t peer = -1;
  int32_t round = -1;  // communication round (0-based) of a send or receive, -1 elsewhere
  std::vector<Ref> srcs, dsts;
  std::vector<After> after;
  bool past_caches = false;  // kCopy: caches cannot hold what all ranks write, so the destination leaves them alone
};

struct Lane {
  std::string name;  // "send>2", "recv<1", "fold"
  std::vector<Step> steps;
};

struct Plan {
  std::string algorithm;      // "direct", "ring", "arena", ...
  Collective what = Collective::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  WireType wire = WireType::kFp32;  // of what is encoded; fp32: nothing is
  int rank = 0, world = 1;
  int64_t scratch_bytes = 0;
  std::vector<Lane> lanes;
};

// What is asked of a plan. Flat and list forms are the same: tensor i is buffer i. Counts are in elements.
struct Problem {
  Collective what = Collective::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  WireType wire = WireType::kFp32;    // applies to the sums that is_encoded() names, on links
  int rank = 0, world = 1;
  int root = 0;                       // broadcast, reduce, gather, scatter
  int64_t count = 0;                  // of the tensor (all_reduce, broadcast, reduce), or of every rank's part
  std::vector<int64_t> counts;        // uneven parts: of each rank's; empty: all are of `count`
  std::vector<int64_t> sends, recvs;  // all_to_all: of the part for, and from, each rank, known to this rank only;
                                      // empty: all are of `count`
  std::vector<int> hosts;             // first rank of every host, ascending, when each host's ranks are contiguous
  int64_t segment_bytes = 256 << 10;  // pipelining unit of link plans
  int64_t slot_bytes = 1 << 20;       // staging slot of arena plans
  int64_t one_shot_bytes = 32 << 10;  // arena plans: sums up to here take one barrier, see Thresholds
  int64_t one_pass_bytes = 16 << 10;  // arena plans: beyond here tensors in heaps are worked on where they lie
  int64_t past_caches_bytes = 24 << 20;  // moves whose outputs are more than this go past the caches
  bool in_heaps = false;              // arena plans: the tensors that others reach into lie in heaps, see one_pass.h

  // An all_reduce or reduce_scatter whose wire type applies to its dtype and op.
  bool travels_encoded() const;

  bool has_parts() const;  // an all_gather, reduce_scatter, gather or scatter; only these may have counts

  // Elements of rank `owner`'s part.
  int64_t part(int owner) const { return counts.empty() ? count : counts[owner]; }
  int64_t largest_part() const;

  // Bytes of the tensor, or of all parts together: what all ranks know. Of a barrier 0, and of an
  // all_to_all, whose sizes are a pair's affair.
  int64_t shared_bytes() const;

  // A collective that only moves, and whose outputs on all ranks together are more than past_caches_bytes.
  bool overflows_caches() const;

  // all_to_all: elements of the part for, and from, `peer`.
  int64_t sent_to(int peer) const { return sends.empty() ? count : sends[peer]; }
  int64_t received_from(int peer) const { return recvs.empty() ? count : recvs[peer]; }
};
// Buffers by collective, of rank r of N:
//   all_reduce, broadcast   input 0 = output 0 (in place)
//   reduce                  input 0; output 0 on the root (may be input 0), none elsewhere
//   all_gather              input 0; outputs 0..N-1
//   gather                  input 0; outputs 0..N-1 on the root, none elsewhere
//   reduce_scatter          inputs 0..N-1; output 0
//   scatter                 inputs 0..N-1 on the root, none elsewhere; output 0
//   all_to_all              inputs 0..N-1 (for each rank), outputs 0..N-1 (from each rank); no two overlap
//   barrier                 none

int64_t bytes_of(const Plan& plan, const Ref& ref);

}  // namespace ringdp::plan
