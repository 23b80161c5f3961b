#include "device/runtime/links.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace ringdp::gpu {
namespace {

constexpr int kCopies = 3;                 // the first maps pages
constexpr int64_t kNearlyNothing = 16;     // bytes: a copy that takes what every copy takes, its stream among it
constexpr double kFasterThanLinks = 2e12;  // bytes a second
constexpr double kSlowestNvlink = 70e9;    // PCIe 5.0 x16 carries at most 63 GB/s, an A100's NVLink 300

// PCIe 4.0 x16, each way; flags cross the root complex.
constexpr double kPcieBytesPerSecond = 25e9, kPcieBarrierSeconds = 5e-6;

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

LinkSpeed speed_of_copies(const Functions& functions, int device, void* to, const void* from, int64_t bytes,
                          const std::function<double()>& now) {
  const auto least_seconds = [&](int64_t size, int* result) {
    double least = std::numeric_limits<double>::max();
    for (int k = 0; k < kCopies && *result == 0; ++k) {
      const double begin = now();
      *result = functions.copy_now(device, to, from, static_cast<size_t>(size));
      least = std::min(least, now() - begin);
    }
    return least;
  };
  int result = 0;
  const double calls = least_seconds(kNearlyNothing, &result), all = least_seconds(bytes, &result);
  if (result == RD_GPU_LATE) return {0, 1};
  if (result != 0) return {};
  const auto size = static_cast<double>(bytes);
  return {size / std::max(all - calls, size / kFasterThanLinks), 0};
}

Links links_of(double slowest) {
  Links links;
  if (slowest <= 0) return links;
  const bool pcie = slowest < kSlowestNvlink;
  const auto gigabytes = static_cast<int64_t>(slowest / 1e9);
  links.description =
      std::string("links like ") + (pcie ? "PCIe" : "NVLink") + " (" + std::to_string(gigabytes) + " GB/s)";
  if (!pcie) return links;
  links.bytes_per_second = kPcieBytesPerSecond;
  links.barrier_seconds = kPcieBarrierSeconds;
  return links;
}

}  // namespace ringdp::gpu
