// What ringdp's backend can do beyond c10d. Callers probe for it (dynamic_cast, hasattr), as other backends lack it.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/allocation.h"
#include "backend/shard_step.h"
#include "comm/pending.h"
#include "plan/leaf_tree.h"

namespace ringdp::backend {

class Capabilities {
 public:
  virtual ~Capabilities() = default;

  // The sum over ranks divided once by `divisor` (equal on all ranks, not 0), as one operation: in the group's order,
  // reduced and divided in float32 for 16-bit floats, rounded once. A SUM rounded to 16 bits and divided afterwards
  // differs in 3 to 5 % of the elements. Floating-point and complex tensors; `output` is `input`, or shares no memory
  // with it. `digests` (comm/pending.h), unless null, carry a checksum from each rank to all ranks; valid when the work
  // is done. A tensor in memory of share_memory() is reduced there; all ranks must then pass the same part of the same
  // memory.
  using Digests = comm::Digests;
  using DigestsPtr = std::shared_ptr<Digests>;
  virtual c10::intrusive_ptr<c10d::Work> reduce_div(const at::Tensor& output, const at::Tensor& input, double divisor,
                                                    bool asynchronous, DigestsPtr digests) = 0;

  // The same, but this rank gets only its part: `input` has N times the elements of `output`.
  // `on_result`, unless empty, is called by the driver with ranges of `output` as soon as they are final. Which ranges
  // it reports is up to the algorithm; the others are final when the work is done.
  using OnResult = std::function<void(int64_t begin, int64_t count)>;
  virtual c10::intrusive_ptr<c10d::Work> reduce_scatter_div(const at::Tensor& output, const at::Tensor& input,
                                                            double divisor, bool asynchronous, OnResult on_result,
                                                            DigestsPtr digests) = 0;

  // The same where ranks contribute the sums of some leaves each (plan/leaf_tree.h), or none: `roots` says of which, on
  // all ranks alike, `inputs` are this rank's, in their order. `output` is as large as one of them, or this rank's part
  // of it. A group with order=tree; on the CPU.
  virtual c10::intrusive_ptr<c10d::Work> reduce_roots(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                                      plan::RootsPtr roots, double divisor, bool scatters,
                                                      bool asynchronous) = 0;

  // An all_gather in place: `whole` is a contiguous tensor whose number of elements is a multiple of the number of
  // ranks, and holds this rank's part already. Avoids copies as reduce_div() does.
  virtual c10::intrusive_ptr<c10d::Work> gather_whole(const at::Tensor& whole, bool asynchronous) = 0;

  // Collective; all ranks pass equal arguments. A flat tensor of zeros in device memory that all ranks map, for tensors
  // that outlive many collectives; undefined, on all ranks, where devices share no memory. Never on the CPU.
  virtual at::Tensor share_memory(int64_t elements, const at::TensorOptions& options) = 0;
  // Frees such memory if its tensors are gone on all ranks. Collective. Waits for the device.
  virtual void reclaim_memory(c10::Device device) = 0;
  virtual bool shares(const at::Tensor& tensor) const = 0;  // whether it is in such memory

  // Whether all ranks are on one host and read each other's shared memory; equal on all ranks.
  virtual bool maps_all_heaps() const = 0;

  // Fused reduce_scatter_div and Adam on this rank's part of the parameters, in one call of the device; `step` says
  // which ranks get the updated parameters. `gradients` are only read. why_no_step(): why this device cannot do it, or
  // ""; equal on all ranks.
  virtual std::string why_no_step(c10::Device device) = 0;
  virtual c10::intrusive_ptr<c10d::Work> reduce_scatter_step(const at::Tensor& gradients, double divisor,
                                                             ShardStep step, DigestsPtr digests) = 0;

  // While the scope lives, tensors of these sizes in bytes that this thread allocates (in a backward pass: gradients)
  // are in memory that collectives need not copy. Null if the group has no shared memory.
  virtual std::unique_ptr<SizedScope> share_tensors_of(std::vector<size_t> sizes) = 0;
};

}  // namespace ringdp::backend
