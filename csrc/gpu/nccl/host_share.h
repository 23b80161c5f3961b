// What ranks over NCCL that share memory of their devices with the others of their host add to messages: meetings of
// the host's ranks, and a word with each message that says whether its sender has given up.
//
// A kernel that has given up waiting for the host's ranks ends, and the stream goes on to messages of what was folded
// without them. So each peer's messages bring a word in each round: who hears that it had given up gives up too, on its
// device and before it meets its host's ranks again; and who has given up comes to no meeting, but makes all of its host
// give up before its window can change. So nobody, on no host, has a result that was folded of anything but everybody's
// input, be it of integers, which have no NaN.
#pragma once
#include <memory>
#include <optional>

#include "gpu/neighbourhood.h"

namespace ringdp::gpu {

class HostShare {
 public:
  static constexpr int64_t kWordBytes = 16;  // a pack
  static int64_t bytes_of_words(int world) { return (1 + world) * kWordBytes; }  // this rank's, and one of each peer

  // `first`: rank of the first of the host. `words`: bytes_of_words() of this rank's device, zero at first.
  HostShare(const Functions& functions, std::unique_ptr<Neighbourhood> host, int first, char* words);

  Neighbourhood& host() const { return *host_; }
  char* window(int member) const { return host_->window(member); }

  // In the order of the stream. The last meeting of a piece is patient: who is late for it waits for another host, whose
  // name the group knows.
  std::shared_ptr<const Work> meet(bool last, uint64_t deadline_ns, void* stream) const;
  void speak(void* stream) const;            // own_word() tells whether this rank has given up by then
  void listen(int peer, void* stream) const;  // its heard_word() has come: this rank gives up if that tells so
  char* own_word() const { return words_; }
  char* heard_word(int peer) const { return words_ + (1 + peer) * kWordBytes; }

  // Ranks of the group; the launch is that of the piece's last meeting.
  std::optional<Expired> expired() const;

 private:
  const Functions& functions_;
  const std::unique_ptr<Neighbourhood> host_;
  const int first_;
  char* const words_;
};

}  // namespace ringdp::gpu
