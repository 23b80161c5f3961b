// A plan is a value: what one rank does in one collective, as channels of steps over named buffers.
//
// No sockets, no torch, no threads. An executor (collective/executor.h) runs it on links and arena;
// collective/inspect.h prints it and counts its bytes. Steps of one channel run in order; channels run concurrently,
// held back only by `after`. One channel is, for example, everything that this rank sends to rank 2. Buffers are named
// by Ref, so the same plan runs on any memory.
#pragma once
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "plan/leaf_tree.h"

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
  kWhole,   // one tensor, of the same size on all ranks
  kPart,    // one tensor: this rank's part of the whole
  kParts,   // one tensor for each rank: that rank's part of the whole
  kSplits,  // one tensor for each rank, whose size only that rank and this one know
};

enum class Root : uint8_t {
  kNone,
  kReads,   // only the root has inputs
  kWrites,  // only the root has outputs
};

enum Trait : unsigned {
  kReduces = 1,
  kDirectOnly = 2,  // on links only `direct` has a plan: the other algorithms fall back to it
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
  constexpr bool has_splits() const { return inputs == Tensors::kSplits; }
};

// In the order of Collective. Output 0 of a broadcast is input 0; of an all_reduce and of a reduce it may be.
inline constexpr Traits kCollectives[] = {
    {Collective::kAllReduce, "all_reduce", Tensors::kWhole, Tensors::kWhole, Root::kNone, kReduces},
    {Collective::kBroadcast, "broadcast", Tensors::kWhole, Tensors::kWhole, Root::kReads},
    {Collective::kAllGather, "all_gather", Tensors::kPart, Tensors::kParts},
    {Collective::kReduceScatter, "reduce_scatter", Tensors::kParts, Tensors::kPart, Root::kNone, kReduces},
    {Collective::kBarrier, "barrier", Tensors::kNone, Tensors::kNone},
    {Collective::kReduce, "reduce", Tensors::kWhole, Tensors::kWhole, Root::kWrites, kReduces},
    {Collective::kGather, "gather", Tensors::kPart, Tensors::kParts, Root::kWrites, kDirectOnly},
    {Collective::kScatter, "scatter", Tensors::kParts, Tensors::kPart, Root::kReads, kDirectOnly},
    {Collective::kAllToAll, "all_to_all", Tensors::kSplits, Tensors::kSplits, Root::kNone, kDirectOnly},
};
constexpr int kCollectiveCount = static_cast<int>(std::size(kCollectives));
constexpr const Traits& traits_of(Collective what) { return kCollectives[static_cast<int>(what)]; }
const char* name_of(Collective what);
Collective collective_named(const std::string& name);  // InvalidArgument lists the known names
// Whether it combines elements, by SUM, MAX or another ReduceOp; the other collectives only move tensors.
constexpr bool is_reduction(Collective what) { return traits_of(what).is(kReduces); }

enum class Verb : uint8_t {
  kSend,    // srcs[0] -> link to `peer`
  kRecv,    // link from `peer` -> dsts[0]
  kFold,    // dsts = srcs reduced in the order listed, or by a program; `finish`: divide (AVG) and round to the
            // tensor's type. Of srcs in the order listed only the first may be wide, unless all srcs and dsts are: that
            // is a fold in the wide type
  kCopy,    // dsts[0] = srcs[0]
  kEncode,  // dsts[0] (encoded) = srcs[0], rounded to the wire type
  kDecode,  // dsts[0] = srcs[0] (encoded)
  kArrive,  // arrive at the arena's next barrier (does not wait)
  kWait,    // until the barrier at which this channel arrived last has passed
  kPost,    // kernels only: signals `peer` that all steps with a smaller `number` are done
  kAwait,   // kernels only: waits for the next kPost of `peer`
  kPush,    // kernels only: srcs[0] -> this rank's kPushed buffer on all peers; each word has its flag, as NCCL's LL
};

enum class Space : uint8_t {
  kInput,       // user tensor `index` (read)
  kOutput,      // user tensor `index` (written; may be the same memory as the input)
  kScratch,     // private memory of the executor; index 0
  kSlot,        // staging slot of arena member `index`, of pipeline stage `stage`
  kPeerInput,   // input tensors of arena member `index`, laid end to end in its heap, those of each root (read)
  kPeerOutput,  // its output tensors, in its heap (written)
  kPushed,      // what arena member `index` has pushed to this rank (read)
};

// Raw: the tensor's own type. Wide: wide_of(dtype), a partial sum. Encoded: in the plan's wire type, see codec.h.
enum class Form : uint8_t { kRaw, kWide, kEncoded };

constexpr int64_t kPackBytes = 16;  // what one thread of a kernel loads or stores in one instruction

struct Ref {
  Space space = Space::kInput;
  Form form = Form::kRaw;
  int32_t index = 0;
  int32_t stage = 0;   // kSlot: the executor maps stages to the two slots. kPeerInput: which of that rank's roots
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
  // kSend, kRecv: the payload's length goes ahead of it; a receiver that expects another length throws kMismatch.
  bool announce = false;
  int32_t peer = -1;
  int32_t round = -1;  // communication round (0-based) of a send, receive, post or await, -1 elsewhere
  std::vector<Ref> srcs, dsts;
  std::vector<After> after;
  bool nontemporal = false;  // kCopy: non-temporal stores, because the caches cannot hold what all ranks write
  int32_t program = -1;      // kFold: which one of the plan's adds up several srcs; -1: in the order listed
  int32_t number = 0;        // position in the plan as written: running all steps in this order, one by one, is correct
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
  WireType wire = WireType::kFp32;  // of kEncoded buffers; fp32: there are none
  int rank = 0, world = 1;
  std::vector<AddProgram> programs;  // by which folds add up several sources
  int64_t scratch_bytes = 0;
  std::vector<Channel> channels;
};

// The collective to plan. all_gather_into_tensor and all_gather are the same here: tensor i is buffer i. Counts are in
// elements.
struct Problem {
  Collective what = Collective::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  WireType wire = WireType::kFp32;  // on links, see travels_encoded()
  int rank = 0, world = 1;
  int root = 0;                          // of the collectives that have one
  int64_t count = 0;                     // elements of the whole tensor, or of each rank's part
  std::vector<int64_t> counts;           // elements of each rank's part, by rank; empty: `count` each
  std::vector<int64_t> sends, recvs;     // splits: elements that this rank sends to, and receives from, each rank;
                                         // empty: `count` each
  std::vector<int> hosts;                // first rank of every host, ascending; empty unless each host's are contiguous
  int64_t segment_bytes = 256 << 10;     // pipelining unit of plans on links
  int64_t slot_bytes = 1 << 20;          // staging slot of plans on the arena
  int64_t one_shot_bytes = 32 << 10;     // arena: reductions up to this size take one barrier, see Thresholds
  int64_t one_pass_bytes = 16 << 10;     // arena: larger tensors in heaps are not copied to slots, see one_pass.h
  int64_t nontemporal_bytes = 24 << 20;  // moves with more output than this use non-temporal stores
  bool along_tree = false;               // sums of floats follow the balanced tree over the ranks (leaf_tree.h)
  RootsPtr roots;                        // along_tree: what ranks contribute; null: one tensor each
  bool in_heaps = false;                 // peers access these tensors directly: they lie in memory that all ranks map
  bool on_device = false;                // kernels run the steps, in whole packs of kPackBytes (device/plan/lower.h)
  int64_t most_segments = 4096;          // per plan: beyond this, planning costs more time than smaller segments save

  // Kernels that load from and store to the memory of peers: a message is a store followed by a flag.
  bool in_kernels() const { return on_device && in_heaps; }
  // Slices and segments are multiples of this many elements.
  int64_t unit() const { return on_device ? kPackBytes / size_of(dtype) : 1; }

  const Traits& traits() const { return traits_of(what); }
  bool has_parts() const { return traits().has_parts(); }  // only then may `counts` be given

  // Whether it is sent in the wire type: a reduction without a root, of a dtype and op for which is_encoded().
  bool travels_encoded() const;

  // Whether it is a sum whose bits depend on along_tree.
  bool sums_along_tree() const;

  // How many tensors a rank contributes to a reduction. Of reduce_scatter, input root * world + owner is for `owner`.
  int contributed(int by) const { return roots ? static_cast<int>(roots->by_rank[by].size()) : 1; }
  int most_contributed() const;  // at least 1

  // Elements of rank `owner`'s part.
  int64_t part(int owner) const { return counts.empty() ? count : counts[owner]; }
  int64_t largest_part() const;

  // Bytes of the whole tensor, or of all parts together; equal on all ranks. 0 for a barrier, and for splits.
  int64_t total_bytes() const;

  // A collective that only moves tensors, and whose outputs on all ranks together are more than nontemporal_bytes.
  bool overflows_caches() const;

  // Splits: the elements that this rank sends to, and receives from, `peer`.
  int64_t sent_to(int peer) const { return sends.empty() ? count : sends[peer]; }
  int64_t received_from(int peer) const { return recvs.empty() ? count : recvs[peer]; }
};

int64_t bytes_of(const Plan& plan, const Ref& ref);

// Whether it uses the arena: a plan that uses slots has barriers.
bool has_barriers(const Plan& plan);

}  // namespace ringdp::plan
