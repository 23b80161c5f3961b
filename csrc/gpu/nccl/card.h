// What a rank tells the others of its device and its NCCL, where they share no memory.
//
// Plain bytes of one size, which travel through a collective of the host.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/library.h"
#include "gpu/told.h"

namespace ringdp::gpu {

struct NcclCard {
  uint32_t build = 0;  // of this struct; equal where ranks can work together
  int32_t version = 0;  // of NCCL, e.g. 22907; 0: why_not says why this rank takes no part
  unsigned char uuid[16] = {};
  rd_gpu_nccl_id id = {};  // of the group to be; rank 0's counts
  char why_not[200] = {};
};

NcclCard nccl_card_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<NcclCard> nccl_cards_from(const std::vector<std::string>& bytes);

// Why these ranks cannot form a group of NCCL, or "": it takes a device for each, and one version.
std::string why_not(const std::vector<NcclCard>& cards);

}  // namespace ringdp::gpu
