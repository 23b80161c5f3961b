// The threads that serve all groups of this process: driver, watch and completion. Made at first use, never destroyed:
// joining threads in a static destructor, or in a forked child that does not have them, would hang.
#pragma once
#include "backend/completion.h"
#include "comm/group.h"

namespace ringdp::backend {

comm::Runtime& runtime();
Completion& completion();

}  // namespace ringdp::backend
