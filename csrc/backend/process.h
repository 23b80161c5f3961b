// The threads that serve all groups of this process: driver, watch and completion. Made at first use, in a forked child
// anew, never destroyed: joining threads in a static destructor, or in a child that does not have them, would hang.
#pragma once
#include <memory>
#include <vector>

#include "backend/completion.h"
#include "comm/group.h"

namespace ringdp::backend {

comm::Runtime& runtime();
Completion& completion();  // for what this thread starts

// For leave_all(); does not keep the group alive. Any thread.
void remember(const std::shared_ptr<comm::Group>& group);
std::vector<std::shared_ptr<comm::Group>> remembered();  // those that are still there
// Every group that is still there says goodbye to its peers, with last_words().
void leave_groups();
// The same when the process ends, and callbacks that are due run. From
// then on no other thread comes back to Python from ringdp: it would be ended in the middle of C++, which aborts.
void leave_all();
// Does not return in a thread that must not come back any more.
void stay_if_the_process_ends();

}  // namespace ringdp::backend
