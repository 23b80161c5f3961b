// The mean of a flat tensor over a group's ranks, on any backend: summed in rank order (16-bit floats in float32),
// divided once, rounded once.
//
//   fused      the backend sums and divides in one operation (backend/capabilities.h)
//   exchanged  any other backend moves raw shards to their owners, which reduce them with ringdp's own kernel
//   summed     order "rotated": the backend's all_reduce, which sums in its own order, then one division
//
// Each rank sends 2 (N-1)/N of the tensor, and half of that if each rank needs only its part (scatter). The start
// methods are collective: call them in the same order on all ranks.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

#include "backend/capabilities.h"
#include "reducer/reduction.h"

namespace ringdp::reducer {

class Mean {
 public:
  virtual ~Mean() = default;

  // In place of `flat`, a contiguous 1-D tensor of floats or complex numbers; `divisor` is equal on all ranks, not 0.
  // `digests` as in backend/capabilities.h; null unless carries_digests().
  using DigestsPtr = backend::Capabilities::DigestsPtr;
  virtual std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor, DigestsPtr digests) = 0;
  virtual bool carries_digests() const { return false; }

  // The result is this rank's part only. `flat` has N equal parts, of which rank r gets the r-th. It is read until the
  // reduction has finished, and not written.
  virtual std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr digests) = 0;

  // The same; when the reduction has finished, `sink` has taken the whole part. A fused mean gives it piece by piece.
  virtual std::unique_ptr<Reduction> start_scatter_into(const at::Tensor& flat, double divisor,
                                                        std::shared_ptr<ShardSink> sink, DigestsPtr digests);

  // A tensor whose number of elements is a multiple of this is not copied.
  virtual int64_t granularity() const { return 1; }

  virtual const char* name() const = 0;
};

// `rank_order`: false selects "summed" for backends without a fused mean; a fused mean follows its group's settings.
std::unique_ptr<Mean> make_mean(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const at::Device& device,
                                bool rank_order);

// The mean of sparse gradients: the backend's all_reduce of a COO tensor, then one division of the values. ringdp's
// backend sums them in rank order. 16-bit values are rounded after the sum and again after the division.
std::unique_ptr<Reduction> start_sparse_mean(c10d::ProcessGroup& group, const at::Tensor& gradient, double divisor);

}  // namespace ringdp::reducer
