// What ranks tell each other of their devices.
#include "device/nccl/communicator.h"
#include "device/runtime/peer_info.h"
#include "device/runtime/placement.h"
#include "target.h"

namespace ringdp::fuzz {

// What ranks tell each other of their devices (csrc/device/runtime/peer_info.h, csrc/device/nccl/communicator.h), and
// what is made of it.
namespace {

bool ends(const char* text, size_t size) { return std::memchr(text, 0, size) != nullptr; }

// Three ranks' bytes: as they are, or of this build.
template <class PeerInfo>
std::vector<std::string> three(Input& input, const PeerInfo& own) {
  std::vector<std::string> bytes;
  for (int rank = 0; rank < 3; ++rank) {
    const bool of_this_build = input.up_to(7) > 0;
    bytes.push_back(input.bytes(sizeof(PeerInfo)));
    if (!of_this_build) continue;
    bytes.back().resize(sizeof(PeerInfo));
    std::memcpy(bytes.back().data(), &own.build, sizeof own.build);
  }
  return bytes;
}

}  // namespace

FUZZ_TARGET(told) {
  Input again = input;
  const auto infos = three(input, gpu::peer_info_without(""));
  refuses({ErrorKind::kMismatch}, [&] {
    const std::vector<gpu::PeerInfo> read = gpu::peer_infos_from(infos);
    for (const gpu::PeerInfo& info : read) {
      require(ends(info.why_not, sizeof info.why_not) && ends(info.socket, sizeof info.socket), "texts end");
    }
    gpu::why_not(read);
    const gpu::Placement placement = gpu::place(read);
    // On streams 0 means as many as fit on the device.
    require(placement.blocks >= (placement.executor == RD_GPU_STREAM ? 0 : 1), "a kernel has a block");
  });
  const auto others = three(again, gpu::nccl_peer_info_without(""));
  refuses({ErrorKind::kMismatch}, [&] {
    const std::vector<gpu::NcclPeerInfo> read = gpu::nccl_peer_infos_from(others);
    for (const gpu::NcclPeerInfo& info : read) require(ends(info.why_not, sizeof info.why_not), "texts end");
    gpu::why_not(read);
  });
}

}  // namespace ringdp::fuzz
