// What a hierarchy adds to messages over NCCL: barriers of the ranks of a host, which share device memory, and a word
// in the messages that says whether their sender has aborted.
//
// When a kernel aborts a wait for the host's ranks, the stream continues and sends what was reduced without them. So in
// each round every peer's messages carry an abort word: a rank that receives one aborts before the next barrier of its
// host, and an aborted rank skips that barrier and makes all ranks of its host abort before its window can change. So
// no rank gets a result that lacks some rank's input, not even of integers, which have no NaN.
#pragma once
#include <memory>
#include <optional>

#include "device/runtime/peer_memory.h"

namespace ringdp::gpu {

class HostShare {
 public:
  static constexpr int64_t kWordBytes = 16;                                      // one pack
  static int64_t bytes_of_words(int world) { return (1 + world) * kWordBytes; }  // this rank's word, and one per peer

  // `first`: first rank of the host. `words`: bytes_of_words(world) of this rank's device memory, zero at first.
  HostShare(const Functions& functions, std::unique_ptr<PeerMemory> host, int first, int world, char* words);

  PeerMemory& host() const { return *host_; }
  char* window(int member) const { return host_->window(member); }

  // In the order of the stream. The last barrier of a piece has a longer deadline: a rank that is late for it waits for
  // another host, and the group reports that one.
  Launched barrier(bool last, uint64_t deadline_ns, void* stream) const;
  // Aborts this rank if a word that has come says that a peer has aborted; then own_word() says so, too. One launch.
  void pass_abort_on(void* stream) const;
  char* own_word() const { return words_; }
  char* word(int peer) const { return words_ + (1 + peer) * kWordBytes; }

  // With ranks of the group; the launch is the last barrier of the piece.
  std::optional<Expired> expired() const;

 private:
  const Functions& functions_;
  const std::unique_ptr<PeerMemory> host_;
  const int first_, world_;
  char* const words_;
};

}  // namespace ringdp::gpu
