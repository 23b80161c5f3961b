// Who uses a part of a bucket's mean as it comes, so that it need not be read from memory again (ZeRO's step).
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>

namespace ringdp::backend {
struct ShardStep;
}

namespace ringdp::reducer {

// Elements are counted from the beginning of this rank's part. Every element is taken once; a part of them when the
// reduction fails on the way. Calls come one after the other, from any thread.
class ShardSink {
 public:
  virtual ~ShardSink() = default;

  // `means`: of elements begin..begin+count, in the bucket's type; gone after the call. Must not throw.
  virtual void take(int64_t begin, int64_t count, const void* means) = 0;

  // Not null: a device reduces and steps in one call, and nothing is taken. Only for a group whose backend can. That
  // call, once it has begun, is waited for as any Work: the caller's stream comes behind it, and what is known to have
  // failed is thrown, at every call.
  virtual const backend::ShardStep* on_device() const { return nullptr; }
  virtual void begun(c10::intrusive_ptr<c10d::Work>) {}
  virtual void wait() {}
};

}  // namespace ringdp::reducer
