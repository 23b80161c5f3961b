// The checksums that ride on the note of a collective, for those who start it with backend/capabilities.h.
#pragma once
#include "comm/op.h"

namespace ringdp::backend {

using comm::Digests;

}  // namespace ringdp::backend
