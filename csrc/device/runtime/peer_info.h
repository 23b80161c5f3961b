// Plain values of one size that ranks tell each other through a collective of the host: as bytes, and back.
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

// Blank where these bytes are none of a Value.
template <class Value>
Value from_bytes(const std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// A text that may be cut off.
template <size_t kSize>
void put(char (&to)[kSize], const std::string& text) {
  std::strncpy(to, text.c_str(), kSize - 1);
}
template <size_t kSize>
void end_text(char (&text)[kSize]) {
  text[kSize - 1] = '\0';
}

// Everybody's, whose field `build` says that it means the same there; else Error(kMismatch) names the rank and `what`
// is wrong with it.
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

// What a rank tells the others of its host of its device: who it is, and how to map its memory there.
//
// Plain bytes of one size, which travel through a collective of the host.
struct PeerInfo {
  uint32_t build = 0;  // of this struct and of what it leads to; equal where ranks can work together
  int32_t usable = 0;  // 0: why_not says why this rank shares nothing
  int32_t multiprocessors = 0, waits_on_streams = 0;
  uint64_t pid = 0;
  unsigned char uuid[16] = {};
  rd_gpu_handle memory = {};  // the arena, or one segment
  int64_t bytes = 0;          // of the segment, as asked for
  int64_t page = 0;           // of the shared page in this rank's heap, in bytes
  char socket[48] = {};       // where descriptors are handed out, when memory.needs_fd
  char why_not[200] = {};
};

// Without memory yet. Error(kInternal) when the device cannot be described.
PeerInfo peer_info_of(const Functions& functions, int device);
// Of a rank that cannot share.
PeerInfo peer_info_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<PeerInfo> peer_infos_from(const std::vector<std::string>& bytes);

// "rank 2: why it shares nothing" of the first such rank; "" when all share.
std::string why_not(const std::vector<PeerInfo>& infos);

// What ranks say to one another after each has tried to map the others' memory: whom it reaches, and why not all.
struct MappingReport {
  uint32_t reached = 0;  // bit by rank
  char failure[252] = {};
};

// `memory`: by rank, null where none is mapped. `failure`: the first, or "".
MappingReport report_on(const std::vector<char*>& memory, const std::string& failure);

struct MappingReports {
  std::vector<uint32_t> reached;
  std::string first_failure;  // names the rank
};
MappingReports reports_from(const std::vector<std::string>& bytes);

// On which sockets descriptors are handed out; "" of ranks whose memory needs none.
std::vector<std::string> sockets_of(const std::vector<PeerInfo>& infos);

}  // namespace ringdp::gpu
