// Who uses a part of a bucket's mean as it comes, so that it need not be read from memory again (ZeRO's step).
#pragma once
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

  // Not null: a device reduces and steps in one call, and nothing is taken. Only for a group whose backend can.
  virtual const backend::ShardStep* on_device() const { return nullptr; }
};

}  // namespace ringdp::reducer
