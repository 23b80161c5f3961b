// One bucket of the sums of leaves on its way: shard r of every rank's roots is moved to rank r, which adds them up
// along the tree, divides once and rounds once; then the shards are gathered, unless the bucket is sharded. Where all
// roots have one type, one reduction of a group with order=tree does that, or all of it up to the sum (reduced_as()).
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <optional>
#include <vector>

#include "plan/leaf_tree.h"
#include "reducer/bucket.h"

namespace ringdp::reducer {

// The sum of some leaves' gradients: real numbers, one flat tensor per bucket.
struct LeafSum {
  plan::LeafNode node;
  at::Tensor flat;
};

// Which roots each rank has, and how they add up to the sum of all leaves. Equal on all ranks.
struct Allotment {
  std::vector<std::vector<int>> leaves;  // by rank, sorted
  plan::RootsPtr roots;
  plan::AddProgram program;  // over the roots of all ranks
  // Each rank has one root, and they add up as the ranks do with order=tree: what any reduction does.
  bool is_tree_of_ranks = false;

  Allotment(int micro_batches, std::vector<std::vector<int>> leaves_by_rank);
  // Of some leaves only: their roots, without a program.
  static Allotment of_round(int micro_batches, std::vector<std::vector<int>> leaves_by_rank);

  const std::vector<plan::LeafNode>& roots_of(int rank) const { return roots->by_rank[rank]; }
  // The type in which one reduction of a group with order=tree adds up the roots of this bucket: that of all of them.
  // nullopt: none does, as they have two types, or are several per rank on a device.
  std::optional<at::ScalarType> reduced_as(const Bucket& bucket) const;

 private:
  Allotment() = default;
  void set_leaves(int micro_batches, std::vector<std::vector<int>> leaves_by_rank);
};

using AllotmentPtr = std::shared_ptr<const Allotment>;

at::ScalarType wide_of(at::ScalarType type);
at::ScalarType real_type(const Bucket& bucket);
int64_t reals(const Bucket& bucket);  // real numbers in its flat tensor
// What a root of a bucket is sent as: one leaf in the gradients' type, a sum wide.
at::ScalarType type_of(plan::LeafNode root, const Bucket& bucket);

// A tensor of real numbers of a bucket as its elements, which may be complex.
at::Tensor elements_of(const at::Tensor& reals, const Bucket& bucket);

// Adds up parts along the tree into `to`, on the CPU by the kernel, elsewhere by torch's element-wise operations in the
// same order and precision. Parts and `to` have the type `raw` or are wide; `divisor` 0 divides by nothing.
void add_up(const std::vector<at::Tensor>& parts, const plan::AddProgram& program, at::ScalarType raw,
            const at::Tensor& to, double divisor);

// What is known of roots that are sent in the group of sums.
struct Ahead {
  bool along_tree = false;  // the group has order=tree
  double divisor = 0;       // 0: unknown
};

class RootExchange {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

  // Starts to move the shards of `own`, one flat tensor per root of this rank, which are read until finish().
  // `bucket` outlives the exchange. `ahead`: it is in the group of sums, whose shared memory it uses.
  RootExchange(const GroupPtr& group, const Bucket& bucket, AllotmentPtr allotment, const std::vector<at::Tensor>& own,
               std::optional<Ahead> ahead);

  // Waits. All ranks' roots of this rank's shard, in memory that they share.
  std::vector<LeafSum> arrived();
  void fold(double divisor);  // adds up what has arrived, and starts to gather it
  at::Tensor finish();        // the mean of the bucket or, if it is sharded, of this rank's part; complex again

 private:
  // The reduction of this rank's roots into `to`.
  using Work = c10::intrusive_ptr<c10d::Work>;
  Work reduce(backend::Capabilities& capabilities, const std::vector<at::Tensor>& own, const at::Tensor& to,
              double divisor, bool scatters) const;
  void exchange(const std::vector<at::Tensor>& own);
  at::Tensor memory(int64_t elements, at::ScalarType type) const;
  int64_t bytes_of(plan::LeafNode root) const;  // of one shard
  at::Tensor by_owner(const std::vector<at::Tensor>& own) const;

  const GroupPtr group_;
  const Bucket& bucket_;
  const AllotmentPtr allotment_;
  const bool shares_memory_;
  const int64_t shard_;  // real numbers of each root that one rank adds up
  at::Tensor sent_, arrived_, mean_, whole_;
  bool is_reduced_ = false;  // what arrives is the sum
  Work shuffle_, last_;      // last_: that of mean_ or whole_, if they are still to come
};

}  // namespace ringdp::reducer
