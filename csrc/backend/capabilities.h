// What ringdp's backend can do beyond c10d: found by a probe (dynamic_cast, hasattr), so other backends simply lack it.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/allocation_scope.h"
#include "backend/shard_step.h"

namespace ringdp::comm {
struct Digests;
}

namespace ringdp::backend {

class Capabilities {
 public:
  virtual ~Capabilities() = default;

  // The sum over ranks divided once by `divisor` (equal on all ranks, not 0), as one operation: rank order, folded and
  // divided in float32 for 16-bit floats, rounded once. A SUM rounded to 16 bits and divided afterwards differs in
  // 3 to 5 % of the elements. Floating-point and complex tensors; in place.
  // `digests` (comm/op.h), unless null, travel with it: a checksum of each rank's, known to all when it is done.
  // A tensor that lies in memory of share_memory() is reduced there; all ranks then bring the same place of the same.
  using DigestsPtr = std::shared_ptr<comm::Digests>;
  virtual c10::intrusive_ptr<c10d::Work> reduce_div(const at::Tensor& tensor, double divisor, bool asynchronous,
                                                    DigestsPtr digests) = 0;

  // The same, of which this rank gets its part: `input` has N times the elements of `output`.
  // `on_result`, unless empty, is told of elements of `output` as soon as they are there, by the thread that drives; which
  // ones is up to the algorithm, those it is not told of are there when the work is done.
  using OnResult = std::function<void(int64_t begin, int64_t count)>;
  virtual c10::intrusive_ptr<c10d::Work> reduce_scatter_div(const at::Tensor& output, const at::Tensor& input,
                                                            double divisor, bool asynchronous, OnResult on_result,
                                                            DigestsPtr digests) = 0;

  // Every rank gets each other's part of `whole`, a contiguous tensor of a multiple of the ranks' number of elements, in which
  // its own is there already. Without copies as reduce_div().
  virtual c10::intrusive_ptr<c10d::Work> gather_whole(const at::Tensor& whole, bool asynchronous) = 0;

  // Collective; all ranks ask alike. A flat tensor of zeros in memory of their devices that all of them map, for what
  // outlives many collectives; undefined, on all ranks, where there is none to share. Never of the CPU.
  virtual at::Tensor share_memory(int64_t elements, const at::TensorOptions& options) = 0;
  // Collective: such memory ends whose tensors are gone on all ranks. Waits for the device.
  virtual void reclaim_memory(c10::Device device) = 0;
  virtual bool shares(const at::Tensor& tensor) const = 0;  // whether it lies in such memory

  // A reduce_scatter_div, and Adam on this rank's part of the parameters, which ranks then have where `step` says: one call of the
  // device. `gradients` are read. why_no_step(): "" where tensors of this device can have it, alike on all ranks.
  virtual std::string why_no_step(c10::Device device) = 0;
  virtual c10::intrusive_ptr<c10d::Work> reduce_scatter_step(const at::Tensor& gradients, double divisor,
                                                             ShardStep step, DigestsPtr digests) = 0;

  // Until it ends, tensors of these sizes that this thread makes need not be copied by collectives (backward passes: the
  // gradients). Null where the group has no shared memory.
  virtual std::unique_ptr<SizedScope> share_tensors_of(std::vector<size_t> sizes) = 0;
};

}  // namespace ringdp::backend
