// What ranks over NCCL that share memory of their devices with the others of their host add to messages: meetings of
// the host's ranks, and a word with each message that says whether its sender has given up.
//
// A kernel that has given up waiting for the host's ranks ends, and the stream goes on to messages of what was folded
// without them. So each message brings a word of its sender's: who hears that it had given up gives up too, on its device
// and before it meets its host's ranks again; and who has given up comes to no meeting. So nobody, on no host, has a
// result that was folded of anything but everybody's input, be it of integers, which have no NaN.
#pragma once
#include <memory>
#include <optional>

#include "gpu/neighbourhood.h"

namespace ringdp::gpu {

class HostShare {
 public:
  static constexpr int64_t kWordBytes = 16;  // a pack
  static constexpr int kWords = 3;           // this rank's, and of at most two messages that it receives in a round

  // `first`: rank of the first of the host. `words`: memory of this rank's device for kWords of them, zero at first.
  HostShare(const Functions& functions, std::unique_ptr<Neighbourhood> host, int first, char* words);

  Neighbourhood& host() const { return *host_; }
  char* window(int member) const { return host_->window(member); }

  // In the order of the stream. The last meeting of a piece is patient: who is late for it waits for another host, whose
  // name the group knows.
  std::shared_ptr<const Work> meet(bool last, uint64_t deadline_ns, void* stream) const;
  void speak(void* stream) const;            // own_word() tells whether this rank has given up by then
  void listen(int words, void* stream) const;  // so many heard_word()s have come: this rank gives up if one tells so
  char* own_word() const { return words_; }
  char* heard_word(int index) const { return words_ + (1 + index) * kWordBytes; }

  // Ranks of the group; the launch is that of the piece's last meeting.
  std::optional<Expired> expired() const;

 private:
  const Functions& functions_;
  const std::unique_ptr<Neighbourhood> host_;
  const int first_;
  char* const words_;
};

}  // namespace ringdp::gpu
