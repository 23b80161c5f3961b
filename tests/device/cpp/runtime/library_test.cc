// What is opened and what is not. The real library is tested through Python, where it is built (tests/device/python).
#include "device/runtime/library.h"

#include <gtest/gtest.h>

#include "environment.h"

namespace ringdp::gpu {
namespace {

void expect_refused(const Library& library, const char* why) {
  EXPECT_FALSE(library.opened);
  EXPECT_EQ(library.functions.count, nullptr);
  EXPECT_NE(library.why_not.find(why), std::string::npos) << library.why_not;
  EXPECT_NE(library.why_not.find("RINGDP_CUDA=on"), std::string::npos) << library.why_not;
}

TEST(GpuLibrary, WhereThereIsNoneTheWayToHaveOneIsSaid) {
  expect_refused(open_library("/nowhere/libringdp_gpu.so"), "/nowhere/libringdp_gpu.so");
}

TEST(GpuLibrary, AnotherLibraryIsNotTakenForIt) { expect_refused(open_library("libm.so.6"), "no rd_gpu_abi"); }

TEST(GpuLibrary, AnotherReleaseIsRefusedWithBothNumbers) {
  const Library library = open_library(OTHER_ABI_LIBRARY);
  expect_refused(library, "ABI -7");
  EXPECT_NE(library.why_not.find("needs " + std::to_string(RD_GPU_ABI)), std::string::npos);
}

TEST(GpuLibrary, AMissingFunctionIsNamed) { expect_refused(open_library(INCOMPLETE_LIBRARY), "no rd_gpu_count"); }

TEST(GpuLibrary, TheEnvironmentNamesTheFile) {
  const Variable named("RINGDP_GPU_LIBRARY", OTHER_ABI_LIBRARY);
  EXPECT_EQ(library().path, OTHER_ABI_LIBRARY);
  expect_refused(library(), "ABI -7");
}

}  // namespace
}  // namespace ringdp::gpu
