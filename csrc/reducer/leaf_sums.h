// The gradients of the micro-batches of a step (leaves), summed along the tree of plan/leaf_tree.h: the same bits for
// every number of ranks, whoever computes which leaf.
//
// A rank adds its leaves up to their roots as they come, per bucket, and holds one flat tensor per root: in the
// gradients' type for a root of one leaf, in float32 for a sum of 16-bit gradients. The only gradient of a bucket is
// not copied into such a tensor, it becomes one, if nothing else has it. In the end the roots of all ranks
// are added up (root_exchange.h). Works over any c10d group. Not thread-safe: the reducer's lock is held.
//
// Where the ranks' leaves are expected to be those of the step before, a rank sends the roots of a bucket during its
// last leaf's backward pass, as soon as they are complete. What has arrived is used only if all ranks have run what was
// expected, and have sent what they hold at the end; otherwise it is dropped, and the roots are sent again. So a leaf
// that fails or moves to another rank costs time, and never bits: until a leaf has ended, the sums without it are kept.
//
// Instead, sums can be sharded round by round: at the end of a leaf every rank sends its gradients to the owners of
// their shards, which add them up to the roots of all ranks' leaves so far. A rank then holds the gradients of one
// leaf, and of the sums only its shard; every leaf is sent, not only the roots.
#pragma once
#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reducer/bucket.h"
#include "reducer/root_exchange.h"

namespace ringdp::reducer {

class LeafSums {
 public:
  using GroupPtr = RootExchange::GroupPtr;
  using OnBucket = std::function<void(size_t)>;
  // Shards of buckets with this granularity begin at whole cache lines in every type.
  static int64_t granularity(int ranks) { return int64_t{64} * ranks; }

  // `buckets` and `names` (by parameter) outlive this. `launched` is called with the number of a bucket that is sent.
  // `describe`: a bucket in errors of its group.
  LeafSums(GroupPtr group, int micro_batches, const std::vector<Bucket>& buckets, const std::vector<std::string>& names,
           OnBucket launched, std::function<std::string(size_t)> describe)
      : all_(std::move(group)),
        micro_batches_(micro_batches),
        buckets_(buckets),
        names_(names),
        launched_(std::move(launched)),
        describe_(std::move(describe)) {
    if (micro_batches_ > 0) block_of_all_ = block_in_heap_of(*all_);
  }
  // Nothing is expected of it. Sums stay; fit() follows when the buckets are those of the new group.
  void set_group(GroupPtr group);
  void fit();  // gives sums the padding of their buckets

  // What .grad holds once a gradient was taken; undefined tensors by default.
  void set_stand_ins(std::vector<at::Tensor> stand_ins) { stand_ins_ = std::move(stand_ins); }

  // The group in which sums are sent ahead, and at the end where it adds them up: nothing else uses it. along_tree: it
  // has order=tree. null: none. Drops what was sent.
  void set_group_of_sums(GroupPtr group, bool along_tree);
  void release_memory_of_sums() { block_of_sums_.reset(); }  // no such group will follow

  // The leaves of each rank that are expected in the next steps, and the divisor, 0 if unknown; their sums are sent in
  // the group of sums. No leaves: nothing is expected. Drops what was sent.
  void expect(std::vector<std::vector<int>> leaves, double divisor);

  // A leaf begins. Returns whether it is the last one that is expected of this rank. If so, complete() takes the .grad
  // of a bucket whose gradients have all arrived, and sends the bucket once all buckets before it are sent.
  bool begin(int leaf);
  // `arrived`: see memory_of_gradient(). `seen`: by others, so that its memory must not change.
  void complete(size_t number, const at::Tensor& arrived, bool seen);
  // Whether the leaf that has begun completes a root that is expected of this rank, and so is sent.
  bool completes_root() const { return completes_root_; }
  c10d::ProcessGroup* group_of_sums() const { return group_.get(); }
  bool has_taken(size_t bucket) const { return ahead_[bucket].has_value(); }
  bool left_alone(size_t parameter, const at::Tensor& gradient) const;  // since complete() has taken it
  // The leaf has ended: takes the .grad of the other parameters, too. An absent gradient stays absent: it changes no
  // sum. RuntimeError names a gradient that does not fit its bucket. What has failed when the leaf was sent is thrown
  // here, and the sums have the leaf.
  void add();
  void check_leaf() const;  // throws what add() would of a gradient that does not fit
  // The same, sharded: ends a round, in which rank r has run leaves[r], or none if that is -1. For sharded buckets,
  // from the first leaf of a step on, with leaves that no round had. `done` is called with each bucket's number.
  // Collective; after an error only drop() is left.
  void add_round(const std::vector<int>& leaves, const OnBucket& done);
  void abandon();  // the leaf has failed: as if it had not begun

  // Before average(): sends what is expected and was not sent. Returns whether this rank has sent what it holds.
  bool send_rest();

  // The means of all ranks' leaves, one flat tensor per bucket, or this rank's part of it if the bucket is sharded;
  // undefined for a bucket without elements. `leaves`: those of each rank. `as_sent`: what was sent is what all ranks
  // hold. `keep`: the sums stay until drop(); otherwise each is freed as soon as it can be. Collective; `done` is
  // called with each bucket's number.
  std::vector<at::Tensor> average(const std::vector<std::vector<int>>& leaves, double divisor, bool as_sent, bool keep,
                                  const OnBucket& done);

  void drop();
  const std::vector<int>& leaves() const { return leaves_; }  // that the sums have, in the order in which they ended
  std::vector<bool> used() const;                             // by parameter: a leaf had a gradient
  int64_t bytes() const;                                      // held at the moment

 private:
  using Sums = std::vector<LeafSum>;

  at::Tensor stand_in(size_t parameter) const { return stand_ins_.empty() ? at::Tensor() : stand_ins_[parameter]; }
  at::Tensor memory(int64_t elements, const at::TensorOptions& options) const;
  at::Tensor take(const Bucket& bucket, const at::Tensor& arrived);
  at::Tensor take_memory(const Bucket& bucket, const at::Tensor& arrived);
  at::Tensor take_copy(const Bucket& bucket);
  Sums with_leaf(const Sums& held, const Bucket& bucket, const at::Tensor& taken, bool in_place);
  Sums with_round(const Sums& held, const Sums& arrived, const Bucket& bucket) const;
  std::vector<at::Tensor> mean_of_rounds(double divisor);
  // For each bucket with elements: one that was started travels while another one is added up.
  void in_turn(const OnBucket& start, const OnBucket& add) const;
  std::vector<size_t> buckets_with_elements() const;
  void send_ahead(size_t bucket, Sums sums);
  void send(size_t bucket, Sums sums, const GroupPtr& group, AllotmentPtr allotment, std::optional<Ahead> ahead);
  void send_complete();
  bool was_sent() const { return next_ > 0; }
  static at::Tensor block_in_heap_of(c10d::ProcessGroup& group) {
    return step_memory(&group, 1, at::TensorOptions(at::kByte));
  }
  const std::vector<int>& expected_of_this_rank() const { return expected_->leaves[group_->getRank()]; }

  GroupPtr all_;  // in which what was not expected is sent
  // Of the group of sums and of all_. While such a block lives, the group that follows adopts the heap in which it lies
  // (transport/shm/own_heap.h), with the pages that sums have touched.
  at::Tensor block_of_sums_, block_of_all_;
  const int micro_batches_;
  const std::vector<Bucket>& buckets_;
  const std::vector<std::string>& names_;
  const OnBucket launched_;
  const std::function<std::string(size_t)> describe_;
  std::vector<at::Tensor> stand_ins_;

  std::vector<int> leaves_;   // that have ended
  std::vector<Sums> held_;    // by bucket: of these leaves; or this rank's shard of the sums of sharded_
  std::vector<int> sharded_;  // the leaves of all ranks that rounds have had
  std::vector<bool> used_;

  // The leaf that has begun.
  int leaf_ = -1;
  plan::LeafNode root_;                     // of this rank's leaves with it, that contains it
  bool completes_root_ = false;             // that is expected
  bool sends_ = false;                      // as its buckets are complete
  std::vector<std::optional<Sums>> ahead_;  // by bucket: the sums with it
  std::vector<bool> used_before_, taken_;   // by parameter: before it; .grad was there and was taken

  // What is expected, and what was sent of it.
  GroupPtr group_;  // of sums
  AllotmentPtr expected_;
  Ahead how_sent_;
  std::vector<std::unique_ptr<RootExchange>> running_;
  size_t next_ = 0;            // the bucket to be sent next
  bool spoiled_ = false;       // what was sent is not what this rank holds
  std::exception_ptr failed_;  // what sending the leaf that has begun has thrown
};

}  // namespace ringdp::reducer
