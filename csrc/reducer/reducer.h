// Averages gradients over the ranks of a group while the backward pass still computes others.
//
// Gradients are collected in buckets; a bucket whose last gradient has arrived is launched as soon as all buckets
// before it are, so every rank launches in the same order. When the backward pass ends, results are waited for and
// written back to .grad. The bits are those of one process that sums the ranks' gradients in rank order and divides
// once (mean.h).
//
//   prepare_for_forward  rebuild_buckets  prepare_for_backward  [autograd: one hook per gradient]  finish
//
// Methods may come from any thread, without the GIL; one lock guards everything. Errors are RuntimeErrors that name
// parameters, or those of the group's backend. python/ringdp/ddp/reducer.py adds the names of torch's own reducer.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/allocation.h"
#include "reducer/bucket.h"
#include "reducer/comm_hook.h"
#include "reducer/drift.h"
#include "reducer/hooks.h"
#include "reducer/layout.h"
#include "reducer/mean.h"
#include "reducer/pass_state.h"
#include "reducer/unaveraged.h"
#include "trace/recorder.h"

namespace ringdp::reducer {

// How a reducer works; fixed when it is made, equal on all ranks.
struct Options {
  std::vector<int64_t> bucket_limits;    // bytes, as make_layout() takes them; never exceeded with shards
  bool find_unused = false;              // walk the graph before each backward pass
  bool gradient_as_bucket_view = false;  // .grad is the view in the bucket: one copy of the gradients
  bool batched_copy = false;             // copy a bucket's gradients together when the last one has arrived
  bool skip_unused = false;              // do not reduce buckets of unused parameters: all ranks must agree on them
  bool overlap = true;                   // false: after the backward pass, one blocking collective per bucket
  int64_t shard_block = 0;   // > 0: ZeRO stage 2; ranks own parts of buckets in multiples of so many elements
  bool rank_order = true;    // false: the backend's own order, where it has no fused mean
  bool check_drift = false;  // every rank's parameters are compared in every pass (drift.h)
  bool alone = false;        // made by this rank alone: nothing collective before a rebuild
  Layout layout;             // never changes; each parameter once; empty: bucket_limits decide
};

// When things happened in the latest step, in steady_clock nanoseconds: what overlap is computed from. 0 means "not in
// this step". Written under the reducer's lock, read as a copy.
struct Timeline {
  struct OfBucket {
    int64_t ready = 0;     // its last gradient arrived
    int64_t launched = 0;  // its collective was started
    int64_t done = 0;      // its collective ended
  };

  int64_t step = 0;                   // forward passes that were synchronised, this one included
  int64_t forward = 0, backward = 0;  // began; backward: when forward ended
  int64_t computed = 0;               // the backward pass had nothing left but to wait
  int64_t finished = 0;               // every .grad was in place
  std::vector<OfBucket> buckets;

  void begin_backward(int64_t now, size_t count) {
    backward = now;
    computed = finished = 0;
    buckets.assign(count, {});
  }
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
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);  // once
  void set_static_graph();
  void set_gradient_dtype(at::ScalarType dtype);                  // mixed precision
  void set_optimizer_in_backward();                               // a hook steps; .grad is left alone
  void set_after_backward(std::function<void()> after_backward);  // called without the lock when all is written back

  // backward.cc
  void prepare_for_forward();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  void autograd_hook(size_t index, const at::Tensor& arrived = {});  // `arrived`: as take_in_place() takes it
  void delay_all_reduce();       // at the end of the first pass of a static graph: everything at once
  void backward_without_loss();  // a rank without samples takes part in a synchronised step
  void keep_gradients();         // no_sync(): until the next synchronised forward pass gradients stay on this rank
  void check_finished() const;   // RuntimeError names the gradients that the last pass left open
  bool expects_gradients() const { return copy_of(expecting_); }
  bool learns() const;  // the first synchronised pass of a static graph is still to come
  void stop_sharing();  // gradients of a backward pass that never came get ordinary memory again

  // A rank that has run out of inputs (join) takes part in the backward pass of the others.
  void shadow_backward(double divisor);

  // What the next reduction is divided by (pass_state.h); default: the number of ranks.
  void ask_divisor(WorkPtr work);
  void set_divisor(double divisor);

  // Once, after the first synchronised pass: buckets by order of arrival on rank 0. Collective; whether it did so.
  bool rebuild_buckets();
  void assume_arrival();  // on a rank that had no backward pass: gradients count as arrived in the order of the buckets
  void reset();           // forget a step that failed, and lay out buckets anew after the next one
  void set_group(GroupPtr group);
  void remove_hooks();

  // With a shard_block, a pass leaves .grad undefined and adds this rank's part of each bucket's mean to its shard. A
  // shard is undefined before the first pass.
  std::vector<at::Tensor> shards() const;                    // by bucket, padding included
  std::vector<bool> used() const { return copy_of(used_); }  // by parameter: a rank had a gradient since drop_shards()
  void drop_shards();
  void zero_shards();  // what zero_grad(set_to_none=False) does to .grad
  // Replaces shards by a step inside the backward pass. `sinks` is called when the first bucket of a pass is launched
  // and gives a sink, or null, per bucket; `on_shard` is called when this rank's part of a bucket's mean is there and
  // its sink has taken it (the part is empty where a device has stepped). Both are called on the thread of the backward
  // pass, in the order of buckets, under the lock: they must not call the reducer.
  using Sinks = std::vector<std::shared_ptr<ShardSink>>;
  using OnShard = std::function<void(size_t bucket, const at::Tensor& part)>;
  void set_on_shard(std::function<Sinks()> sinks, OnShard on_shard);

  // Introspection; results are copies.
  struct BucketInfo {
    std::vector<size_t> indices;
    int64_t bytes = 0, memory_bytes = 0;  // of gradients; of memory in addition to them, with padding
    std::string dtype, device;
    bool sparse = false, shared = false;
  };
  std::vector<BucketInfo> buckets() const;
  Timeline timeline() const { return copy_of(timeline_); }
  Layout layout() const { return copy_of(layout_); }
  std::vector<size_t> arrival_order() const { return copy_of(arrival_); }  // in the latest synchronised pass
  std::vector<size_t> unused() const { return copy_of(unused_); }          // on this rank in the latest pass
  std::map<std::string, int64_t> numbers() const;
  std::string mean_name() const;
  // These never wait: hooks of a running pass may ask, while the lock is held.
  int64_t passes() const { return unaveraged_.passes(); }  // synchronised backward passes that came to their end
  // Whether a gradient came outside of such passes; its .grad may have changed since.
  bool may_be_unaveraged() const { return unaveraged_.any(); }
  // Gradients that lie in .grad without having been averaged; empty while a pass runs.
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
  void set_buckets(const Layout& layout);
  void make_buckets(bool together);  // of layout_
  void check_laid_out() const;
  std::vector<Part> parts() const;
  void complete_arrival();  // adds what did not arrive, in the order of the buckets
  void check_carries_digests() const;
  void note(trace::Kind kind, int64_t time_ns, int bucket = -1) const;  // for the recorder

  // backward.cc; the lock is held
  void share_gradients();
  void search_unused(const std::vector<at::Tensor>& outputs);
  bool count_in_static_graph(size_t index);
  enum class Gradient { kFresh, kAsItIs };  // this pass's, or whatever .grad holds without one
  void mark_ready(size_t index, Gradient gradient, const at::Tensor& arrived = {});
  void take(size_t index, Gradient kind, const at::Tensor& arrived);
  void flush(Bucket& bucket);
  void bucket_ready(size_t number);
  void launch(size_t number);
  std::unique_ptr<Reduction> start(const Bucket& bucket, const at::Tensor& flat, size_t number,
                                   Mean::DigestsPtr digests);
  bool carries_digests(const Bucket& bucket) const { return drift_ && !hook_ && !bucket.sparse && bucket.elements > 0; }
  void finish();
  void start_usage();
  void settle(size_t number);  // waits for the bucket's reduction, if it runs
  void write_back(Bucket& bucket, const at::Tensor& result);
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, size_t number, Mean::DigestsPtr digests);
  void take_part(size_t number, const at::Tensor& part);
  void wait_for_running();
  void note_used();
  bool sharded() const { return options_.shard_block > 0; }
  bool all_ready() const { return next_ == buckets_.size(); }
  bool learning() const { return static_graph_ && !learned_; }  // the first pass of a static graph
  bool searches() const { return options_.find_unused && !static_graph_; }
  bool tracks_usage() const { return searches() || learning(); }
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

  mutable std::mutex mutex_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<std::string> names_;
  const std::vector<bool> sparse_;
  const Options options_;
  GroupPtr group_;
  std::unique_ptr<Mean> mean_;
  std::unique_ptr<CommHook> hook_;
  std::function<void()> after_backward_;
  std::optional<at::ScalarType> gradient_dtype_;
  bool static_graph_ = false, learned_ = false, optimizer_in_backward_ = false;
  bool shadowed_first_ = false;  // this rank had no inputs in the first pass of a static graph

  Layout layout_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
  std::vector<bool> used_;     // see used()
  std::function<Sinks()> make_sinks_;
  Sinks sinks_;  // for the running pass
  OnShard on_shard_;
  bool rebuilt_ = false;
  std::vector<size_t> arrival_;  // in the latest synchronised pass; empty before the first

  // The running pass.
  Readiness readiness_;
  Usage usage_;
  Unaveraged unaveraged_;
  Divisor divisor_;
  bool expecting_ = false;   // hooks count: between a synchronised forward and finish()
  bool unfinished_ = false;  // a gradient has arrived, the last one has not
  bool unused_marked_ = false;
  size_t next_ = 0;  // the bucket to be launched next
  std::vector<std::unique_ptr<Reduction>> running_;
  std::vector<size_t> unused_;
  bool unused_changed_ = false;                            // between passes
  int64_t launched_ = 0;                                   // buckets in the latest pass
  std::unique_ptr<backend::SizedScope> gradients_shared_;  // between forward and finish()
  Timeline timeline_;
  std::optional<Drift> drift_;
  mutable std::string error_;

  GradientHooks hooks_;  // last: autograd may call once they are there
};

}  // namespace ringdp::reducer
