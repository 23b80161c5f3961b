// A user's communication hook in place of the mean: it gets the bucket as torch's own GradBucket, undivided, and
// returns a Future of the tensor that replaces the bucket's contents; of a sharded bucket, of this rank's part of them,
// padding included.
//
// A hook's callbacks may start collectives of their own (PowerSGD's do), on whatever thread completes its Future. So
// that collectives come in the same order on all ranks, the hook is called for a bucket only after its Future for the
// previous bucket is done; RuntimeError when that does not happen, as where the Future waits for a later bucket.
#pragma once
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <chrono>
#include <memory>

#include "reducer/bucket.h"
#include "reducer/reduction.h"

namespace ringdp::reducer {

// Must outlive its reductions. One thread at a time.
class CommHook {
 public:
  // `patience`: how long a Future is waited for; then a RuntimeError says that hooks must not wait for later buckets.
  CommHook(std::unique_ptr<c10d::CommHookInterface> hook, std::chrono::milliseconds patience)
      : hook_(std::move(hook)), patience_(patience) {}

  // For bucket `number` of `count`; `flat` as as_grad_bucket() takes it. Blocks until the latest Future is done. The
  // reduction throws a RuntimeError if the result has not `expected` elements.
  std::unique_ptr<Reduction> start(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count,
                                   int64_t expected);

  void wait();  // for the latest Future

 private:
  const std::unique_ptr<c10d::CommHookInterface> hook_;
  const std::chrono::milliseconds patience_;
  c10::intrusive_ptr<c10::ivalue::Future> latest_;
};

}  // namespace ringdp::reducer
