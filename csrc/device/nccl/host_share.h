// What a hierarchy adds to the messages of ranks over NCCL: barriers of the ranks of a host, which share memory of
// their devices, and a word with each message that says whether its sender has aborted.
//
// A kernel that aborts while it waits for the host's ranks ends, and the stream continues with messages of what was
// reduced without them. So the messages of each peer carry a word in each round: a rank that sees a peer's abort word
// aborts before the next barrier of its host, and an aborted rank skips the barrier and makes all ranks of its host
// abort before its window can change. So no rank of any host has a result that was not reduced of the input of all
// ranks, also of integers, which have no NaN.
#pragma once
#include <memory>
#include <optional>

#include "device/runtime/peer_memory.h"

namespace ringdp::gpu {

class HostShare {
 public:
  static constexpr int64_t kWordBytes = 16;                                      // a pack
  static int64_t bytes_of_words(int world) { return (1 + world) * kWordBytes; }  // this rank's, and one of each peer

  // `first`: rank of the first of the host. `words`: bytes_of_words() of this rank's device, zero at first.
  HostShare(const Functions& functions, std::unique_ptr<PeerMemory> host, int first, char* words);

  PeerMemory& host() const { return *host_; }
  char* window(int member) const { return host_->window(member); }

  // In the order of the stream. The last barrier of a piece is patient: a rank that is late for it waits for another
  // host, whose name the group knows.
  std::shared_ptr<const Work> barrier(bool last, uint64_t deadline_ns, void* stream) const;
  void speak(void* stream) const;             // own_word() tells whether this rank has aborted by then
  void listen(int peer, void* stream) const;  // its heard_word() has come: this rank aborts if that tells so
  char* own_word() const { return words_; }
  char* heard_word(int peer) const { return words_ + (1 + peer) * kWordBytes; }

  // Ranks of the group; the launch is that of the piece's last barrier.
  std::optional<Expired> expired() const;

 private:
  const Functions& functions_;
  const std::unique_ptr<PeerMemory> host_;
  const int first_;
  char* const words_;
};

}  // namespace ringdp::gpu
