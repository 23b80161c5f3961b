// Tensors in heaps after a failure stay shared where every peer has stopped. A peer that is stopped in the middle of its
// pass needs a process of its own: tests/faults/test_fence.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

constexpr int64_t kElements = 1'000'003;

// Whether the page at `at` belongs to a segment.
bool is_shared(const void* at) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  bool shared = false;
  while (std::fgets(line, sizeof line, maps)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    const auto place = reinterpret_cast<uintptr_t>(at);
    if (begin <= place && place < end) shared = std::strstr(line, "ringdp-segment") != nullptr;
  }
  std::fclose(maps);
  return shared;
}

Request all_reduce_at(float* tensor, Deadline deadline) {
  Request request;
  request.desc.what = plan::Collective::kAllReduce;
  request.desc.dtype = DType::kF32;
  request.desc.count = kElements;
  request.buffers = {{tensor}, {tensor}};
  request.deadline = deadline;
  return request;
}

// `absent` never calls the all-reduce; with `abort` it fails the group instead of letting the others time out.
void expect_shared_after_failure(int absent, bool abort) {
  const Settings settings = with({{"heap_bytes", "67108864"}});
  const auto errors = run_fleet(3, settings, [&](int rank, Group& group, Runtime&) {
    const auto heap = group.heap();
    auto* const tensor = reinterpret_cast<float*>(heap->take(kElements * 4));
    std::fill_n(tensor, kElements, 1.0f);
    if (rank == absent) {
      if (abort) group.fail(Error(ErrorKind::kAborted, "enough"));
      while (!group.error()) std::this_thread::yield();
      throw *group.error();
    }
    const auto deadline = Deadline::after(std::chrono::milliseconds(abort ? 60'000 : 300));
    try {
      group.wait(*group.submit(all_reduce_at(tensor, deadline)), Deadline::never());
      ADD_FAILURE() << "rank " << rank << " got a result";
    } catch (const Error&) {
      EXPECT_TRUE(is_shared(tensor)) << "rank " << rank;
      EXPECT_EQ(std::count(tensor, tensor + kElements, 1.0f), kElements) << "nobody began";
      throw;
    }
  });
  const char* const words = abort ? "enough" : "has not called it";
  for (const std::string& error : errors) EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST(GroupFence, PeersThatHaveStoppedNeedNone) {
  for (const int absent : {0, 2}) {
    expect_shared_after_failure(absent, true);
    expect_shared_after_failure(absent, false);
  }
}

}  // namespace
}  // namespace ringdp::comm
