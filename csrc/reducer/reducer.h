// Averages gradients over the ranks of a group while the backward pass still computes others.
//
// Gradients are collected in buckets; a bucket whose last gradient has arrived is launched as soon as all buckets before it
// are, so every rank launches in the same order. When the backward pass ends, results are waited for and handed to .grad.
// The bits are those of one process that folds the ranks' gradients in rank order and divides once (mean.h).
//
//   prepare_for_forward  rebuild_buckets  prepare_for_backward  [autograd: one hook per gradient]  finish
//
// Methods may come from any thread, without the GIL; one lock guards everything. Errors are RuntimeErrors that name
// parameters, or those of the group's backend. The names of torch's own reducer are given by python/ringdp/ddp/reducer.py.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/allocation_scope.h"
#include "reducer/bucket.h"
#include "reducer/comm_hook.h"
#include "reducer/divisor.h"
#include "reducer/drift.h"
#include "reducer/hooks.h"
#include "reducer/layout.h"
#include "reducer/mean.h"
#include "reducer/options.h"
#include "reducer/readiness.h"
#include "reducer/timeline.h"
#include "reducer/unaveraged.h"
#include "reducer/usage.h"
#include "trace/recorder.h"

namespace ringdp::reducer {

class Reducer {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `names` and `sparse` (whether sparse gradients are expected) go with `parameters`, which all require gradients.
  Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<bool> sparse, GroupPtr group,
          Options options);

  // Before use, on all ranks alike.
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);  // once
  void set_static_graph();
  void set_gradient_dtype(at::ScalarType dtype);                  // that of mixed precision
  void set_optimizer_in_backward();                               // a hook steps; .grad is left alone
  void set_after_backward(std::function<void()> after_backward);  // called when all is handed out, without the lock

  // backward.cc
  void prepare_for_forward();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  void autograd_hook(size_t index, const at::Tensor& arrived = {});  // `arrived`: as take_in_place() takes it
  void delay_all_reduce();       // at the end of the first pass of a static graph: everything at once
  void backward_without_loss();  // a rank without samples takes part in a synchronised step
  void keep_gradients();         // until the next synchronised forward pass they are meant to stay this rank's: no_sync()
  void check_finished() const;   // RuntimeError names the gradients that the last pass left open
  bool expects_gradients() const;
  bool learns() const;          // the first synchronised pass of a static graph is still to come
  void stop_sharing();          // gradients of a backward pass that never came get ordinary memory again

  // shadow.cc: a rank that has run out of inputs (join) takes part in the backward pass of the others.
  void shadow_backward(double divisor);

  // What the next reduction is divided by (divisor.h); default: the number of ranks.
  void ask_divisor(WorkPtr work);
  void set_divisor(double divisor);

  // rebuild.cc: once, after the first synchronised pass: buckets by order of arrival. Collective; whether it did so.
  bool rebuild_buckets();
  void assume_arrival();  // of a rank that had no backward pass
  void reset();           // forget a step that failed, and lay out buckets anew after the next one
  void set_group(GroupPtr group);
  void remove_hooks();

  // shards.cc: of a reducer with a shard_block. A pass leaves .grad undefined and adds this rank's part of each
  // bucket's mean to its shard. A shard is undefined before the first pass.
  std::vector<at::Tensor> shards() const;  // by bucket; of the buckets' memory, padding included
  std::vector<bool> used() const;          // by parameter: whether any rank had a gradient since drop_shards()
  void drop_shards();
  void zero_shards();  // what zero_grad(set_to_none=False) does to .grad
  // In place of shards, what steps inside the backward pass. `sinks` is called when the first bucket of a pass is launched,
  // and gives a sink, or null, per bucket; `on_shard` when this rank's part of a bucket's mean is there and its sink has taken
  // it (no element of it is left where a device has stepped). Both are called on the thread of the backward pass, in the order of buckets, under the lock: they must not call the
  // reducer.
  using Sinks = std::vector<std::shared_ptr<ShardSink>>;
  using OnShard = std::function<void(size_t bucket, const at::Tensor& part)>;
  void set_on_shard(std::function<Sinks()> sinks, OnShard on_shard);

  // facts.cc: copies of what there is.
  struct BucketFacts {
    std::vector<size_t> indices;
    int64_t bytes = 0, memory_bytes = 0;  // of gradients; of memory beside them, with padding
    std::string dtype, device;
    bool sparse = false, shared = false;
  };
  std::vector<BucketFacts> buckets() const;
  Timeline timeline() const;
  Layout layout() const;
  std::vector<size_t> arrival_order() const;  // of the latest synchronised pass
  std::vector<size_t> unused() const;         // by this rank in the latest pass
  std::map<std::string, int64_t> numbers() const;
  std::string mean_name() const;
  // These never wait: hooks of a running pass may ask, while the lock is held.
  int64_t passes() const { return unaveraged_.passes(); }  // synchronised backward passes that came to their end
  bool may_be_unaveraged() const { return unaveraged_.any(); }  // a gradient came outside of them; its .grad may be gone since
  std::vector<Unaveraged::Found> unaveraged() const;  // what lies in .grad without having been averaged; none in a pass
  std::string error() const;  // the latest that a method or a hook has thrown for a loop that does not fit; or ""

 private:
  struct Place {
    size_t bucket = 0, position = 0;
  };

  // rebuild.cc
  void set_buckets(const Layout& layout);
  void make_buckets(bool together);  // of layout_
  void check_laid_out() const;
  std::vector<Part> parts() const;
  void complete_arrival();  // with what did not arrive, in the order of the buckets
  // backward.cc; the lock is held
  void share_gradients();
  void search_unused(const std::vector<at::Tensor>& outputs);
  bool count_in_static_graph(size_t index);
  enum class Gradient { kFresh, kAsItIs };  // of this pass, or whatever .grad holds without one
  void mark_ready(size_t index, Gradient gradient, const at::Tensor& arrived = {});
  void take(size_t index, Gradient kind, const at::Tensor& arrived);
  void flush(Bucket& bucket);
  void bucket_ready(size_t number);
  void launch(size_t number);
  std::unique_ptr<Reduction> start(const Bucket& bucket, const at::Tensor& flat, size_t number,
                                   Mean::DigestsPtr digests);
  bool rides(const Bucket& bucket) const { return drift_ && !hook_ && !bucket.sparse && bucket.elements > 0; }
  void finish();
  void start_usage();
  // hand_out.cc
  void settle(size_t number);  // waits for the bucket's reduction, if it runs
  void hand_out(Bucket& bucket, const at::Tensor& result);
  // shards.cc
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, size_t number, Mean::DigestsPtr digests);
  void take_part(size_t number, const at::Tensor& part);
  void wait_for_running();
  void note_used();
  bool sharded() const { return options_.shard_block > 0; }
  bool all_ready() const { return next_ == buckets_.size(); }
  bool learning() const { return static_graph_ && !learned_; }  // the first pass of a static graph
  bool searches() const { return options_.find_unused && !static_graph_; }
  bool tracks_usage() const { return searches() || learning(); }
  void note(trace::Kind kind, int64_t time_ns, int bucket = -1) const;  // for the recorder
  void check_carries_digests() const;
  std::string unfinished_text() const;
  // What `call` gives; an error of the group also says that it was for this bucket, and of which parameters.
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
  bool shadowed_first_ = false;  // the others' first pass of a static graph was while this rank had no inputs

  Layout layout_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // of each parameter
  std::vector<bool> used_;     // as used() says
  std::function<Sinks()> make_sinks_;
  Sinks sinks_;  // of the running pass
  OnShard on_shard_;
  bool rebuilt_ = false;
  std::vector<size_t> arrival_;  // of the latest synchronised pass; empty before the first

  // Of the running pass.
  Readiness readiness_;
  Usage usage_;
  Unaveraged unaveraged_;
  Divisor divisor_;
  bool expecting_ = false;      // hooks count: between a synchronised forward and finish()
  bool unfinished_ = false;     // a gradient has arrived, the last one has not
  bool unused_marked_ = false;
  size_t next_ = 0;             // the bucket to be launched next
  std::vector<std::unique_ptr<Reduction>> running_;
  std::vector<size_t> unused_;
  bool unused_changed_ = false;  // between passes
  int64_t launched_ = 0;         // buckets in the latest pass
  std::unique_ptr<backend::SizedScope> gradients_shared_;  // between forward and finish()
  Timeline timeline_;
  std::optional<Drift> drift_;
  mutable std::string error_;

  GradientHooks hooks_;  // last: autograd may call once they are there
};

}  // namespace ringdp::reducer
