// One collective in flight: what was asked, on which memory, and how it ended.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/executor.h"
#include "comm/fingerprint.h"
#include "comm/pending.h"

namespace ringdp::comm {

// Checksums that go with a collective. Complete once it is done.
struct Digests {
  uint64_t own = 0;           // rides on the collective's note; 0: none
  std::vector<uint64_t> all;  // those of all ranks, by rank
  collective::Contributions summed;  // of a reduction: what was summed on this rank
};

// What the caller asks of a group. Buffers must stay valid until the op is done.
struct Request {
  OpDesc desc;  // seq, group and generation are filled in by the group
  collective::Buffers buffers;
  Deadline deadline = Deadline::never();
  bool asynchronous = true;  // false: the caller waits at once and drives it itself
  Ready ready;               // later collectives of the group wait, too
  Ending ending;
  std::shared_ptr<Digests> digests;  // may be null
};

class Op final : public Pending {
 public:
  explicit Op(Request request)
      : Pending(request.deadline, std::move(request.ready), std::move(request.ending)), request_(std::move(request)) {}

  const OpDesc& desc() const { return request_.desc; }
  std::string describe() const override { return comm::describe(desc()) + " #" + std::to_string(desc().seq); }

 private:
  friend class Group;  // the only writer
  Request request_;
};

}  // namespace ringdp::comm
