// Memory that peers map is taken and given back, and what cannot be had leaves nothing behind.
#include "gpu/device_memory.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "gpu/host_functions.h"

namespace ringdp::gpu {
namespace {

using testing::devices;

TEST(DeviceMemory, IsTakenExportedAndGivenBack) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    const DeviceMemory memory(functions, 0, 100, sharing);
    EXPECT_EQ(memory.data()[99], 0);
    UniqueFd fd;
    EXPECT_EQ(memory.handle(&fd).needs_fd, sharing == RD_GPU_SHARE_FD);
    EXPECT_EQ(static_cast<bool>(fd), sharing == RD_GPU_SHARE_FD);
  }
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(DeviceMemory, SaysWhyThereIsNone) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  devices.fails = "alloc";
  try {
    DeviceMemory(functions, 0, 100, RD_GPU_SHARE_AUTO);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "CUDA: alloc fails here");
  }
}

}  // namespace
}  // namespace ringdp::gpu
