// A link over two streams in shared memory. The peer's driver is woken through its doorbell, and only when asleep.
//
// Used by one thread. The memory behind the streams and the doorbell is kept alive by `keep`.
#pragma once
#include <memory>

#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/shm/control_block.h"
#include "transport/shm/spsc_stream.h"

namespace ringdp::transport {

class ShmLink final : public Link {
 public:
  // `peer` is the control block of the member at the other end, `bell` its doorbell; `keep` owns them and the streams.
  ShmLink(StreamWriter out, StreamReader in, const ControlBlock& peer, const Doorbell& bell,
          std::shared_ptr<const void> keep);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  const char* kind() const override { return "shm"; }

 private:
  StreamWriter out_;
  StreamReader in_;
  const ControlBlock& peer_;
  const Doorbell& bell_;
  std::shared_ptr<const void> keep_;
};

}  // namespace ringdp::transport
