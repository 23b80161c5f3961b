#include "device/runtime/bootstrap.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "device/runtime/peer_info.h"

namespace ringdp::gpu {
namespace {

constexpr uint32_t kLastWord = ~0u;  // marks the bytes of agree()

struct Message {
  uint32_t bytes = 0;
  char text[HostAllGather::kMostBytes] = {};
};

}  // namespace

HostAllGather::HostAllGather(AllGather all_gather, const std::vector<int>& hosts, int rank, int world)
    : all_gather_(std::move(all_gather)) {
  const auto next = std::upper_bound(hosts.begin(), hosts.end(), rank);
  first_ = next == hosts.begin() ? 0 : *(next - 1);
  members_ = (next == hosts.end() ? world : *next) - first_;
}

std::vector<std::string> HostAllGather::gather(const std::string& own) {
  if (own.size() > kMostBytes) {
    throw Error(ErrorKind::kInternal,
                std::to_string(own.size()) + " bytes are more than the ranks of a host can exchange at once");
  }
  Message mine;
  mine.bytes = static_cast<uint32_t>(own.size());
  std::copy(own.begin(), own.end(), mine.text);
  const std::vector<std::string> all = all_gather_(to_bytes(mine));
  std::vector<std::string> found;
  for (int m = 0; m < members_; ++m) {
    const auto told_by = from_bytes<Message>(all.at(static_cast<size_t>(first_ + m)));
    found.emplace_back(told_by.text, std::min<size_t>(told_by.bytes, kMostBytes));
  }
  return found;
}

std::string HostAllGather::agree(const std::string& why_not) {
  Message mine;
  mine.bytes = kLastWord;
  put(mine.text, why_not);
  for (;;) {
    bool all_are_done = true;
    std::string first;
    const std::vector<std::string> all = all_gather_(to_bytes(mine));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      auto theirs = from_bytes<Message>(all[rank]);
      end_text(theirs.text);
      all_are_done &= theirs.bytes == kLastWord;
      if (first.empty() && theirs.text[0] != '\0') first = "rank " + std::to_string(rank) + ": " + theirs.text;
    }
    if (all_are_done) return first;
  }
}

}  // namespace ringdp::gpu
