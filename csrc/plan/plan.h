// A plan is a value: what one rank does in one collective, as channels of steps over named buffers.
//
// No sockets, no torch, no threads. Executors (collective/) run it on links and arena; the recorder prints and counts
// it. Steps of one channel run in order; channels run side by side, held back only by `after`. A channel is e.g.
// "everything I send to rank 2". Buffers are named by Ref, so the same plan runs on any memory.
#pragma once
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace ringdp::plan {

enum class Collective : uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
};

// The tensors of one rank that a collective reads, or those that it writes.
enum class Tensors : uint8_t {
  kNone,
  kWhole,  // one tensor, as large on all ranks
  kPart,   // one tensor, this rank's part
  kParts,  // one for each rank, that rank's part
  kPairs,  // one for each rank, whose size only that rank and this one know
};

enum class Root : uint8_t { kNone, kReads, kWrites };  // kReads, kWrites: only the root has inputs, or outputs

enum Trait : unsigned {
  kReduces = 1,
  kDirectOnly = 2,  // on links no algorithm but direct has a plan of its own: the others use that
  kStaged = 4,      // kernels have no plan: tensors on devices go through host memory
};

// All that validation, fingerprints, selection, placement, staging and traces know of a collective.
struct Traits {
  Collective what;
  const char* name;
  Tensors inputs, outputs;
  Root root = Root::kNone;
  unsigned flags = 0;  // of Trait

  constexpr bool is(Trait trait) const { return (flags & trait) != 0; }
  constexpr bool has_parts() const { return inputs == Tensors::kPart || outputs == Tensors::kPart; }
  constexpr bool has_pairs() const { return inputs == Tensors::kPairs; }
};

// In the order of Collective. Output 0 of an all_reduce and of a broadcast is input 0; of a reduce it may be.
inline constexpr Traits kCollectives[] = {
    {Collective::kAllReduce, "all_reduce", Tensors::kWhole, Tensors::kWhole, Root::kNone, kReduces},
    {Collective::kBroadcast, "broadcast", Tensors::kWhole, Tensors::kWhole, Root::kReads},
    {Collective::kAllGather, "all_gather", Tensors::kPart, Tensors::kParts},
    {Collective::kReduceScatter, "reduce_scatter", Tensors::kParts, Tensors::kPart, Root::kNone, kReduces},
    {Collective::kBarrier, "barrier", Tensors::kNone, Tensors::kNone},
    {Collective::kReduce, "reduce", Tensors::kWhole, Tensors::kWhole, Root::kWrites, kReduces},
    {Collective::kGather, "gather", Tensors::kPart, Tensors::kParts, Root::kWrites, kDirectOnly},
    {Collective::kScatter, "scatter", Tensors::kParts, Tensors::kPart, Root::kReads, kDirectOnly},
    {Collective::kAllToAll, "all_to_all", Tensors::kPairs, Tensors::kPairs, Root::kNone, kDirectOnly},
};
constexpr int kCollectiveCount = static_cast<int>(std::size(kCollectives));
constexpr const Traits& traits_of(Collective what) { return kCollectives[static_cast<int>(what)]; }
const char* name_of(Collective what);
Collective collective_named(const std::string& name);  // InvalidArgument lists the known names
constexpr bool is_sum(Collective what) { return traits_of(what).is(kReduces); }  // the others only move

enum class Verb : uint8_t {
  kSend,    // srcs[0] -> link to `peer`
  kRecv,    // link from `peer` -> dsts[0]
  kFold,    // dsts = srcs folded in the order listed; `finish`: divide (AVG) and round to the tensor's type.
            // Either at most srcs[0] is wide, or all srcs and dsts are: then the fold is one in the wide type
  kCopy,    // dsts[0] = srcs[0]
  kEncode,  // dsts[0] (encoded) = srcs[0], rounded to the wire type
  kDecode,  // dsts[0] = srcs[0] (encoded)
  kSignal,  // arrive at the arena's next barrier
  kWait,    // until the arena's last barrier that this channel signalled has passed
  kPost,    // tells `peer` that the steps written before this one are over; only in kernels, as the next two
  kAwait,   // until the next post of `peer`
  kPush,    // srcs[0] -> what all others see of this rank in kPushed; every word brings a mark, so no flag is needed
};

enum class Space : uint8_t {
  kInput,       // user tensor `index` (read)
  kOutput,      // user tensor `index` (written; may be the same memory as the input)
  kScratch,     // private memory of the executor; index 0
  kSlot,        // staging slot of arena member `index`, of pipeline stage `stage`
  kPeerInput,   // input tensors of arena member `index`, laid end to end in its heap (read)
  kPeerOutput,  // its output tensors, in its heap (written)
  kPushed,      // what arena member `index` pushes to this rank (read)
};

// Raw: the tensor's own type. Wide: wide_of(dtype), a partial sum. Encoded: in the plan's wire type, see codec.h.
enum class Form : uint8_t { kRaw, kWide, kEncoded };

constexpr int64_t kPackBytes = 16;  // what a thread of a kernel loads and stores at once

struct Ref {
  Space space = Space::kInput;
  Form form = Form::kRaw;
  int32_t index = 0;
  int32_t stage = 0;   // kSlot only: the executor maps stages to the two slots
  int64_t offset = 0;  // bytes from the start of that buffer
  int64_t count = 0;   // elements
};

// Satisfied once `channel` has finished at least `steps` steps.
struct After {
  int32_t channel = 0;
  int32_t steps = 0;
};

struct Step {
  Verb verb = Verb::kCopy;
  bool finish = false;
  // kSend, kRecv: the payload's length goes ahead of it, and a receiver that expects another is told of a mismatch.
  bool announce = false;
  int32_t peer = -1;
  int32_t round = -1;  // communication round (0-based) of a send, receive, post or await, -1 elsewhere
  std::vector<Ref> srcs, dsts;
  std::vector<After> after;
  bool past_caches = false;  // kCopy: caches cannot hold what all ranks write, so the destination leaves them alone
  int32_t number = 0;        // in the order in which the plan was written: one channel alone could run all steps in it
};

struct Channel {
  std::string name;  // "send>2", "recv<1", "fold"
  std::vector<Step> steps;
};

struct Plan {
  std::string algorithm;  // "direct", "ring", "arena", ...
  Collective what = Collective::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  WireType wire = WireType::kFp32;  // of what is encoded; fp32: nothing is
  int rank = 0, world = 1;
  int64_t scratch_bytes = 0;
  std::vector<Channel> channels;
};

// What is asked of a plan. Flat and list forms are the same: tensor i is buffer i. Counts are in elements.
struct Problem {
  Collective what = Collective::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  WireType wire = WireType::kFp32;  // applies to the sums that is_encoded() names, on links
  int rank = 0, world = 1;
  int root = 0;                          // of a collective that has one
  int64_t count = 0;                     // of the whole tensor, or of every rank's part
  std::vector<int64_t> counts;           // uneven parts: of each rank's; empty: all are of `count`
  std::vector<int64_t> sends, recvs;     // pairs: of the tensor for, and from, each rank, known to this rank only;
                                         // empty: all are of `count`
  std::vector<int> hosts;                // first rank of every host, ascending, when each host's ranks are contiguous
  int64_t segment_bytes = 256 << 10;     // pipelining unit of link plans
  int64_t slot_bytes = 1 << 20;          // staging slot of arena plans
  int64_t one_shot_bytes = 32 << 10;     // arena plans: sums up to here take one barrier, see Thresholds
  int64_t one_pass_bytes = 16 << 10;     // arena plans: beyond here tensors in heaps are worked on where they lie
  int64_t past_caches_bytes = 24 << 20;  // moves whose outputs are more than this go past the caches
  bool in_heaps = false;         // the tensors that others reach into lie in memory that all map, see one_pass.h
  bool on_device = false;        // kernels run the steps, which are whole packs of 16 bytes (device/plan/lower.h)
  int64_t most_segments = 4096;  // of a pipeline: a plan of more costs more to build than larger ones in overlap

  // Kernels that reach into the memory of all ranks: a message is a store and a flag there.
  bool in_kernels() const { return on_device && in_heaps; }
  // Elements that slices and segments do not part.
  int64_t unit() const { return on_device ? kPackBytes / size_of(dtype) : 1; }

  const Traits& traits() const { return traits_of(what); }
  bool has_parts() const { return traits().has_parts(); }  // only then there may be counts

  // A reduction without a root whose wire type applies to its dtype and op.
  bool travels_encoded() const;

  // Elements of rank `owner`'s part.
  int64_t part(int owner) const { return counts.empty() ? count : counts[owner]; }
  int64_t largest_part() const;

  // Bytes of the whole tensor, or of all parts together: what all ranks know. 0 for a barrier, and for pairs.
  int64_t shared_bytes() const;

  // A collective that only moves, and whose outputs on all ranks together are more than past_caches_bytes.
  bool overflows_caches() const;

  // Pairs: elements of the tensor for, and from, `peer`.
  int64_t sent_to(int peer) const { return sends.empty() ? count : sends[peer]; }
  int64_t received_from(int peer) const { return recvs.empty() ? count : recvs[peer]; }
};

int64_t bytes_of(const Plan& plan, const Ref& ref);

}  // namespace ringdp::plan
