// Fixed-size values that ranks exchange as bytes, through a collective on the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "device/runtime/library.h"

namespace ringdp::gpu {

template <class Value>
std::string to_bytes(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Default-initialised when the size does not match.
template <class Value>
Value from_bytes(const std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Copies a text, truncated to fit.
template <size_t kSize>
void put(char (&to)[kSize], const std::string& text) {
  std::strncpy(to, text.c_str(), kSize - 1);
}
template <size_t kSize>
void end_text(char (&text)[kSize]) {
  text[kSize - 1] = '\0';
}

// The values of all ranks. Error(kMismatch) names the first rank whose field `build` differs; `what` says what that
// means.
template <class PeerInfo>
std::vector<PeerInfo> checked_infos(const std::vector<std::string>& bytes, uint32_t build, const std::string& what) {
  std::vector<PeerInfo> infos;
  for (const std::string& one : bytes) {
    PeerInfo info = from_bytes<PeerInfo>(one);
    if (info.build != build) {
      const int rank = static_cast<int>(infos.size());
      throw Error(
          ErrorKind::kMismatch,
          "rank " + std::to_string(rank) + " runs another build of ringdp: " + what + "; install the same on all ranks",
          rank);
    }
    end_text(info.why_not);
    infos.push_back(info);
  }
  return infos;
}

// What a rank tells the others of its host about its device: its identity, and how to map its memory.
struct PeerInfo {
  uint32_t build = 0;  // of this struct and all shared layouts; must be equal on all ranks
  int32_t usable = 0;  // 0: this rank shares nothing, see why_not
  int32_t multiprocessors = 0, waits_on_streams = 0, mig = 0, mps = 0;  // as in rd_gpu_device
  uint64_t process = 0;  // random, drawn once per process: pids may be equal in two PID namespaces
  uint64_t token = 0;    // random: with it the rank signs its memory (signature.h)
  unsigned char uuid[16] = {};
  rd_gpu_handle memory = {};  // the arena, or one symmetric buffer
  int64_t bytes = 0;          // requested for the symmetric buffer
  int64_t page = 0;           // offset of the shared page in this rank's heap
  char socket[48] = {};       // that passes descriptors, when memory.needs_fd
  char why_not[200] = {};
};

// Without memory yet. Error(kInternal) when the device cannot be queried.
PeerInfo peer_info_of(const Functions& functions, int device);
// The info of a rank that cannot share.
PeerInfo peer_info_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<PeerInfo> peer_infos_from(const std::vector<std::string>& bytes);

// "rank 2: why it shares nothing" of the first such rank; "" when all share.
std::string why_not(const std::vector<PeerInfo>& infos);

// What a rank reports after it has tried to map its peers' memory: which it has mapped, and the first failure.
struct MappingReport {
  uint32_t reached = 0;  // one bit per rank
  int32_t late = 0;      // 1: a copy does not end
  char failure[252] = {};
};

// `memory`: by rank, null where it is not mapped. `failure`: the first, or "".
MappingReport report_on(const std::vector<char*>& memory, const std::string& failure, bool late = false);

struct MappingReports {
  std::vector<uint32_t> reached;
  std::string first_failure;  // names the rank; of a copy that does not end, if there is one
  bool late = false;          // of any rank
};
MappingReports reports_from(const std::vector<std::string>& bytes);

// By rank: the socket that passes its descriptor, or "" when its memory needs none.
std::vector<std::string> sockets_of(const std::vector<PeerInfo>& infos);

}  // namespace ringdp::gpu
