// Whether a peer's memory that a rank has mapped is that memory.
//
// Behind some IOMMUs, and between some boards, mapping succeeds and accesses go astray, or do not end. So every rank
// signs its own memory, reads its peers' signatures where it has mapped their memory, signs there, too, and reads that
// back. A signature is one pack; those of all ranks lie side by side.
#pragma once
#include <cstdint>

#include "device/runtime/library.h"

namespace ringdp::gpu {

struct Signature {
  uint64_t token = 0;             // PeerInfo::token of the writer
  int32_t owner = 0, writer = 0;  // ranks, from 1: nobody has signed zeros
};

// Error(kInternal) when the device does not copy; Error(kTimeout) when a copy does not end: then nothing that it uses
// may be given back. `pinned`: memory of host_alloc() for one signature.
void sign(const Functions& functions, int device, char* memory, const Signature& signature, Signature* pinned);

// The same errors, and Error(kInternal) when the owner's signature is not there, or the own one cannot be read back.
// `memory`: the owner's, mapped on `device`, which `own` signs.
void check_signatures(const Functions& functions, int device, char* memory, const Signature& owners,
                      const Signature& own, Signature* pinned);

}  // namespace ringdp::gpu
