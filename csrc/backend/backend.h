// The c10d backend "ringdp": checks a call, describes it, hands it to the group, returns a Work.
//
// Only the long-standing names of c10d::Backend are overridden, so one source serves torch 2.11 to 2.15. Calls may come
// from any thread; collectives of one group run in the order of the calls. Everything that is not overridden is refused
// by c10d by name ("Backend ringdp does not support ...").
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <mutex>
#include <optional>

#include "backend/allocation.h"
#include "backend/call_memory.h"
#include "backend/capabilities.h"
#include "backend/options.h"
#include "backend/tensors.h"
#include "backend/work.h"
#include "comm/group.h"

namespace ringdp::backend {

class Backend : public c10d::Backend, public Capabilities {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Splits = std::vector<int64_t>;
  using Collective = plan::Collective;

  // Collective over the group's ranks: returns once all are connected. `name` must be equal on all ranks.
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
          c10::intrusive_ptr<GroupOptions> options);
  // Called instead of the constructor on a rank that cannot join: ranks that wait for it are told at once.
  static void decline(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& why);
  ~Backend() override;

  const std::string getBackendName() const override { return "ringdp"; }
  // A copy: torch's splitGroup writes the child's name and timeout into it.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->copy(); }
  const c10::intrusive_ptr<GroupOptions>& options() const { return options_; }

  // reductions.cc
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_div(const at::Tensor& output, const at::Tensor& input, double divisor, bool asynchronous,
                     DigestsPtr digests) override;
  WorkPtr reduce_scatter_div(const at::Tensor& output, const at::Tensor& input, double divisor, bool asynchronous,
                             OnResult on_result, DigestsPtr digests) override;
  WorkPtr reduce_roots(const at::Tensor& output, const Tensors& inputs, plan::RootsPtr roots, double divisor,
                       bool scatters, bool asynchronous) override;
  // shard_step.cc; the former is collective at the first call for a device
  std::string why_no_step(c10::Device device) override;
  WorkPtr reduce_scatter_step(const at::Tensor& gradients, double divisor, ShardStep step, DigestsPtr digests) override;

  // movements.cc
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather_whole(const at::Tensor& whole, bool asynchronous) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                        const c10d::AllToAllOptions& opts) override;

  // Sources and destinations are ranks of this group.
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // Blocks. DistBackendError names the first rank that did not come in time, or all of them.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Tensors that collectives of this group need not copy, as long as all ranks pass such tensors.
  // DistBackendError says why there is no shared memory; it does not matter in which order ranks allocate.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::unique_ptr<SizedScope> share_tensors_of(std::vector<size_t> sizes) override;
  at::Tensor share_memory(int64_t elements, const at::TensorOptions& options) override;
  void reclaim_memory(c10::Device device) override;
  bool shares(const at::Tensor& tensor) const override;
  HeapAllocator& heap_allocator();  // lives as long as the process; DistBackendError where there is no shared memory
  // Whether every rank maps the heaps of all others; equal on all ranks.
  bool maps_all_heaps() const override { return group_->world() > 1 && group_->why_no_shared_heaps().empty(); }
  // These bytes of a rank's heap, or all from there on, as this process maps them; the mapping lives as long as the
  // tensor. What is there may change at any time: ranks must agree on who writes when. DistBackendError beyond the
  // heap.
  at::Tensor heap_view(int rank, int64_t offset, std::optional<int64_t> bytes);
  // Where a tensor lies in this rank's heap; nullopt elsewhere, and where not all ranks map it.
  std::optional<int64_t> place_in_heap(const at::Tensor& tensor) const;
  // That place, for heap_view() of others that may read it even when this rank has left the group and freed the tensor.
  // DistBackendError where there is none.
  int64_t heap_offset(const at::Tensor& tensor);
  // Other ranks may read this rank's heap when it has left the group, but nothing that it has freed.
  void keep_heap_pages();
  int64_t heap_room() const;  // bytes that are free in this rank's heap, together; 0 where there is none

  // Calls of this group between the two are joined in one Work. Not nested; one thread at a time.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Collective over this group: a group of some of its ranks, or null on a rank that is not among them.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  // Collective: connects the ranks' devices, if collectives can run on them. The ranks are connected by the
  // constructor.
  void eagerConnectSingleDevice(at::Device device) override;

  void setSequenceNumberForGroup() override {}  // sequence numbers start at 0 on every rank anyway
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  c10d::ErrorType getError() override;
  void abort() override;     // idempotent
  void shutdown() override;  // idempotent, bounded

  const comm::Group& group() const { return *group_; }
  std::string description() const;  // how bytes reach each peer, which plans run and why, and what runs on devices

 private:
  // One collective ready to go.
  struct Call {
    c10d::OpType type;
    const char* title;
    comm::OpDesc desc;
    collective::Buffers buffers;
    Tensors inputs;  // for the profiler
    Work::Result result;
    CallMemory memory;
    std::chrono::milliseconds timeout;
    bool asynchronous;
    DigestsPtr digests = {};
    at::Tensor same_place = {};  // the result, if it is known to lie there in shared memory on all ranks
  };
  // With the timeout and asyncOp of c10d's options; the caller describes the tensors.
  template <class Options>
  Call make_call(c10d::OpType type, const char* title, plan::Collective what, Tensors inputs, Work::Result result,
                 const Options& options) {
    Call call{type, title, {}, {}, std::move(inputs), std::move(result), memory(), options.timeout, options.asyncOp};
    call.desc.what = what;
    return call;
  }
  WorkPtr run(Call call);
  WorkPtr run_in_place(Call call, const at::Tensor& memory);  // input and output are both `memory`
  // Lets the call run on its device where that is possible. Called when its desc is complete, before its memory is
  // used; not called for collectives that may be possible on some ranks only.
  void place(Call& call, c10::Device device);
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
  CallMemory memory() { return CallMemory(*devices_); }
  // What a request needs before it is submitted: when it may begin, how it ends, and its Work.
  struct Ends {
    comm::Ready ready;
    comm::Ending ending;
    c10::intrusive_ptr<Work> work;
  };
  // `source`: of a receive, else none.
  Ends ends_of(c10d::OpType type, const char* title, const Tensors& inputs, Work::Result result,
               const CallMemory& memory, std::optional<int> source = std::nullopt);
  WorkPtr message(c10d::OpType type, const char* title, const Tensors& tensors, int peer, int tag);
  WorkPtr remember(WorkPtr work);  // for endCoalescing
  // The flat coalesced forms: calls `one` for each pair. A single pair gives the plain Work, as functional collectives
  // expect.
  template <class One>
  WorkPtr each_pair(Tensors& outputs, Tensors& inputs, const char* call, One one);
  void check_rank(int64_t rank, const char* what, const char* call) const;
  bool set_root(comm::OpDesc& desc, int64_t root, const char* call) const;  // whether this rank is the root
  const Tensors& one_per_rank(const Lists& lists, const char* call, const char* which) const;

  WorkPtr reduce_all(const at::Tensor& output, const at::Tensor& input, const c10d::AllreduceOptions& opts,
                     double divisor = 0, DigestsPtr digests = {});
  WorkPtr reduce_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  WorkPtr scatter_from(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op, Call call);
  WorkPtr gather_into(const Tensors& outputs, const at::Tensor& input, Call call);
  WorkPtr scatter_flat(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceScatterOptions& opts,
                       const char* name, double divisor = 0, OnResult on_result = {}, DigestsPtr digests = {});
  WorkPtr exchange(Tensors outputs, Tensors inputs, Call call);

  c10::intrusive_ptr<GroupOptions> options_;
  std::shared_ptr<comm::Group> group_;
  std::unique_ptr<DeviceCollectives> devices_;

  std::once_flag allocator_made_;
  HeapAllocator* allocator_ = nullptr;  // lives as long as the process

  std::mutex batch_mutex_;  // guards the next two
  bool coalescing_ = false;
  std::vector<WorkPtr> batch_;
};

template <class One>
Backend::WorkPtr Backend::each_pair(Tensors& outputs, Tensors& inputs, const char* call, One one) {
  check_pairs(outputs, inputs, call);
  if (outputs.size() == 1) return one(outputs[0], inputs[0]);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) works.push_back(one(outputs[i], inputs[i]));
  return c10::make_intrusive<BatchWork>(getRank(), std::move(works));
}

}  // namespace ringdp::backend
