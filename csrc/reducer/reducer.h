// Averages gradients over the ranks of a group while the backward pass still computes other gradients.
//
// Gradients are collected in buckets; a bucket whose last gradient has arrived is launched as soon as all buckets
// before it are, so every rank launches in the same order. When the backward pass ends, finish() waits for the results
// and writes them back to .grad. The bits are those of one process that sums the ranks' gradients in rank order and
// divides once (mean.h).
//
//   prepare_for_forward  rebuild_buckets  prepare_for_backward  [autograd: one hook per gradient]  finish
//
// Methods may be called from any thread, without the GIL; one lock guards everything. They throw RuntimeErrors that
// name parameters, or the errors of the group's backend. python/ringdp/ddp/reducer.py adds the method names of torch's
// reducer.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/allocation.h"
#include "reducer/bucket.h"
#include "reducer/comm_hook.h"
#include "reducer/drift.h"
#include "reducer/hooks.h"
#include "reducer/layout.h"
#include "reducer/leaf_sums.h"
#include "reducer/mean.h"
#include "reducer/own_mutex.h"
#include "reducer/parameter_sample.h"
#include "reducer/pass_state.h"
#include "reducer/timeline.h"
#include "reducer/unaveraged.h"
#include "trace/recorder.h"

namespace ringdp::reducer {

// How a reducer works: fixed at construction, equal on all ranks.
struct Options {
  std::vector<int64_t> bucket_limits;    // bytes, see make_layout(); hard limits if shard_block is set
  bool find_unused = false;              // walk the graph before each backward pass
  bool gradient_as_bucket_view = false;  // .grad is the view in the bucket: one copy of the gradients
  bool batched_copy = false;             // copy a bucket's gradients together when the last one has arrived
  bool skip_unused = false;              // do not reduce buckets of unused parameters: all ranks must agree on them
  int64_t own_bucket_bytes = 0;  // gradients of so many bytes share no bucket, see reduces_in_place(); 0: no such rule
  bool overlap = true;           // false: after the backward pass, one blocking collective per bucket
  int micro_batches = 0;         // > 0: no backward pass is synchronised; gradients of leaves are summed (leaf_sums.h)
  int64_t shard_block = 0;       // > 0: ZeRO stage 2; shards cut gradients only at multiples of this many elements
  bool rank_order = true;        // false: a backend without a fused mean sums in its own order
  bool check_drift = false;      // compare the parameters of all ranks in every pass (drift.h)
  bool made_locally = false;     // a copy made on this rank only: buckets are allocated without a collective
  Layout layout;                 // a fixed one with each parameter once; if empty, one is computed from bucket_limits
};

class Reducer {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `names` and `sparse` (whether sparse gradients are expected) have one entry per parameter. All parameters require
  // gradients.
  Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<bool> sparse, GroupPtr group,
          Options options);

  // Before use; the same calls on all ranks.
  // Once. `always`: false for a hook that use_comm_hook() leaves out in most steps: buckets are laid out for those.
  // `patience`: see CommHook.
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook, bool always,
                          std::chrono::milliseconds patience);
  // Between passes: whether the hook is called, or buckets are averaged as if there were none.
  void use_comm_hook(bool used);
  void set_static_graph();
  void set_gradient_dtype(at::ScalarType dtype);                  // mixed precision
  void set_optimizer_in_backward();                               // a hook runs the optimizer; .grad is not written
  void set_after_backward(std::function<void()> after_backward);  // called without the lock after write-back

  // backward.cc
  void prepare_for_forward();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  // `arrived`: the gradient as autograd gave it to the hook, which may share memory with .grad; may be undefined.
  void autograd_hook(size_t index, const at::Tensor& arrived = {});
  void delay_all_reduce();       // at the end of the first pass of a static graph: reduces all buckets
  void backward_without_loss();  // a rank without samples takes part in a synchronised step
  void keep_gradients();         // no_sync(): until the next synchronised forward pass gradients stay on this rank
  void check_finished() const;   // RuntimeError names gradients that did not arrive in the last pass
  bool expects_gradients() const { return copy_of(expecting_); }
  bool is_static_graph_first_pass() const;  // no synchronised pass of the static graph has ended yet
  void stop_shared_allocation();            // if no backward pass followed the forward pass: see shared_allocation_

  // For a rank that has run out of inputs (join): takes part in the backward pass of the others.
  void shadow_backward(double divisor);

  // A digest of what must be equal on all ranks and was set on this one by the last step; 0: of nothing. It travels
  // with the first bucket of each pass that can carry it: of dense gradients on the CPU, over backend ringdp, without a
  // hook. Any thread, also in a hook.
  void set_agreed(uint64_t digest) { agreed_ = digest; }
  bool differs() const { return copy_of(differs_); }  // in the latest pass; the same on all ranks

  // From now on one part of these parameters is compared in every pass, see parameter_sample.h, or in one of every
  // `stride` passes. The first bucket of a pass carries the checksum on the same terms as set_agreed()'s digest; with
  // check_drift there is none, as everything is compared. An empty list ends it.
  void sample_parameters(std::vector<at::Tensor> parameters);
  void set_sample_stride(uint64_t stride);
  void note_stepped_alone();  // this rank, with gradients of its own: nothing is compared any more
  struct Sampled {
    bool is_carried = false;     // by the buckets as they are: otherwise nothing is compared
    bool stepped_alone = false;  // see note_stepped_alone()
    int64_t compared = 0;        // passes so far
    int64_t spent_ns = 0;        // so far
    std::vector<std::pair<ParameterSample::Found, ParameterSample::Part>> found;  // since the last call
  };
  Sampled take_sampled();
  bool has_found() const;  // since then, what take_sampled() would return in `found`

  // What the next reduction is divided by, by default the number of ranks. `work`: an all_reduce whose sum is the
  // divisor; the first bucket waits for it (pass_state.h).
  void set_divisor_work(WorkPtr work);
  void set_divisor(double divisor);

  // After the first synchronised pass: lays buckets out in the order in which gradients arrived on rank 0. Returns
  // whether it did; later calls do nothing. Collective.
  bool rebuild_buckets();
  void assume_arrival();  // on a rank that had no backward pass: gradients count as arrived in the order of the buckets
  void reset();           // forget a step that failed, and lay out buckets anew after the next one
  // Sums of leaves stay, and get the padding of the new group's buckets.
  void set_group(GroupPtr group);
  // Buckets stay as they were at construction, so that ranks that join later have the same. Between steps only.
  void keep_layout();
  void remove_hooks();

  // With micro_batches, see leaf_sums.h: add_leaf() takes every .grad as that of the leaf that has begun, and leaves
  // stand-ins there. average_leaves() is collective: the means of the leaves that each rank has added, the same table
  // on all ranks, go to .grad of the parameters that are `used`, the others have none; with a shard_block they become
  // the shards. The first time it also lays buckets out in the order in which gradients arrived on leaf 0's rank.
  // `keep`: the sums stay until drop_leaves(), so that the step can be taken up again if a rank is lost.
  void set_leaf_stand_ins(std::vector<at::Tensor> stand_ins);
  void set_group_of_leaf_sums(GroupPtr group, bool along_tree);
  void release_memory_of_leaf_sums();
  void expect_leaves(std::vector<std::vector<int>> leaves, double divisor);
  void begin_leaf(int leaf);
  // After a forward pass of the leaf: gradients that its backward pass makes should lie where sums are sent from.
  void share_gradients_of_leaf();
  void add_leaf();
  // Instead of add_leaf(), with a shard_block: checks the leaf, then LeafSums::add_round(), also on ranks without one.
  // The timeline is that of the last round.
  void end_leaf_of_round();
  void add_leaf_round(const std::vector<int>& leaves);
  void abandon_leaf();
  bool send_leaves();
  void average_leaves(const std::vector<std::vector<int>>& leaves, const std::vector<bool>& used, double divisor,
                      bool as_sent, bool keep);
  void drop_leaves();
  std::vector<bool> used_in_leaves() const;  // by parameter, on this rank
  // Whether, since drop_leaves(), a .grad was not the one that a leaf's only backward pass has left.
  bool changed_in_leaves() const { return copy_of(changed_in_leaves_); }
  std::vector<int> leaves() const;  // whose gradients are in the sums of this rank
  int64_t leaf_bytes() const;       // of sums that are held

  // With a shard_block, a pass leaves .grad undefined and adds this rank's part of each bucket's mean to its shard. A
  // shard is undefined before the first pass.
  std::vector<at::Tensor> shards() const;                    // by bucket, padding included
  std::vector<bool> used() const { return copy_of(used_); }  // by parameter: a rank had a gradient since drop_shards()
  void drop_shards();
  void zero_shards();  // what zero_grad(set_to_none=False) does to .grad
  // Steps inside the backward pass instead of keeping shards. `sinks` is called when the first bucket of a pass is
  // launched and returns per bucket a ShardSink, which steps parameters as the mean arrives (reduction.h), or null.
  // `on_shard` is called with this rank's part of a bucket's mean once it is complete and its sink has taken it (an
  // empty part if a device has stepped it). Both are called on the thread of the backward pass, in bucket order, under
  // the lock: they must not call the reducer.
  using Sinks = std::vector<std::shared_ptr<ShardSink>>;
  using OnShard = std::function<void(size_t bucket, const at::Tensor& part)>;
  void set_on_shard(std::function<Sinks()> sinks, OnShard on_shard);

  // Introspection; results are copies.
  struct BucketInfo {
    std::vector<size_t> indices;
    int64_t bytes = 0;         // of its gradients
    int64_t memory_bytes = 0;  // of the memory that it keeps between steps, padding included
    std::string dtype, device;
    bool sparse = false, of_leaves = false, shared = false;
  };
  std::vector<BucketInfo> buckets() const;
  Timeline timeline() const { return copy_of(timeline_); }
  // From now on those of the latest `most` passes are kept until they are taken; 0: none any more.
  void keep_timelines(size_t most);
  std::vector<Timeline> take_timelines();  // the oldest first
  Layout layout() const { return copy_of(layout_); }
  std::vector<size_t> arrival_order() const { return copy_of(arrival_); }  // in the latest synchronised pass
  std::vector<size_t> unused() const { return copy_of(unused_); }          // on this rank in the latest pass
  std::map<std::string, int64_t> stats() const;                            // rebuilt, unused_changed, launched
  std::string mean_name() const;
  // These never wait: hooks of a running pass may ask, while the lock is held.
  int64_t passes() const { return unaveraged_.passes(); }  // synchronised backward passes that have completed
  // Whether a gradient arrived outside of synchronised passes. Its .grad may have been cleared since.
  bool may_be_unaveraged() const { return unaveraged_.any(); }
  // Gradients in .grad that were not averaged; empty while a pass runs.
  std::vector<Unaveraged::Found> unaveraged() const;
  // The latest error that a method or a hook has thrown because the training loop breaks a rule; "" without one.
  std::string error() const { return copy_of(error_); }

 private:
  struct Place {
    size_t bucket = 0, position = 0;
  };

  template <class T>
  T copy_of(const T& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }

  // reducer.cc
  Layout layout_by_size() const;  // that of construction
  void set_buckets(const Layout& layout);
  void make_buckets(bool together);   // of layout_
  bool lay_out_by_arrival(int root);  // of gradients on that rank; see rebuild_buckets()
  void check_laid_out() const;
  bool reduces_in_place() const;  // large gradients, in buckets of their own, also as views
  std::vector<Part> parts() const;
  void complete_arrival();  // appends the gradients that did not arrive, in bucket order
  void check_carries_digests() const;
  void record(trace::Kind kind, int64_t time_ns, int bucket = -1) const;
  // `at` of the timeline is now `time_ns`; recorded, too.
  void mark(int64_t& at, trace::Kind kind, int64_t time_ns, int bucket = -1);
  void end_timeline();  // every .grad is in place

  // backward.cc; the lock is held
  void arrived_in_leaf(size_t index, const at::Tensor& arrived);
  void end_leaf();
  void begin_leaf_times();
  void mark_done(size_t bucket);
  void start_shared_allocation(c10d::ProcessGroup& group);
  void search_unused(const std::vector<at::Tensor>& outputs);
  bool count_in_static_graph(size_t index);
  enum class Gradient { kFresh, kAsItIs };  // computed in this pass; or not, and .grad is taken as it is
  void mark_ready(size_t index, Gradient gradient, const at::Tensor& arrived = {});
  void take(size_t index, Gradient kind, const at::Tensor& arrived);
  void copy_waiting(Bucket& bucket);  // the gradients in bucket.uncopied
  void bucket_ready(size_t number);
  void launch(size_t number);
  std::unique_ptr<Reduction> start(const Bucket& bucket, const at::Tensor& flat, size_t number,
                                   Mean::DigestsPtr digests);
  bool can_carry_digests(const Bucket& bucket) const {
    return !calls_hook() && !bucket.sparse && bucket.elements > 0 && mean_->carries_digests() &&
           parameters_[0].is_cpu();
  }
  bool calls_hook() const { return hook_ != nullptr && hook_used_; }
  uint32_t sample_word();
  void compare_digests();
  Mean::DigestsPtr digests_of(size_t number);
  void finish();
  void start_usage();
  void finish_bucket(size_t number);  // waits for its reduction, if there is one, and writes it back
  void write_back(Bucket& bucket, const at::Tensor& result);
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, size_t number, Mean::DigestsPtr digests);
  void take_part(size_t number, const at::Tensor& part);
  void wait_for_running();
  void note_used();
  bool sharded() const { return options_.shard_block > 0; }
  bool all_ready() const { return next_ == buckets_.size(); }
  bool static_graph_first_pass() const { return static_graph_ && !static_graph_known_; }
  bool searches() const { return options_.find_unused && !static_graph_; }
  bool tracks_usage() const { return searches() || static_graph_first_pass(); }
  std::string unfinished_text() const;
  // Returns what `call` returns; adds the bucket and its parameters to an error of the group.
  template <class Call>
  auto for_bucket(size_t number, Call&& call) const {
    try {
      return call();
    } catch (c10::DistBackendError& error) {
      error.add_context(bucket_text(number));
      throw;
    }
  }
  std::string bucket_text(size_t number) const;
  [[noreturn]] void refuse(const std::string& text) const;  // remembers and throws it

  mutable OwnMutex mutex_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<std::string> names_;
  const std::vector<bool> sparse_;
  const Options options_;
  GroupPtr group_;
  std::unique_ptr<Mean> mean_;
  std::unique_ptr<CommHook> hook_;
  bool hook_always_ = true, hook_used_ = true;
  std::function<void()> after_backward_;
  std::optional<at::ScalarType> gradient_dtype_;
  bool static_graph_ = false, static_graph_known_ = false, optimizer_in_backward_ = false;
  bool shadowed_first_ = false;  // this rank had no inputs in the first pass of a static graph

  Layout layout_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
  std::vector<bool> used_;     // see used()
  std::function<Sinks()> make_sinks_;
  Sinks sinks_;  // for the running pass
  OnShard on_shard_;
  LeafSums leaf_sums_;
  // The leaf that has begun: the .grad that a backward pass has left, and its version then; by parameter.
  std::vector<std::optional<std::pair<const at::TensorImpl*, int64_t>>> in_leaf_;
  bool changed_in_leaves_ = false, leaf_times_begun_ = false;
  bool rebuilt_ = false, layout_is_kept_ = false;
  std::vector<size_t> arrival_;  // in the latest synchronised pass; empty before the first

  // The running pass.
  Readiness readiness_;
  Usage usage_;
  Unaveraged unaveraged_;
  Divisor divisor_;
  bool expecting_ = false;   // from the end of a synchronised forward pass to finish()
  bool unfinished_ = false;  // a gradient has arrived, and finish() has not come to its end
  bool unused_marked_ = false;
  size_t next_ = 0;  // the bucket to be launched next
  std::vector<std::unique_ptr<Reduction>> running_;
  std::vector<size_t> unused_;
  bool unused_changed_ = false;                             // from one pass to another
  int64_t launched_ = 0;                                    // number of buckets, in the latest pass
  std::unique_ptr<backend::SizedScope> shared_allocation_;  // from forward to finish(): gradients get shared memory
  Timeline timeline_;
  std::deque<Timeline> kept_timelines_;
  size_t most_timelines_ = 0;
  std::optional<Drift> drift_;
  std::atomic<uint64_t> agreed_{0};
  Mean::DigestsPtr agreement_;  // that of the pass, once it is on its way
  bool differs_ = false;        // in the latest pass
  std::unique_ptr<ParameterSample> sample_;
  bool stepped_alone_ = false;  // since sample_ was made
  mutable std::string error_;

  GradientHooks hooks_;  // declared last: autograd may call as soon as it is constructed
};

}  // namespace ringdp::reducer
